"""A folder with models, documents, recipes and a run, for commands that suffer faults."""

import random
import shutil
import time
from collections import defaultdict
from itertools import zip_longest
from pathlib import Path

import pytest
from faults import ALL, MINUTES, SEED, contracts, lines
from zygote import Zygote

FINETUNE = """\
task: {name: classification}
model: {path: long, attention: blocked}
data: {train: train.jsonl, eval: eval.jsonl, max_length: 64}
training:
  {output_dir: runs/r, max_steps: 4, save_strategy: steps, save_steps: 2, eval_strategy: steps,
   eval_steps: 2, logging_steps: 1, use_cpu: true, seed: 3}
"""
MASKED = """\
task: {name: mlm}
model:
  config: {hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 16}
  tokenizer: short
  window: 8
data: {train: text.txt, document_unit: line, eval_fraction: 0.2, max_length: 32}
training:
  {output_dir: runs/r, max_steps: 4, save_strategy: steps, save_steps: 2, eval_strategy: steps,
   eval_steps: 2, logging_steps: 1, use_cpu: true, seed: 3}
"""
CHARACTERS = """\
task: {name: charlm}
model:
  config: {hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 16}
  window: 8
data: {train: text.txt, eval_fraction: 0.05, max_length: 32}
training:
  {output_dir: runs/r, max_steps: 4, save_strategy: steps, save_steps: 2, eval_strategy: steps,
   eval_steps: 2, logging_steps: 1, use_cpu: true, seed: 3}
"""


BEGAN = time.monotonic()
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    """The fast tier has the first case of a class. A long run takes the cases of the classes in
    turn: one that is not to the end has tried all."""
    classes = defaultdict(list)
    for item in items:
        if item.path.parent == HERE:
            classes[item.path, item.originalname].append(item)
    for cases in classes.values():
        for case in cases[1:]:
            case.add_marker("slow")
        random.Random(SEED).shuffle(cases)
    if ALL:
        items[:] = [case for turn in zip_longest(*classes.values()) for case in turn if case]


def pytest_runtest_setup(item):
    if time.monotonic() - BEGAN > 60 * MINUTES:
        pytest.skip("the time of LDT_CHAOS is over")


@pytest.fixture(scope="session")
def ldt():
    """Runs a command with a fault, see `zygote.Zygote`."""
    with Zygote() as zygote:
        yield zygote


@pytest.fixture(scope="session")
def made(ldt, tmp_path_factory):
    """A folder with a short and a long model, text, documents, recipes and finished runs.

    Not to be changed; `home` is a copy.
    """
    import demo

    folder = tmp_path_factory.mktemp("made")
    rows = contracts(24)
    demo.make_small(folder / "short", [row["text"] for row in rows], seed=0)
    lines(folder / "train.jsonl", rows[:16])
    lines(folder / "eval.jsonl", rows[16:])
    lines(folder / "new.jsonl", contracts(12, seed=1))
    (folder / "text.txt").write_text("".join(row["text"] + "\n" for row in rows))
    for name, text in {"ft": FINETUNE, "mlm": MASKED, "ch": CHARACTERS}.items():
        (folder / f"{name}.yaml").write_text(text)
    for command in (
        "convert short long --max-length 512 --window 16",
        "finetune ft.yaml training.output_dir=runs/done",
        "pretrain mlm.yaml training.output_dir=masked training.max_steps=1",
        "pretrain ch.yaml training.output_dir=characters training.max_steps=1",
    ):
        outcome = ldt(*command.split(), cwd=folder)
        assert outcome.code == 0, outcome.err
    shutil.rmtree(folder / ".ldt")
    return folder


@pytest.fixture
def home(made, tmp_path):
    """A copy of `made` that a test may spoil."""
    folder = tmp_path / "home"
    shutil.copytree(made, folder, symlinks=True)
    return folder
