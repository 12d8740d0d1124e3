"""What a run decides by: the same from finetune, from ldt evaluate, and after saving."""

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from training_runs import train
from typed import typed

from ldt import cli
from ldt.errors import UserError
from ldt.inference.engine import read_recipe
from ldt.inference.evaluate import evaluate
from ldt.inference.predict import predict
from ldt.model.loading import read_config
from ldt.tasks import WikiHop
from ldt.training.deciding import decide_anew

CHOOSE, UNDO = ["--choose-thresholds"], "--undo-thresholds"
TARGET = "task.threshold_target=recall>=0.9"
ALL = ("task.threshold=auto", "task.calibration=platt", "task.abstain={coverage: 0.8}")


def labelled(path, count, seed, several=True):
    """Documents of two labels, of which ZZZ tells the one and end the other."""
    rng = random.Random(seed)
    with open(path, "w") as file:
        for number in range(count):
            labels = [name for name in ("x", "y") if rng.random() < 0.4]
            words = {"x": "ZZZ", "y": "end"}
            text = " ".join(["the party", *(words[name] for name in labels), "agree"])
            label = labels if several else "ab"["x" in labels]
            file.write(json.dumps({"id": f"d-{number}", "text": text, "label": label}) + "\n")


def results(run="runs/r"):
    return json.loads(Path(run, "metrics.json").read_text())


def answers(run, *options, **keys):
    predict("dev.jsonl", model=run, output=f"{run}.jsonl", overwrite=True, **keys)
    return [json.loads(line) for line in Path(f"{run}.jsonl").read_text().splitlines()]


@pytest.fixture
def several(recipe):
    """A recipe of documents with several labels."""
    labelled("train.jsonl", 24, 0)
    labelled("dev.jsonl", 30, 1)
    return recipe


def test_thresholds_are_the_same_from_finetune_and_from_ldt_thresholds(several, capsys):
    train(several(*ALL))
    decisions = read_config(Path("runs/r")).decisions
    assert set(decisions) == {"thresholds", "calibration", "abstain", "label_sets", "measured"}
    assert decisions["measured"]["source"] == "dev.jsonl"
    assert set(decisions["thresholds"]) == {"x", "y"}
    out = capsys.readouterr().out
    assert "threshold" in out
    assert (
        "decision: thresholds of 2 classes tuned for f1; probabilities calibrated by platt" in out
    )
    made = results()

    shutil.copytree("runs/r", "runs/other")
    config = json.loads(Path("runs/other/config.json").read_text())
    Path("runs/other/config.json").write_text(json.dumps(config | {"decisions": {}}))
    assert typed(capsys, "evaluate", "runs/other", "--choose-thresholds")[0] == 0
    again = Path("runs/other/config.json").read_bytes()
    assert again == Path("runs/r/config.json").read_bytes()
    redone = results("runs/other")
    assert (
        redone["decisions"].pop("metrics").items()
        >= {
            name.removeprefix("eval_"): value
            for name, value in made["metrics"].items()
            if name in ("eval_macro_f1", "eval_micro_f1", "eval_exact_match")
        }.items()
    )
    assert redone == made
    cards = [Path(run, "README.md").read_text() for run in ("runs/r", "runs/other")]
    assert cards[0] == cards[1].replace("- name: other", "- name: r")
    assert answers("runs/r") == answers("runs/other")


def test_answers_are_by_the_decisions_of_the_model(several, caplog):
    train(several(*ALL))
    decisions = read_config(Path("runs/r")).decisions
    with caplog.at_level("INFO", "ldt"):
        found = answers("runs/r", label_sets=0.9)
    assert "decision: thresholds of 2 classes" in caplog.text
    raw = answers("runs/r", raw_scores=True)
    factors = dict(zip("xy", decisions["calibration"]["weights"], strict=True))
    for answer, logits in zip(found, raw, strict=True):
        assert logits["label"] == answer["label"]
        for name, (slope, shift) in factors.items():
            odds = slope * logits["scores"][name] + shift
            p = 1 / (1 + 2.718281828459045**-odds)
            assert answer["scores"][name] == pytest.approx(p, abs=0.01)  # logits are rounded
        if answer.get("abstained"):
            assert answer["label"] is None
            assert answer["why"].startswith("confidence 0.")
        else:
            chosen = decisions["thresholds"]
            given = [name for name, p in answer["scores"].items() if p >= chosen[name]]
            assert answer["label"] == given
        assert set(answer["label"] or []) <= {"x", "y"}
        assert isinstance(answer["label_set"], list)
    card = Path("runs/r/README.md").read_text()
    assert "Decision in force: thresholds of 2 classes tuned for f1; probabilities calibr" in card
    assert "Probabilities in `scores` are calibrated; `raw_scores=true` gives logits." in card
    assert "| answers | mean probability | share that is right |" in card


def test_other_documents_and_targets(several, capsys):
    train(several())
    assert read_config(Path("runs/r")).decisions == {}
    before = answers("runs/r")
    labelled("more.jsonl", 40, 2)
    out, err = command(capsys, "evaluate", "runs/r", *CHOOSE, "--gold", "more.jsonl", TARGET)
    assert "decision: thresholds of 2 classes tuned for recall>=0.9 (" in out
    assert "; chosen on 40 documents of more.jsonl (sha256 " in out
    assert "eval at step 0" not in err
    assert "kept in config.json" in err
    after = answers("runs/r")
    assert [each["scores"] for each in after] == [each["scores"] for each in before]
    assert read_config(Path("runs/r")).decisions["measured"]["threshold_target"] == "recall>=0.9"


def test_one_label_a_document(recipe):
    labelled("train.jsonl", 24, 0, several=False)
    labelled("dev.jsonl", 30, 1, several=False)
    train(recipe("task.calibration=temperature", "task.abstain={risk: 0.0}"))
    decisions = read_config(Path("runs/r")).decisions
    assert decisions["abstain"] == {"confidence": None}  # 30 documents never make it sure
    found = answers("runs/r")
    assert all("none was sure enough" in answer["why"] for answer in found)
    assert all(answer["label"] is None for answer in found)


def test_numbers_have_nothing_to_decide(recipe):
    from training_runs import documents

    documents("train.jsonl", 8, 0, "number")
    documents("dev.jsonl", 8, 1, "number")
    train(recipe("task.problem=regression"))
    with pytest.raises(UserError, match="answers of classification are decided by no threshold"):
        decide_anew(Path("runs/r"), read_recipe(Path("runs/r")))


def test_a_value_that_means_nothing_is_one_line(several):
    train(several())
    own = read_recipe(Path("runs/r"))
    with pytest.raises(UserError, match="task.threshold_target: expected f1, f2"):
        decide_anew(Path("runs/r"), own, threshold_target="precision")


def test_a_key_that_the_task_does_not_have_is_one_line(several):
    wikihop = replace(several(), task=WikiHop())
    with pytest.raises(UserError, match="^task.threshold_target: wikihop has no such key; nothing"):
        decide_anew(Path("runs/r"), wikihop, threshold_target="f1")


@pytest.mark.parametrize("kind", ["single", "several"])
def test_ldt_evaluate_has_the_figures_of_the_training(kind, recipe):
    for name, count, seed in (("train.jsonl", 24, 0), ("dev.jsonl", 30, 1)):
        labelled(name, count, seed, several=kind == "several")
    train(recipe())
    made = results()
    answers("runs/r")
    found = evaluate("dev.jsonl", "runs/r.jsonl", recipe="runs/r")
    metrics = {n.removeprefix("eval_"): value for n, value in made["metrics"].items()}
    shared = metrics.keys() & found.metrics.keys()
    assert shared == {"accuracy" if kind == "single" else "exact_match", "macro_f1", "micro_f1"}
    assert {name: found.metrics[name] for name in shared} == {n: metrics[n] for n in shared}
    for mine, row in zip(found.tables["classes"], made["table"], strict=True):
        assert {name: mine[name] for name in row} == row


@pytest.fixture
def single(recipe):
    """A recipe of documents with one of the classes a and b."""
    labelled("train.jsonl", 24, 0, several=False)
    labelled("dev.jsonl", 30, 1, several=False)
    return recipe


def thresholds(*options, code=0):
    """The files that say what a run decides by, after the command ended with this code."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["evaluate", "runs/r", *(options if UNDO in options else [*CHOOSE, *options])])
    assert ended.value.code == code
    names = ("config.json", "metrics.json", "README.md")
    return {name: Path("runs/r", name).read_bytes() for name in names}


@pytest.mark.slow
def test_a_class_of_two_has_a_threshold_from_recipe_and_command_alike(single, capsys):
    keys = ("task.positive=b", "task.threshold_target=recall>=0.9")
    train(single("task.threshold=auto", *keys))
    made = read_config(Path("runs/r")).decisions
    assert set(made["thresholds"]) == {"b"}
    train(single("task.abstain={coverage: 0.5}"), overwrite=True)
    before = thresholds(TARGET, code=2)
    assert "task.positive names it: 'a', 'b'" in capsys.readouterr().err
    after = thresholds(TARGET, "task.positive=b")
    told = capsys.readouterr().out
    assert f"'b' from a probability of {made['thresholds']['b']:.4g} on, tuned for recall" in told
    decisions = read_config(Path("runs/r")).decisions
    assert decisions["thresholds"] == made["thresholds"]
    assert decisions["abstain"]  # what no key names stays
    assert decisions["measured"]["asked"] == {"coverage": 0.5}
    for each in answers("runs/r"):
        if each["label"] is not None:
            assert each["label"] == "ab"[each["scores"]["b"] >= decisions["thresholds"]["b"]]
    calibrated = thresholds("task.calibration=temperature")
    assert read_config(Path("runs/r")).decisions["thresholds"].keys() == {"b"}
    # Each change is taken back to the last byte.
    assert calibrated != thresholds(UNDO) == after
    assert thresholds(UNDO) == before
    assert not Path("runs/r/decisions.json").exists()
    thresholds(UNDO, code=2)
    assert "there is nothing to undo" in capsys.readouterr().err


@pytest.mark.parametrize("last", ["README.md", "metrics.json"])
def test_a_change_that_is_killed_is_undone_by_the_next(last, single, monkeypatch):
    from ldt.training import deciding

    train(single())
    names = ("config.json", "metrics.json", "README.md")
    before = {name: Path("runs/r", name).read_bytes() for name in names}
    write = deciding.write_whole

    def killed(path, text):
        write(path, text)
        if path.name == last:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(deciding, "write_whole", killed)
        thresholds("task.calibration=temperature", code=130)
    assert Path("runs/r/config.json").read_bytes() == before["config.json"]
    litter = Path("runs/r/config.json.tmp-1")
    litter.write_text("{")
    thresholds(UNDO, code=2)
    assert not litter.exists()
    assert before == {name: Path("runs/r", name).read_bytes() for name in names}


@pytest.mark.parametrize("key", ["task.abstain.risk=0", "task.abstain={coverage: 0}"])
def test_a_decision_that_leaves_nothing_is_not_kept(key, several, capsys):
    train(several("training.max_steps=1"))
    files = ("config.json", "metrics.json", "README.md")
    before = {name: Path("runs/r", name).read_bytes() for name in files}
    thresholds("data.label=x", code=3)
    assert "data.label=x: not read here, expected one of task.thres" in capsys.readouterr().err
    assert thresholds(key, code=2) == before
    assert capsys.readouterr().err.endswith("; nothing is changed\n")


def test_each_target_is_reached_missed_or_not_known(several, capsys):
    train(several())
    rows = [{"id": n, "text": "the party ZZZ", "label": ["x"]} for n in range(40)]
    rows += [{"id": n, "text": "the party agree", "label": []} for n in range(40, 80)]
    Path("many.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    thresholds("--gold", "many.jsonl", TARGET)
    decisions = read_config(Path("runs/r")).decisions
    assert decisions["thresholds"]["y"] == 0.5
    x, y = results()["decisions"]["targets"].values()
    assert (x["verdict"], x["total"]) == ("reached", 40)
    assert x["at_least"] == pytest.approx(0.1 ** (1 / 40))
    assert y["verdict"] == "no documents"
    out = capsys.readouterr().out
    assert "(1 reached, 1 no documents)" in out
    assert " ".join(out.split()).count("x reached 40 of 40, at least 94.4%") == 1


def command(capsys, *arguments):
    """What a command prints; it ends in 0."""
    code, *told = typed(capsys, *arguments)
    assert code == 0
    return told


def test_all_commands_tell_the_decision_in_force_and_where_gold_chose_it(single, capsys):
    train(single())
    shutil.copytree("runs/r", "runs/other")
    shutil.copy("dev.jsonl", "same.jsonl")
    labelled("new.jsonl", 12, 5, several=False)
    command(capsys, "evaluate", "runs/r", *CHOOSE, TARGET, "task.positive=b")
    answers("runs/r")
    told = "decision in force: 'b' from a probability of 0."
    chosen = "the decision in force was chosen on these very documents"
    for gold, warned in (("same.jsonl", True), ("new.jsonl", False)):
        predict(gold, model="runs/r", output=f"of.{gold}")
        asked = ("--gold", gold, "--pred", f"of.{gold}", "--recipe", "runs/r")
        scores, err = command(capsys, "evaluate", *asked)
        assert told in err
        assert (f"{gold}: {chosen}" in err) is warned
        scored, err = command(capsys, "evaluate", "runs/r", "--gold", gold)
        assert scored == scores  # the model answers as ldt predict has
        assert told in err
        assert (f"{gold}: {chosen}" in err) is warned
        out, err = command(capsys, "report", "runs/other", "runs/r", "--gold", gold)
        assert "B: runs/r; decision: 'b' from a probability of" in out
        assert (f"runs/r: {gold}: {chosen}" in err) is warned
        command(capsys, "report", "runs/r", "--gold", gold, "--output", f"{gold}.html")
        assert (chosen in Path(f"{gold}.html").read_text()) is warned
