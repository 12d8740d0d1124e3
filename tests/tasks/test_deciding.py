import numpy as np
import pytest
from pydantic import ValidationError
from transformers import PretrainedConfig

from ldt.data.labels import MULTI, REGRESSION, SINGLE
from ldt.errors import ModelError, RecipeError, UserError
from ldt.metrics.classification import indicators
from ldt.recipe.recipe import DataSection
from ldt.tasks import Classification

EVAL = DataSection(eval="dev.jsonl")


def config(problem=MULTI, names="abc", **decisions):
    return PretrainedConfig(
        id2label=dict(enumerate(names)), problem_type=problem, decisions=decisions
    )


def answer(task, logits, made, **flags):
    return task.decode([{"logits": logits}], made, None, [{"flags": flags}])


@pytest.mark.parametrize(
    ("keys", "problem", "message"),
    [
        ({"threshold": "auto"}, SINGLE, "threshold: of single_label .* names it: 'a', 'b', 'c'"),
        ({"threshold": 0.3}, SINGLE, "threshold: of single_label answers one class"),
        ({"positive": "d"}, SINGLE, "positive: no class 'd'; there are 'a', 'b', 'c'"),
        ({"positive": "a"}, MULTI, "positive: of single_label answers"),
        ({"threshold_target": "recall>=0.9"}, MULTI, "threshold_target: is of no use without"),
        ({"positive": "a", "threshold_target": "f2"}, SINGLE, "threshold_target: is of no use"),
        ({"threshold": 0.3}, REGRESSION, "threshold: a regression has no probabilities"),
        ({"threshold": {"a": 0.2}}, SINGLE, "threshold: of single_label answers one class"),
        ({"threshold": {"d": 0.2}}, MULTI, "threshold: no class 'd'; there are 'a', 'b', 'c'"),
        ({"calibration": "platt"}, SINGLE, "of single_label answers: none, temperature or auto"),
        ({"calibration": "temperature"}, MULTI, "of multi_label answers: none, platt, beta or"),
        ({"calibration": "auto"}, REGRESSION, "calibration: a regression has no probabilities"),
        ({"abstain": {"risk": 0.1}}, REGRESSION, "abstain: a regression has no probabilities"),
    ],
)
def test_what_does_not_suit_the_problem_is_refused(keys, problem, message):
    with pytest.raises(RecipeError, match=message):
        Classification(**keys).check_decisions(problem, list("abc"), EVAL)


@pytest.mark.parametrize(
    "keys", [{"threshold": "auto"}, {"calibration": "auto"}, {"abstain": {"coverage": 0.9}}]
)
def test_held_out_documents_are_needed(keys):
    with pytest.raises(RecipeError, match=f"task.{next(iter(keys))}: is chosen on held-out"):
        Classification(**keys).check_decisions(MULTI, list("abc"), DataSection())
    Classification(**keys).check_decisions(MULTI, list("abc"), EVAL)
    Classification().check_decisions(MULTI, list("abc"), DataSection())


@pytest.mark.parametrize(
    "keys",
    [
        {"threshold": 1.5},
        {"threshold": "some"},
        {"threshold_target": "f0"},
        {"threshold_target": "precision>=2"},
        {"abstain": {}},
        {"abstain": {"risk": 0.1, "coverage": 0.9}},
        {"abstain": {"cover": 0.9}},
    ],
)
def test_values_that_mean_nothing_are_refused(keys):
    with pytest.raises(ValidationError):
        Classification(**keys)


def test_a_threshold_for_each_class():
    task = Classification(threshold={"a": 0.9, "c": 0.1})
    found = answer(task, np.array([1.0, 1.0, -1.0]), config())
    assert found["label"] == ["b", "c"]


def test_the_thresholds_of_the_model_count_before_those_of_the_recipe():
    made = config(thresholds={"a": 0.99, "b": 0.99, "c": 0.01})
    assert answer(Classification(), np.array([1.0, 1.0, -1.0]), made)["label"] == ["c"]


def test_scores_are_calibrated_after_merging():
    made = config(SINGLE, calibration={"method": "temperature", "temperature": 2.0})
    task = Classification()
    chunks = [{"logits": np.array([3.0, 0.0, 0.0])}, {"logits": np.array([1.0, 0.0, 2.0])}]
    found = task.decode(chunks, made, None, [{}])
    logits = np.array([2.0, 0.0, 1.0]) / 2
    wanted = np.exp(logits) / np.exp(logits).sum()
    assert [*found["scores"].values()] == pytest.approx(wanted.tolist())


def test_an_answer_that_is_not_sure_enough_is_none():
    made = config(SINGLE, abstain={"confidence": 0.6})
    found = answer(Classification(), np.array([0.4, 0.0, 0.0]), made)
    assert found["label"] is None
    assert found["abstained"] is True
    assert found["why"] == "confidence 0.4272, answers are given from 0.6 on"
    assert answer(Classification(), np.array([4.0, 0.0, 0.0]), made)["label"] == "a"
    never = config(SINGLE, abstain={"confidence": None})
    found = answer(Classification(), np.array([9.0, 0.0, 0.0]), never)
    assert found["why"].endswith("on held-out documents none was sure enough")


def test_an_empty_document_has_no_answer_where_silence_is_allowed():
    made = config(SINGLE, abstain={"confidence": 0.1})
    found = answer(Classification(), np.array([9.0, 0.0, 0.0]), made, empty=True)
    assert (found["label"], found["why"]) == (None, "the document is empty")
    assert answer(Classification(), np.array([9.0, 0, 0]), config(SINGLE), empty=True)["label"]


def test_a_config_of_another_model_is_refused():
    with pytest.raises(ModelError, match="config.json: decisions: not those of this model"):
        answer(Classification(), np.zeros(3), config(thresholds={"x": 0.5}))


def test_label_sets():
    made = config(SINGLE, label_sets=[0.7] * 50)
    task = Classification()
    found = answer(task, np.log([0.5, 0.35, 0.15]), made)
    assert task.label_set(found, made, 0.9) == ["a", "b"]
    with pytest.raises(UserError, match="up to 0.99 there are sets"):
        task.label_set(found, made, 0.995)
    with pytest.raises(UserError, match="ldt evaluate RUN --choose-thresholds"):
        task.label_set(found, config(SINGLE), 0.9)


@pytest.mark.parametrize("problem", [SINGLE, MULTI])
def test_what_is_decided_by_answers_is_what_decode_decides_by(problem):
    generator = np.random.default_rng(0)
    rules = {"abstain": {"coverage": 0.7}, "calibration": "auto"}
    task = Classification(**rules | ({"threshold": "auto"} if problem == MULTI else {}))
    logits = generator.normal(0, 2, (80, 3))
    golds = [
        [name for name, x in zip("abc", row, strict=True) if x + generator.normal() > 1]
        if problem == MULTI
        else "abc"[int((row + generator.normal(0, 2, 3)).argmax())]
        for row in logits
    ]
    plain = config(problem)
    answers = [answer(task, row, plain) for row in logits]
    decision = task.decide(answers, golds, plain)
    assert [each["scores"] for each in decision.answers] == [each["scores"] for each in answers]
    decided = config(problem, **decision.changes["decisions"])
    found = [answer(task, row, decided) for row in logits]
    silent = np.mean([each["label"] is None for each in found])
    assert 0.1 < silent < 0.5
    right = indicators(golds, list("abc"))
    assert decision.report["documents"] == len(right)
    if problem == MULTI:
        thresholds = decision.changes["decisions"]["thresholds"]
        assert [row["threshold"] for row in decision.columns] == [*thresholds.values()]


def test_a_label_with_one_positive_or_none_has_a_threshold_all_the_same():
    task, plain = Classification(threshold="auto", calibration="auto"), config()
    logits = np.random.default_rng(1).normal(0, 2, (40, 3))
    golds = [["a"] if row[0] > 0 else [] for row in logits]
    golds[3] = ["b"]
    decision = task.decide([answer(task, x, plain) for x in logits], golds, plain)
    thresholds = decision.changes["decisions"]["thresholds"]
    assert all(0 < t < 1 for t in thresholds.values())
    assert thresholds["c"] == 0.5  # nothing to choose by
    assert decision.report["labels"]["c"] == {"documents": 0}
    assert decision.columns[2]["target"] == "no documents"
