"""A recipe to a run folder, through transformers' Trainer; and fine-tuning."""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from accelerate.utils import broadcast_object_list
from rich.console import Console
from transformers import EarlyStoppingCallback

from ldt import checkpoint, runs
from ldt.card import card
from ldt.console import say, stderr
from ldt.errors import ResourceError, UserError
from ldt.features import Collator
from ldt.kernels import cpu
from ldt.prepare import Ready, documents, prepare
from ldt.progress import METRICS, ProgressReport, duration, plain_numbers
from ldt.recipe import Recipe, dump
from ldt.report import describe, show_results
from ldt.scoring import Scorer, check_metric
from ldt.settings import arguments, settings
from ldt.trainer import Interrupted, Trainer

log = logging.getLogger("ldt")


class Job(ABC):
    """What a command trains; `train` does what all have in common.

    Args:
        recipe: where a model and training data are named.
    """

    def __init__(self, recipe: Recipe):
        self.recipe = recipe

    @abstractmethod
    def hashes(self, training: dict[str, Any], *, dry_run: bool) -> dict[str, str | None]:
        """What the data are, by key of the data section, for `ldt.runs.identity`.

        Args:
            training: the `settings`.
            dry_run: whether it is enough to look at the data.
        """

    @abstractmethod
    def prepare(self, training: dict[str, Any], newest: Path | None) -> Any:
        """Everything that a Trainer needs: an object with model, tokenizer, config and items.

        Args:
            training: the `settings`.
            newest: a checkpoint to take model and tokenizer from instead of the recipe's.
        """

    @abstractmethod
    def trainer(self, ready: Any, training: dict[str, Any], run: Path, first: bool) -> Trainer:
        """The Trainer of what is ready; ``first``: whether this process writes."""

    @abstractmethod
    def describe(self, ready: Any, trainer: Trainer, run: Path) -> None:
        """Say what goes in, before the first step."""

    @abstractmethod
    def evaluate(self, trainer: Trainer, ready: Any) -> tuple[dict[str, float], list[dict]]:
        """Metrics and table of the weights that the model holds when training is over."""

    @abstractmethod
    def results(self, ready: Any) -> dict[str, Any]:
        """What metrics.json says of model and data, beside what `train` knows."""

    @abstractmethod
    def card(self, results: dict[str, Any], ready: Any, training: dict[str, Any]) -> str:
        """The model card."""

    @abstractmethod
    def after(self, run: Path) -> str:
        """The command that comes next."""


def train(
    job: Job, *, resume: bool = False, overwrite: bool = False, dry_run: bool = False
) -> dict[str, float]:
    """Train a model as the recipe says and leave a self-describing run folder.

    Progress goes to standard error, the table of results to standard output. The folder has the
    best weights (the last ones without an evaluation set), config, tokenizer, ``recipe.yaml``,
    ``metrics.json``, ``metrics.jsonl``, ``README.md`` and the newest checkpoints; ``runs/latest``
    points to it.

    Args:
        job: what is trained.
        resume: go on from the newest valid checkpoint of the same run (`ldt.runs.identity`); on
            the CPU the result is that of an uninterrupted run, bit by bit. A run killed before
            its first checkpoint begins again; a finished one stays as it is.
        overwrite: replace the run that the folder holds.
        dry_run: stop before the first step, with everything checked and nothing written.

    Returns:
        The metrics of the weights that were kept, as ``eval_macro_f1``, and ``train_loss``;
        nothing of a dry run.

    Raises:
        UserError: or a subclass, with its exit code.
        Interrupted: SIGINT or SIGTERM, after a checkpoint was saved.
    """
    if resume and overwrite:
        raise UserError("--resume and --overwrite exclude each other")
    recipe = job.recipe
    training, run = settings(recipe), runs.place(recipe)
    first = int(os.environ.get("RANK", "0")) == 0  # the one of several processes that writes
    with ExitStack() as stack:
        hashes = job.hashes(training, dry_run=dry_run)
        wanted = runs.identity(recipe, training, hashes)
        target, finished = run, False
        if dry_run:
            _check_writable(run)
            target = Path(stack.enter_context(TemporaryDirectory(prefix="ldt-")))  # Trainer's
        elif first:
            stack.enter_context(_claimed(run))
            checkpoint.remove_leftovers(run)
            finished = runs.check_use(run, wanted, resume=resume, overwrite=overwrite)
        elif resume:
            finished = (runs.read_run(run) or {}).get("finished", False)
        if finished and (run / runs.RESULTS).is_file():
            say(f"{run}: this run is finished, there is nothing left to do")
            return json.loads((run / runs.RESULTS).read_text(encoding="utf-8"))["metrics"]
        newest = None
        if resume and not dry_run:
            newest = checkpoint.newest_valid(run)
            stack.enter_context(cpu.chosen(runs.read_run(run).get("arithmetic", {})))
        ready = job.prepare(training, newest)
        if first:
            _require_space(run, ready.model, training)
        trainer = job.trainer(ready, training, target, first)
        if first:
            job.describe(ready, trainer, run)
            if trainer.args.bf16 and trainer.args.device.type == "cpu" and not cpu.has_bfloat16():
                log.warning(
                    "training.bf16: this CPU has no instructions for bfloat16 and takes many times "
                    "longer than with training.bf16=false"
                )
        if dry_run:
            say("dry run: nothing is trained and nothing written")
            return {}
        used = runs.versions(trainer.args.device.type)
        arithmetic = broadcast_object_list([cpu.choices()])[0]  # the same in all processes
        stack.enter_context(cpu.chosen(arithmetic))
        if first:
            resolved = replace(recipe, training=training | {"output_dir": str(run)})
            runs.begin(run, wanted, dump(resolved), used, arithmetic, resume)
            if newest:
                say(f"resuming from step {newest.name.partition('-')[2]}")
            elif resume:
                say("resuming from the beginning, nothing was saved yet")
                (run / METRICS).unlink(missing_ok=True)
        try:
            trainer.run(newest)
        except Interrupted:
            if first:
                steps = list(checkpoint.checkpoints(run))
                say(f"stopped; step {steps[-1]} is saved, --resume goes on" if steps else "stopped")
            raise
        metrics, table = job.evaluate(trainer, ready)
        results = _results(job, trainer, ready, metrics, table) | {"versions": used}
        _save(trainer, ready, run, results, job.card(results, ready, training), first)
        if first:
            runs.point_latest(run)
            show_results(results)
            say(f"{run}: {duration(trainer.seconds)}; {job.after(run)}")
        return metrics


def finetune(
    recipe: Recipe, *, resume: bool = False, overwrite: bool = False, dry_run: bool = False
) -> dict[str, float]:
    """`train` a model that answers, by labelled documents."""
    return train(Finetuning(recipe), resume=resume, overwrite=overwrite, dry_run=dry_run)


class Finetuning(Job):
    """A model that answers, by labelled documents."""

    def hashes(self, training, *, dry_run):
        data = self.recipe.data
        self._hashes = {key: _sha256(getattr(data, key)) for key in ("train", "eval")}
        return self._hashes

    def prepare(self, training, newest):
        seed = training["seed"]
        train, evaluation = documents(self.recipe, seed)
        return prepare(self.recipe, seed, train, evaluation, newest)

    def trainer(self, ready, training, run, first):
        score, metric, callbacks = None, None, []
        if ready.golds:
            metric = self.recipe.task.default_metric(ready.config)
            score = Scorer(self.recipe.task, ready)
            callbacks.append(score)
        trainer = Trainer(
            model=ready.model,
            args=arguments(self.recipe, training, run, len(ready.items), metric),
            train_dataset=ready.items,
            eval_dataset=ready.evaluation_items if ready.golds else None,
            data_collator=Collator(ready.config.pad_token_id),
            compute_metrics=score,
            callbacks=[*callbacks, *early_stopping(training)],
            tokenizer=ready.tokenizer,
            ids=ready.ids,
            progress=progress(run, first),
        )
        if ready.golds:
            check_metric(self.recipe, trainer, ready)
        return trainer

    def describe(self, ready, trainer, run):
        describe(ready, trainer, run)

    def evaluate(self, trainer, ready):
        if not ready.golds:
            return {"train_loss": trainer.train_loss}, []
        metrics, table = evaluated(trainer)
        own = {name.removeprefix("eval_"): value for name, value in metrics.items()}
        ready.config.update(self.recipe.task.settle(own))
        return metrics | {"train_loss": trainer.train_loss}, table

    def results(self, ready):
        return {
            "problem": ready.config.problem_type,
            "base_model": self.recipe.model.path,
            "max_length": ready.max_length,
            "data": _data_report(self.recipe, ready, self._hashes),
        }

    def card(self, results, ready, training):
        return card(results, ready.config, training)

    def after(self, run):
        return f"ldt predict --input FILE --model {run}"


# -- what jobs share


def progress(run: Path, first: bool) -> ProgressReport:
    """Reports on standard error, of the process that writes."""
    return ProgressReport(stderr if first else Console(quiet=True), run)


def early_stopping(training: dict[str, Any]) -> list[EarlyStoppingCallback]:
    """The callback that the settings ask for, if they do."""
    patience = training.get("early_stopping_patience")
    if not patience:
        return []
    return [EarlyStoppingCallback(patience, training.get("early_stopping_threshold", 0.0))]


def evaluated(trainer: Trainer) -> tuple[dict[str, float], list[dict]]:
    """Metrics and table of the weights that the model holds now; ``compute_metrics`` remembers
    them by step in ``found``."""
    found = trainer.compute_metrics.found
    if trainer.weights_step not in found:  # evaluated in an earlier session, or not at all
        trainer.remove_callback(trainer.progress)  # it is no step of the run
        trainer.evaluate()
        found[trainer.weights_step] = found.pop(trainer.state.global_step)
    return found[trainer.weights_step]


# -- the folder


@contextmanager
def _claimed(run: Path) -> Iterator[None]:
    """The run folder for this process alone; what stays empty is removed."""
    try:
        with checkpoint.Lock(run):
            yield
    finally:
        with suppress(OSError):
            run.rmdir()


def _check_writable(run: Path) -> None:
    """Raise UserError where a run folder cannot be made; nothing is written."""
    there = checkpoint.existing(run)
    if not there.is_dir():
        raise UserError(f"{run}: is a file or lies in one, not a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UserError(f"{run}: cannot be written: {there} is read-only")


def _sha256(source: str | None) -> str | None:
    return checkpoint.digest(Path(source)) if source and os.path.isfile(source) else None


def _require_space(run: Path, model, training: dict[str, Any]) -> None:
    """Weights, and for each checkpoint that lies there at a time three times their size."""
    size = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    count = 0
    if training["save_strategy"] != "no":
        count = (training["save_total_limit"] or 2) + 2  # the best one, and the one being written
    what = f"{count} checkpoints and the model" if count else "the model"
    checkpoint.require_space(run, (3 * count + 1) * size, what)


# -- what is left behind


def _save(trainer: Trainer, ready, run: Path, results: dict, text: str, first: bool) -> None:
    """The finished model into the run folder.

    Raises:
        ResourceError: the disk did not take it; the checkpoints stay.
    """
    folder = checkpoint.temporary(run / "model")
    try:
        trainer.save_model(str(folder), _internal_call=True)
        if first:
            ready.tokenizer.save_pretrained(folder)
            (folder / runs.CARD).write_text(text, encoding="utf-8")
            lines = json.dumps(plain_numbers(results), indent=1, ensure_ascii=False) + "\n"
            (folder / runs.RESULTS).write_text(lines, encoding="utf-8")
            runs.finish(run, folder)
    except Exception as error:
        if not checkpoint.is_write_error(error):
            raise
        raise ResourceError(
            f"{run}: the trained model cannot be saved: {error}; "
            "free some disk space, then --resume goes on from the last checkpoint"
        ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _results(job: Job, trainer: Trainer, ready, metrics, table) -> dict:
    """What metrics.json holds but for the versions; figures in full."""
    return {
        "metrics": metrics,
        "table": table,
        "metric": trainer.args.metric_for_best_model,
        "step_of_weights": trainer.weights_step,
        "steps": trainer.state.global_step,
        "epochs": trainer.state.epoch,
        "skipped_steps": trainer.skipped,
        "task": job.recipe.task.name,
        "parameters": ready.model.num_parameters(),
        **job.results(ready),
        "seconds": trainer.seconds,
        "tokens": trainer.state.num_input_tokens_seen,
        "tokens_per_second": trainer.tokens_per_second,
        "finished": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def _data_report(recipe: Recipe, ready: Ready, hashes: dict) -> dict[str, dict]:
    """For metrics.json: where the documents came from, how many there are and how long."""
    found = {}
    for name, report in ready.reports.items():
        source = getattr(recipe.data, name)
        if source is None:
            source = f"{recipe.data.eval_fraction} of {recipe.data.train}"
        counts = {k: v for k, v in asdict(report).items() if k not in ("lines", "warnings")}
        found[name] = {"source": source, "sha256": hashes[name]} | counts
        found[name]["labels"] = dict(ready.labels[name])
    return found
