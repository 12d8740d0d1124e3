"""`ldt report`: what it writes, prints and refuses."""

import json
import logging
from functools import partial

import pytest
from classified import make_run
from typed import typed, write_lines

GOLD = [{"text": "a b", "kind": kind} for kind in ("x", "y", "x", "z")]
PRED = [
    {"id": n, "label": "x", "scores": {"x": 0.8, "y": 0.1, "z": 0.1}, "chunks": 1}
    for n in (1, 2, 3, 4)
]
RECIPE = """
task: {name: classification}
model: {path: somewhere}
data: {train: train.jsonl, eval: dev.jsonl, max_length: 64}
"""
OWN = ("--gold", "gold", "--format", "classification", "data.label=kind")


@pytest.fixture
def ldt(tmp_path, capsys, monkeypatch):
    """Run ``ldt report`` in a folder with ``gold`` and ``pred.jsonl``: (exit code, out, err)."""
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "gold", GOLD)
    write_lines(tmp_path / "pred.jsonl", PRED)
    return partial(typed, capsys, "report")


def test_answers_and_gold_make_a_page_beside_the_answers(ldt, tmp_path):
    code, out, err = ldt("pred.jsonl", *OWN)
    assert (code, out) == (
        0,
        "pred.html\n2 of 4 documents are answered rightly. Its macro_f1 is 22.22; always 'x': "
        "22.22 without reading, so the model is no better than that.\n",
    )
    assert err == "warning: no better than always 'x': accuracy 50.00\n"
    page = (tmp_path / "pred.html").read_text("utf-8")
    assert page.startswith("<!doctype html>")
    assert "2 of 4 documents are answered rightly." in page
    assert "Confusion: right class by row, answer by column" in page


def test_all_puts_every_text_in_the_page(ldt, tmp_path, monkeypatch):
    for count in ("WORST", "DRAWN"):
        monkeypatch.setattr(f"ldt.report.page.{count}", 1)
    for option, texts in ((), 3), (("--all",), 4):  # one is doubtful
        assert ldt("pred.jsonl", *OWN, *option)[0] == 0
        assert (tmp_path / "pred.html").read_text("utf-8").count('"parts":') == texts


def test_answers_alone_make_a_page_without_figures(ldt, tmp_path):
    code, out, err = ldt("pred.jsonl", "--output", "page.html")
    assert (code, err) == (0, "")
    assert out == "page.html\n4 answers; without gold nothing tells how many are right.\n"
    assert "Confusion" not in (tmp_path / "page.html").read_text("utf-8")


@pytest.mark.parametrize("name", ["gold", "pred.jsonl"])
def test_a_file_that_is_read_is_not_overwritten(ldt, tmp_path, name):
    before = (tmp_path / name).read_text()
    code, out, err = ldt("pred.jsonl", *OWN, "--output", name)
    assert (code, out) == (2, "")
    assert err == f"error: --output {name}: a file that is read; name another\n"
    assert (tmp_path / name).read_text() == before


def test_answers_that_end_in_html_are_not_overwritten(ldt, tmp_path):
    (tmp_path / "pred.jsonl").rename(tmp_path / "pred.html")
    code, _, err = ldt("pred.html", *OWN)
    assert code == 2
    assert err == "error: --output pred.html: a file that is read; name another\n"


def test_a_folder_that_is_no_run_has_no_page(ldt, tmp_path):
    (tmp_path / "empty").mkdir()
    assert ldt("empty") == (0, "", "no runs in empty; ldt finetune RECIPE makes one\n")
    code, _, err = ldt("empty", "pred.jsonl", *OWN)
    assert code == 5
    assert err.startswith("error: empty: no recipe.yaml, so this is no folder of a run;")


@pytest.mark.parametrize("option", [("--sort", "name"), ("--json", "-")])
def test_a_page_has_no_options_of_lists(ldt, option):
    assert ldt("pred.jsonl", *OWN, *option)[2] == f"error: {option[0]}: no option of a page\n"


@pytest.fixture
def run(ldt, tmp_path, tiny_longformer, capsys):
    """A finished run, ``run``, that was evaluated on ``dev.jsonl``."""
    folder = tmp_path / "run"
    folder.mkdir()
    make_run(tiny_longformer, folder)
    write_lines(tmp_path / "dev.jsonl", [{"text": f"a b {n}", "label": "yes"} for n in range(3)])
    (folder / "recipe.yaml").write_text(RECIPE)
    results = {"task": "classification", "scale": 100, "metric": "accuracy", "steps": 1}
    results |= {"metrics": {"eval_accuracy": 50.0}, "seconds": 1.0, "finished": "2026-11-25"}
    (folder / "metrics.json").write_text(json.dumps(results))
    capsys.readouterr()
    return folder


def test_the_model_of_a_run_answers_its_evaluation_set(ldt, run, tmp_path):
    code, out, err = ldt("run")
    assert code == 0
    assert out.startswith("run/report.html\n")
    assert " of 3 documents are answered rightly. Its accuracy is " in out
    assert "run: answering dev.jsonl\n" in err
    assert "3 documents, 3 inputs" in err
    page = (run / "report.html").read_text("utf-8")
    assert "Evaluation at the end of the training" in page
    assert "dev.jsonl:3" in page


def test_answers_that_are_there_are_taken(ldt, run, tmp_path):
    scores = {"yes": 1.0, "no": 0.0}
    write_lines(tmp_path / "a", [{"id": n, "label": "yes", "scores": scores} for n in (1, 2, 3)])
    code, out, err = ldt("run", "--answers", "a")
    assert (code, "answering" in err) == (0, False)
    assert "3 of 3 documents are answered rightly." in out


def test_a_file_of_the_run_is_not_overwritten(ldt, run):
    code, _, err = ldt("run", "--output", "run/metrics.json")
    assert code == 2
    assert err == "error: --output run/metrics.json: a file of the run; name another\n"


def test_without_what_draws_the_charts_no_model_answers(ldt, run, monkeypatch):
    monkeypatch.setattr("ldt.report.charts.find_spec", lambda name: None)
    code, out, err = ldt("run")
    assert (code, out) == (2, "")
    assert err.startswith("error: a report needs matplotlib")


def test_a_page_without_documents_says_why(ldt, run, tmp_path):
    (tmp_path / "dev.jsonl").unlink()
    code, out, err = ldt("run")
    why = "no documents on this page: data.eval: 'dev.jsonl' is not there any more"
    assert (code, out) == (
        0,
        "run/report.html\nIts accuracy is 50.00 at the end of the training.\n",
    )
    assert err == f"warning: {why}; --gold names another\n"
    assert why in (run / "report.html").read_text("utf-8").replace("&#39;", "'")


def test_a_run_that_is_stopped_while_it_answers_keeps_nothing_and_says_so(ldt, run, monkeypatch):
    def predict(input, *, output, **options):
        logging.getLogger("ldt").info("SIGINT: 2 answers kept in %s; --resume goes on", output)
        return 130

    monkeypatch.setattr("ldt.inference.predict.predict", predict)
    code, out, err = ldt("run")
    assert (code, out) == (130, "")
    assert err == "run: answering dev.jsonl\nrun: no answer is kept\n"
    assert not (run / "report.html").exists()
