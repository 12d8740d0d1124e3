"""Pipes, sockets, devices, folders and links to themselves in the places of files and folders."""

import json
import os
import shutil
import socket

import pytest
from faults import sample


def plant(home):
    """Make one of each kind, named by it."""
    os.mkfifo(home / "pipe")
    (home / "loop").symlink_to("loop")
    (home / "nothing").symlink_to("not there")
    (home / "folder").mkdir()
    (home / "empty").write_text("")
    (home / "nul").symlink_to("/dev/null")
    (home / "zero").symlink_to("/dev/zero")
    here = os.getcwd()
    os.chdir(home)  # the path of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind("socket")
    finally:
        os.chdir(here)


KINDS = ("pipe", "loop", "nothing", "folder", "empty", "nul", "zero", "socket")
PLACES = {
    "input": "predict {} --model runs/done",
    "answers": "predict new.jsonl --model runs/done --output {}",
    "recipe": "finetune {} --dry-run",
    "train": "finetune ft.yaml data.train={}",
    "eval": "finetune ft.yaml data.eval={}",
    "text": "pretrain mlm.yaml data.train={}",
    "characters": "pretrain ch.yaml data.train={}",
    "model": "finetune ft.yaml model.path={}",
    "tokenizer": "pretrain mlm.yaml model.tokenizer={}",
    "gold": "evaluate --format squad --gold {} --pred pred.json",
    "predictions": "evaluate --format squad --gold gold.json --pred {}",
    "evidence": "evaluate --format triviaqa --gold questions.json --pred pred.json "
    "data.evidence={}",
    "source": "convert {} other --max-length 512 --window 16",
    "target": "convert short {} --max-length 512 --window 16",
    "run": "finetune ft.yaml training.output_dir={}",
    "cache": "pretrain mlm.yaml data.cache={}",
    "copy": "recipes copy wikihop {}",
}
# A pipe that is named waits for its other end, a device gives what it has.
FOREVER = {(place, "pipe") for place in ("input", "answers", "recipe", "train", "eval", "text")}
FOREVER |= {(place, "pipe") for place in ("characters", "gold", "predictions")}
FOREVER |= {(place, "zero") for place in ("input", "train", "eval", "text", "characters")}
FOREVER |= {(place, "zero") for place in ("gold", "predictions")}
CASES = [(place, kind) for place in PLACES for kind in KINDS if (place, kind) not in FOREVER]


@pytest.mark.parametrize(("place", "kind"), sample(CASES, 8))
def test_what_is_no_file_or_folder_is_a_line_in_its_place(place, kind, ldt, home):
    plant(home)
    paragraph = {"context": "a b", "qas": [{"id": "q", "question": "?", "answers": []}]}
    question = {"QuestionId": "q", "Question": "?", "Answer": {"NormalizedAliases": ["a"]}}
    gold = {"data": [{"title": "t", "paragraphs": [paragraph]}]}
    questions = {"Data": [question | {"EntityPages": []}], "Domain": "Wikipedia"}
    for name, value in {"gold": gold, "questions": questions, "pred": {"q": "a"}}.items():
        (home / f"{name}.json").write_text(json.dumps(value))
    outcome = ldt(*PLACES[place].format(kind).split(), cwd=home, limit=30)
    assert not outcome.bug, (outcome.code, outcome.err)
    assert outcome.code in (0, 2, 3, 4, 5), outcome.err
    if outcome.code:
        last = outcome.err.splitlines()[-1]
        assert last.startswith("error: ")
        assert kind in last or "gold.json" in last
    assert not [path for path in home.rglob("*") if ".tmp-" in path.name]


@pytest.mark.parametrize("kind", [*KINDS, "outside", "absolute"])
def test_evidence_that_is_no_text_of_its_folder_is_not_read(kind, ldt, home):
    folder = home / "evidence/wikipedia"
    folder.mkdir(parents=True)
    plant(folder)
    (home / "secret").write_text("a secret")
    name = {"outside": "../../secret", "absolute": str(home / "secret")}.get(kind, kind)
    question = {
        "QuestionId": "q",
        "Question": "?",
        "Answer": {"NormalizedAliases": ["a"]},
        "EntityPages": [{"Filename": name}],
    }
    (home / "gold.json").write_text(json.dumps({"Data": [question], "Domain": "Wikipedia"}))
    (home / "pred.json").write_text('{"q": "a"}')
    command = "evaluate --format triviaqa --gold gold.json --pred pred.json data.evidence=evidence"
    outcome = ldt(*command.split(), cwd=home, limit=30)
    assert not outcome.bug, (outcome.code, outcome.err)
    assert outcome.code in (0, 2, 4)
    assert "secret" not in outcome.out
    if kind in ("outside", "absolute"):
        assert outcome.code == 4
        assert "a page outside of" in outcome.err


def test_a_model_in_the_place_of_a_link_to_a_folder_is_read(ldt, home):
    shutil.move(home / "runs/done", home / "moved")
    (home / "runs/done").symlink_to("../moved")
    outcome = ldt("predict", "new.jsonl", "--model", "runs/done", cwd=home)
    assert (outcome.code, outcome.out.count("\n")) == (0, 12)
