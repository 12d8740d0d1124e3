"""ldt init: from a data file to a recipe that trains, asked or told."""

import os
import pty
import signal
import sys
import time
from pathlib import Path

import pytest
from processes import ldt
from typed import typed, write_lines

from ldt.recipe import load

WORDS = "the party of the first part agrees to this agreement "


@pytest.fixture
def init(monkeypatch, tmp_path, capsys):
    """Runs `ldt init ...` beside contracts.csv, with a line for each answer: (code, messages)."""
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"{n},{WORDS * 6}{n},{'ab'[n % 2]}\n" for n in range(20))
    Path("contracts.csv").write_text("number,body,outcome\n" + rows)

    def run(*arguments, answers=None, command="init"):
        if answers is not None:
            given = iter(answers)
            monkeypatch.setattr(sys, "stdin", Terminal())
            monkeypatch.setattr(
                "typer.prompt", lambda text, **options: next(given, None) or options["default"]
            )
        code, _, err = typed(capsys, command, *arguments)
        return code, err

    return run


class Terminal:
    def isatty(self):
        return True


@pytest.mark.slow
def test_a_recipe_of_a_table_trains_as_it_is_written(init, tiny_longformer):
    given = ("--model", str(tiny_longformer), "--max-length", "64", "--yes")
    code, said = init("contracts.csv", *given)
    assert code == 0
    assert said.splitlines()[-3:] == [
        "recipe.yaml: written; next:",
        "  ldt check recipe.yaml",
        "  ldt finetune recipe.yaml",
    ]
    done = ldt("finetune", "recipe.yaml", "--dry-run")
    assert done.returncode == 0, done.stderr
    recipe = load("recipe.yaml")
    assert (recipe.data.text, recipe.data.label) == ("body", "outcome")


def test_a_short_model_is_converted_first(init, minilm):
    code, said = init(
        "--data", "contracts.csv", "--model", str(minilm), "--max-length", "1024", "--yes"
    )
    assert code == 0
    name = f"{minilm.parent.name if minilm.name == 'model' else minilm.name}-1024"
    assert f"  ldt convert {minilm} {name} --max-length 1024\n" in said
    assert load("recipe.yaml").model.path == f"./{name}"


def test_questions_have_suggestions_and_are_asked_again(init):
    model = "nobody/small"
    answers = ["nothing.csv", "contracts.csv", "sorting", "", model, "short", "256"]
    code, said = init(answers=answers)
    assert code == 0
    assert "nothing.csv: no such file" in said
    assert "unknown task 'sorting'" in said
    assert "expected a number of tokens" in said
    assert "  ldt convert nobody/small small-512 --max-length 512\n" in said
    recipe = load("recipe.yaml")
    assert (recipe.task.name, recipe.data.max_length) == ("classification", 256)
    assert recipe.model.path == "./small-512"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["contracts.csv"], "--task --model --max-length must be given; or FILE and --yes"),
        (["--yes"], "FILE must be given\n"),
        (["a", "--data", "b"], "FILE 'a' and --data 'b' both name the data"),
        (["a", "--yes"], "a: no such file"),
        (["contracts.csv", "--yes", "--task", "charlm"], "ldt recipes copy charlm_small begins"),
        (["contracts.csv", "--yes", "--task", "squad"], "no field 'question', which squad reads"),
        (["contracts.csv", "--yes", "--output", "no/r.yaml"], "no: no such folder"),
    ],
)
def test_what_cannot_be_asked_or_used_is_one_line(init, arguments, line):
    code, said = init(*arguments)
    assert code == 2
    assert line in said.splitlines(keepends=True)[-1]
    assert not Path("recipe.yaml").exists()


def test_a_recipe_is_not_replaced_unless_told(init):
    Path("recipe.yaml").write_text("mine")
    given = ("contracts.csv", "--yes", "--model", "nobody/small")
    said = "recipe.yaml exists already; --overwrite replaces it, --output NAME keeps it"
    assert init(*given) == (2, f"error: {said}\n")
    assert Path("recipe.yaml").read_text() == "mine"
    assert init(*given, "--overwrite")[0] == 0
    assert Path("recipe.yaml").read_text() != "mine"


def table(columns, rows, name="t.csv", encoding="cp1252"):
    lines = [";".join(columns), *(";".join(map(str, row)) for row in rows)]
    Path(name).write_text("\n".join(lines), encoding)


def test_columns_of_x_become_the_classes_and_what_is_left_out_is_said(init, tiny_longformer):
    marks = [("x" if n % 2 else "", "X" if n % 3 else "", "x", "", f"n{n}") for n in range(20)]
    rows = [(f"V-{n}", f"Verträge {WORDS * 6}{n}", *each) for n, each in enumerate(marks)]
    table(["Vertrags-Nr", "Volltext", "Cap", "Audit", "Parties", "Escrow", "Note"], rows)
    given = ("--model", str(tiny_longformer), "--max-length", "64", "--yes")
    code, said = init("t.csv", *given)
    assert code == 0, said
    assert said.splitlines()[-6:-3] == [
        "text: Volltext, some 87 tokens on average",
        "label: Cap, Audit, 2 classes: Audit (13), Cap (10)",
        "left out: Parties, Escrow, Note",
    ]
    recipe = load("recipe.yaml")
    assert (recipe.data.label, recipe.data.id) == (["Cap", "Audit"], "Vertrags-Nr")
    assert recipe.data.eval_fraction == 0.3  # of 20
    assert init("recipe.yaml", "--dry-run", command="finetune")[0] == 0


@pytest.mark.parametrize(
    ("words", "label"),
    [
        (("x", ""), ["Cap"]),  # blank is no, which a single field cannot say
        (("ja", "nein"), "Cap"),
        (("", "x"), ["Cap"]),
    ],
)
def test_one_column_of_yes_and_no_is_a_label(init, words, label):
    table(["body", "Cap"], [(f"{WORDS * 6}{n}", words[n % 2]) for n in range(12)])
    assert init("t.csv", "--model", "nobody/small", "--yes")[0] == 0
    assert load("recipe.yaml").data.label == label


def test_the_share_to_evaluate_on_is_one_that_has_the_classes(init):
    rows = [(f"{WORDS * 6}{n}", *("x" if n % k == 0 else "" for k in (2, 8))) for n in range(40)]
    table(["body", "Cap", "Audit"], rows)
    assert init("t.csv", "--model", "nobody/small", "--yes")[0] == 0
    assert load("recipe.yaml").data.eval_fraction == 0.2
    text = " ".join(Path("recipe.yaml").read_text().replace("#", "").split())
    assert "Here 8 of 40 records; the rarest class that can be in both parts has 5." in text


@pytest.mark.parametrize(
    ("columns", "rows", "line"),
    [
        (
            ["body", "Label"],
            [(f"{WORDS}{n}", "a") for n in range(9)],
            "t.csv: no label that can be learned: the training set: nothing to learn, all 9",
        ),
        (
            ["body", "Note"],
            [(f"{WORDS}{n}", f"n{n}") for n in range(9)],
            "t.csv: no label found in 'Note'; --task names what is to be",
        ),
    ],
)
def test_without_a_label_there_is_an_error_and_no_recipe(init, columns, rows, line):
    table(columns, rows)
    code, said = init("t.csv", "--model", "nobody/small", "--yes")
    assert code == 4
    assert said.splitlines()[-1].startswith(f"error: {line}")
    assert "written" not in said
    assert not Path("recipe.yaml").exists()


def test_a_column_of_text_files_is_the_text(init, tiny_longformer):
    Path("texte").mkdir()
    for n in range(12):
        Path(f"texte/v{n}.txt").write_text(f"{n} {WORDS * 9}")
    table(["Datei", "Art"], [(f"texte/v{n}.txt", "ab"[n % 2]) for n in range(12)])
    given = ("--model", str(tiny_longformer), "--max-length", "64", "--yes")
    code, said = init("t.csv", *given)
    assert code == 0, said
    recipe = load("recipe.yaml")
    assert (recipe.data.text_files, recipe.data.text, recipe.data.label) == (
        "Datei",
        "Datei",
        "Art",
    )
    assert init("recipe.yaml", "--dry-run", command="finetune")[0] == 0
    Path("texte/v3.txt").unlink()
    code, said = init("recipe.yaml", "--dry-run", command="finetune")
    assert code == 4
    assert "t.csv:5: field 'Datei' is 'texte/v3.txt': no such file in " in said


def test_inputs_of_a_corpus_are_as_long_as_all_of_it_allows(init):
    Path("texts").mkdir()
    for n in range(40):
        Path(f"texts/{n}.txt").write_text(WORDS * 150)  # some 2,000 tokens
    assert init("texts", "--task", "mlm", "--model", "nobody/small", "--yes")[0] == 0
    assert load("recipe.yaml", command="pretrain").data.max_length == 4096


def test_a_run_named_model_gives_its_own_name(init):
    Path("mine/model").mkdir(parents=True)
    code, said = init("contracts.csv", "--model", "mine/model", "--max-length", "64", "--yes")
    assert "ldt convert mine/model mine-64" in said or code == 5, said


@pytest.mark.slow
def test_an_interruption_at_a_question_leaves_nothing(init, tmp_path):
    process, terminal = pty.fork()
    if not process:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # what runs in the background ignores it
        os.execv(sys.executable, [sys.executable, "-m", "ldt", "init", "contracts.csv"])
    shown = b""
    while b"Task" not in shown:
        shown += os.read(terminal, 1024)
    time.sleep(0.1)
    os.write(terminal, b"\x03")
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 130
    os.close(terminal)
    assert os.listdir(tmp_path) == ["contracts.csv"]


def test_summaries_begin_with_a_bart_and_are_cut_off(init, tmp_path):
    rows = [{"text": WORDS * 9, "summary": "It ends."}] * 8
    write_lines(Path("pairs.jsonl"), rows)
    code, said = init("pairs.jsonl", "--yes")
    assert code == 0
    recipe = load("recipe.yaml", command="finetune")
    assert (recipe.task.name, recipe.data.overflow) == ("summarization", "truncate")
    assert recipe.model.path.startswith("./bart-base-")
    assert "ldt convert facebook/bart-base bart-base-" in said
