import gzip
import json

import numpy as np
import pytest
from scored import evaluate
from sklearn.metrics import f1_score

from ldt.benchmarks import lexglue
from ldt.benchmarks.lexglue import TASKS
from ldt.errors import DataError, UserError


@pytest.fixture
def score(tmp_path):
    """Score gold lines by predictions: rows of logits, or lines."""

    def score(gold, pred, **options):
        for name, lines in (("gold", gold), ("pred", pred)):
            if isinstance(lines, list) and isinstance(lines[0], list):
                lines = lexglue.table(lines)
            elif isinstance(lines, list):
                lines = "".join(json.dumps(line) + "\n" for line in lines)
            (tmp_path / name).write_text(lines)
        return evaluate("lexglue", tmp_path / "gold", tmp_path / "pred", **options)

    return score


def logits(columns, *chosen):
    return [1.0 if number in chosen else -1.0 for number in range(columns)]


def labelled(*rows):
    return [{"text": "a b", "labels": list(row)} for row in rows]


def test_eurlex_has_none(score):
    gold, pred = [[0], [], [99]], [[0], [], []]
    result = score(labelled(*gold), [logits(100, *row) for row in pred])
    assert result.metrics == pytest.approx({"micro-f1": 200 / 3, "macro-f1": 1})
    assert result.title == "lexglue, eurlex"


def test_unfair_tos_has_one_too(score):
    result = score(labelled([], [3]), [logits(8), logits(8, 3)])
    assert result.metrics == pytest.approx({"micro-f1": 100, "macro-f1": 100 * 2 / 9})


@pytest.mark.parametrize("columns", [13, 14])
def test_scotus_counts_only_classes_that_occur(score, columns):
    # Gold 0 0 5, predicted 0 5 5: both F1 are 2/3, of the two classes that occur.
    gold = [{"text": "a", "label": label} for label in (0, 0, 5)]
    result = score(gold, [logits(columns, label) for label in (0, 5, 5)])
    assert result.metrics == pytest.approx({"micro-f1": 200 / 3, "macro-f1": 200 / 3})
    assert result.metrics["macro-f1"] == pytest.approx(
        100 * f1_score([0, 0, 5], [0, 5, 5], average="macro")
    )


def test_a_predicted_class_that_gold_does_not_have_counts_too(score):
    gold = [{"text": "a", "label": 0}] * 2
    result = score(gold, [logits(14, 0), logits(14, 13)])
    assert result.metrics == pytest.approx({"micro-f1": 50, "macro-f1": 100 * (2 / 3) / 2})


def test_a_logit_of_0_is_no_and_a_tie_goes_to_the_first_class():
    values = np.array([[0.0, 1e-5, -1.0], [2.0, 3.0, 3.0]])
    assert lexglue.decided(values, several=True).tolist() == [[0, 1, 0], [1, 1, 1]]
    assert lexglue.decided(values, several=False).tolist() == [[0, 1, 0], [0, 1, 0]]


@pytest.mark.parametrize("name", TASKS)
def test_random_answers_have_the_figures_of_scikit_learn(score, name):
    random = np.random.default_rng(0)
    task, size = TASKS[name], 60
    columns = len(task.classes)
    values = random.normal(-1, 1, (size, columns)).round(5)
    if task.several:
        right = random.random((size, columns)) < 0.1
        gold = labelled(*(np.flatnonzero(row).tolist() for row in right))
        one, other = right, values > 0
        if name.startswith("ecthr"):
            one, other = (np.column_stack([x, x.sum(1) == 0]) for x in (one, other))
    else:
        one, other = random.integers(0, columns, size), values.argmax(1)
        gold = [{"text": "a", "label": int(label)} for label in one]
    result = score(gold, values.tolist(), task=name)
    for average in ("micro", "macro"):
        expected = 100 * f1_score(one, other, average=average, zero_division=0)
        assert result.metrics[f"{average}-f1"] == pytest.approx(expected), average


def test_a_resample_is_scored_anew(score):
    result = score(
        [{"text": "a", "label": label} for label in (0, 5)], [logits(13, 0), logits(13, 1)]
    )
    # Macro of all: class 0 has 1, 5 and 1 have 0, also in a draw that lacks them.
    figures = result.figures(np.array([[1, 1], [2, 0]]))
    assert figures["macro-f1"] == pytest.approx([100 / 3, 100 / 3])
    assert result.figures(np.array([[2, 0]]))["macro-f1"] == pytest.approx([100])
    assert result.intervals["micro-f1"] == (0, 100)


def test_lines_are_matched_by_id_or_else_by_their_number(score):
    gold = [{"id": "x", "text": "a", "labels": [1]}, {"id": "y", "text": "a", "labels": [2]}]
    pred = [{"id": "y", "labels": [2]}, {"id": "x", "labels": [1]}]
    assert score(gold, pred, task="ecthr_a").metrics["micro-f1"] == 100
    for line in gold:
        line.pop("id")
    pred = [{"labels": [1]}, {"labels": [2]}]
    assert score(gold, pred, task="ecthr_b").metrics["micro-f1"] == 100
    pred = [{"id": 1, "labels": [2]}, {"id": 0, "labels": [1]}]
    assert score(gold, pred, task="ecthr_b").metrics["micro-f1"] == 100


def test_lines_do_not_tell_the_number_of_classes(score):
    with pytest.raises(UserError) as error:
        score(labelled([1]), [{"id": 0, "labels": [1]}])
    assert str(error.value).endswith(
        "pred: lines do not tell the number of classes; --task ecthr_a|ecthr_b|scotus|eurlex does"
    )


def test_raw_gold_is_read_where_the_task_says_which_articles(score):
    gold = [{"facts": ["a", "b c"], "violated_articles": ["3", "13"]}]
    gold[0]["allegedly_violated_articles"] = ["2"]
    assert score(gold, [logits(10, 1)], task="ecthr_a").metrics["micro-f1"] == 100
    result = score(gold, [logits(10, 0)], task="ecthr_b")
    assert result.metrics["micro-f1"] == 100
    assert result.items[0].words == 3
    with pytest.raises(DataError, match="no field 'labels', .*; --task says which of them to"):
        score(gold, [logits(10, 0)])


@pytest.mark.parametrize(
    ("gold", "pred", "task", "message"),
    [
        (
            labelled([0], [1]),
            [logits(10, 0)],
            None,
            "pred: 1 row; the gold file has 2 documents, each of",
        ),
        (labelled([0]), [logits(9, 0)], None, "pred: 9 logits a row; lexglue has 8 or 10 or 13"),
        (labelled([0]), [logits(10, 0)], "eurlex", "pred: 10 logits a row; eurlex has 100"),
        (labelled([0]), [logits(10), logits(9)], None, "pred:2: 10 columns, the first '1'; exp"),
        (labelled([0]), "1\t0.5\n", None, "pred:1: 2 columns, the first '1'; expected 0, the"),
        (labelled([0]), "0\t0.5\tx\n", None, "pred: could not convert string to float: 'x'"),
        (labelled([0]), "0\t0.5\tnan\n", None, "pred: a logit that is not finite"),
        (labelled([0]), "", None, "pred: no rows in it"),
        ("", [logits(10)], None, "gold: no documents in it"),
        (labelled([10]), [logits(10)], None, "gold:1: label 10; expected one, or a list of num"),
        (labelled([0]), [logits(14)], None, "gold:1: no field 'label', which gold of scotus has"),
        (labelled([0]), [{"id": 0, "labels": [11]}], "ecthr_a", "pred:1: label 11; expected one"),
        (labelled([0]), [{"id": 5, "labels": []}], "ecthr_a", "pred: no prediction of 1 document"),
        (labelled([0]), [{"id": 0, "label": 1}], "ecthr_a", "pred:1: label null; expected one"),
        (
            labelled([0], [0]),
            [{"id": 0, "labels": []}, {"id": 0, "labels": []}],
            "ecthr_a",
            "pred: the id '0' stands twice; each",
        ),
        ([logits(10)], labelled([0]), None, "gold:1: text after the object"),
    ],
)
def test_a_file_that_cannot_be_used(score, tmp_path, gold, pred, task, message):
    with pytest.raises(DataError) as error:
        score(gold, pred, task=task)
    text = str(error.value).replace(f"{tmp_path}/", "")
    assert text.startswith(message)


def test_the_baseline_is_the_commonest_class_or_none(score):
    result = score(labelled([], [], [1]), [logits(10, 1)] * 3)
    assert result.baselines["micro-f1"] == ("always no class", pytest.approx(200 / 3))
    result = score([{"text": "a", "label": 7}] * 2, [logits(14, 1)] * 2)
    assert result.baselines["micro-f1"] == ("always 8", 100)  # number 7 is issue area 8


def test_written_tables_are_those_of_the_scripts(score):
    rows = [[0.123456, -2.0], [1e-7, 3.0]]
    text = lexglue.table(rows)
    # A strict reader: no header, the number from 0, five decimals, tabs.
    assert text == "0\t0.12346\t-2.00000\n1\t0.00000\t3.00000\n"
    names = TASKS["ecthr_a"].classes
    scores = {name: number + 0.5 for number, name in enumerate(reversed(names))}
    answers = [{"id": "x", "label": ["P1-1", "3"], "scores": scores}]
    assert list(lexglue.published(answers)) == [{"id": "x", "labels": [1, 9]}]
    row = [9.5, 8.5, 7.5, 6.5, 5.5, 4.5, 3.5, 2.5, 1.5, 0.5]  # in the official order
    assert lexglue.published_logits(answers) == lexglue.table([row])
    scores = dict.fromkeys(TASKS["scotus"].classes, 0.1)
    answers = [{"id": 3, "label": "1", "scores": scores, "text": "a"}]
    assert list(lexglue.published(answers)) == [{"id": 3, "label": 0}]


@pytest.mark.parametrize("name", TASKS)
def test_the_samples_are_scored_in_both_layouts(shared_data, tmp_path, name):
    folder = shared_data / "lexglue"
    task = TASKS[name]
    lines = gzip.decompress((folder / f"{name}.hf_layout.jsonl.gz").read_bytes()).splitlines()
    found = [json.loads(line) for line in lines]
    numbers = [line["labels"] if task.several else [line["label"]] for line in found]
    pred = tmp_path / "pred.csv"
    rows = (logits(len(task.classes), *row) for row in numbers)
    pred.write_text(lexglue.table(rows))
    raw = folder / f"{name.removesuffix('_a').removesuffix('_b')}.jsonl.gz"
    for file in (folder / f"{name}.hf_layout.jsonl.gz", raw):
        result = evaluate("lexglue", file, pred, task=name)
        assert result.metrics["micro-f1"] == 100, file
        assert min(item.words for item in result.items) > 100
    if name == "ecthr_a":  # 6 cases with few articles: columns without any count 0
        classes = {number for row in numbers for number in row} | ({10} if [] in numbers else set())
        assert result.metrics["macro-f1"] == pytest.approx(100 * len(classes) / 11)
