"""No text of data, models, recipes or file names steers the terminal that it is shown on."""

import json
import re
import shutil

import pytest
from faults import contracts, lines

# A title, a cleared screen, C1's introducer, a turned direction of writing, a backspace, a bell.
HARM = "\x1b]0;TITLE\x07\x1b[2J\x9b31m\u202e\u2066\x08\x07\x7f\x1bcX"
OWN = re.compile(r"\x1b\[[0-9;]*m|\x1b\[\?25[hl]|\x1b\[[0-9]*[AGK]|\r")  # colours, bars
SENT = ("\x1b]", "\x1b[2J", "\x1bc")  # of `HARM`; what `OWN` has in common with it, aside
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def classes(home):
    """A model, learnt from labels that steer."""
    rows = contracts(24)
    for row in rows:
        row["id"] += HARM
        row["label"] += HARM
    lines(home / "train.jsonl", rows[:16])
    lines(home / "eval.jsonl", rows[16:])
    lines(home / "new.jsonl", contracts(3) + [{"id": HARM, "text": "agreement"}])


def config(**changes):
    def change(home):
        file = home / "runs/done/config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return change


def ids(home):
    rows = contracts(3)
    lines(home / "new.jsonl", [{**row, "id": row["id"] + HARM} for row in [*rows, rows[0]]])


def broken(home):
    (home / "new.jsonl").write_text(json.dumps({"id": HARM, HARM: HARM}) + "\n" + HARM + "\n")


def squad(home):
    question = {"id": HARM, "question": HARM, "answers": [{"text": "a", "answer_start": 0}]}
    gold = {"data": [{"title": HARM, "paragraphs": [{"context": "a b", "qas": [question]}]}]}
    (home / "gold.json").write_text(json.dumps(gold))
    (home / "pred.json").write_text(json.dumps({HARM: "b", "q" + HARM: "a"}))


def labels(home):
    harm = HARM.replace(" ", "")
    gold = [f"word B-{kind}{harm}\nword O\n\n" for kind in "ab"]
    (home / "gold.conll").write_text("".join(gold))
    pred = {"1": [[f"B-a{harm}", "O"]], "2": [[f"B-c{harm}", "O"]], harm: [["O"]]}
    (home / "pred.json").write_text(json.dumps(pred))


def recipe(text):
    def change(home):
        (home / "bad.yaml").write_text(text)

    return change


def named(home):
    name = "new" + HARM.replace("/", "") + ".jsonl"
    (home / name).write_text("nonsense\n")


def characters(home):
    text = (home / "text.txt").read_text()
    (home / "text.txt").write_text(text.replace(" ", HARM))


NAME = "new" + HARM + ".jsonl"
EVALUATE = ("evaluate", "--format", "conll", "--gold", "gold.conll", "--pred", "pred.json")
CASES = {
    "labels of a training": (classes, ("finetune", "ft.yaml")),
    "labels of a dry run": (classes, ("finetune", "ft.yaml", "--dry-run")),
    "labels of answers": (
        config(id2label={"0": "a" + HARM, "1": "b" + HARM}, label2id=None),
        ("predict", "new.jsonl", "--model", "runs/done"),
    ),
    "ids of answers": (ids, ("predict", "new.jsonl", "--model", "runs/done")),
    "documents": (
        broken,
        ("predict", "new.jsonl", "--model", "runs/done", "--on-error", "skip"),
    ),
    "name of a model": (config(model_type=HARM), ("predict", "new.jsonl", "--model", "runs/done")),
    "value of a model": (config(hidden_act=HARM), ("finetune", "ft.yaml", "model.path=runs/done")),
    "name of a file": (named, ("predict", NAME, "--model", "runs/done", "--output", "a.jsonl")),
    "name of no file": (named, ("predict", "no" + NAME, "--model", "no" + NAME)),
    "questions": (
        squad,
        ("evaluate", "--format", "squad", "--gold", "gold.json", "--pred", "pred.json"),
    ),
    "groups": (labels, EVALUATE),
    "groups as JSON": (labels, (*EVALUATE, "--json", "-")),
    "keys of a recipe": (
        recipe(f"task: {{name: classification, {json.dumps(HARM)}: 1}}\ndata: {{train: x}}\n"),
        ("finetune", "bad.yaml"),
    ),
    "values of a recipe": (
        recipe(f"task: {{name: {json.dumps(HARM)}}}\n"),
        ("finetune", "bad.yaml"),
    ),
    "control characters in a recipe": (recipe(f"task: {HARM}\n"), ("finetune", "bad.yaml")),
    "an option": (classes, ("predict", f"--{HARM}")),
    "a command": (classes, (HARM,)),
    "an override": (classes, ("finetune", "ft.yaml", f"task.{HARM}={HARM}")),
    "a text of characters": (characters, ("pretrain", "ch.yaml", "--dry-run")),
    "a training on characters": (characters, ("pretrain", "ch.yaml")),
    "a text of words": (characters, ("pretrain", "mlm.yaml")),
}


@pytest.mark.parametrize("case", CASES)
def test_a_terminal_is_not_steered_from_outside(case, ldt, home):
    prepare, command = CASES[case]
    prepare(home)
    outcome = ldt(*command, cwd=home, terminal=True)
    assert not outcome.bug, outcome.out
    assert outcome.out
    assert not [harm for harm in SENT if harm in outcome.out]
    assert CONTROLS.findall(OWN.sub("", outcome.out)) == []


def test_a_continued_text_of_control_characters_is_shown_as_json(ldt, home):
    characters(home)
    command = ("pretrain", "ch.yaml", "training.output_dir=runs/c", "training.max_steps=1")
    assert ldt(*command, cwd=home).code == 0
    shutil.copy(home / "text.txt", home / "prompt.txt")
    lines(home / "prompts.jsonl", [{"id": HARM, "text": HARM[:1] + "a"}])
    outcome = ldt("predict", "prompts.jsonl", "--model", "runs/c", cwd=home, terminal=True)
    assert outcome.code == 0, outcome.out
    assert "\\u001b" in outcome.out
    assert CONTROLS.findall(OWN.sub("", outcome.out)) == []
