"""A folder with models, documents, recipes and a run, for commands that suffer faults."""

import shutil

import pytest
from faults import contracts, lines
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
data: {train: text.txt, documents: line, eval_fraction: 0.2, max_length: 32}
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


@pytest.fixture(scope="session")
def ldt():
    """Runs a command with a fault, see `zygote.Zygote`."""
    with Zygote() as zygote:
        yield zygote


@pytest.fixture(scope="session")
def made(ldt, tmp_path_factory):
    """A folder with a short and a long model, text, documents, recipes and a finished run.

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
    ):
        outcome = ldt(*command.split(), cwd=folder)
        assert outcome.code == 0, outcome.err
    return folder


@pytest.fixture
def home(made, tmp_path):
    """A copy of `made` that a test may spoil."""
    folder = tmp_path / "home"
    shutil.copytree(made, folder, symlinks=True)
    return folder
