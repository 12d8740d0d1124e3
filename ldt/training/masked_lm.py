"""Pretraining of a masked LM on plain text, from a model or from scratch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase, TrainerCallback, set_seed

from ldt.data.corpus import CorpusSource, sources, split
from ldt.data.features import Collator
from ldt.data.lm_inputs import PACKINGS, Frame, LmItems, Stream
from ldt.data.options import CorpusSection
from ldt.data.token_store import TokenStore, build
from ldt.errors import DataError, RecipeError
from ldt.io import files
from ldt.model import LdtConfig, load, load_tokenizer, usable_length
from ldt.model.loading import find_folder, read_config
from ldt.model.weights import read_weights, require_memory
from ldt.recipe.recipe import Recipe
from ldt.tasks.masked_lm import masked_lm_metrics
from ldt.training import processes
from ldt.training.check import first_look_at_text
from ldt.training.evaluation import BySum, Measured
from ldt.training.from_scratch import begin_with_sines, new_config, new_tokenizer
from ldt.training.job import (
    Inputs,
    Job,
    Prepared,
    config_changes,
    do_nothing,
    longest_input,
    source_of,
)
from ldt.training.language_model import InputNumbers, LanguageModelTrainer
from ldt.training.summary import corpus_data, encoded_input, warnings

LENGTH = 512  # of a model from scratch where data.max_length does not say
DRY = 200  # documents of a source that a dry run reads


@dataclass
class CorpusInputs(Inputs):
    """A corpus as tokens.

    Args:
        data: the data section; a dry run has another cache.
        sources: the files by set, train and eval.
        tokenizer: has tokenized them, or will tokenize a stream.
        config: of the model.
        stores: the tokens by set; a stream has none.
        whole: False where a dry run may have read a part of the text only.
    """

    data: CorpusSection
    sources: dict[str, list[CorpusSource]]
    tokenizer: PreTrainedTokenizerBase
    config: LdtConfig
    stores: dict[str, TokenStore]
    whole: bool


class Pretraining(Job[CorpusInputs]):
    """A masked LM, by plain text."""

    trainer = LanguageModelTrainer

    def __init__(self, recipe: Recipe):
        """Find the model, and so the length of the inputs, which the recipe then has.

        Raises:
            RecipeError: there is neither a model nor the config of one.
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
        """Tokenize the corpus, unless it is a stream, and hash the tokens."""
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
            tokenizer = new_tokenizer(recipe, texts["train"], training["seed"])
            config = new_config(recipe, tokenizer)
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
        return CorpusInputs(training, hashes, data, texts, tokenizer, config, stores, whole)

    def prepare(self, inputs, checkpoint):
        task, seed = self.recipe.task, inputs.training["seed"]
        items, facts = self._items(inputs, seed)
        # The seed decides the weights of a new model, whatever was drawn before.
        set_seed(seed)
        model = self._model(inputs.config, checkpoint)
        evaluation = items.get("eval")
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
            measure=_measure(evaluation) if evaluation is not None else None,
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
            finish=partial(_copy_at_end, model) if copies else do_nothing,
        )

    def _items(
        self, inputs: CorpusInputs, seed: int
    ) -> tuple[dict[str, LmItems | Stream], dict[str, dict[str, Any]]]:
        """Items that batches are made of, and facts on the text, by set.

        Raises:
            DataError: a set without text.
        """
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
        """The model to train; what is not trained is frozen.

        Args:
            config: of a model from scratch.
            checkpoint: where the weights are, if not in the recipe's model.
        """
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
        """The position embeddings."""
        table = model.base_model.position_table
        if table is None:
            where = self.recipe.where("task", "trainable")
            raise RecipeError(f"{where}: {model.config.lacks['position_embeddings']}")
        return table

    def _global_are_copies(self) -> bool:
        """True if the global projections equal the local ones in the model at the beginning."""
        if self.folder is None:
            return True
        weights = read_weights(self.folder)
        return all(
            torch.equal(tensor, weights[name.replace("_global.", ".")])
            for name, tensor in weights.items()
            if "_global." in name
        )

    def _frozen_rows(self, model) -> FrozenRows:
        task, longest = self.recipe.task, usable_length(model.config)
        table = self._positions(model)
        if task.source_length >= longest:
            raise RecipeError(
                f"{self.recipe.where('task', 'source_length')}: {task.source_length:,} tokens, the "
                f"model has {longest:,} positions: none is new"
            )
        rows = model.config.pad_token_id + 1 + task.source_length
        return FrozenRows(table, rows)

    def next_command(self, run):
        return f"ldt finetune RECIPE model.path={run}"


def _measure(items: LmItems) -> BySum:
    """The metrics of an evaluation on these items."""
    return BySum(partial(masked_lm_metrics, tokens=items.tokens, size=items.size))


def _facts(store: TokenStore, items: LmItems) -> dict[str, Any]:
    """Numbers and hash of a set, for metrics.json."""
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


def _copy_at_end(model, measured: Measured) -> None:
    """Have the global projections follow what the local ones have learned."""
    copy_local_to_global(model)


@torch.no_grad()
def copy_local_to_global(model) -> None:
    """Make the projections of global tokens copies of those of all others, in every layer.

    Pretraining without global tokens leaves them as they were (Beltagy et al. 2020, section 5).
    """
    for local, twin in model.base_model.global_projections():
        twin.load_state_dict(local.state_dict())


class FrozenRows(TrainerCallback):
    """Keeps the first rows of a weight as they are, bit by bit, under any optimizer.

    Args:
        weight: is trained.
        rows: that are kept.
    """

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
