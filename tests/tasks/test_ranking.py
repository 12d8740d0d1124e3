"""Probabilities of candidates and of no answer, calibrated by held-out questions."""

import json
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError
from recipe_data import multiple_choice, squad
from scipy.optimize import minimize_scalar
from training_runs import train
from transformers import PretrainedConfig

from ldt import cli
from ldt.errors import RecipeError
from ldt.inference.predict import predict
from ldt.metrics.calibrators import Platt
from ldt.metrics.decisions import (
    Rules,
    abstain_for_coverage,
    abstain_for_risk,
    decide,
    folds,
    risk_coverage,
)
from ldt.metrics.numbers import softmax
from ldt.model.loading import read_config
from ldt.recipe import recipe as recipes
from ldt.recipe.recipe import DataSection
from ldt.tasks import MultipleChoice, Squad, WikiHop
from ldt.tasks.deciding import in_words

approx = pytest.approx
HELD_OUT = DataSection(train="t.jsonl", eval="e.jsonl")


def config(**fields):
    return PretrainedConfig(decisions={}, **fields)


@pytest.fixture
def questions():
    """Logits of 2 to 6 candidates that are three times too sure, and which is right."""
    rng = np.random.default_rng(0)
    logits = [rng.normal(0, 1.5, rng.integers(2, 7)) for _ in range(1500)]
    right = [int(rng.choice(len(row), p=softmax(row))) for row in logits]
    return [row * 3 for row in logits], right


def ranking(task, logits, made=None):
    """The answer of a model with these logits."""
    if task.name == "multiple_choice":
        features = [{"texts": [str(n) for n in range(len(logits))], "chunks": 1, "flags": {}}]
        outputs = [{"logits": logits[n : n + 1]} for n in range(len(logits))]
    else:
        features = [{"candidates": [str(n) for n in range(len(logits))]}]
        outputs = [{"logits": logits}]
    return task.decode(outputs, made or config(), None, features)


@pytest.mark.parametrize("task", [WikiHop, MultipleChoice])
def test_the_temperature_of_candidates_has_the_least_cross_entropy(task, questions):
    task = task(calibration="temperature")
    logits, right = questions
    answers = [ranking(task.uncalibrated(), row) for row in logits]
    golds = [{"answer": str(place), "choice": place} for place in right]
    found = task.decide(answers, golds, config())

    def cross_entropy(inverse):
        pairs = zip(logits, right, strict=True)
        return -sum(np.log(softmax(inverse * row)[place]) for row, place in pairs)

    best = minimize_scalar(cross_entropy, bounds=(0.1, 10), method="bounded").x
    kept = found.changes["decisions"]["calibration"]
    assert kept == {"method": "temperature", "temperature": approx(1 / best, rel=1e-4)}
    assert kept["temperature"] == approx(3, rel=0.2)
    before, after = (found.report["calibration"][when]["ece"] for when in ("before", "after"))
    assert after < before / 3
    made = PretrainedConfig(decisions=dict(found.changes["decisions"]))
    answer = ranking(task, np.array([2.0, 5.0, -1.0]), made)
    assert answer["answer"] == "1"
    scores = softmax(np.array([2.0, 5.0, -1.0]) / kept["temperature"])
    assert answer["score"] == approx(scores[1])
    assert answer.get("scores", scores.tolist()) == approx(scores.tolist())


def test_questions_without_a_right_candidate_do_not_count(questions):
    task = WikiHop(calibration="temperature")
    logits, right = questions
    answers = [ranking(task.uncalibrated(), row) for row in logits]
    golds = [{"answer": str(place)} for place in right]
    alone = task.decide(answers, golds, config())
    more = [*answers, ranking(task.uncalibrated(), np.arange(9.0))]
    found = task.decide(more, [*golds, {"answer": "none"}], config())
    kept, expected = (each.changes["decisions"]["calibration"] for each in (found, alone))
    assert kept == expected
    assert list(found.answers) == more
    nothing = task.decide(answers[:1], [{"answer": "none"}], config())
    assert nothing.changes == {"decisions": {}}


def silent_below(least):
    return PretrainedConfig(decisions={"abstain": {"confidence": least}})


def test_an_answer_that_is_not_sure_enough_is_none_and_its_probabilities_stay():
    logits = np.log([0.2, 0.5, 0.3])
    scores = approx([0.2, 0.5, 0.3])
    found = ranking(MultipleChoice(), logits, silent_below(0.6))
    assert (found["answer"], found["choice"], found["score"]) == (None, None, approx(0.5))
    assert found["scores"] == scores
    assert found["abstained"] is True
    assert found["why"] == "confidence 0.5, answers are given from 0.6 on"
    (target,) = MultipleChoice().targets(found, None, [{"chunks": 2}])
    assert target.rows == range(2, 4)  # the passages are those of the best choice
    wikihop = WikiHop(n_best=3)
    found = ranking(wikihop, logits, silent_below(0.6))
    assert (found["answer"], found["best"], found["score"]) == (None, "1", approx(0.5))
    assert [each["answer"] for each in found["n_best"]] == ["1", "2", "0"]
    features = [{"candidates": ["0", "1", "2"]}]
    assert wikihop.targets(found, None, features)[0].index == 1
    assert wikihop.answers.layouts["wikihop"].write([found | {"id": 7}]) == {"7": "1"}
    for task in (MultipleChoice(), WikiHop()):
        sure = ranking(task, logits, silent_below(0.4))
        assert sure == ranking(task, logits)
        assert not {"abstained", "why", "best"} & set(sure)


@pytest.mark.parametrize("task", [WikiHop, MultipleChoice])
@pytest.mark.parametrize("abstain", [{"coverage": 0.7}, {"risk": 0.2}])
def test_how_sure_an_answer_must_be_is_chosen_on_held_out_questions(task, abstain, questions):
    task = task(abstain=abstain, calibration="none")
    logits, right = questions
    answers = [ranking(task.uncalibrated(), row) for row in logits]
    golds = [{"answer": str(place), "choice": place} for place in right]
    found = task.decide(answers, golds, config())
    assert list(found.answers) == answers  # metrics are those of all answers
    sure = np.array([softmax(row).max() for row in logits])
    hits = np.array([row.argmax() == place for row, place in zip(logits, right, strict=True)])
    ((what, share),) = abstain.items()
    oracle = {"coverage": abstain_for_coverage, "risk": abstain_for_risk}[what]
    expected = oracle(sure, hits, share)
    facts = found.changes["decisions"]
    assert set(facts) == {"abstain", "measured"}
    assert facts["abstain"]["confidence"] == approx(expected.threshold)
    measured, told = facts["measured"], found.report["abstention"]
    assert measured["asked"] == abstain
    for key in ("coverage", "risk"):
        assert measured[key] == told[key] == approx(getattr(expected, key))
    _, risks = risk_coverage(sure, hits)
    assert measured["aurc"] == told["aurc"] == approx(risks.mean())
    assert (measured["bound"] is None) == (what == "coverage")
    assert f"no answer below a confidence of {expected.threshold:.3f} for a {what}" in in_words(
        facts
    )
    made = PretrainedConfig(decisions=dict(facts))
    silent = [ranking(task, row, made).get("abstained", False) for row in logits]
    assert silent == (sure < expected.threshold).tolist()


def test_questions_without_a_right_candidate_are_wrong_answers(questions):
    """A model that is sure of them is wrong more often than the others let it seem."""
    logits, right = questions
    logits = [*logits, *(np.array([9.0, 0.0]) for _ in range(300))]
    golds = [{"answer": str(place)} for place in right] + [{"answer": "none"}] * 300
    task = WikiHop(abstain={"coverage": 1.0}, calibration="temperature")
    answers = [ranking(task.uncalibrated(), row) for row in logits]
    report = task.decide(answers, golds, config()).report
    wrong = sum(row.argmax() != place for row, place in zip(logits, right, strict=False)) + 300
    assert report["abstention"]["risk"] == approx(wrong / len(golds))
    alone = task.decide(answers[:1500], golds[:1500], config()).report["calibration"]
    assert report["calibration"]["before"] == approx(alone["before"])
    assert report["documents"] == len(golds)


def test_a_question_without_a_text_has_no_answer_where_silence_is_allowed():
    features = [{"texts": ["0", "1"], "chunks": 1, "flags": {"empty": True}}] * 2
    outputs = [{"logits": np.array([9.0])}, {"logits": np.array([0.0])}]
    found = MultipleChoice().decode(outputs, silent_below(0.1), None, features)
    assert (found["answer"], found["why"]) == (None, "the document is empty")
    assert MultipleChoice().decode(outputs, config(), None, features)["choice"] == 0


def test_auto_leaves_probabilities_that_are_right(questions):
    task = MultipleChoice(calibration="auto")
    logits, right = questions
    answers = [ranking(task, row / 3) for row in logits]
    golds = [{"choice": place} for place in right]
    found = task.decide(answers, golds, config()).changes["decisions"]
    if "calibration" in found:  # as good as none
        assert found["calibration"]["temperature"] == approx(1, abs=0.15)
    else:
        assert set(found) == {"measured"}


def no_answer(task, doubt, made):
    """The answer where no answer has a logit that is so much higher than that of the best span."""
    places = np.array([(0, 4), (5, 9)], np.int32)
    features = [{"offsets": places, "first": 1, "flags": {}, "context": "York Bath"}]
    logits = np.array([doubt / 2, 0.0, -50.0])
    return task.decode([dict.fromkeys(Squad.answers.outputs, logits)], made, None, features)


def test_the_probability_of_no_answer_is_calibrated():
    rng = np.random.default_rng(1)
    doubts = rng.normal(0, 2, 200)
    empty = rng.random(200) < 1 / (1 + np.exp(-doubts))
    doubts = doubts * 3 + 2  # too sure, and too often of no answer
    made, task = config(no_answer_threshold=0.5), Squad(calibration="platt")
    answers = [no_answer(task, doubt, made) for doubt in doubts]
    silent = {"answer": "", "best": "", "no_answer": 1.0}  # a document without a word
    golds = [{"answers": [] if none else ["York"]} for none in empty]
    found = task.decide([*answers, silent], [*golds, {"answers": []}], made)

    right = empty[:, None]
    oracle = Platt.fit(doubts[:, None], right)
    kept = found.changes["decisions"]["calibration"]
    assert kept["method"] == "platt"
    assert kept["weights"][0] == approx(oracle.weights[0], rel=1e-6)
    assert kept["weights"][0] == approx([1 / 3, -2 / 3], abs=0.15)
    # What counts is by other folds.
    assert found.answers[-1] is silent
    for others, own in folds(200):
        fold = Platt.fit(doubts[others, None], right[others])
        expected = fold.apply(doubts[own, None])[:, 0]
        assert [found.answers[n]["no_answer"] for n in own] == approx(expected)
    decided = PretrainedConfig(no_answer_threshold=0.5, decisions=dict(found.changes["decisions"]))
    for doubt in (-3.0, 1.9, 2.1, 8.0):
        answer = no_answer(task, doubt, decided)
        p = 1 / (1 + np.exp(-np.dot(kept["weights"][0], [doubt, 1])))
        assert answer["no_answer"] == approx(p)
        assert answer["answer"] == ("" if p > 0.5 else "York")
    rules = Rules(several=True, thresholds=np.array([0.5]), calibration="platt")
    after = decide(doubts[:, None], right, rules)
    report = found.report["labels"]["no answer"]
    assert report["documents"] == empty.sum() == after.labels.shape[0] - (~empty).sum()


def test_calibration_without_what_it_is_fitted_to_is_refused():
    for task in (WikiHop, MultipleChoice, Squad):
        with pytest.raises(RecipeError, match=r"task.calibration: is chosen on held-out documents"):
            task(calibration="auto").learn([], DataSection(train="t.jsonl"))
    example = recipes_example({"question": "who?", "context": "a b", "answers": ["a"]})
    with pytest.raises(RecipeError, match="t.jsonl: every question has an answer"):
        Squad(calibration="platt").learn([example], HELD_OUT)


def recipes_example(fields):
    from ldt.io.records import Example

    return Example(fields, "q", "t.jsonl:1")


def test_squad_has_no_abstention_of_its_own():
    with pytest.raises(ValidationError, match="abstain"):
        Squad(abstain={"coverage": 0.9})
    with pytest.raises(RecipeError, match=r"task.abstain: is chosen on held-out documents"):
        WikiHop(abstain={"risk": 0.1}).learn([], DataSection(train="t.jsonl"))


@pytest.mark.slow
@pytest.mark.parametrize(("task", "line"), [("multiple_choice", multiple_choice), ("squad", squad)])
def test_the_same_from_finetune_and_from_ldt_thresholds(
    task, line, tiny_longformer, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    for name, numbers in (("train", range(8)), ("dev", range(20, 44))):
        lines = [json.dumps({"id": n} | line(n)) for n in numbers]
        Path(f"{name}.jsonl").write_text("\n".join(lines))
    method = "temperature" if task == "multiple_choice" else "platt"
    Path("r.yaml").write_text(f"""
task: {{name: {task}, calibration: {method}}}
model: {{path: {tiny_longformer}}}
data: {{train: train.jsonl, eval: dev.jsonl}}
training: {{output_dir: run, max_steps: 2, learning_rate: 0.01}}
""")
    train(recipes.load("r.yaml", command="finetune"))
    assert f"decision: probabilities calibrated by {method}" in capsys.readouterr().out
    made = read_config(Path("run"))
    assert made.decisions["calibration"]["method"] == method
    before = Path("run/config.json").read_bytes()
    key = "scores" if task == "multiple_choice" else "no_answer"
    assert f"Probabilities in `{key}` are calibrated. " in Path("run/README.md").read_text()
    assert predict("dev.jsonl", model="run", output="a.jsonl") == 0
    with pytest.raises(SystemExit) as ended:
        cli.main(["evaluate", "run", "--choose-thresholds"])
    assert ended.value.code == 0
    assert Path("run/config.json").read_bytes() == before
    with pytest.raises(SystemExit) as ended:
        cli.main(["evaluate", "run", "--choose-thresholds", "task.calibration=none"])
    assert ended.value.code == 0
    assert read_config(Path("run")).decisions == {"settings": {"calibration": "none"}}
    if task == "squad":
        with pytest.raises(SystemExit) as ended:
            cli.main(["evaluate", "run", "--choose-thresholds", "task.abstain.coverage=0.5"])
        assert ended.value.code == 2
        return
    with pytest.raises(SystemExit) as ended:  # 24 questions never make it sure
        cli.main(["evaluate", "run", "--choose-thresholds", "task.abstain.risk=0"])
    assert ended.value.code == 2
    assert "no document would have an answer for a risk of 0" in capsys.readouterr().err
    config = json.loads(Path("run/config.json").read_text())
    never = {"abstain": {"confidence": None}, "measured": {"asked": {"risk": 0.0}}}
    config["decisions"] |= never
    Path("run/config.json").write_text(json.dumps(config))
    assert predict("dev.jsonl", model="run", output="b.jsonl") == 0
    for line in Path("b.jsonl").read_text().splitlines():
        answer = json.loads(line)
        assert answer["answer"] is answer["choice"] is None
        assert answer["abstained"] is True
        assert len(answer["scores"]) > 1
