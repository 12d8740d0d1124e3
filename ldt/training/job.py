"""Job: the part of a training that depends on its kind, and the construction of its Trainer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Generic, TypeVar

from torch import nn
from torch.utils.data import Dataset, Sampler
from transformers import (
    EarlyStoppingCallback,
    PreTrainedModel,
    TrainerCallback,
    TrainingArguments,
)

from ldt.attention import BACKENDS
from ldt.data.features import Features
from ldt.errors import RecipeError, did_you_mean
from ldt.metrics.baseline import Baselines
from ldt.model.graphs import use_graphs
from ldt.model.layers import Encoder
from ldt.recipe.recipe import Recipe
from ldt.recipe.run import Run
from ldt.tasks.writing import WritingTask
from ldt.training import processes
from ldt.training.arguments import arguments
from ldt.training.evaluation import ByExample, Measure, Measured, MetricsByStep, check_metric
from ldt.training.progress import ProgressReport, Reports
from ldt.training.summary import Notice, training_plan
from ldt.training.trainer import Trainer


@dataclass
class Inputs:
    """Data of a run, as far as needed to identify them.

    Args:
        training: output of `ldt.training.arguments.settings`.
        hashes: content hashes by key of the data section, for `ldt.recipe.run.identity`; None for
            anything but files.
        dry: True if nothing permanent is written.
    """

    training: dict[str, Any]
    hashes: dict[str, str | None]
    dry: bool = field(default=False, kw_only=True)


def do_nothing(measured: Measured) -> None:
    """No-op `Prepared.finish`, of a model that needs no finishing."""


@dataclass
class Prepared:
    """Everything a Trainer needs.

    Args:
        tokenizer: tokenizer, saved in each checkpoint.
        model: model with its initial weights, or those of a checkpoint.
        max_length: longest input in the job's units, with special tokens.
        train_items: training items; a stream has no length.
        eval_items: evaluation items; used only with ``measure``.
        collate: makes a batch of items.
        names: names of the training documents by number, for messages.
        measure: computes the metrics; None without evaluation.
        metric: metric for choosing the best weights if the recipe names none.
        facts: entries for metrics.json about model and data, the data by set under ``data``.
        notices: lines to log before the first step.
        baselines: metrics of trivial answers (`Task.baseline`).
        whole: False if a dry run read only part of the text.
        every: sampling stride of the documents, in a check.
        callbacks: further callbacks of the Trainer.
        sampler: sampler of the training items; None shuffles them.
        finish: called with the final results, may change the model.
    """

    tokenizer: Any
    model: PreTrainedModel
    max_length: int
    train_items: Sequence[Any] | Dataset
    eval_items: Sequence[Any] | None
    collate: Callable[[Sequence], dict[str, Any]]
    names: Any
    measure: Measure | None
    metric: str
    facts: dict[str, Any]
    notices: list[Notice]
    baselines: Baselines = field(default_factory=dict)
    whole: bool = True
    every: int = 1
    callbacks: list[TrainerCallback] = field(default_factory=list)
    sampler: Sampler | None = None
    finish: Callable[[Measured], None] = do_nothing


OpenedT = TypeVar("OpenedT", bound=Inputs)


class Job(ABC, Generic[OpenedT]):
    """One run of one kind of training; `ldt.training.loop.train` does what all kinds share.

    Args:
        recipe: recipe with a task of the job's kind.
    """

    trainer: type[Trainer] = Trainer
    unit = "token"  # what the length of an input is counted in

    def __init__(self, recipe: Recipe):
        self.recipe = recipe

    @classmethod
    def phases(cls, recipe: Recipe) -> list[Job]:
        """Jobs of a recipe, to be trained in order; a single one unless a subclass knows phases."""
        return [cls(recipe)]

    @property
    def title(self) -> str:
        """Text for the log that distinguishes a phase from others; "" for a job that knows no
        phases."""
        return ""

    @abstractmethod
    def open(self, training: dict[str, Any], scratch: Path | None) -> OpenedT:
        """Read the data as far as needed for hashing, and return the hashes and settings by which a
        run is identified; no weights are read.

        Args:
            training: output of `ldt.training.arguments.settings`.
            scratch: temporary folder of a dry run, which reads only some data and writes only here;
                None otherwise.
        """

    @abstractmethod
    def prepare(self, inputs: OpenedT, checkpoint: Path | None) -> Prepared:
        """Find faults in the data, make training items, and load the model; sets the random seed.

        Args:
            inputs: output of `open`.
            checkpoint: folder of model and tokenizer, in place of the recipe's; None without.
        """

    def plan(self, prepared: Prepared, args: TrainingArguments) -> str:
        """Line that describes the length of the training, its data and the size of the model."""
        # Groups of inputs and documents encoded anew are items of their own; else inputs are.
        grouped = self.recipe.task.reads.kind == "examples"
        grouped = grouped and not isinstance(prepared.train_items, Features)
        noun = (
            f"{'documents' if grouped else 'inputs'} of up to {prepared.max_length:,} {self.unit}s"
        )
        return training_plan(args, prepared.train_items, noun, prepared.model)

    def table(self, metrics: dict[str, float], rows: list[dict]) -> list[dict]:
        """Rows of the table of results. ``metrics`` are those of the saved weights, ``rows`` the
        table of their evaluation, which is returned as it is unless a subclass has one of its
        own."""
        return rows

    @abstractmethod
    def next_command(self, run: Path) -> str:
        """Command to suggest at the end of the run, such as ``ldt predict FILE --model RUN``."""


def build_trainer(job: Job, prepared: Prepared, training: dict[str, Any], run: Run) -> Trainer:
    """Build the Trainer. The model is prepared too: compiled if asked for, with CUDA graphs in
    evaluation, and its tokenizer's ``model_max_length`` is set.

    Args:
        job: the job.
        prepared: its data and model.
        training: output of `settings`.
        run: run folder, for checkpoints and log.

    Raises:
        RecipeError: transformers refuses the settings, or the metric does not exist.
    """
    if job.unit == "token":  # a character model reads any length
        prepared.tokenizer.model_max_length = prepared.max_length
    measure, items = prepared.measure, prepared.train_items
    use_graphs(prepared.model)  # in evaluation
    metrics = MetricsByStep(measure) if measure else None
    callbacks = [*([metrics] if metrics else []), *prepared.callbacks]
    if processes.is_first():
        callbacks.append(Reports(training.get("report_to"), run))
    if patience := training.get("early_stopping_patience"):
        threshold = training.get("early_stopping_threshold", 0.0)
        callbacks.append(EarlyStoppingCallback(patience, threshold))
    count = len(items) if hasattr(items, "__len__") else 0  # a stream has no end
    args = arguments(job.recipe, training, run.folder, count, prepared.metric if measure else None)
    _compile_layers(prepared.model, args)
    trainer = job.trainer(
        model=prepared.model,
        args=args,
        train_dataset=items,
        eval_dataset=prepared.eval_items if measure else None,
        data_collator=prepared.collate,
        compute_metrics=metrics,
        callbacks=callbacks,
        tokenizer=prepared.tokenizer,
        ids=prepared.names,
        progress=ProgressReport(run),
    )
    trainer.train_sampler = prepared.sampler
    trainer.micro_batch_tokens = training.get("train_batch_tokens")
    if isinstance(measure, ByExample) and isinstance(measure.task, WritingTask):
        trainer.answer = measure.answer
    if measure:
        check_metric(job.recipe, trainer, measure)
    return trainer


def _compile_layers(model: nn.Module, args: TrainingArguments) -> None:
    """Compile each layer as ``args`` ask, and switch off accelerate's compilation of the whole
    model, which cannot know lengths and would keep all padding."""
    if not args.torch_compile:
        return
    for module in model.modules():
        if isinstance(module, Encoder):
            module.compile_layers(backend=args.torch_compile_backend, mode=args.torch_compile_mode)
    args.torch_compile, args.torch_compile_backend, args.torch_compile_mode = False, None, None


def config_changes(recipe: Recipe) -> dict[str, Any]:
    """Keys and values that the recipe sets in a model's config, independent of the data.

    Raises:
        RecipeError: the attention backend does not exist.
    """
    if recipe.model.attention not in ("auto", *BACKENDS):
        names = ", ".join(["auto", *BACKENDS])
        raise RecipeError(f"{recipe.where('model', 'attention')}: expected one of {names}")
    changes: dict[str, Any] = {"attention_backend": recipe.model.attention}
    if recipe.model.window is not None:
        changes["attention_window"] = recipe.model.window
    if recipe.task.inputs.roles:
        changes["global_attention"] = recipe.task.model_dump()["global_attention"]
    return changes


def longest_input(recipe: Recipe, longest: int) -> int:
    """``data.max_length``, or the model's longest input if the recipe has none.

    Args:
        recipe: the recipe.
        longest: longest input of the model in tokens.

    Raises:
        RecipeError: ``data.max_length`` exceeds it.
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


def source_of(recipe: Recipe, name: str) -> str:
    """Files of a set (``train``, ``eval`` or ``test``), or where it is split from: ``0.1 of
    train.csv``."""
    files = getattr(recipe.data, name, None)
    if files:
        return str(files)
    return f"{getattr(recipe.data, f'{name}_fraction')} of {recipe.data.train}"


def new_config(
    recipe: Recipe, config: type, values: dict[str, Any], elsewhere: Mapping[str, str]
) -> Any:
    """Build a config for training from scratch: ``values``, overridden by ``model.config``, that by
    the recipe's model.attention, model.window and global_attention (`config_changes`).

    Args:
        recipe: the recipe.
        config: class of the config, a dataclass with ``check()``, which is called.
        values: defaults of the job.
        elsewhere: keys that ``model.config`` must not have, each with the key that sets it.

    Raises:
        RecipeError: a key is unknown or belongs elsewhere, or numbers contradict each other.
    """
    known = {item.name for item in fields(config)}
    chosen = {key: value for key, value in recipe.model.config.items() if key != "model_type"}
    for key in chosen:
        where = recipe.where("model", "config", key)
        if key in elsewhere:
            raise RecipeError(f"{where}: is set by {elsewhere[key]}")
        if key not in known:
            raise RecipeError(f"{where}: unknown key{did_you_mean(key, known)}")
    try:
        built = config(**values | chosen | config_changes(recipe))
        built.check()
    except Exception as error:  # the config classes have kinds of their own
        line = str(error).strip().splitlines()[-1].strip()
        raise RecipeError(f"{recipe.where('model', 'config')}: {line}") from error
    return built
