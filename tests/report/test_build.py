import json
from dataclasses import replace

import pytest

from ldt.errors import ModelError, UserError
from ldt.metrics import task_metrics
from ldt.metrics.baseline import Baseline
from ldt.metrics.result import Item, Result
from ldt.metrics.task_metrics import Judged
from ldt.recipe.run import Run
from ldt.report import build, subject
from ldt.report import charts as curves
from ldt.report.charts import Matrix
from ldt.report.model import MISSING, SILENT, Document
from ldt.report.subject import Subject

RECIPE = """\
task: {name: classification}
model: {path: model}
data: {train: train.jsonl, eval: EVAL, max_length: 512}
training: {output_dir: r, seed: 3}
"""
RESULTS = {
    "metrics": {"eval_loss": 0.5, "eval_macro_f1": 75.0, "eval_accuracy": 80.0, "train_loss": 0.6},
    "baseline": {"accuracy": {"answer": "always 'a'", "value": 60.0}},
    "table": [{"class": "a", "f1": 75.0}],
    "scale": 100,
    "metric": "accuracy",
    "steps": 20,
    "task": "classification",
    "parameters": 1_234_567,
    "base_model": "longer",
    "max_length": 512,
    "data": {
        "train": {"source": "train.jsonl", "sha256": "x", "documents": 80},
        "eval": {"source": "dev.jsonl", "sha256": "y", "documents": 10},
    },
    "seconds": 130.0,
    "finished": "2026-11-25T09:43:49+0000",
    "versions": {"ldt": "1", "torch": "2"},
}
LOG = [
    {"step": 10, "loss": 0.9, "learning_rate": 1e-4, "grad_norm": 1.0},
    {"step": 10, "eval_loss": 0.8, "eval_accuracy": 60.0, "eval_runtime": 1.0},
    {"step": 20, "loss": None, "learning_rate": 0.0},
    {"step": 20, "eval_loss": 0.5, "eval_accuracy": 80.0, "eval_runtime": 1.0},
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A finished run, ``r``, without weights, and the file of its evaluation set."""
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "r"
    run.mkdir()
    (run / "recipe.yaml").write_text(RECIPE.replace("EVAL", "dev.jsonl"))
    (run / "metrics.json").write_text(json.dumps(RESULTS))
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in LOG))
    (tmp_path / "dev.jsonl").write_text('{"text": "x", "label": "a"}\n')
    return run


def judged(gold, answers, scores=None):
    return [
        Judged(f"d{n}", f"gold:{n}", f"u{n}", 100 * n, right, {"label": answer, "scores": each})
        for n, (right, answer, each) in enumerate(
            zip(gold, answers, scores or [None] * len(gold), strict=True)
        )
    ]


def answered(gold, answers, scores=None, several=False):
    rows = judged(gold, answers, scores)
    names = sorted({x for each in [*gold, *answers] for x in (each if several else [each])})
    result = task_metrics.classes(rows, names, several=several)
    documents = [
        Document(
            each.id, each.where, gold=str(each.gold), answer=str(answer), right=each.gold == answer
        )
        for each, answer in zip(rows, answers, strict=True)
    ]
    return Subject("answers.jsonl", None, result, documents, "gold.jsonl")


def charts(found):
    return {each.title: each for each in found.charts}


def test_the_sentence_says_how_many_are_right_and_whether_reading_was_of_use():
    subject = answered(["a"] * 30 + ["b"] * 30, ["a"] * 29 + ["b"] * 31)
    subject.result.baselines = {"macro_f1": Baseline("always 'a'", 33.33)}
    low, high = subject.result.intervals["macro_f1"]
    assert build.report(subject).sentence == (
        f"59 of 60 documents are answered rightly. Its macro_f1 is 98.33 (95 % interval "
        f"{low:.2f} to {high:.2f}); always 'a': 33.33 without reading, so the "
        "model is better than that."
    )


def test_no_answer_is_neither_right_nor_wrong_and_figures_have_a_meaning():
    subject = answered(list("aabb"), ["a", "b", "b", "b"])
    why = SILENT, MISSING
    documents = [
        replace(each, right=None, unanswered=reason)
        for each, reason in zip(subject.documents, why, strict=False)
    ]
    found = build.report(replace(subject, documents=[*documents, *subject.documents[2:]]))
    words = "2 of 2 answered documents are right; 1 left to a person; 1 without an answer. Its"
    assert found.sentence.startswith(words)
    assert found.figures[0].name == "macro_f1"  # as of a run that went by it
    for figure in found.figures:
        assert found.meanings[figure.name].endswith("higher is better")
    assert found.meanings["support"]


def test_what_a_run_decides_by_is_told(folder):
    measured = {"documents": 9, "source": "held.jsonl", "threshold_target": "recall>=0.9"}
    decisions = {"thresholds": {"a": 0.25}, "measured": measured}
    (folder / "config.json").write_text(json.dumps({"decisions": decisions}))
    told = build.report(Subject("r", Run(folder).describe())).facts["decides by"]
    assert (
        told == "thresholds of 1 class tuned for recall>=0.9; chosen on 9 documents of held.jsonl"
    )


@pytest.mark.parametrize(
    ("name", "value", "interval", "words"),
    [
        ("f1", 60.0, (55.0, 65.0), "better than that"),
        ("f1", 60.0, (45.0, 65.0), "better than that, but it may be chance"),
        ("f1", 50.0, (45.0, 65.0), "no better than that"),
        ("f1", 60.0, None, "better than that"),
        ("mae", 40.0, (35.0, 45.0), "better than that"),
        ("mae", 40.0, (35.0, 55.0), "better than that, but it may be chance"),
        ("mae", 60.0, (55.0, 65.0), "no better than that"),
    ],
)
def test_better_is_told_from_chance(name, value, interval, words):
    result = Result("x", [], {name: value}, "documents", [], [])
    result.baselines = {name: Baseline("always", 50.0)}
    result.__dict__["intervals"] = {name: interval} if interval else {}
    assert build.report(Subject("a", None, result)).sentence.endswith(f"the model is {words}.")


def test_answers_without_gold_are_counted_and_nothing_else():
    found = build.report(Subject("answers.jsonl", documents=[Document("1", "a:1", answer="x")]))
    assert found.sentence == "1 answer; without gold nothing tells how many are right."
    assert (found.figures, found.charts, found.tables) == ([], [], [])


def test_the_confusion_is_a_table_of_gold_by_answer():
    found = charts(build.report(answered(list("aaab"), list("aabb"))))
    matrix = found["Confusion: right class by row, answer by column"]
    assert (matrix.rows, matrix.columns, matrix.counts) == (
        ["a", "b"],
        ["a", "b"],
        [[2, 1], [0, 1]],
    )


def test_rare_classes_of_a_confusion_are_counted_together():
    gold = [f"c{n:02}" for n in range(30) for _ in range(30 - n)]
    found = charts(build.report(answered(gold, gold[1:] + gold[:1])))
    matrix = found["Confusion: right class by row, answer by column"]
    assert matrix.rows == [*(f"c{n:02}" for n in range(curves.CLASSES - 1)), "other"]
    assert sum(map(sum, matrix.counts)) == len(gold)
    assert sum(matrix.counts[-1]) == sum(30 - n for n in range(curves.CLASSES - 1, 30))


def test_with_several_classes_each_has_a_bar():
    gold, answers = [["b"], ["a", "b"], []], [["b"], ["b"], ["a"]]
    report = build.report(answered(gold, answers, several=True))
    bars = charts(report)["F1 of each class"]
    assert list(bars.bars.items()) == [("b", 100.0), ("a", 0.0)]
    assert bars.counts == {"b": 2, "a": 1}
    assert [each.title for each in report.tables] == ["Classes", "Right and wrong by class"]
    assert not any(isinstance(each, Matrix) for each in report.charts)


def test_scores_have_their_curves():
    scores = [{"a": p, "b": 1 - p} for p in (0.9, 0.8, 0.4, 0.3)]
    found = charts(build.report(answered(list("aaab"), list("aabb"), scores)))
    curve = found["Precision by recall"]
    assert set(curve.series) == {"a", "b"}
    assert curve.series["a"][0] == (0.0, 100.0)
    assert curve.series["b"][-1] == (100.0, 100.0)
    points = found["Reliability: how often answers of a probability are right"]
    assert (points.points, points.diagonal) == (True, True)
    assert sorted(points.series["answers"]) == [
        (pytest.approx(100 * p), right)
        for p, right in ((0.6, 0), (0.7, 100), (0.8, 100), (0.9, 100))
    ]


def test_scores_by_length_and_place_have_their_counts():
    items = [
        Item(str(n), n, {"f1": score}, words, place)
        for n, (score, words, place) in enumerate(
            [(1.0, 10, 0.1), (0.0, 300, 0.1), (1.0, 300, 0.9), (0.0, 300, "yes or no")]
        )
    ]
    result = Result("x", items, {"f1": 50.0}, "documents", [], [])
    found = charts(build.report(Subject("a", None, result)))
    length = found["Score by length of the document"]
    assert length.bars == {"0 to 249": 100.0, "250 to 499": pytest.approx(100 / 3)}
    assert length.counts == {"0 to 249": 1, "250 to 499": 3}
    place = found["Score by where in the document the answer stands"]
    assert place.counts == {"first quarter": 2, "last quarter": 1, "yes or no": 1}


def test_counts_are_no_figures_and_some_of_the_questions_have_a_table():
    result = Result("x", [], {"total": 3, "f1": 50.0}, "documents", [], [])
    result.subsets = {"verified": {"f1": 75.0}}
    found = build.report(Subject("a", None, result))
    assert [each.name for each in found.figures] == ["f1"]
    (table,) = found.tables
    assert (table.title, table.rows) == (
        "Some of the questions",
        [{"questions": "verified", "f1": 75.0}],
    )


def test_a_run_shows_what_it_logged(folder):
    found = build.report(Subject("r", Run(folder).describe()))
    drawn = charts(found)
    assert drawn["Loss"].series == {
        "training": [(10, 0.9)],
        "evaluation": [(10, 0.8), (20, 0.5)],
    }
    assert drawn["Evaluation: accuracy"].series == {"eval_accuracy": [(10, 60), (20, 80)]}
    assert drawn["Learning rate"].series == {"learning rate": [(10, 1e-4), (20, 0)]}
    assert [(each.name, each.value, each.baseline) for each in found.figures] == [
        ("accuracy", 80.0, 60.0),
        ("loss", 0.5, None),
        ("macro_f1", 75.0, None),
    ]
    assert found.sentence == (
        "Its accuracy is 80.00 at the end of the training; always 'a': 60.00 without reading, so "
        "the model is better than that."
    )
    assert found.facts == {
        "task": "classification",
        "model": "longer",
        "parameters": "1,234,567",
        "longest input": "512 tokens",
        "train data": "train.jsonl: 80 documents",
        "eval data": "dev.jsonl: 10 documents",
        "training": "20 steps in 2:10",
        "finished": "2026-11-25T09:43:49+0000",
        "versions": "ldt 1, torch 2",
    }
    assert [each.title for each in found.tables] == ["Classes"]


def test_a_run_that_is_not_finished_shows_how_far_it_is(folder):
    (folder / "metrics.json").unlink()
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 30, "lo')  # being written
    found = build.report(subject.subject(str(folder)))
    assert found.facts["training"] == "not finished, at step 20"
    assert found.warnings == [
        "no documents on this page: the run is not finished, so that its model does not answer yet"
    ]
    assert {each.name: each.value for each in found.figures} == {"loss": 0.5, "accuracy": 80.0}
    assert " so far" in found.sentence


def test_documents_of_the_evaluation_have_the_baseline_of_the_training(folder):
    result = Result("x", [], {"rouge1": 70.0, "accuracy": 70.0}, "documents", [], [])
    run = Run(folder).describe()
    found = build.report(Subject("r", run, result, evaluated=True)).figures
    assert [(each.name, each.baseline, each.baseline_answer) for each in found] == [
        ("accuracy", 60.0, "always 'a'"),
        ("rouge1", None, ""),
    ]
    assert build.report(Subject("r", run, result)).figures[0].baseline is None


def test_a_long_log_is_drawn_by_means():
    log = [{"step": n, "loss": float(n % 2)} for n in range(10_000)]
    (chart,) = curves.of_training(log, None)
    points = chart.series["training"]
    assert len(points) == curves.POINTS
    assert points[-1][0] == 9999
    assert all(value == pytest.approx(0.5, abs=0.05) for _, value in points)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("{train: t, eval: gone.jsonl}", "data.eval: 'gone.jsonl' is not there any more"),
        ("{train: t, eval: 'gone-*.jsonl'}", "data.eval: gone-*.jsonl: no file has such a name"),
        (
            "{train: t, eval_fraction: 0.2}",
            "the evaluation set is a part of data.train (0.2), no file",
        ),
        ("{train: t}", "there is no evaluation set"),
    ],
)
def test_a_run_without_its_evaluation_set_says_why_there_are_no_documents(folder, data, why):
    lines = RECIPE.splitlines()
    lines[2] = f"data: {data}"
    (folder / "recipe.yaml").write_text("\n".join(lines))
    found = subject.subject(str(folder))
    assert why in found.missing
    assert "--gold names" in found.missing
    assert found.documents == ()
    assert build.report(found).warnings == [f"no documents on this page: {found.missing}"]


def test_the_model_is_asked_as_its_training_read_the_documents(folder, monkeypatch):
    keys = "eval: dev.jsonl, encoding: latin-1, format: csv, text: body, id: name"
    (folder / "recipe.yaml").write_text(RECIPE.replace("eval: EVAL", keys))
    asked = []

    def predict(input, **options):
        asked.append((input, {**options, "output": options["output"].rpartition("/")[2]}))
        return 0

    monkeypatch.setattr("ldt.inference.predict.predict", predict)
    monkeypatch.setattr("ldt.report.documents.gather", lambda answers, **options: (None, []))
    subject.subject(str(folder), passages=2)
    data = {"format": "csv", "text": "body", "id": "name", "encoding": "iso8859-1"}
    options = {"model": str(folder), "output": "answers.jsonl", "passages": 2, "data": data}
    assert asked == [(["dev.jsonl"], options)]


def test_options_that_do_not_go_together_are_refused(folder):
    with pytest.raises(UserError, match="--recipe x: .*r is a run, which has a recipe of its own"):
        subject.subject(str(folder), recipe="x")
    with pytest.raises(UserError, match="--answers b: of a run folder's model, but dev.jsonl is"):
        subject.subject("dev.jsonl", answers="b")
    with pytest.raises(UserError, match="none: no such file or folder"):
        subject.subject("none")
    (folder / "recipe.yaml").unlink()
    with pytest.raises(ModelError, match="no recipe.yaml, so this is no folder of a run"):
        subject.subject(str(folder))


def test_facts_of_runs_are_their_keys_and_what_they_took(folder):
    facts = Subject("r", Run(folder).describe()).facts()
    assert facts["data.max_length"] == "512"
    assert facts["training.seed"] == "3"
    assert facts["training time (s)"] == "130"
    assert "training.output_dir" not in facts
