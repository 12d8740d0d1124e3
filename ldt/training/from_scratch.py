"""A model from scratch: its tokenizer, trained or taken from a folder, its config and positions."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import RobertaTokenizer

from ldt.data.corpus import CorpusSource, Reader, drawn, fingerprint
from ldt.data.tokenization import vocabulary_size
from ldt.errors import ModelError, RecipeError, ResourceError, did_you_mean, first_line
from ldt.io import files
from ldt.io.progress import reported
from ldt.model import LdtConfig, load_tokenizer
from ldt.model.char_lm.model import sinusoids
from ldt.model.encoders import encoder_class
from ldt.model.loading import read_tokenizer
from ldt.recipe.recipe import Recipe
from ldt.training.job import config_changes

log = logging.getLogger("ldt")

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]  # in RoBERTa's order
LEARNED_FROM = 1 << 30  # characters of the corpus, from its beginning
# Keys of the config whose value comes from another key of the recipe.
_ELSEWHERE = {
    "vocab_size": "model.tokenizer",
    "max_position_embeddings": "data.max_length",
    "attention_window": "model.window",
    "attention_backend": "model.attention",
}


def new_tokenizer(recipe: Recipe, sources: Sequence[CorpusSource], seed: int):
    """The tokenizer of a model from scratch.

    A byte-level BPE is trained on the documents that are trained on, the first 2^30 characters of
    them, and kept in ``data.cache``.

    Args:
        recipe: its ``model.tokenizer`` says which.
        sources: the training sources.
        seed: of the split into training and evaluation.

    Raises:
        ModelError: the folder holds no tokenizer that can be used.
        DataError: the text cannot be read.
    """
    wanted = recipe.model.tokenizer
    if isinstance(wanted, str):
        return _from_folder(wanted)
    data = recipe.data
    parts = {
        "sources": [source.key() for source in sources],
        "vocab_size": wanted.vocab_size,
        "split": [data.eval_fraction, seed if data.eval_fraction else None],
        **data.model_dump(include={"format", "text", "documents", "max_document_bytes"}),
    }
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
    folder = Path(data.cache) / f"tokenizer-{key}"
    with files.Lock(Path(data.cache), wait=True):
        files.remove_abandoned(folder.with_name("tokenizer-*"))  # of other texts as well
        fault = files.damage(folder) if folder.exists() else None
        if fault:
            log.warning("%s: damaged (%s), trained again", folder, fault)
        if fault or not folder.exists():
            _train(sources, recipe, seed, folder)
    return _from_folder(folder)


def _train(sources: Sequence[CorpusSource], recipe: Recipe, seed: int, folder: Path) -> None:
    """Train a byte-level BPE and write its folder atomically.

    Raises:
        ResourceError: the disk did not take it.
    """
    size = recipe.model.tokenizer.vocab_size
    log.info("training a byte-level BPE of %s entries", f"{size:,}")
    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(
        reported(_texts(sources, recipe, seed), "learning the vocabulary"),
        vocab_size=size,
        special_tokens=SPECIAL,
        show_progress=False,
    )
    made = bpe.get_vocab_size()
    if made < size:
        log.info("the text has pairs for %s entries only", f"{made:,}")
    try:
        with TemporaryDirectory(prefix="ldt-") as parts, files.new_folder(folder) as new:
            vocab, merges = bpe.save_model(parts)
            RobertaTokenizer(vocab=vocab, merges=merges).save_pretrained(new)
            files.write_manifest(new)
    except Exception as error:  # the tokenizers library raises plain Exceptions
        raise ResourceError(
            f"{folder}: cannot be written: {first_line(error)}; data.cache names another folder"
        ) from error


def _texts(sources: Sequence[CorpusSource], recipe: Recipe, seed: int) -> Iterator[str]:
    """Yield the documents to learn from: none of the evaluation."""
    fraction, seen = recipe.data.eval_fraction, 0
    for source in sources:
        for text in Reader(source, recipe.data):
            if fraction and drawn(np.array([fingerprint(text)], np.uint64), fraction, seed)[0]:
                continue
            yield text
            seen += len(text)
            if seen > LEARNED_FROM:
                return


def _from_folder(folder: str | Path):
    tokenizer = read_tokenizer(folder)
    if tokenizer.pad_token_id is None:
        raise ModelError(f"{folder}: the tokenizer has no padding token")
    config = LdtConfig(vocab_size=vocabulary_size(tokenizer), pad_token_id=tokenizer.pad_token_id)
    return load_tokenizer(folder, config)


def new_config(recipe: Recipe, tokenizer) -> Any:
    """The config of a model from scratch: ``model.config`` over the values that new models of its
    class have, a Longformer's where it names no ``model_type``.

    Args:
        recipe: with ``data.max_length`` set.
        tokenizer: gives vocabulary and special ids.

    Raises:
        RecipeError: a key that is unknown or has its place elsewhere, or numbers that do not go
            together.
    """
    chosen, where = dict(recipe.model.config), recipe.where("model", "config")
    encoder = encoder_class(chosen.pop("model_type", LdtConfig.model_type))
    config_class = encoder.config_class
    check_keys(recipe, chosen, config_class, _ELSEWHERE)
    changes = config_changes(recipe)
    for key in changes.keys() & config_class.lacks.keys():
        raise RecipeError(f"{recipe.where('model', 'window')}: {config_class.lacks[key]}")
    names = [f"{part}_token_id" for part in ("pad", "bos", "cls", "eos", "sep")]
    known = {field.name for field in fields(config_class)}
    special = {name: getattr(tokenizer, name) for name in names if name in known}
    values = {"vocab_size": vocabulary_size(tokenizer)} | special
    values |= config_class.of_new_model(chosen, special["pad_token_id"], recipe.data.max_length)
    try:
        config = config_class(**values | chosen | changes)
        config.check()
    except Exception as error:  # the config classes have kinds of their own
        raise RecipeError(f"{where}: {_line(error)}") from error
    return config


@torch.no_grad()
def begin_with_sines(model) -> None:
    """Make the position embeddings of a new model, if it has any, sines as large as its random
    weights.

    Distances are the same at all positions of sines (Vaswani et al. 2017, section 3.5), so what is
    learned of neighbours at one position serves at all others from the first step on; of random
    rows each has to be learned by itself.
    """
    table = model.base_model.position_table
    if table is None:
        return
    sines = sinusoids(torch.arange(len(table)), table.shape[1])
    table.copy_(2**0.5 * model.config.initializer_range * sines)


def check_keys(
    recipe: Recipe, chosen: Iterable[str], config: type, elsewhere: dict[str, str]
) -> None:
    """Raise RecipeError for a ``chosen`` key of ``model.config`` that the config class does not
    have, or that has its place ``elsewhere`` in the recipe."""
    known = {field.name for field in fields(config)}
    for key in chosen:
        where = recipe.where("model", "config", key)
        if key in elsewhere:
            raise RecipeError(f"{where}: is set by {elsewhere[key]}")
        if key not in known:
            raise RecipeError(f"{where}: unknown key{did_you_mean(key, known)}")


def _line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1].strip()
