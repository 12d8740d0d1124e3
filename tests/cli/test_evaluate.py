"""`ldt evaluate` of answers in ldt's own layout: what it prints, writes and refuses."""

import json
from functools import partial

import pytest
from typed import typed, write_lines

from ldt.cli.console import stdout

GOLD = [{"text": "a b", "kind": kind} for kind in ("x", "y", "x", "[/z]")]
SCORES = {"x": 0.8, "y": 0.1, "[/z]": 0.1}
PRED = [{"id": n, "label": "x", "scores": SCORES, "chunks": 1} for n in (1, 2, 3, 4)]
LINES = """\
classification: 4 documents, 4 predicted; figures from 0 to 100
accuracy 50.00 (always 'x': 50.00)
macro_f1 22.22 (always 'x': 22.22)
micro_f1 50.00 (always 'x': 50.00)
macro_average_precision 33.33
macro_roc_auc 50.00
brier 0.7600
nll 1.2629
ece 0.3000
no intervals: they take two different documents at least
classes:
 class  precision  recall  f1     support  AP     AUC   
 x      50.00      100.00  66.67  2        50.00  50.00 
 y                 0.00    0.00   1        25.00  50.00 
 [/z]              0.00    0.00   1        25.00  50.00 
confusion:
 gold  answer  documents 
 y     x       1         
 [/z]  x       1         
 x     x       2         
worst:
 where   id  gold  answer  nll    
 gold:2  2   y     x       2.3026 
 gold:4  4   [/z]  x       2.3026 
words of the document: 0 to 249: 4 documents, accuracy 50.00, macro_f1 22.22
where the answer stands: not known; an answer has no place
"""  # noqa: W291  # a table has blanks at its right


@pytest.fixture
def ldt(tmp_path, capsys, monkeypatch):
    """Run ``ldt evaluate`` in a folder with ``gold`` and ``pred``: (exit code, out, err)."""
    monkeypatch.chdir(tmp_path)
    for name, records in (("gold", GOLD), ("pred", PRED)):
        write_lines(tmp_path / name, records)
    return partial(typed, capsys, "evaluate", "--gold", "gold", "--pred", "pred")


OWN = ("--format", "classification", "data.label=kind")


def test_a_pipe_gets_lines_and_tables(ldt):
    warning = "warning: no better than always 'x': accuracy 50.00\n"
    assert ldt(*OWN) == (0, LINES, warning)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_all_fits_60_columns(ldt, monkeypatch, is_terminal):
    monkeypatch.setattr(stdout, "_force_terminal", is_terminal)
    monkeypatch.setattr(stdout, "width", 60)
    monkeypatch.setattr(stdout, "no_color", True)
    out = ldt(*OWN)[1]
    tables = out.partition("classes:\n")[2].partition("words of the document")[0]
    assert max(map(len, tables.splitlines())) <= 60
    assert "…" not in out
    assert "[/z]" in tables


def test_json_has_what_the_tables_show_and_the_curves(ldt):
    code, out, _ = ldt(*OWN, "--json", "-")
    found = json.loads(out)
    assert code == 0
    assert found["metrics"]["accuracy"] == 50
    assert found["tables"]["classes"][0]["average_precision"] == 50
    assert found["tables"]["confusion"][0] == {"gold": "y", "answer": "x", "documents": 1}
    assert found["tables"]["worst"][0]["where"] == "gold:2"
    assert found["curves"]["reliability"] == [
        {"answers": 4, "probability": pytest.approx(0.8), "right": 0.5}
    ]
    assert found["curves"]["precision_at_recall"]["x"][0] == [0.0, 50.0]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--format", "classification"], "gold:1: no field 'label'; it has 'text', 'kind'"),
        ([*OWN, "--na-prob", "x"], "--na-prob: no option of answers in ldt's own"),
        (
            ["--format", "squad", "data.label=kind"],
            "data.label=kind: not read here",
        ),
        (
            ["--format", "squad", "--recipe", "r.yaml"],
            "--recipe: no option of --format squad, whose",
        ),
        (["--recipe", "r.yaml"], "r.yaml: No such file or directory"),
        ([*OWN, "data.lable=x"], "data.lable=x: unknown key, did you mean 'label'?"),
        ([*OWN, "--recipe", "gold"], "gold:"),
    ],
)
def test_a_wrong_option_is_one_line(ldt, options, line):
    code, out, err = ldt(*options)
    assert (out, err.count("\n")) == ("", 1)
    assert code in (2, 3, 4)
    assert err.startswith(f"error: {line}")
