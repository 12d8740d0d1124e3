"""Answers in ldt's own layout beside a gold file; oracles are scikit-learn, scipy and hands."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from ldt.errors import DataError, RecipeError, UserError
from ldt.inference.evaluate import evaluate
from ldt.metrics.entities import Entity
from ldt.tasks import TASKS
from ldt.tasks.base import named_labels

NAMES = list("abcde")


@pytest.fixture
def score(tmp_path, monkeypatch):
    """Score lists of records in the files gold and pred, or text in gold.csv and pred.csv."""
    monkeypatch.chdir(tmp_path)

    def score(gold, pred, format="classification", overrides=(), **options):
        names = []
        for name, content in (("gold", gold), ("pred", pred)):
            lines = "".join(json.dumps(record) + "\n" for record in content)
            names.append(f"{name}.csv" if isinstance(content, str) else name)
            (tmp_path / names[-1]).write_text(content if isinstance(content, str) else lines)
        return evaluate(*names, format=format, overrides=overrides, **options)

    return score


def single_case(random):
    """(gold, answers) of some documents: absent classes, ties, now and then one class alone."""
    size, used = random.integers(2, 25), random.integers(1, len(NAMES) + 1)
    gold = [NAMES[n] for n in random.integers(0, used, size)]
    scores = random.integers(1, 5, (size, len(NAMES))).astype(float)  # ties are frequent
    scores /= scores.sum(1, keepdims=True)
    labels = [NAMES[row.argmax()] for row in scores]
    return gold, labels, scores


def multi_case(random):
    """The same with several labels or none a document, sometimes nowhere any."""
    size = random.integers(2, 25)
    right = random.random((size, len(NAMES))) < random.choice([0, 0.2, 0.5, 1])
    scores = random.integers(0, 9, right.shape) / 8
    gold = [[name for name, there in zip(NAMES, row, strict=True) if there] for row in right]
    labels = [[n for n, s in zip(NAMES, row, strict=True) if s >= 0.5] for row in scores]
    return gold, labels, scores


def files(gold, labels, scores):
    return (
        [{"label": label} for label in gold],
        [
            {"id": n, "label": label, "scores": dict(zip(NAMES, row.tolist(), strict=True))}
            for n, (label, row) in enumerate(zip(labels, scores, strict=True), 1)
        ],
    )


def one_hot(labels):
    return np.array([[name in label for name in NAMES] for label in labels])


@pytest.mark.fast("True")
@pytest.mark.parametrize("several", [False, True])
def test_classes_are_scored_as_scikit_learn_does_on_200_random_cases(score, several):
    sklearn = pytest.importorskip("sklearn.metrics")
    random = np.random.default_rng(0)
    undefined = one_class = nothing = 0
    for _ in range(100):
        gold, labels, scores = (multi_case if several else single_case)(random)
        problem = "multi_label" if several else "single_label"
        result = score(*files(gold, labels, scores), overrides=[f"task.problem={problem}"])
        right, found = one_hot(gold), one_hot(labels)
        sides = (right, found) if several else (gold, labels)
        options = {"zero_division": np.nan} | ({} if several else {"labels": NAMES})

        share = "exact_match" if several else "accuracy"
        assert result.metrics[share] == pytest.approx(100 * sklearn.accuracy_score(*sides))
        for kind in ("macro", "micro"):
            wanted = sklearn.f1_score(*sides, average=kind, zero_division=0)
            assert result.metrics[f"{kind}_f1"] == pytest.approx(100 * wanted)
        columns = sklearn.precision_recall_fscore_support(*sides, average=None, **options)
        precisions, recalls = [], []
        for place, row in enumerate(result.tables["classes"]):
            assert row["class"] == NAMES[place]
            keys = ("precision", "recall", "f1", "support")
            for key, column in zip(keys, columns, strict=True):
                wanted = column[place] * (1 if key == "support" else 100)
                assert row[key] == (None if np.isnan(wanted) else pytest.approx(wanted))
            there, its = right[:, place], scores[:, place]
            if there.any():
                precisions.append(100 * sklearn.average_precision_score(there, its))
                assert row["average_precision"] == pytest.approx(precisions[-1])
            if there.any() and not there.all():
                recalls.append(100 * sklearn.roc_auc_score(there, its))
                assert row["roc_auc"] == pytest.approx(recalls[-1])
            else:
                assert "roc_auc" not in row
                undefined += 1
        for name, values in (("macro_average_precision", precisions), ("macro_roc_auc", recalls)):
            assert (name in result.metrics) == bool(values)
            if values:
                assert result.metrics[name] == pytest.approx(np.mean(values))
        one_class += len(set(map(str, gold))) == 1
        nothing += not right.any()

        if several:
            matrices = sklearn.multilabel_confusion_matrix(right, found)
            rows = {row.pop("class"): [*row.values()] for row in result.tables["confusion"]}
            for name, ((absent, false), (missed, true)) in zip(NAMES, matrices, strict=True):
                assert rows[name] == [true, missed, false, absent]
            brier = ((scores - right) ** 2).mean()
        else:
            matrix = sklearn.confusion_matrix(gold, labels, labels=NAMES)
            cells = {(r["gold"], r["answer"]): r["documents"] for r in result.tables["confusion"]}
            for g, a in np.ndindex(matrix.shape):
                assert cells.get((NAMES[g], NAMES[a]), 0) == matrix[g, a]
            brier = ((scores - right) ** 2).sum(1).mean()
            wanted = sklearn.log_loss(gold, scores, labels=NAMES)
            assert result.metrics["nll"] == pytest.approx(wanted)
        assert result.metrics["brier"] == pytest.approx(brier)
    assert undefined  # the cases have what they claim
    assert one_class
    assert nothing or not several


def test_regression_equals_scipy_and_its_intervals_are_of_drawn_documents(score):
    stats = pytest.importorskip("scipy.stats")
    random = np.random.default_rng(0)
    for _ in range(20):
        gold, found = random.integers(0, 6, (2, 12)) / 2
        gold[0] += 0.25  # numbers with a point
        result = score(
            [{"label": value} for value in gold],
            [{"id": n, "label": value} for n, value in enumerate(found, 1)],
            "regression",
        )
        assert result.metrics["mse"] == pytest.approx(((gold - found) ** 2).mean())
        assert result.metrics["mae"] == pytest.approx(abs(gold - found).mean())
        assert result.metrics["pearson"] == pytest.approx(stats.pearsonr(gold, found)[0])
        assert result.metrics["spearman"] == pytest.approx(stats.spearmanr(gold, found)[0])
    # A drawn document counts as if it stood there so often.
    counts = random.integers(0, 3, (5, 12))
    figures = result.figures(counts)
    for draw, times in enumerate(counts):
        a, b = gold.repeat(times), found.repeat(times)
        assert figures["spearman"][draw] == pytest.approx(stats.spearmanr(a, b)[0])
        assert figures["pearson"][draw] == pytest.approx(stats.pearsonr(a, b)[0])
    worst = result.tables["worst"][0]
    assert worst["error"] == abs(gold - found).max()
    assert worst["where"] == f"gold:{abs(gold - found).argmax() + 1}"


@pytest.mark.parametrize("several", [False, True])
def test_intervals_are_of_documents_that_are_drawn_again_and_again(score, several):
    sklearn = pytest.importorskip("sklearn.metrics")
    random = np.random.default_rng(2)
    gold, labels, scores = (multi_case if several else single_case)(random)
    result = score(*files(gold, labels, scores))
    right, found = one_hot(gold), one_hot(labels)
    counts = random.integers(0, 3, (8, len(gold)))
    figures = result.figures(counts)
    for draw, times in enumerate(counts):
        there, its = right.repeat(times, 0), scores.repeat(times, 0)
        known = [p for p in range(len(NAMES)) if there[:, p].any()]
        wanted = [sklearn.average_precision_score(there[:, p], its[:, p]) for p in known]
        assert figures["macro_average_precision"][draw] == pytest.approx(100 * np.mean(wanted))
        known = [p for p in known if not there[:, p].all()]
        wanted = [sklearn.roc_auc_score(there[:, p], its[:, p]) for p in known]
        assert figures["macro_roc_auc"][draw] == pytest.approx(100 * np.mean(wanted))
        share = sklearn.accuracy_score(there, found.repeat(times, 0))
        assert figures["exact_match" if several else "accuracy"][draw] == pytest.approx(100 * share)
    assert {"macro_average_precision", "macro_roc_auc", "brier", "nll"} <= result.intervals.keys()
    assert "ece" not in result.intervals


def test_calibration_by_hand(score):
    gold = [{"label": "a"}, {"label": "a"}, {"label": "b"}, {"label": "a"}]
    pred = [
        {"id": n, "label": "a", "scores": {"a": p, "b": 1 - p}}
        for n, p in enumerate((0.9, 0.9, 0.6, 0.6), 1)
    ]
    result = score(gold, pred)
    assert result.metrics["ece"] == pytest.approx((2 * 0.1 + 2 * 0.1) / 4)
    assert result.curves["reliability"] == [
        {"answers": 2, "probability": pytest.approx(0.6), "right": 0.5},
        {"answers": 2, "probability": pytest.approx(0.9), "right": 1.0},
    ]
    (worst,) = result.tables["worst"]
    assert worst == {
        **{"where": "gold:3", "id": "3", "gold": "b", "answer": "a"},
        "nll": pytest.approx(-np.log(0.4)),
    }


def test_what_lacks_is_wrong_and_silence_is_told(score):
    gold = [{"id": n, "label": []} for n in "pq"] + [{"id": "r", "label": ["a"]}]
    pred = [{"id": "p", "label": None, "abstained": True}, {"id": "r", "label": ["a"]}]
    result = score(gold, pred, overrides=["task.problem=multi_label"])
    assert result.metrics["exact_match"] == pytest.approx(100 / 3)  # no class is no excuse
    assert result.metrics["coverage"] == pytest.approx(100 / 3)
    assert result.metrics["answered_exact_match"] == pytest.approx(100)
    assert result.missing == ["q"]
    assert list(result.metrics)[:3] == ["exact_match", "answered_exact_match", "coverage"]
    assert result.tables["worst"] == []  # neither said anything wrong


def test_scores_that_are_no_probabilities_rank_and_are_not_calibrated(score):
    gold, labels, scores = ["a", "b", "a"], ["a", "a", "b"], np.eye(3, len(NAMES))
    plain = score(*files(gold, labels, scores))
    logits = score(*files(gold, labels, 10 * scores - 3))
    for name in ("macro_average_precision", "macro_roc_auc"):
        assert logits.metrics[name] == plain.metrics[name]
    assert not {"ece", "brier", "nll"} & logits.metrics.keys()
    assert "no probabilities" in logits.warnings[0]


def test_tables_and_labels_as_people_write_them_are_read_as_a_training_reads_them(score):
    gold = "id;text;kind\nd1;a b;Cap | Audit\nd2;c;Audit\nd3;d;\n"
    pred = 'id,label,scores.Audit,scores.Cap\nd1,"[""Audit"", ""Cap""]",0.9,0.8\nd2,[],0.2,0.1\n'
    keys = ["data.label=kind", "data.label_separator=|"]
    result = score(gold, pred + "d3,[],0.1,0.1\n", overrides=keys)
    assert result.metrics["exact_match"] == pytest.approx(200 / 3)
    assert [row["class"] for row in result.tables["classes"]] == ["Audit", "Cap"]
    assert [item.words for item in result.items] == [2, 1, 1]


def test_entities_are_scored_by_place_and_type(score):
    gold = [
        {"text": "Ann met Bob", "entities": [{"start": 0, "end": 3, "label": "P"}]},
        {"text": "Rome", "entities": [{"start": 0, "end": 4, "label": "L"}]},
    ]
    entity = {"start": 0, "end": 3, "label": "P", "score": 0.9}
    other = {"start": 8, "end": 11, "label": "P", "score": 0.6}
    wrong = {"start": 0, "end": 4, "label": "P", "score": 0.8}
    pred = [{"id": 1, "entities": [entity, other]}, {"id": 2, "entities": [wrong]}]
    result = score(gold, pred, "token_classification")
    assert [item.id for item in result.items] == ["1", "2"]
    assert result.metrics["precision"] == pytest.approx(100 / 3)
    assert result.metrics["recall"] == 50
    assert result.metrics["P_recall"] == 100
    assert result.metrics["L_f1"] == 0
    assert result.metrics["ece"] == pytest.approx((0.1 + 0.6 + 0.8) / 3)
    task = TASKS["token_classification"]()
    config = SimpleNamespace(**named_labels(["O", "B-L", "I-L", "B-P", "I-P"]))
    answers = [{"entities": [{**entity}, {**other}]}, {"entities": [wrong]}]
    metrics, _ = task.measure(answers, [[Entity(0, 3, "P")], [Entity(0, 4, "L")]], config)
    assert {name: result.metrics[name] for name in metrics} == pytest.approx(metrics)
    assert {"gold": "L", "answer": "P", "entities": 1} in result.tables["confusion"]
    assert {"gold": "none", "answer": "P", "entities": 1} in result.tables["confusion"]
    assert result.tables["worst"][0]["where"] == "gold:2"  # a missed one and a false one


def test_choices_are_scored_by_place_or_text(score):
    question = {"question": "Who?", "choices": ["x", "y", "z"], "context": "t"}
    gold = [question | {"label": label} for label in (0, "y", 2, 1)]
    pred = [
        {"id": 1, "choice": 0, "answer": "x", "scores": [0.8, 0.1, 0.1]},
        {"id": 2, "answer": "y", "scores": [0.3, 0.4, 0.3]},
        {"id": 3, "choice": 1, "answer": "y", "scores": [0.1, 0.8, 0.1]},
        {"id": 4, "choice": 0, "answer": "x", "scores": [0.5, 0.4, 0.1]},
    ]
    result = score(gold, pred, "multiple_choice")
    assert result.metrics["accuracy"] == 50
    assert result.metrics["nll"] == pytest.approx(-np.log([0.8, 0.4, 0.1, 0.4]).mean())
    assert [row["where"] for row in result.tables["worst"]] == ["gold:3", "gold:4"]
    assert result.baselines["accuracy"].value == 50
    assert len({item.unit for item in result.items}) == 1  # on one text


@pytest.mark.parametrize(
    ("gold", "pred", "format", "line"),
    [
        ([], [{"id": 1, "label": "a"}], "classification", "gold: no documents"),
        ([{"label": "a"}], [], "classification", "pred: no answers in it"),
        (
            [{"label": "a"}],
            [{"id": "x", "label": "a"}],
            "classification",
            "pred: no id of it is in gold: 'x'; there '1'; data.id names the field",
        ),
        (
            [{"label": "a"}],
            [{"id": 1, "label": "q"}],
            "classification",
            "pred: no label of it is in the gold file: 'q'; there 'a'",
        ),
        (
            [{"label": "a"}],
            [{"id": 1, "label": "a", "scores": {"a": "much"}}],
            "classification",
            "pred:1: scores: a is 'much', expected a finite number",
        ),
        (
            [{"label": "a"}],
            [{"id": 1, "label": "a", "scores": [1]}],
            "classification",
            "pred:1: scores is a list of 1, expected {class: number}",
        ),
        (
            [{"label": "a"}, {"label": "b"}],
            [{"id": n, "label": "a", "scores": {name: 1}} for n, name in ((1, "a"), (2, "b"))],
            "classification",
            "pred: '2': scores of 'b'; the first answer with some has 'a'",
        ),
        (
            [{"label": 0.5}, {"label": 1.5}],
            [{"id": 1, "label": "many"}, {"id": 2, "label": 1}],
            "regression",
            "pred:1: label 'label' is 'many', expected a number",
        ),
        (
            [{"label": "a"}],
            [{"id": 1, "label": "a"}, {"id": 1, "label": "b"}],
            "classification",
            "pred: the id '1' stands twice",
        ),
        (
            [{"text": "t", "entities": []}],
            [{"id": 1, "entities": [[0, 1, "P"]]}],
            "token_classification",
            "pred:1: entities is a list of 1, expected a list of {start, end, label}",
        ),
        (
            [{"question": "q", "choices": ["x", "y"], "context": "t", "label": 0}],
            [{"id": 1, "choice": 2}],
            "multiple_choice",
            "pred:1: choice is 2, expected one of the 2 choices or its place, 0 to 1",
        ),
    ],
)
def test_bad_input_is_one_line(score, gold, pred, format, line):
    with pytest.raises(DataError) as error:
        score(gold, pred, format)
    assert str(error.value).startswith(line)
    assert "\n" not in str(error.value)


def test_lines_of_questions_are_scored_as_their_task_scores_them(score, tmp_path):
    (tmp_path / "recipe.yaml").write_text("task: {name: squad}\n")
    gold = [
        {"question": "?", "context": "a red fox", "answers": ["red fox"]},
        {"question": "?", "context": "a red fox", "answers": []},
        {"question": "?", "context": "a blue whale", "answers": ["whale"]},
    ]
    pred = [{"id": 1, "answer": "The red fox"}, {"id": 2, "answer": ""}, {"id": 3, "answer": "fox"}]
    result = score(gold, pred, None, recipe="recipe.yaml")
    assert result.metrics == pytest.approx({"exact_match": 200 / 3, "f1": 200 / 3})
    assert [item.words for item in result.items] == [3, 3, 3]
    assert len({item.unit for item in result.items}) == 2  # on one text
    assert result.baselines["f1"].answer == "always 'red fox'"
    result = score(gold, pred[:2], None, recipe="recipe.yaml")
    assert (result.missing, result.metrics["f1"]) == (["3"], pytest.approx(200 / 3))
    keys = ["data.format=squad"]
    with pytest.raises(UserError, match="--format says how standard input is scored, of squad"):
        evaluate("gold", "-", recipe="recipe.yaml", overrides=keys)


def test_evidence_needs_an_answer_to_each_question(score, tmp_path):
    (tmp_path / "recipe.yaml").write_text("task: {name: evidence_classification}\n")
    about = {"hypothesis": "It is.", "text": "a b. c d.", "spans": [[0, 4], [5, 9]]}
    gold = [about | {"label": "yes", "evidence": [1]}, about | {"label": "no", "evidence": [0]}]
    answer = {"label": "yes", "scores": {"yes": 0.75, "no": 0.25}, "span_probs": [0.25, 0.75]}
    result = score(gold, [answer | {"id": n} for n in (1, 2)], None, recipe="recipe.yaml")
    assert result.metrics["class.accuracy"] == 50
    # Of all together, .75 right, .75 wrong, .25 right, .25 wrong: precision 1/2 at each recall.
    assert result.metrics["span.map"] == pytest.approx(50)
    with pytest.raises(DataError, match="pred: 1 question without an answer: '2'; each needs one"):
        score(gold, [answer | {"id": 1}], None, recipe="recipe.yaml")


def test_labels_that_one_file_alone_knows_are_told(score):
    scores = {"a": 0.7, "b": 0.3}
    gold = [{"label": "a"}, {"label": "c"}]
    result = score(gold, [{"id": n, "label": "a", "scores": scores} for n in (1, 2)])
    assert result.warnings[0] == "pred: gold classes without scores: 'c'"
    assert [row["class"] for row in result.tables["classes"]] == ["a", "b", "c"]
    result = score(gold, [{"id": 1, "label": "a"}, {"id": 2, "label": "q"}])
    assert result.warnings[0] == "pred: classes that no gold document has: 'q'"


def test_a_recipe_says_how_the_gold_file_is_read(score, tmp_path):
    (tmp_path / "recipe.yaml").write_text(
        "task: {name: classification, labels: [yes, no]}\ndata: {label: cap, id: key}\n"
    )
    gold = [{"key": "p", "cap": "yes"}, {"key": "q", "cap": "no"}]
    pred = [{"id": "p", "label": "yes"}, {"id": "q", "label": "yes"}]
    for name in ("recipe.yaml", "."):  # a run folder has its recipe
        result = score(gold, pred, None, recipe=name)
        assert result.metrics["accuracy"] == 50
    with pytest.raises(UserError, match=r"answers of classification, not of multiple_choice"):
        score(gold, pred, "multiple_choice", recipe="recipe.yaml")
    (tmp_path / "recipe.yaml").write_text("task: {name: mlm}\n")
    with pytest.raises(UserError, match=r"--recipe recipe.yaml: mlm has no answers to score"):
        score(gold, pred, None, recipe="recipe.yaml")
    with pytest.raises(RecipeError, match=r"data.lable=x: unknown key, did you mean 'label'"):
        score(gold, pred, overrides=["data.lable=x"])
