"""Pretraining of a masked language model on plain text, from a model or from scratch."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import (
    PreTrainedTokenizerBase,
    RobertaTokenizer,
    TrainerCallback,
    set_seed,
)

from ldt.data.corpus import CorpusSource, Reader, drawn, sources, split
from ldt.data.features import Collator
from ldt.data.lm_inputs import PACKINGS, Frame, LmItems, Stream
from ldt.data.near_duplicates import fingerprint
from ldt.data.options import CorpusSection
from ldt.data.token_store import TokenStore, build
from ldt.data.tokenization import vocabulary_size
from ldt.errors import (
    DataError,
    ModelError,
    RecipeError,
    ResourceError,
    first_line,
)
from ldt.io import files
from ldt.io.progress import reported
from ldt.model import LdtConfig, load, load_tokenizer, usable_length
from ldt.model.char_lm.model import sinusoids
from ldt.model.encoders import encoder_class
from ldt.model.loading import find_folder, read_config, read_tokenizer
from ldt.model.weights import read_weights, require_memory
from ldt.recipe.recipe import Recipe
from ldt.tasks.language_models import masked_lm_metrics
from ldt.training import processes
from ldt.training.check import first_look_at_text
from ldt.training.evaluation import BySum
from ldt.training.job import (
    Inputs,
    Job,
    Prepared,
    config_changes,
    do_nothing,
    longest_input,
    new_config,
    source_of,
)
from ldt.training.summary import corpus_data, encoded_input, warnings
from ldt.training.trainer import InputNumbers, LanguageModelTrainer

log = logging.getLogger("ldt")

LENGTH = 512  # of a model from scratch where data.max_length does not say
DRY = 200  # documents of a source that a dry run reads
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]  # in RoBERTa's order
LEARNED_FROM = 1 << 30  # characters of the corpus, from its beginning
# Keys of the config whose value comes from another key of the recipe.
_ELSEWHERE = {
    "vocab_size": "model.tokenizer",
    "max_position_embeddings": "data.max_length",
    "attention_window": "model.window",
    "attention_backend": "model.attention",
}


@dataclass
class _CorpusInputs(Inputs):
    """Tokenized corpus by set; ``data`` has the cache, of a dry run another; ``stores`` is empty
    for a stream; ``whole`` is False if a dry run may have read only part of the text."""

    data: CorpusSection
    sources: dict[str, list[CorpusSource]]
    tokenizer: PreTrainedTokenizerBase
    config: LdtConfig
    stores: dict[str, TokenStore]
    whole: bool


class Pretraining(Job[_CorpusInputs]):
    """Masked language modelling on plain text."""

    trainer = LanguageModelTrainer

    def __init__(self, recipe: Recipe):
        """Find the model, and set the input length in the recipe.

        Raises:
            RecipeError: there is neither a model nor a config.
            ModelError: the model cannot be read.
        """
        self.folder = self.config = None
        if recipe.model.path is None and recipe.model.config is None:
            raise RecipeError(
                f"{recipe.where('model')}: path, a folder or hub id of a masked LM, or config and "
                "tokenizer of one from scratch"
            )
        length = recipe.data.max_length or LENGTH
        if recipe.model.path is not None:
            self.folder = find_folder(recipe.model.path)
            self.config = read_config(self.folder, **config_changes(recipe))
            length = longest_input(recipe, usable_length(self.config))
        data = recipe.data.model_copy(update={"max_length": length})
        super().__init__(replace(recipe, data=data))

    # -- the text

    def open(self, training, scratch):
        """Tokenize the corpus into ``data.cache`` unless it is streamed, and hash the tokens; a new
        model's tokenizer is trained first.

        Args:
            training: output of `ldt.training.arguments.settings`.
            scratch: in a dry run, folder of the cache; only 200 documents of a source are read
                then.
        """
        data, most = self.recipe.data, None
        if not files.existing(Path(data.cache)).is_dir():
            where = self.recipe.where("data", "cache")
            raise RecipeError(f"{where}: {data.cache} is a file or lies in one, not a folder")
        if scratch:
            data, most = data.model_copy(update={"cache": str(scratch / "tokens")}), DRY
        texts = {
            name: sources(getattr(data, name), data.format)
            for name in ("train", "eval")
            if getattr(data, name) is not None
        }
        if self.config is None:
            recipe = replace(self.recipe, data=data)
            tokenizer = _new_tokenizer(recipe, texts["train"], training["seed"])
            config = _config(recipe, tokenizer)
        else:
            tokenizer, config = load_tokenizer(self.folder, self.config), self.config
        stores = {
            name: build(parts, data, tokenizer, most)
            for name, parts in texts.items()
            if not (name == "train" and data.streaming)
        }
        hashes = {name: store.digest() for name, store in stores.items()}
        if data.streaming:
            hashes["train"] = " ".join(source.key() for source in texts["train"])
        whole = most is None or all(len(store) < most for store in stores.values())
        return _CorpusInputs(training, hashes, data, texts, tokenizer, config, stores, whole)

    def prepare(self, inputs, checkpoint):
        """Pack the tokens of the corpus into inputs, and load or make the model, with those weights
        frozen that the recipe does not train. ``inputs`` come from `open`, ``checkpoint`` is a
        folder of the model to load instead of the recipe's, or None."""
        task, seed = self.recipe.task, inputs.training["seed"]
        items, facts = self._items(inputs, seed)
        # The seed decides the weights of a new model, whatever was drawn before.
        set_seed(seed)
        model = self._model(inputs.config, checkpoint)
        evaluation, measure = items.get("eval"), None
        if evaluation is not None:
            sizes = {"tokens": evaluation.tokens, "size": evaluation.size}
            measure = BySum(partial(masked_lm_metrics, **sizes))
        copies = not task.global_attention and self._global_are_copies()
        data = {name: {"source": source_of(self.recipe, name)} | facts[name] for name in facts}
        if inputs.data.streaming:
            data["train"] = {"source": str(inputs.data.train)}
        shown = evaluation if inputs.data.streaming else items["train"]
        notices = corpus_data(facts) + warnings(first_look_at_text(inputs.stores))
        if shown is not None:
            notices.append(encoded_input("the first input, masked:", shown[0][0], inputs.tokenizer))
        return Prepared(
            tokenizer=inputs.tokenizer,
            model=model,
            max_length=inputs.data.max_length,
            train_items=items["train"],
            eval_items=evaluation,
            collate=Collator(model.config.pad_token_id, type(model)),
            names=InputNumbers(),
            measure=measure,
            metric="loss",
            facts={
                "problem": None,
                "base_model": self.recipe.model.path,
                "max_length": inputs.data.max_length,
                "packing": inputs.data.packing,
                "data": data,
            },
            notices=notices,
            whole=inputs.whole,
            callbacks=[self._frozen_rows(model)] if task.trainable == "positions" else [],
            finish=(lambda measured: copy_local_to_global(model)) if copies else do_nothing,
        )

    def _items(
        self, inputs: _CorpusInputs, seed: int
    ) -> tuple[dict[str, LmItems | Stream], dict[str, dict[str, Any]]]:
        data, task = inputs.data, self.recipe.task
        masker, frame = task.masker(inputs.tokenizer), Frame.of(inputs.tokenizer)
        options: dict[str, Any] = {
            "max_length": data.max_length,
            "seed": seed,
            "see_all": bool(task.global_attention),
        }
        stores = dict(inputs.stores)
        documents = {name: np.arange(len(store)) for name, store in stores.items()}
        if data.eval_fraction is not None:  # both sets are parts of one store
            train = stores["eval"] = stores["train"]
            documents["train"], documents["eval"] = split(
                train.fingerprints, data.eval_fraction, seed, str(data.train)
            )
        items: dict[str, LmItems | Stream] = {}
        facts: dict[str, dict[str, Any]] = {}
        for name, store in stores.items():
            part = PACKINGS[data.packing](
                store, documents[name], frame, masker, **options, fixed=name == "eval"
            )
            if not len(part):
                raise DataError(f"{getattr(data, name) or data.train}: no text to {name} on")
            items[name], facts[name] = part, _facts(store, part)
        if data.streaming:
            items["train"] = Stream(
                inputs.sources["train"],
                data,
                inputs.tokenizer,
                masker,
                **options,
                part=processes.rank(),
                parts=processes.count(),
            )
        return items, facts

    # -- the model

    def _model(self, config: LdtConfig, checkpoint: Path | None):
        """Model to train, with excluded parameters frozen."""
        head, task = self.recipe.task.head(), self.recipe.task
        if checkpoint or self.folder:
            model = load(checkpoint or self.folder, head, **config_changes(self.recipe))
        else:
            require_memory(head, config, self.recipe.where("model", "config"))
            model = head(config)
            begin_with_sines(model)
            copy_local_to_global(model)
        if task.trainable == "positions":
            model.requires_grad_(False)
            self._positions(model).requires_grad_(True)
        elif not task.global_attention:  # then nothing would train these projections
            for _, twin in model.base_model.global_projections():
                twin.requires_grad_(False)
        return model

    def _positions(self, model) -> torch.nn.Parameter:
        table = model.base_model.position_table
        if table is None:
            where = self.recipe.where("task", "trainable")
            raise RecipeError(f"{where}: {model.config.lacks['position_embeddings']}")
        return table

    def _global_are_copies(self) -> bool:
        """True if the initial model's global projections equal the local ones."""
        if self.folder is None:
            return True
        weights = read_weights(self.folder)
        return all(
            torch.equal(tensor, weights[name.replace("_global.", ".")])
            for name, tensor in weights.items()
            if "_global." in name
        )

    def _frozen_rows(self, model) -> _FrozenRows:
        task, longest = self.recipe.task, usable_length(model.config)
        table = self._positions(model)
        if task.source_length >= longest:
            raise RecipeError(
                f"{self.recipe.where('task', 'source_length')}: {task.source_length:,} tokens, the "
                f"model has {longest:,} positions: none is new"
            )
        rows = model.config.pad_token_id + 1 + task.source_length
        return _FrozenRows(table, rows)

    def next_command(self, run: Path) -> str:
        return f"ldt finetune RECIPE model.path={run}"


def _facts(store: TokenStore, items: LmItems) -> dict[str, Any]:
    return {
        "documents": len(items.documents),
        "tokens": items.tokens,
        "bytes": items.size,
        "inputs": len(items),
        "rejected": store.rejected,
        "empty": store.empty,
        "messages": store.messages,
        "sha256": store.digest(),
    }


@torch.no_grad()
def copy_local_to_global(model: Any) -> None:
    """Copy a model's local projections to its global ones in every layer, in place.

    Pretraining without global tokens leaves the latter untrained (Beltagy et al. 2020, section 5).
    """
    for local, twin in model.base_model.global_projections():
        twin.load_state_dict(local.state_dict())


class _FrozenRows(TrainerCallback):
    """Keeps the first ``rows`` rows of a weight bit-identical under any optimizer."""

    def __init__(self, weight: torch.nn.Parameter, rows: int):
        self.weight, self.rows = weight, rows
        self.kept = weight.detach()[:rows].clone()
        weight.register_hook(self._masked)

    def _masked(self, grad):
        grad = grad.clone()
        grad[: self.rows] = 0
        return grad

    def on_optimizer_step(self, args, state, control, **kwargs):
        with torch.no_grad():
            self.weight[: self.rows] = self.kept.to(self.weight.device)


# -- a model from scratch: its tokenizer, trained or taken from a folder, its config and positions


def _new_tokenizer(recipe: Recipe, sources: Sequence[CorpusSource], seed: int):
    """Tokenizer of a model trained from scratch (``model.tokenizer``).

    A byte-level BPE is trained on the training documents, at most 2^30 characters, and cached in
    ``data.cache``.
    """
    wanted = recipe.model.tokenizer
    if isinstance(wanted, str):
        return _from_folder(wanted)
    data = recipe.data
    parts = {
        "sources": [source.key() for source in sources],
        "vocab_size": wanted.vocab_size,
        "split": [data.eval_fraction, seed if data.eval_fraction else None],
        **data.model_dump(include={"format", "text", "document_unit", "max_document_bytes"}),
    }
    key = files.key_of(parts)
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
    """Train a byte-level BPE and write its folder atomically."""
    size = recipe.model.tokenizer.vocab_size
    log.info("training a byte-level BPE of %s entries", f"{size:,}")
    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(
        reported(_texts(sources, recipe, seed), "learning the vocabulary"),
        vocab_size=size,
        special_tokens=SPECIAL,
        show_progress=False,
    )
    learned = bpe.get_vocab_size()
    if learned < size:
        log.info("the text has pairs for %s entries only", f"{learned:,}")
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


def _config(recipe: Recipe, tokenizer) -> Any:
    """Config of a new model; a Longformer's unless ``model_type`` names another."""
    chosen = recipe.model.config
    config_class = encoder_class(chosen.get("model_type", LdtConfig.model_type)).config_class
    if recipe.model.window is not None and "attention_window" in config_class.lacks:
        where = recipe.where("model", "window")
        raise RecipeError(f"{where}: {config_class.lacks['attention_window']}")
    names = [f"{part}_token_id" for part in ("pad", "bos", "cls", "eos", "sep")]
    known = {field.name for field in fields(config_class)}
    special = {name: getattr(tokenizer, name) for name in names if name in known}
    values = {"vocab_size": vocabulary_size(tokenizer)} | special
    values |= config_class.of_new_model(chosen, special["pad_token_id"], recipe.data.max_length)
    return new_config(recipe, config_class, values, _ELSEWHERE)


@torch.no_grad()
def begin_with_sines(model: Any) -> None:
    """Overwrite the position embeddings of a new model, if any, by sines scaled like its random
    weights.

    Sinusoids have the same relative structure at all positions (Vaswani et al. 2017, section 3.5),
    so what is learned about neighbours at one position holds at all; random rows would each have to
    be learned separately.
    """
    table = model.base_model.position_table
    if table is None:
        return
    sines = sinusoids(torch.arange(len(table)), table.shape[1])
    table.copy_(2**0.5 * model.config.initializer_range * sines)
