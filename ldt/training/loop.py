"""The training loop that all kinds of training share: from a job to a finished run folder."""

from __future__ import annotations

import json
import logging
import os
import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

from accelerate import PartialState  # type: ignore[import-untyped]  # has no hints
from accelerate.utils import broadcast_object_list  # type: ignore[import-untyped]  # has no hints

from ldt import __version__
from ldt.attention import matmul
from ldt.errors import Interrupted, ResourceError, UserError
from ldt.io import files
from ldt.io.progress import duration
from ldt.metrics.decisions import in_words
from ldt.model import LdtForEmbedding, sentence_transformers
from ldt.model.pooling import gates
from ldt.recipe.run import CARD, LOG, RESULTS, FolderLost, Run, identity
from ldt.training import TrainingOptions, TrainingResult, checkpoints, lora, processes
from ldt.training.arguments import is_automatic, precision, settings
from ldt.training.cost import Cost, estimate, fitting_batch
from ldt.training.evaluation import Measured, MetricsByStep, no_better_than
from ldt.training.job import Job, build_trainer
from ldt.training.model_card import card
from ldt.training.progress import plain_numbers
from ldt.training.summary import tell

log = logging.getLogger("ldt")


def train_jobs(jobs: Sequence[Job], options: TrainingOptions) -> Iterator[TrainingResult]:
    """Train the phases of a recipe in order, each as the iterator advances; yield the result of
    each.

    Args:
        jobs: one job per phase; a dry run examines the first alone.
        options: options of the training.

    Raises:
        UserError: or a subclass, with its exit code.
        Interrupted: SIGINT or SIGTERM, after a checkpoint was saved.
    """
    # Of each shape of a product oneDNN keeps kernels of half a megabyte, by default 1,024 of them.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")
    if options.resume and options.overwrite:
        raise UserError("--resume and --overwrite exclude each other")
    runs = [Run.of(job.recipe) for job in jobs]
    if options.overwrite and not options.dry_run and processes.is_first():
        for run in reversed(runs[1:]):  # a later phase must not seem finished
            run.clear()
    for number, (job, run) in enumerate(zip(jobs, runs, strict=True)):
        if number and not options.dry_run and processes.count() > 1:
            PartialState().wait_for_everyone()  # this phase reads what one process wrote
        if len(jobs) > 1:
            log.info("phase %d of %d: %s", number + 1, len(jobs), job.title)
        if options.dry_run and number:
            continue
        begun = number == 0 or run.record() is not None
        yield train(job, replace(options, resume=options.resume and begun))


def train(job: Job, options: TrainingOptions) -> TrainingResult:
    """Train one job into its run folder; with ``options.dry_run`` only check it and forecast the
    cost. Errors are those of `train_jobs`."""
    with ExitStack() as stack:
        if options.dry_run:
            return _dry_run(job, Path(stack.enter_context(TemporaryDirectory(prefix="ldt-"))))
        return _Training(job, options, stack).run_to_its_end()


def _dry_run(job: Job, scratch: Path) -> TrainingResult:
    training, run = settings(job.recipe), Run.of(job.recipe)
    inputs = job.open(training, scratch)
    run.check_writable()
    prepared = job.prepare(inputs, None)
    trainer = build_trainer(job, prepared, training, Run(scratch))
    _announce(job, prepared, trainer, run, training)
    cost = _measure(job, prepared, trainer)
    log.info("dry run: nothing is trained and nothing written")
    return TrainingResult({}, [], run.folder, cost=cost)


def _announce(job: Job, prepared, trainer, run: Run, training: dict[str, Any]) -> None:
    if not processes.is_first():
        return
    _require_space(run, prepared.model, training)
    tell(prepared.notices)
    log.info("%s: %s", run, job.plan(prepared, trainer.args))
    log.info("%s", precision(training))
    if prepared.measure is None:
        log.warning("no data.eval and no data.eval_fraction: nothing will tell how well it works")


def _require_space(run: Run, model, training: dict[str, Any]) -> None:
    size = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    count = 0
    if training["save_strategy"] != "no":
        count = (training["save_total_limit"] or 2) + 2  # the best one, and the one being written
    what = f"{count} checkpoints and the model" if count else "the model"
    would_do = "free some, set training.save_total_limit=1, or choose another training.output_dir"
    files.require_space(run.folder, (3 * count + 1) * size, what, would_do)


def _measure(job: Job, prepared, trainer) -> Cost | None:
    """Forecast and log the training's cost, and choose an automatic batch size."""
    cost = estimate(job, prepared, trainer)
    if cost is not None:
        tell([cost.notice])
        if is_automatic(job.recipe):
            trainer.micro_batch = fitting_batch(prepared, trainer, cost)
            size = trainer.micro_batch or cost.batch
            log.info("training.per_device_train_batch_size=auto: %d inputs at a time", size)
    return cost


class _Training:
    """Training of one job; ``stack`` is closed with it."""

    def __init__(self, job: Job, options: TrainingOptions, stack: ExitStack):
        self.job, self.options, self.stack = job, options, stack
        self.training, self.run = settings(job.recipe), Run.of(job.recipe)
        self.measured = Measured({}, [])
        self.results: dict[str, Any] = {}  # the content of metrics.json once training is over

    def run_to_its_end(self) -> TrainingResult:
        # The data belong to the identity of a run, by which its folder is refused or taken up.
        inputs = self.job.open(self.training, None)
        wanted = identity(self.job.recipe, self.training, inputs.hashes, processes.count())
        if self._enter(wanted):
            log.info("%s: this run is finished, there is nothing left to do", self.run)
            return TrainingResult(self.run.results()["metrics"], [], self.run.folder)
        checkpoint = None
        if self.options.resume:
            checkpoint = checkpoints.newest_valid(self.run)
            # The products of the first session, or the last digits of the result differ.
            record = self.run.record()
            assert record is not None  # or `_enter` had refused to resume
            self.stack.enter_context(matmul.chosen(record.get("arithmetic", {})))
        self.prepared = self.job.prepare(inputs, checkpoint)
        self.trainer = build_trainer(self.job, self.prepared, self.training, self.run)
        _announce(self.job, self.prepared, self.trainer, self.run, self.training)
        if is_automatic(self.job.recipe) and checkpoint is None:
            _measure(self.job, self.prepared, self.trainer)
        self._begin(wanted, checkpoint)
        try:
            self._train(checkpoint)
            self._evaluate()
            self._save(self.run)
        except FolderLost as lost:
            self._rescue(str(lost))
        return self._closed()

    # -- the folder

    def _enter(self, wanted: dict) -> bool:
        """Lock the run folder until the end; returns True if its run is finished."""
        run, options, finished = self.run, self.options, False
        if processes.is_first():
            self.stack.enter_context(run.locked())
            files.remove_leftovers(run.folder)
            finished = run.check_use(wanted, resume=options.resume, overwrite=options.overwrite)
        elif options.resume:
            finished = (run.record() or {}).get("finished", False)
        return finished and (run.folder / RESULTS).is_file()

    def _begin(self, wanted: dict, checkpoint: Path | None) -> None:
        """Take the folder; a run to be overwritten is removed only now."""
        names = ("torch", "transformers", "accelerate", "tokenizers")
        self.versions = {  # on which bit-identical results depend
            "ldt": __version__,
            "python": platform.python_version(),
            "device": self.trainer.args.device.type,
            "processes": str(processes.count()),
            **{name: version(name) for name in names},
        }
        arithmetic = broadcast_object_list([matmul.choices()])[0]  # the same in all processes
        self.stack.enter_context(matmul.chosen(arithmetic))
        metric = self.trainer.args.metric_for_best_model
        facts = {"versions": self.versions, "arithmetic": arithmetic, "metric": metric}
        self.begun = wanted, replace(self.job.recipe, training=self.training), facts
        if not processes.is_first():
            return
        self.run.begin(*self.begun, resume=self.options.resume)
        if checkpoint:
            log.info("resuming from step %s", checkpoint.name.partition("-")[2])
        elif self.options.resume:
            log.info("resuming from the beginning, nothing was saved yet")
            (self.run.folder / LOG).unlink(missing_ok=True)

    # -- the training

    def _train(self, checkpoint: Path | None) -> None:
        try:
            self.trainer.run(checkpoint)
        except Interrupted:
            if processes.is_first():
                steps = list(self.run.checkpoints())
                saved = f"; step {steps[-1]} is saved, --resume goes on" if steps else ""
                log.info("stopped%s", saved)
            raise

    def _evaluate(self) -> None:
        trainer, prepared, measured = self.trainer, self.prepared, self.measured
        if isinstance(trainer.compute_metrics, MetricsByStep):
            measured = trainer.compute_metrics.of_weights(trainer)
        metrics = measured.metrics | {"train_loss": trainer.train_loss}
        table = self.job.table(metrics, measured.table)
        self.measured = measured = measured._replace(metrics=metrics, table=table)
        prepared.finish(measured)
        self.results = {
            "metrics": metrics,
            "baseline": {name: each._asdict() for name, each in prepared.baselines.items()},
            "table": table,
            **({"decisions": measured.decisions} if measured.decisions else {}),
            **({"by_length": measured.by_length} if measured.by_length else {}),
            "metric": trainer.args.metric_for_best_model,
            "step_of_weights": trainer.weights_step,
            "steps": trainer.state.global_step,
            "epochs": trainer.state.epoch,
            "skipped_steps": trainer.skipped,
            "inputs_at_a_time": trainer.micro_batch or trainer.args.train_batch_size,
            "task": self.job.recipe.task.name,
            "parameters": prepared.model.num_parameters(),
            **prepared.facts,
            **({"pooling_gates": amounts} if (amounts := gates(prepared.model)) else {}),
            "seconds": trainer.seconds,
            "tokens": trainer.state.num_input_tokens_seen,
            "tokens_per_second": trainer.tokens_per_second,
            "finished": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "versions": self.versions,
        }

    # -- what is left behind

    def _save(self, run: Run) -> None:
        """Save the model into a run folder, with results and model card if the run is finished.

        A run whose best weights could not be kept is not finished: its model is that of
        ``step_of_weights``, and --resume continues from the newest checkpoint.
        """
        trainer, tokenizer = self.trainer, self.prepared.tokenizer
        trainer.check_folder()
        folder, lost = files.temporary(run.folder / "model"), trainer.lost_best
        try:
            adapted = lora.is_adapted(trainer.model)
            target = folder / lora.FOLDER if adapted else folder
            trainer.save_model(str(target), _internal_call=True)
            if processes.is_first():
                if adapted:
                    lora.merge(run.folder, folder, tokenizer, self.job.recipe.task.head())
                weights = {path.name: files.digest(path) for path in folder.glob("*.safetensors")}
                tokenizer.save_pretrained(folder)
                config = self.prepared.model.config
                if issubclass(self.job.recipe.task.head(), LdtForEmbedding):
                    sentence_transformers.write(folder, config, tokenizer)
                if self.results:
                    self._describe(folder, run, weights)
            trainer.check_folder()  # once more: writing takes a while
            if processes.is_first():
                also = [RESULTS] if self.results else []
                finished = bool(self.results) and lost is None
                run.finish(folder, also, hashes=weights, finished=finished)
        except Exception as error:
            trainer.check_folder()
            if files.unwritten(error) is None:
                raise
            raise ResourceError(
                f"{run}: the trained model cannot be saved: {files.unwritten(error)}; "
                "free some disk space, then --resume goes on from the last checkpoint"
            ) from error
        finally:
            files.remove(folder)
        if self.results and lost is not None:
            raise ResourceError(
                f"{run}: the best weights, of step {lost.step}, could not be kept ({lost.why}); "
                f"the model there is that of step {trainer.weights_step}; free some disk space, "
                "then --resume trains on from the newest checkpoint"
            )

    def _describe(self, folder: Path, run: Run, weights: dict[str, str]) -> None:
        results = self.results | {"weights": weights}
        task, config = self.job.recipe.task, self.prepared.model.config
        text = card(task, results, config, self.training, run.folder.name)
        (folder / CARD).write_text(text, encoding="utf-8")
        lines = json.dumps(plain_numbers(results), indent=1, ensure_ascii=False) + "\n"
        (folder / RESULTS).write_text(lines, encoding="utf-8")

    def _rescue(self, why: str) -> NoReturn:
        """Save the model and a checkpoint beside a run folder that has disappeared."""
        run, is_over = self.run, bool(self.results)
        try:
            new = str(run.rescued()) if processes.is_first() else None
            place = Run(broadcast_object_list([new])[0])
            if processes.is_first():
                place.begin(*self.begun, resume=False)
            if not is_over:
                self.trainer.rescue(place)
            self._save(place)
        except OSError as error:
            raise ResourceError(f"{run}: {why}, and the model cannot be saved: {error}") from error
        step = self.trainer.state.global_step
        saved = "the finished model" if is_over else f"the model of step {step}"
        further = "" if is_over else f"; --resume with training.output_dir={place} goes on"
        raise ResourceError(f"{run}: {why}; {saved} is in {place}{further}")

    def _closed(self) -> TrainingResult:
        run, measured = self.run, self.measured
        if not processes.is_first():
            return TrainingResult(measured.metrics, measured.table, run.folder)
        if not (self.options.keep_checkpoints or self.training.get("save_only_model")):
            checkpoints.remove_all(run)
        run.point_latest()
        for line in no_better_than(self.job.recipe.task, self.results):
            log.warning("%s", line)
        if nothing := measured.decisions.get("nothing"):
            log.warning("%s; ldt evaluate %s --choose-thresholds chooses anew", nothing, run)
        return TrainingResult(
            measured.metrics,
            measured.table,
            run.folder,
            f"{run}: {duration(self.trainer.seconds)}; {self.job.next_command(run.folder)}",
            self.prepared.baselines,
            in_words(measured.changes.get("decisions", {})),
        )
