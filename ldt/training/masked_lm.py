"""pretrain: plain text to a masked LM, through the same Trainer and run folders as fine-tuning."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader
from transformers import TrainerCallback, set_seed

from ldt.data.corpus import sources, split
from ldt.data.lm_inputs import PACKINGS, Frame, Items, Rows, Stream
from ldt.data.token_store import TokenStore, build
from ldt.errors import DataError, RecipeError, TrainingDiverged
from ldt.model import load, load_tokenizer, usable_length
from ldt.model.loading import find_folder, read_config, read_weights
from ldt.recipe.recipe import Recipe
from ldt.tasks.masked_lm import figures
from ldt.training.arguments import arguments
from ldt.training.from_scratch import begin_with_sines, new_config, new_tokenizer
from ldt.training.job import Job, early_stopping, evaluated, how_attention, longest_input, progress
from ldt.training.loop import train
from ldt.training.model_card import pretraining_card
from ldt.training.progress import is_metric
from ldt.training.summary import describe_corpus
from ldt.training.trainer import Trainer

LENGTH = 512  # of a model from scratch where data.max_length does not say
DRY = 200  # documents of a source that a dry run reads
GLOBAL = ("query", "key", "value")  # projections that have a twin for global tokens


def pretrain(
    recipe: Recipe, *, resume: bool = False, overwrite: bool = False, dry_run: bool = False
) -> dict[str, float]:
    """`train` a masked LM on plain text, from a model or from scratch."""
    return train(Pretraining(recipe), resume=resume, overwrite=overwrite, dry_run=dry_run)


@dataclass
class Ready:
    """All that a Trainer needs, and what is told about the text."""

    config: Any
    tokenizer: Any
    model: Any
    max_length: int
    items: Items | Stream
    evaluation: Items | None
    copy_at_end: bool  # the local projections to the global ones
    corpora: dict[str, dict[str, Any]]


class Pretraining(Job):
    """A masked LM, by plain text."""

    def __init__(self, recipe: Recipe):
        """Find the model, and so the length of the inputs.

        Raises:
            RecipeError: there is neither a model nor the config of one.
            ModelError: the model cannot be read.
        """
        super().__init__(recipe)
        self.folder = self.config = None
        if recipe.model.path is None and recipe.model.config is None:
            raise RecipeError(
                f"{recipe.where('model')}: path, a folder or hub id of a masked LM, or config and "
                "tokenizer of one from scratch"
            )
        length = recipe.data.max_length or LENGTH
        if recipe.model.path is not None:
            self.folder = find_folder(recipe.model.path)
            self.config = read_config(self.folder, **how_attention(recipe))
            length = longest_input(recipe, usable_length(self.config))
        self.recipe = replace(recipe, data=recipe.data.model_copy(update={"max_length": length}))
        self.scratch: TemporaryDirectory | None = None  # of a dry run

    # -- the text

    def hashes(self, training, *, dry_run):
        data, most = self.recipe.data, None
        if dry_run:
            self.scratch, most = TemporaryDirectory(prefix="ldt-"), DRY
            data = data.model_copy(update={"cache": self.scratch.name})
            self.recipe = replace(self.recipe, data=data)
        found = {key: sources(getattr(data, key), data.format) for key in self._keys()}
        self.sources = found
        if self.folder is None:
            self.tokenizer = new_tokenizer(self.recipe, found["train"], training["seed"])
            self.config = new_config(self.recipe, self.tokenizer)
        else:
            self.tokenizer = load_tokenizer(self.folder, self.config)
        stored = [key for key in found if not (key == "train" and data.streaming)]
        self.stores = {key: build(found[key], data, self.tokenizer, most) for key in stored}
        hashes = {key: store.digest() for key, store in self.stores.items()}
        if data.streaming:
            hashes["train"] = " ".join(source.key() for source in found["train"])
        return hashes

    def _keys(self) -> list[str]:
        return [key for key in ("train", "eval") if getattr(self.recipe.data, key) is not None]

    def prepare(self, training, newest):
        data, task = self.recipe.data, self.recipe.task
        seed = training["seed"]
        masker = task.masker(self.tokenizer)
        how = {"max_length": data.max_length, "seed": seed, "see_all": bool(task.global_attention)}
        corpora, parts = {}, {}
        for key, store in self.stores.items():
            parts[key] = np.arange(len(store))
        if data.eval_fraction is not None:
            train = self.stores["train"]
            self.stores["eval"] = train
            parts["train"], parts["eval"] = split(
                train.fingerprints, data.eval_fraction, seed, str(data.train)
            )
        frame, packed = Frame.of(self.tokenizer), PACKINGS[data.packing]
        made: dict[str, Items | Stream] = {}
        for key, store in self.stores.items():
            items = packed(store, parts[key], frame, masker, **how, fixed=key == "eval")
            if not len(items):
                raise DataError(f"{getattr(data, key) or data.train}: no text to {key} on")
            made[key], corpora[key] = items, _about(store, items)
        if data.streaming:
            rank, size = (int(os.environ.get(k, d)) for k, d in (("RANK", 0), ("WORLD_SIZE", 1)))
            made["train"] = Stream(
                self.sources["train"], data, self.tokenizer, masker, **how, part=rank, parts=size
            )
        set_seed(seed)
        model = self._model(newest)
        return Ready(
            config=model.config,
            tokenizer=self.tokenizer,
            model=model,
            max_length=data.max_length,
            items=made["train"],
            evaluation=made.get("eval"),
            copy_at_end=not task.global_attention and self._copies(),
            corpora=corpora,
        )

    # -- the model

    def _model(self, newest: Path | None):
        """The model to train, what is not trained frozen."""
        head, task = self.recipe.task.head(), self.recipe.task
        if newest or self.folder:
            model = load(newest or self.folder, head, **how_attention(self.recipe))
        else:
            model = head(self.config)
            begin_with_sines(model)
            copy_local_to_global(model)
        if task.trainable == "positions":
            model.requires_grad_(False)
            model.longformer.embeddings.position_embeddings.weight.requires_grad_(True)
        elif not task.global_attention:
            for layer in model.longformer.encoder.layer:
                for name in GLOBAL:
                    getattr(layer.attention.self, f"{name}_global").requires_grad_(False)
        return model

    def _copies(self) -> bool:
        """Whether the global projections of the model at the beginning are the local ones'."""
        if self.folder is None:
            return True
        weights = read_weights(self.folder)
        return all(
            torch.equal(tensor, weights[name.replace("_global.", ".")])
            for name, tensor in weights.items()
            if "_global." in name
        )

    # -- training

    def trainer(self, ready, training, run, first):
        score = Sums(ready.evaluation) if ready.evaluation is not None else None
        inputs = 0 if isinstance(ready.items, Stream) else len(ready.items)
        callbacks = [score] if score else []
        if self.recipe.task.trainable == "positions":
            callbacks.append(self._frozen_rows(ready.model))
        return Pretrainer(
            model=ready.model,
            args=arguments(self.recipe, training, run, inputs, score and "loss"),
            train_dataset=ready.items,
            eval_dataset=ready.evaluation,
            data_collator=Rows(ready.config.pad_token_id),
            compute_metrics=score,
            callbacks=[*callbacks, *early_stopping(training)],
            tokenizer=ready.tokenizer,
            ids=_Numbers(),
            progress=progress(run, first),
        )

    def _frozen_rows(self, model) -> FrozenRows:
        task, longest = self.recipe.task, usable_length(model.config)
        if task.source_length >= longest:
            raise RecipeError(
                f"{self.recipe.where('task', 'source_length')}: {task.source_length:,} tokens, the "
                f"model has {longest:,} positions: none is new"
            )
        rows = model.config.pad_token_id + 1 + task.source_length
        return FrozenRows(model.longformer.embeddings.position_embeddings.weight, rows)

    def describe(self, ready, trainer, run):
        describe_corpus(ready, trainer, run)

    def evaluate(self, trainer, ready):
        metrics = {"train_loss": trainer.train_loss}
        if ready.evaluation is not None:
            metrics = evaluated(trainer)[0] | metrics
        if ready.copy_at_end:
            copy_local_to_global(ready.model)
        return metrics, []

    # -- what is left behind

    def results(self, ready):
        data = self.recipe.data
        about = {
            key: {"source": str(getattr(data, key) or f"{data.eval_fraction} of {data.train}")}
            | facts
            for key, facts in ready.corpora.items()
        }
        if data.streaming:
            about["train"] = {"source": str(data.train)}
        return {
            "problem": None,
            "base_model": self.recipe.model.path,
            "max_length": ready.max_length,
            "packing": data.packing,
            "data": about,
        }

    def card(self, results, ready, training):
        return pretraining_card(results, ready.config, training)

    def after(self, run):
        return f"ldt finetune RECIPE model.path={run}"


def _about(store: TokenStore, items: Items) -> dict[str, Any]:
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
def copy_local_to_global(model) -> None:
    """Make the projections of global tokens copies of those of all others, in every layer.

    Pretraining without global tokens leaves them as they were (Beltagy et al. 2020, section 5).
    """
    for layer in model.longformer.encoder.layer:
        attention = layer.attention.self
        for name in GLOBAL:
            getattr(attention, f"{name}_global").load_state_dict(
                getattr(attention, name).state_dict()
            )


class _Numbers:
    """Names of items for messages."""

    def __getitem__(self, index: int) -> str:
        return f"input {index}"


class Pretrainer(Trainer):
    """The Trainer for masked LMs: logits at labels only, exact evaluation, streams."""

    unit = "token"  # what is predicted

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        if self.is_fsdp_enabled:
            # Tied weights are no longer one tensor when they are saved.
            self.model._keys_to_ignore_on_save = list(self.model.all_tied_weights_keys)
            if hasattr(self.model, "lm_head"):
                # accelerate shards what this returns together with the embeddings, which share its
                # weight; the head and its decoder share a bias, which must not lie in two shards.
                self.model.get_output_embeddings = lambda: self.model.lm_head

    def compute_loss(self, model, inputs, *args, **kwargs):
        return super().compute_loss(model, inputs | {"at_labels": True}, *args, **kwargs)

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        """Nats and number of predicted tokens of each row, in place of logits and labels."""
        inputs.pop("document")
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            logits = model(**inputs, at_labels=True).logits
        labels = inputs["labels"]
        places = labels != -100
        nats = F.cross_entropy(logits.float(), labels[places], reduction="none").double()
        rows = places.nonzero()[:, 0]
        sums = nats.new_zeros(len(labels)).index_add(0, rows, nats)
        return None, sums, places.sum(1)

    def get_train_dataloader(self):
        if not isinstance(self.train_dataset, Stream):
            return super().get_train_dataloader()
        return DataLoader(  # reads its own part, so accelerate has nothing to part
            self.train_dataset,
            batch_size=self._train_batch_size,
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
        )

    def log(self, logs, start_time=None):
        if "loss" in logs:
            logs[f"bits_per_{self.unit}"] = logs["loss"] / math.log(2)
        super().log(logs, start_time)


class Sums(TrainerCallback):
    """Makes figures of sums of nats, and remembers them by step."""

    def __init__(self, items: Items):
        self.items = items
        self.found: dict[int, tuple[dict[str, float], list]] = {}

    def __call__(self, prediction) -> dict[str, float]:
        nats = float(np.sum(prediction.predictions))
        if not math.isfinite(nats):
            raise TrainingDiverged("training diverged: the loss in evaluation is not finite")
        return self.figures(nats, int(np.sum(prediction.label_ids)))

    def figures(self, nats: float, predicted: int) -> dict[str, float]:
        """What is reported, of the sum of nats and the number of predicted tokens."""
        return figures(nats, predicted, self.items.tokens, self.items.size)

    def on_evaluate(self, args, state, control, metrics, **kwargs):
        kept = {key: value for key, value in metrics.items() if is_metric(key)}
        self.found[state.global_step] = kept, []


class FrozenRows(TrainerCallback):
    """Keeps the first rows of a weight as they are, bit by bit, under any optimizer."""

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
