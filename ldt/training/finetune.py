"""Fine-tuning on labelled documents."""

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig, set_seed

from ldt.data.features import Collator
from ldt.data.options import DataSection
from ldt.data.tokenization import add_tokens
from ldt.errors import without_controls
from ldt.io import files
from ldt.io.sources import brief, digest, each
from ldt.model import load, load_tokenizer, usable_length
from ldt.model.loading import draw_embeddings, find_folder, read_config
from ldt.recipe.recipe import Recipe
from ldt.system import processors
from ldt.tasks.base import Continuing, metric_of
from ldt.tasks.writing import configure
from ldt.training import dataset_cache, lora
from ldt.training.arguments import check_smoothing
from ldt.training.check import first_look
from ldt.training.dataset_cache import LabelledSets
from ldt.training.evaluation import ByExample, Measured
from ldt.training.job import (
    Inputs,
    Job,
    Prepared,
    config_changes,
    longest_input,
    source_of,
)
from ldt.training.labelled import (
    DocumentEncoder,
    documents,
    encode_sets,
    golds_of,
    ids_of,
    items,
    sampler,
)
from ldt.training.summary import (
    Notice,
    encoded_input,
    labelled_data,
    length_report,
    warnings,
)


class Finetuning(Job[Inputs]):
    """Fine-tuning of a model on labelled documents.

    Args:
        recipe: the recipe.
        every: sampling stride; one of this many documents is read, for a check.
    """

    def __init__(self, recipe: Recipe, every: int = 1):
        if isinstance(recipe.task, Continuing) and recipe.model.path:
            folder = find_folder(recipe.model.path)
            task = recipe.task.continued(read_config(folder), folder)
            recipe = replace(recipe, task=task)
        super().__init__(recipe)
        self.every = every

    def open(self, training: dict[str, Any], scratch: Path | None) -> Inputs:
        """Hash the files of train and eval; with ``scratch``, in a dry run, not even that. They are
        read in `prepare`, so a refused run need not wait, and a resumed run uses the
        checkpoint's tokenizer."""
        dry = scratch is not None
        sources = {name: getattr(self.recipe.data, name) for name in ("train", "eval")}
        hashes = {k: digest(files) if files and not dry else None for k, files in sources.items()}
        return Inputs(training, hashes, dry=dry)

    def prepare(self, inputs: Inputs, checkpoint: Path | None) -> Prepared:
        """Read and encode the documents, or load them from the cache, and load the model with a new
        head, and with an adapter for LoRA; arguments as for `Job.prepare`."""
        task, data, seed = self.recipe.task, self.recipe.data, inputs.training["seed"]
        large = dataset_cache.is_large(data)
        place = None
        if large and not inputs.dry and self.every == 1:
            place = dataset_cache.folder_of(self.recipe, inputs.hashes, seed)
        adapter = inputs.training.get("lora")
        with files.Lock(place, wait=True) if place else nullcontext():
            sets = dataset_cache.load(place) or self._read(seed, place)
            # A checkpoint of an adapter has no base; the Trainer reads it.
            folder = find_folder((None if adapter else checkpoint) or self.recipe.model.path)
            config = read_config(folder, **sets.changes)
            check_smoothing(self.recipe, config)
            max_length = longest_input(self.recipe, usable_length(config))
            evaluation = sets.examples["eval"]
            if (data.eval or data.eval_fraction) and not sets.features:
                task.check(evaluation, data, config)
            golds = list(golds_of(evaluation, task, data, config))
            # All is encoded before weights are read: faults of the data come to light at once.
            tokenizer = load_tokenizer(folder, config)
            new_tokens = add_tokens(tokenizer, task.inputs.markers)
            encoder = DocumentEncoder(task, tokenizer, data, max_length, config)
            if not sets.features:
                workers = (data.workers or len(processors())) if large else 1
                self._encode(sets, golds, encoder, seed=seed, at=place, workers=workers)
                dataset_cache.save(place, sets)
        batches = items(sets, encoder, seed)
        # The seed decides the weights of a new head and of new tokens, whatever was drawn before.
        set_seed(seed)
        changes = sets.changes | sets.weighing
        generation = changes.pop("generation", None)  # settings of a model that writes
        model = load(folder, task.head(), **changes)
        facts: dict[str, Any] = {"parameters": model.num_parameters()}
        if generation is not None:
            configure(model, generation)
            facts["generation"] = generation
        draw_embeddings(model, new_tokens)
        if adapter:
            model = lora.adapt(model, self.recipe, adapter, new_tokens)
            facts["lora"] = adapter
        measure = None
        if evaluation:
            measure = ByExample(task, model.config, sets.features["eval"], evaluation, golds)
        return Prepared(
            tokenizer=tokenizer,
            model=model,
            max_length=max_length,
            train_items=batches["train"],
            eval_items=batches["eval"],
            collate=Collator(model.config.pad_token_id, task.head(), task.inputs.extras),
            names=ids_of(sets.examples["train"]),
            measure=measure,
            metric=metric_of(task, model.config),
            facts={
                "problem": model.config.problem_type,
                "base_model": self.recipe.model.path,
                "max_length": max_length,
                "overflow": data.overflow,
                "max_chunks": data.max_chunks,
                "data": self._facts(sets, inputs.hashes),
            }
            | facts,
            notices=[*self._notices(sets, tokenizer, config, seed), *map(Notice, sets.weights)],
            sampler=sampler(task, batches["train"], seed),
            baselines=sets.baselines,
            every=self.every,
            finish=partial(apply_fitted, self.recipe, model.config),
        )

    def _read(self, seed: int, place: Path | None) -> LabelledSets:
        train, evaluation = documents(self.recipe, seed, self.every, place)
        changes = self.recipe.task.learn(train, self.recipe.data) | config_changes(self.recipe)
        return LabelledSets({"train": train, "eval": evaluation}, changes)

    def _encode(
        self, sets: LabelledSets, golds: Sequence[Any], encoder: DocumentEncoder, **options: Any
    ) -> None:
        task, data, config = encoder.task, encoder.data, encoder.config
        # Of queries and documents that become vectors, one kind may be meant to have none.
        marked = bool(task.global_attention) and task.answers.kind != "vectors"
        encoded = encode_sets(sets.examples, encoder, **options)
        sets.features = encoded.features
        sets.weighing, sets.weights = task.config_changes(encoded.features["train"], config)
        sets.lengths = {
            name: length_report(features, encoder.max_length, marked=marked)
            for name, features in encoded.features.items()
            if len(features)
        }
        trained = golds_of(sets.examples["train"], task, data, config)
        sets.labels = {"train": _count(trained), "eval": _count(golds)}
        if golds:
            sets.baselines = task.baseline(trained, golds, config)
        train = encoded.features["train"]
        left_out = len(sets.examples["train"]) - len(train.by_document())
        sets.remarks = [*task.remarks(train, left_out), *encoded.thinned]
        sets.doubts = [*encoded.doubts, *first_look(self.recipe, sets.examples)]

    def _facts(
        self, sets: LabelledSets, hashes: dict[str, str | None]
    ) -> dict[str, dict[str, Any]]:
        return {
            name: {"source": source_of(self.recipe, name), "sha256": hashes[name]}
            | report.facts()
            | {"labels": sets.labels[name]}
            for name, report in sets.lengths.items()
        }

    def _notices(self, sets: LabelledSets, tokenizer, config, seed: int) -> list[Notice]:
        data, sizes = self.recipe.data, {name: len(part) for name, part in sets.examples.items()}
        decided = [Notice(line) for line in [self.recipe.task.meaning(config)] if line]
        if data.eval_fraction and not data.eval:
            split = (
                f"{sizes['train']:,} {self.recipe.task.reads.noun} to train on and "
                f"{sizes['eval']:,} to evaluate on, data.eval_fraction={data.eval_fraction:g} "
                f"drawn by training.seed={seed} (data.eval names others)"
            )
            decided.append(Notice(split))
        first = sets.features["train"][0]
        name = without_controls(str(sets.examples["train"][first["document"]].id))
        shown = encoded_input(f"document {name!r}, global tokens in stars:", first, tokenizer)
        labelled = labelled_data(sets.lengths, sets.labels, sets.remarks)
        return [*decided, *labelled, *warnings(sets.doubts), shown]

    def next_command(self, run: Path) -> str:
        verb = "embed" if self.recipe.task.answers.kind == "vectors" else "predict"
        return f"ldt {verb} FILE --model {run}"


def _count(golds: Iterable) -> Counter[str]:
    counts: Counter = Counter()
    for gold in golds:
        counts.update(
            name for name in (gold if isinstance(gold, list) else [gold]) if isinstance(name, str)
        )
    return counts


def apply_fitted(recipe: Recipe, config: PreTrainedConfig, measured: Measured) -> None:
    """Write settings fitted on the evaluation set, such as a threshold (``measured.changes``), into
    a model's config, with the source of the documents."""
    changes = dict(measured.changes)
    if changes.get("decisions"):
        changes["decisions"]["measured"] |= _source(recipe.data)
    config.update(changes)


def _source(data: DataSection) -> dict[str, Any]:
    if data.eval:
        return {"source": brief(each(data.eval)), "sha256": digest(data.eval)}
    share = {"share": data.eval_fraction, "sha256": digest(data.train or ())}
    return {"source": brief(each(data.train or ())), **share}
