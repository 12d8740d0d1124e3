"""What ldt check prints, and how it ends."""

import json
from pathlib import Path

import pytest
from typed import typed, write_lines

WORDS = "the party of the first part agrees to this agreement "
RECIPE = "task: {name: classification}\nmodel: {path: no/model}\ndata: {train: t.jsonl}\n"


@pytest.fixture
def check(monkeypatch, tmp_path, capsys):
    """Runs `ldt check ...` on a recipe, with two more texts than clean ones: (code, output)."""
    monkeypatch.chdir(tmp_path)
    Path("r.yaml").write_text(RECIPE)

    def run(texts, *arguments):
        clean = [f"{n} " + "".join(f"part{n}of{m} " for m in range(30)) for n in range(8)]
        rows = [{"text": text, "label": "ab"[n % 2]} for n, text in enumerate([*clean, *texts])]
        write_lines(Path("t.jsonl"), rows)
        return typed(capsys, "check", "r.yaml", *arguments)[:2]

    return run


def test_a_finding_has_its_count_places_and_what_would_do(check):
    code, said = check(["CafÃ© au lait", "  "])
    assert code == 4
    assert said.splitlines()[:6] == [
        "warning: wrong_encoding: train: 1 of 10 (10 %) were decoded in a wrong encoding:",
        "  at character 3: 'Caf\\xc3\\xa9 au lait'",
        "  at t.jsonl:9",
        "  read the source as UTF-8 again; the package ftfy mends much of it",
        "warning: empty: train: 1 of 10 (10 %) have no letter or digit in their text: no",
        "  letter or digit",
    ]
    assert max(map(len, said.splitlines())) <= 80


def test_nothing_found_ends_with_0(check):
    code, said = check([])
    assert code == 0
    assert said.startswith("nothing found in 8 train documents\n")
    assert "lengths are in words: no/model: no such folder" in said


@pytest.mark.parametrize("target", ["-", "report.json"])
def test_a_report_for_programs_has_the_same(check, target):
    code, said = check([WORDS * 4] * 2, "--json", target)
    report = json.loads(said if target == "-" else Path(target).read_text())
    assert code == report["exit_code"] == 4
    (finding,) = report["findings"]
    assert (finding["kind"], finding["level"], finding["count"]) == ("contradiction", "fault", 1)
    assert finding["where"] == ["t.jsonl:10"]
    assert report["documents"] == {"train": 10}


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("task.name=sorting", "unknown task 'sorting'"),
        ("training.learning_rat=1", "did you mean 'learning_rate'?"),
    ],
)
def test_a_recipe_that_cannot_work_is_an_error(check, capsys, override, line):
    code, _, err = typed(capsys, "check", "r.yaml", override)
    assert code == 3
    assert line in err


def test_a_shipped_recipe_is_named_once(check, caplog, capsys):
    caplog.set_level("INFO", "ldt")
    Path("r.yaml").unlink()
    typed(capsys, "check", "classification", "data.train=no.jsonl", "--no-cost")
    assert sum("the recipe" in message for message in caplog.messages) == 1
