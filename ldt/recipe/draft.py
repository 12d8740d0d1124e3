"""Draft of a first recipe for a data file, with comments on what was found in the file."""

import itertools
import math
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ldt.data.options import OPTIONS
from ldt.recipe import yaml
from ldt.recipe.recipe import COMMANDS
from ldt.recipe.sections import MODELS, meanings
from ldt.recipe.survey import Survey, guessed
from ldt.tasks import TASKS

LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)  # longest inputs that are suggested
FEW, BEGINNING = 50, 5_000  # documents, and letters of each, that a tokenizer is tried on
USUAL = 4096  # more is suggested for nobody who did not ask
INPUTS = 16  # of a corpus, which its longest length is to leave
FITTING = 0.95  # share of the documents that a suggested length holds whole
SHARES = (0.1, 0.2, 0.3)  # to evaluate on
FEWEST = 5  # records to evaluate on, where there are so few
NARROW = 512  # width below which a model learns at a higher rate
_WIDTH = 98  # of the comments


class _Key(NamedTuple):
    """Key of a recipe, its value, and the observation in the data that suggests it."""

    name: str
    value: Any
    seen: str = ""


def lengths(survey: Survey, task: str, count: Callable[[str], int] | None = None) -> list[int]:
    """Estimate the tokens of each of the file's first documents, in rising order.

    Args:
        survey: the data file.
        task: name of the task that reads it.
        count: function that counts the tokens of a text, applied to the beginnings of 50 documents;
            by default tokens are estimated from words.
    """
    documents = survey.documents(task)
    if count is None:
        return sorted(map(guessed, documents))
    beginnings = [text[:BEGINNING] for text in documents[:FEW] if text]
    letters = sum(map(len, beginnings))
    tokens_a_letter = sum(map(count, beginnings)) / letters if letters else 0
    return sorted(math.ceil(tokens_a_letter * len(text)) for text in documents)


def suggested(tokens: list[int], longest: int | None = None) -> int:
    """Suggest the longest input in tokens (``max_length``): the shortest usual length that 95 % of
    the documents fit into, at most ``longest``.

    Args:
        tokens: number of tokens of each document, without special ones, in rising order.
        longest: longest input of the model, in tokens; None if it is yet to be converted: 4,096.
    """
    limit = longest or USUAL
    most = tokens[min(len(tokens) - 1, int(FITTING * len(tokens)))] if tokens else limit
    return min(limit, next((size for size in LENGTHS if size >= most + 2), limit))


def draft(
    survey: Survey,
    *,
    task: str,
    model: str,
    max_length: int,
    tokens: list[int],
    width: int | None = None,
    name: str = "recipe.yaml",
) -> str:
    """Draft a first recipe for a data file: text of a YAML file with comments.

    Args:
        survey: the data file.
        task, model, max_length: as in a recipe.
        tokens: number of tokens of each document (`lengths`).
        width: hidden size of the model, None if it is unknown.
        name: file that the recipe is written to, for the commands in its first lines.
    """
    kind = TASKS[task].reads.kind
    head = f"A first recipe for {survey.source}: {task}. Keys left out have their defaults."
    lines = [f"# {line}" for line in [head, *commands(task, name)]]
    labels = survey.labels if task == "classification" else None
    task_keys = {"name": task} | (labels.task if labels else {})
    sections: dict[str, tuple[Any, Iterable[_Key]]] = {
        "task": (TASKS[task], itertools.starmap(_Key, task_keys.items())),
        "model": (MODELS[kind], [_Key("path", model)]),
        "data": (OPTIONS[kind], _data_keys(survey, task, max_length, tokens)),
        "training": (object, _training_keys(survey, task, width)),
    }
    for section, (cls, keys) in sections.items():
        known = meanings(cls)
        lines.append(f"{section}:")
        lines += [line for key in keys for line in _lines(key, known.get(key.name, ""))]
    return "\n".join(lines) + "\n"


def commands(task: str, name: str) -> list[str]:
    """The commands that check and run a recipe: ``ldt check NAME`` and ``ldt finetune NAME`` or
    ``ldt pretrain NAME``, by the task. ``name`` is the recipe's file."""
    return [f"ldt check {name}", f"ldt {COMMANDS[TASKS[task].reads.kind]} {name}"]


def _data_keys(survey: Survey, task: str, max_length: int, tokens: list[int]) -> Iterator[_Key]:
    inputs, labelled = TASKS[task].inputs, TASKS[task].reads.kind == "examples"
    labels = survey.labels if task == "classification" else None
    keys = {"train": survey.source, "format": survey.format, **survey.keys, "eval": survey.eval}
    keys["text"] = survey.text_key(task)
    keys["id"] = survey.id if labelled else None
    yield from (_Key(key, value) for key, value in keys.items() if value)
    if not survey.eval:
        yield _Key("eval_fraction", *_share(survey, task))
    if labels:
        yield _Key("label", labels.path, f"Here {labels.words()}.")
        yield from itertools.starmap(_Key, labels.data.items())
    yield _Key("max_length", max_length, _lengths_seen(tokens, max_length))
    if not labelled:
        yield _Key("tokens_per_step", 16 * max_length)
        return
    yield _Key("overflow", inputs.overflows[0])
    if 4 * inputs.stride < max_length and inputs.stride:
        yield _Key("stride", inputs.stride)


def _share(survey: Survey, task: str) -> tuple[float, str]:
    """The share to evaluate on that can have some of each class, and what was seen."""
    if not survey.examples:
        return SHARES[0], ""
    count = len(survey.examples)
    counts = survey.labels.counts if task == "classification" and survey.labels else {}
    rarest = min((each for each in counts.values() if each > 1), default=count)
    least = min(rarest, count / FEWEST)  # of which one at least is to be evaluated on
    share = next((each for each in SHARES if each * least >= 1), SHARES[-1])
    rare = f"; the rarest class that can be in both parts has {rarest:,}" if counts else ""
    return share, f"Here {share * count:,.0f} of {count:,} records{rare}."


def _training_keys(survey: Survey, task: str, width: int | None) -> Iterator[_Key]:
    name = Path(survey.source.rstrip("/").rpartition(":")[2]).name.partition(".")[0]
    yield _Key("output_dir", f"runs/{name}" if name.strip("*") else "runs/first")
    narrow = width is not None and width < NARROW
    rate = 1e-4 if narrow else 3e-5
    yield _Key("learning_rate", rate, "The first key to try other values of.")
    if TASKS[task].reads.kind == "examples":
        few = len(survey.examples) < 1000
        yield _Key("num_train_epochs", 5 if few else 3)
        yield _Key("per_device_train_batch_size", 1, "Larger ones take more memory.")
        yield _Key("gradient_accumulation_steps", 8, "Batches that make one step.")
    else:
        yield _Key("max_steps", 1000)
    yield _Key("seed", 0)


def _lengths_seen(tokens: list[int], max_length: int) -> str:
    if not tokens:
        return ""
    fit = sum(size + 2 <= max_length for size in tokens)
    return (
        f"Here some {tokens[len(tokens) // 2]:,} tokens in the middle, {tokens[-1]:,} at most; "
        f"{fit:,} of {len(tokens):,} fit."
    )


def _lines(key: _Key, meaning: str) -> Iterator[str]:
    meaning = meaning and meaning[0].upper() + meaning[1:]
    comment = f"{meaning} {key.seen}".strip().replace("``", "`")
    for line in textwrap.wrap(comment, _WIDTH - 4, break_long_words=False):
        yield f"  # {line}"
    for line in yaml.dump({key.name: key.value}).splitlines():
        yield f"  {line}"
