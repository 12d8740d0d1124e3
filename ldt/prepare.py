"""What a training needs, from a recipe: documents, features, model, tokenizer; all checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from transformers import set_seed

from ldt.attention import BACKENDS
from ldt.data import LengthReport, encode_all, length_report, split, unique
from ldt.errors import DataError, RecipeError
from ldt.features import Features, Items, Reshuffled
from ldt.formats import read
from ldt.model import load, load_tokenizer, usable_length
from ldt.model.config import layer_windows
from ldt.model.loading import find_folder, read_config
from ldt.model.vocabulary import add_tokens, draw_embeddings
from ldt.reading import Example
from ldt.recipe import Recipe


@dataclass
class Ready:
    """All that a Trainer needs.

    ``train`` and ``evaluation`` hold every feature, ``items`` and ``evaluation_items`` what a
    batch is made of; ``examples`` are those of the evaluation, ``ids`` of the training documents.
    """

    config: Any
    tokenizer: Any
    model: Any
    max_length: int
    train: Features
    items: Sequence
    evaluation: Features
    evaluation_items: Sequence
    examples: list[Example]
    golds: list
    ids: list
    reports: dict[str, LengthReport]
    labels: dict[str, Counter]
    remarks: list[str]


def documents(recipe: Recipe, seed: int) -> tuple[list[Example], list[Example]]:
    """The training and the evaluation set, the second one maybe empty.

    Raises:
        UserError: or a subclass, where files are missing, damaged or have an id twice.
    """
    data = recipe.data
    if data.train is None or recipe.model.path is None:
        raise RecipeError(f"{recipe.where()}: finetune needs model.path and data.train")
    train = list(unique(read(data.train, data)))
    if data.eval:
        return train, list(unique(read(data.eval, data)))
    return split(train, recipe.task, data, seed) if data.eval_fraction else (train, [])


def prepare(
    recipe: Recipe,
    seed: int,
    train: list[Example],
    evaluation: list[Example],
    checkpoint: Path | None = None,
) -> Ready:
    """Learn, encode and load; what can be wrong with the data is found before weights are read.

    Args:
        seed: of the weights of a new head and new tokens.
        train, evaluation: the `documents`.
        checkpoint: where to take model and tokenizer from instead of ``recipe.model.path``.

    Raises:
        UserError: or a subclass, with where and what would do.
    """
    task, data = recipe.task, recipe.data
    attention = how_attention(recipe)
    changes = task.learn(train, data) | attention
    folder = find_folder(checkpoint or recipe.model.path)
    config = read_config(folder, **changes)
    max_length = longest_input(recipe, usable_length(config))
    if data.eval or data.eval_fraction:
        task.check(evaluation, data, config)
    tokenizer = load_tokenizer(folder, config)
    new = add_tokens(tokenizer, task.new_tokens)
    how = {"data": data, "max_length": max_length, "config": config}
    features = {
        "train": encode_all(train, task, tokenizer, **how, all=False),
        "eval": encode_all(evaluation, task, tokenizer, **how),
    }
    if not len(features["train"]):
        raise DataError(f"{data.train}: no document is left to train on")
    left_out = len(train) - len(set(features["train"].documents.tolist()))
    items = Items(features["train"]) if task.together else features["train"]
    if task.shuffles:
        kept = [(number, train[number]) for number in dict.fromkeys(features["train"].documents)]
        encode = partial(task.encode, tokenizer=tokenizer, **how)
        items = Reshuffled(kept, partial(task.shuffle, data=data), encode, seed)
    golds = {
        name: [task.gold(example, data, config) for example in examples]
        for name, examples in (("train", train), ("eval", evaluation))
    }
    window = max(layer_windows(config))
    set_seed(seed)
    model = load(folder, task.head(), **changes)
    draw_embeddings(model, new)
    return Ready(
        config=model.config,
        tokenizer=tokenizer,
        model=model,
        max_length=max_length,
        train=features["train"],
        items=items,
        evaluation=features["eval"],
        evaluation_items=Items(features["eval"]) if task.together else features["eval"],
        examples=evaluation,
        golds=golds["eval"],
        ids=[example.id for example in train],
        reports={
            name: length_report(found, max_length=max_length, window=window)
            for name, found in features.items()
            if len(found)
        },
        labels={name: _count(found) for name, found in golds.items()},
        remarks=task.remarks(features["train"], left_out),
    )


def how_attention(recipe: Recipe) -> dict[str, Any]:
    """What the model section changes in a model's config.

    Raises:
        RecipeError: there is no such backend.
    """
    if recipe.model.attention not in ("auto", *BACKENDS):
        names = ", ".join(["auto", *BACKENDS])
        raise RecipeError(f"{recipe.where('model', 'attention')}: expected one of {names}")
    changes = {"attention_backend": recipe.model.attention}
    if recipe.model.window is not None:
        changes["attention_window"] = recipe.model.window
    return changes


def longest_input(recipe: Recipe, longest: int) -> int:
    """``data.max_length``, or that of the model where there is none.

    Args:
        longest: tokens that the model reads.

    Raises:
        RecipeError: the model's position table is too short.
    """
    max_length = recipe.data.max_length or longest
    if max_length > longest:
        path = recipe.model.path.rstrip("/")
        raise RecipeError(
            f"{recipe.where('data', 'max_length')}: {max_length:,} tokens, {path} reads "
            f"{longest:,}; ldt convert {path} {path}-{max_length} --max-length {max_length} "
            "makes a model that reads them"
        )
    return max_length


def _count(golds) -> Counter:
    """How often each label occurs; nothing where golds are not labels."""
    counts = Counter()
    for gold in golds:
        counts.update(
            name for name in (gold if isinstance(gold, list) else [gold]) if isinstance(name, str)
        )
    return counts
