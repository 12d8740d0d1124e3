"""`ldt report` of several runs or answers: what it prints, writes and refuses."""

import json
from functools import partial

import pytest
from typed import typed, write_lines

from ldt.cli.console import stdout
from ldt.errors import DataError

GOLD = [{"text": f"a b {n}", "kind": kind} for n, kind in enumerate("xyxzxyxx")]
OWN = ("--gold", "gold", "--format", "classification", "data.label=kind")
MLM = "{task: {name: mlm}, model: {path: model}, data: {train: t.txt}, training: {seed: 1}}\n"
CHANGED = """\
changed from A to B: 2 wrong to right, 1 right to wrong:
 where   id  change          gold  A  B 
 gold:2  2   wrong to right  y     x  y 
"""  # noqa: W291


def answers(labels):
    return [
        {"id": n, "label": label, "scores": {name: float(name == label) for name in "xyz"}}
        for n, label in enumerate(labels, 1)
    ]


@pytest.fixture
def ldt(tmp_path, capsys, monkeypatch):
    """Run ``ldt report`` in a folder with ``gold`` and answers ``a.jsonl``, ``b.jsonl``."""
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "gold", GOLD)
    write_lines(tmp_path / "a.jsonl", answers("xxxxxxxx"))
    write_lines(tmp_path / "b.jsonl", answers("xyyzxxxx"))
    return partial(typed, capsys, "report")


def test_metrics_stand_side_by_side_and_then_what_changed(ldt, monkeypatch):
    monkeypatch.setattr(stdout, "width", 100)
    code, out, err = ldt("a.jsonl", "b.jsonl", *OWN)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[:3] == ["A: a.jsonl", "B: b.jsonl", "B beside A, 8 documents:"]
    assert lines[3].split("  ")[0] == " metric"
    assert lines[4].split() == "accuracy 62.50 75.00 +12.50 -25.00 to +50.00 61.5%".split()
    assert CHANGED in out
    assert "intervals of the difference: 95%, 2,000 resamples of the documents, the same for" in out


@pytest.mark.parametrize("is_terminal", [True, False])
def test_all_fits_60_columns(ldt, monkeypatch, is_terminal):
    monkeypatch.setattr(stdout, "_force_terminal", is_terminal)
    monkeypatch.setattr(stdout, "width", 60)
    monkeypatch.setattr(stdout, "no_color", True)
    out = ldt("a.jsonl", "b.jsonl", *OWN)[1]
    tables = out.partition("documents:\n")[2].partition("intervals")[0]
    assert max(map(len, tables.splitlines())) <= 60
    assert "…" not in out
    assert "wrong to right" in out


def test_json_has_all_documents_that_changed(ldt, tmp_path):
    code, out, err = ldt("a.jsonl", "b.jsonl", *OWN, "--json", "c.json")
    assert (code, err) == (0, "c.json: written\n")
    found = json.loads((tmp_path / "c.json").read_text())
    assert [each["id"] for each in found["others"][0]["changes"]] == ["2", "3", "4"]
    assert json.loads(ldt("a.jsonl", "b.jsonl", *OWN, "--json", "-")[1]) == found


def test_options_of_answers_are_none_of_runs(ldt, monkeypatch, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.yaml").write_text(MLM.replace("mlm", "classification"))
    (tmp_path / "run" / "metrics.json").write_text('{"task": "classification", "scale": 100}')
    asked = []

    def gather(answers, *, format, recipe, **options):
        asked.append((answers, format, recipe))
        raise DataError("enough")

    monkeypatch.setattr("ldt.report.documents.gather", gather)
    monkeypatch.setattr("ldt.inference.predict.predict", lambda *_, **options: 0)
    ldt("run", "a.jsonl", *OWN)
    ldt("a.jsonl", "run", *OWN)
    assert asked[0][1:] == (None, "run")
    assert asked[1] == ("a.jsonl", "classification", None)


def test_ten_documents_are_listed(ldt, tmp_path):
    write_lines(tmp_path / "gold", [{"text": f"{n}", "kind": "x"} for n in range(12)])
    write_lines(tmp_path / "a.jsonl", answers("x" * 12))
    write_lines(tmp_path / "b.jsonl", answers("y" * 12))
    out = ldt("a.jsonl", "b.jsonl", *OWN)[1]
    assert "changed from A to B: 12 right to wrong, 10 of 12:\n" in out
    assert out.count("gold:") == 10


def test_long_answers_are_cut_on_the_screen_alone(ldt, tmp_path):
    long = "x" + " x" * 99
    write_lines(tmp_path / "gold", [{"text": "t", "kind": kind} for kind in (long, "y")])
    for name, labels in (("a.jsonl", [long, "y"]), ("b.jsonl", ["y", "y"])):
        answers = [{"id": n, "label": label} for n, label in enumerate(labels, 1)]
        write_lines(tmp_path / name, answers)
    out = ldt("a.jsonl", "b.jsonl", *OWN)[1].partition("changed")[2]
    assert "…" in out
    assert out.count("x") < 70
    found = json.loads(ldt("a.jsonl", "b.jsonl", *OWN, "--json", "-")[1])
    assert found["others"][0]["changes"][0]["before"] == long


def test_the_same_answers_are_said_to_be_the_same(ldt):
    out = ldt("a.jsonl", "a.jsonl", *OWN)[1]
    assert "no document is right in one and wrong in the other\n" in out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("a.jsonl",) * 27, "27 runs or files of answers: at most 26 are compared"),
        (("a.jsonl", "b.jsonl", *OWN, "--output", "o"), "--output: no option of a comparison"),
        (("a.jsonl", "b.jsonl"), "a.jsonl: nothing to compare: --gold names the file of"),
        (("mlm", "a.jsonl"), "mlm: nothing to compare: models of mlm have no answers that"),
        (("a.jsonl", "c.jsonl", *OWN), "c.jsonl: no such file or folder; "),
        (
            ("a.jsonl", "b.jsonl", *OWN, "--json", "b.jsonl"),
            "--json b.jsonl: a file that is read; name another",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused(ldt, tmp_path, arguments, line):
    (tmp_path / "mlm").mkdir()
    (tmp_path / "mlm" / "recipe.yaml").write_text(MLM)
    code, out, err = ldt(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {line}")
    assert err.count("\n") == 1
