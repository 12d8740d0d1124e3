"""The steps that all kinds of training share: from a job to a finished run folder."""

from __future__ import annotations

import json
import logging
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
from ldt.model.pooling import gates
from ldt.recipe.recipe import Recipe
from ldt.recipe.run import CARD, LOG, PATTERN, RESULTS, FolderLost, Run, identity
from ldt.tasks.decisions.report import in_words
from ldt.training import TrainingOptions, TrainingResult, checkpoints, lora, pattern, processes
from ldt.training.arguments import is_automatic, precision, settings
from ldt.training.cost import Cost, estimate, fitting
from ldt.training.evaluation import Measured, MetricsByStep, no_better_than
from ldt.training.job import Job, Prepared
from ldt.training.making import make_trainer
from ldt.training.model_card import card, pattern_in_words
from ldt.training.progress import plain_numbers
from ldt.training.summary import tell
from ldt.training.trainer import Trainer

log = logging.getLogger("ldt")


def train_jobs(jobs: Sequence[Job], options: TrainingOptions) -> Iterator[TrainingResult]:
    """Train the phases of a recipe one after the other; yield the result of each.

    Args:
        jobs: one a phase; a dry run looks at the first.

    Raises:
        UserError: or a subclass, with its exit code.
        Interrupted: SIGINT or SIGTERM, after a checkpoint was saved.
    """
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


def cost_of(job: Job) -> Cost | None:
    """Measure what a training will take, as a dry run does; it is not logged.

    Raises:
        UserError: or a subclass, where the training would raise it.
    """
    training = settings(job.recipe)
    with TemporaryDirectory(prefix="ldt-") as folder:
        scratch = Path(folder)
        prepared = job.prepare(job.open(training, scratch), None)
        return estimate(job, prepared, make_trainer(job, prepared, training, Run(scratch), None))


def train(job: Job, options: TrainingOptions) -> TrainingResult:
    """Train one job into its run folder; see `ldt.training.train`."""
    training, run = settings(job.recipe), Run.of(job.recipe)
    with ExitStack() as stack:
        scratch = None
        if options.dry_run:
            scratch = Path(stack.enter_context(TemporaryDirectory(prefix="ldt-")))

        # The data belong to the identity of a run, by which its folder is refused or taken up.
        inputs = job.open(training, scratch)
        wanted = identity(job.recipe, training, inputs.hashes, processes.count())
        if options.dry_run:
            run.check_writable()
        elif _enter(stack, run, wanted, options):
            log.info("%s: this run is finished, there is nothing left to do", run)
            return TrainingResult(run.results()["metrics"], [], run.folder)
        checkpoint = None
        if options.resume and not options.dry_run:
            checkpoint = checkpoints.newest_valid(run)
            # The products of the first session, or the last digits of the result differ.
            record = run.record()
            assert record is not None  # or `_enter` had refused to resume
            stack.enter_context(matmul.chosen(record.get("arithmetic", {})))

        prepared = job.prepare(inputs, checkpoint)
        if processes.is_first():
            _require_space(run, prepared.model, training)
        place = Run(scratch) if scratch else run
        trainer = make_trainer(job, prepared, training, place, options.console)
        if processes.is_first():
            _announce(job, prepared, trainer, run, training)
        estimates = options.dry_run or (is_automatic(job.recipe) and checkpoint is None)
        cost = _measure(job, prepared, trainer) if estimates else None
        if options.dry_run:
            log.info("dry run: nothing is trained and nothing written")
            return TrainingResult({}, [], run.folder, cost=cost)

        # From here on the folder is this run's: one that is overwritten goes now, not before.
        versions = _versions(trainer.args.device.type)
        arithmetic = broadcast_object_list([matmul.choices()])[0]  # the same in all processes
        stack.enter_context(matmul.chosen(arithmetic))
        metric = trainer.args.metric_for_best_model
        facts = {"versions": versions, "arithmetic": arithmetic, "metric": metric}
        begun = wanted, replace(job.recipe, training=training), facts
        if processes.is_first():
            run.begin(*begun, resume=options.resume)
            _say_where_it_begins(run, checkpoint, options.resume)
        outcome: dict[str, Any] = {}
        try:
            _run(trainer, run, checkpoint)
            measured = _evaluate(job, prepared, trainer)
            outcome |= _results(job, prepared, trainer, measured) | {"versions": versions}
            _save(job, prepared, trainer, run, outcome)
        except FolderLost as lost:
            _rescue(job, prepared, trainer, run, outcome, begun, str(lost))
        if not processes.is_first():
            return TrainingResult(measured.metrics, measured.table, run.folder)
        if not (options.keep_checkpoints or training.get("save_only_model")):
            checkpoints.remove_all(run)
        return _closed(job, prepared, trainer, run, measured, outcome)


def _closed(
    job: Job, prepared: Prepared, trainer: Trainer, run: Run, measured: Measured, outcome: dict
) -> TrainingResult:
    """The result of a run that is finished, once runs/latest points to it."""
    run.point_latest()
    for line in no_better_than(job.recipe.task, outcome):
        log.warning("%s", line)
    if nothing := measured.decisions.get("nothing"):
        log.warning("%s; ldt evaluate %s --choose-thresholds chooses anew", nothing, run)
    closing = f"{run}: {duration(trainer.seconds)}; {job.next_command(run.folder)}"
    decides = in_words(measured.changes.get("decisions", {}))
    baselines = prepared.baselines
    table = measured.table
    return TrainingResult(measured.metrics, table, run.folder, closing, baselines, decides)


# -- the folder


def _enter(stack: ExitStack, run: Run, wanted: dict, options: TrainingOptions) -> bool:
    """Lock the run folder until ``stack`` ends; True if the run in it is finished.

    Raises:
        UserError: the folder holds something that the user has to decide about.
    """
    finished = False
    if processes.is_first():
        stack.enter_context(run.locked())
        files.remove_leftovers(run.folder)
        finished = run.check_use(wanted, resume=options.resume, overwrite=options.overwrite)
    elif options.resume:
        finished = (run.record() or {}).get("finished", False)
    return finished and (run.folder / RESULTS).is_file()


def _require_space(run: Run, model, training: dict[str, Any]) -> None:
    """Raise ResourceError if the disk cannot hold the weights, and for each checkpoint that is
    kept at a time three times their size."""
    size = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    count = 0
    if training["save_strategy"] != "no":
        count = (training["save_total_limit"] or 2) + 2  # the best one, and the one being written
    what = f"{count} checkpoints and the model" if count else "the model"
    files.require_space(run.folder, (3 * count + 1) * size, what)


def _versions(device: str) -> dict[str, str]:
    """Versions of libraries, device and processes, on which bit-identical results depend."""
    names = ("torch", "transformers", "accelerate", "tokenizers")
    used = {"ldt": __version__, "python": platform.python_version(), "device": device}
    used["processes"] = str(processes.count())
    return used | {name: version(name) for name in names}


def _say_where_it_begins(run: Run, checkpoint: Path | None, resume: bool) -> None:
    if checkpoint:
        log.info("resuming from step %s", checkpoint.name.partition("-")[2])
    elif resume:
        log.info("resuming from the beginning, nothing was saved yet")
        (run.folder / LOG).unlink(missing_ok=True)


# -- the training


def _announce(
    job: Job, prepared: Prepared, trainer: Trainer, run: Run, training: dict[str, Any]
) -> None:
    """Say what will be trained, and what is likely to disappoint."""
    tell(prepared.notices)
    log.info("%s: %s", run, job.plan(prepared, trainer.args))
    log.info("%s", precision(training, next(iter(prepared.model.parameters()))))
    _warn_of_slow_bfloat16(trainer)
    if prepared.measure is None:
        log.warning("no data.eval and no data.eval_fraction: nothing will tell how well it works")


def _warn_of_slow_bfloat16(trainer: Trainer) -> None:
    on_cpu = trainer.args.device.type == "cpu"
    if trainer.args.bf16 and on_cpu and not matmul.has_bfloat16():
        log.warning(
            "training.bf16: this CPU has no instructions for bfloat16 and takes many times "
            "longer than with training.bf16=false"
        )


def _measure(job: Job, prepared: Prepared, trainer: Trainer) -> Cost | None:
    """Forecast and log the training's cost; an automatic batch is run in as large parts as memory
    allows."""
    cost = estimate(job, prepared, trainer)
    if cost is not None:
        tell([cost.notice])
        if is_automatic(job.recipe):
            trainer.micro_batch = fitting(prepared, trainer, cost)
            size = trainer.micro_batch or cost.batch
            log.info("training.per_device_train_batch_size=auto: %d inputs at a time", size)
    return cost


def _run(trainer: Trainer, run: Run, checkpoint: Path | None) -> None:
    """Train to the end, from a checkpoint if there is one; log where a signal stopped it."""
    try:
        trainer.run(checkpoint)
    except Interrupted:
        if processes.is_first():
            steps = list(run.checkpoints())
            saved = f"; step {steps[-1]} is saved, --resume goes on" if steps else ""
            log.info("stopped%s", saved)
        raise


def _evaluate(job: Job, prepared: Prepared, trainer: Trainer) -> Measured:
    """Results of the weights that are kept; then the model is finished."""
    measured = Measured({}, [])
    if isinstance(trainer.compute_metrics, MetricsByStep):
        measured = trainer.compute_metrics.of_weights(trainer)
    metrics = measured.metrics | {"train_loss": trainer.train_loss}
    measured = measured._replace(metrics=metrics, table=job.table(metrics, measured.table))
    prepared.finish(measured)
    return measured


# -- what is left behind


def _save(job: Job, prepared: Prepared, trainer: Trainer, run: Run, results: dict) -> None:
    """Save the model into the run folder; with results, them and its card, which finishes the run.

    A run whose best weights could not be kept is not finished: its model is that of
    ``step_of_weights``, and --resume trains on from the newest checkpoint.

    Raises:
        ResourceError: the disk did not take it, or had not taken the best weights; the
            checkpoints stay.
        FolderLost: the run folder went away.
    """
    trainer.check_folder()
    folder, lost = files.temporary(run.folder / "model"), trainer.lost_best
    try:
        adapted = lora.is_adapted(trainer.model)
        trainer.save_model(str(folder / lora.FOLDER if adapted else folder), _internal_call=True)
        if processes.is_first():
            if adapted:
                lora.merge(run.folder, folder, prepared.tokenizer, job.recipe.task.head())
            weights = {path.name: files.digest(path) for path in folder.glob("*.safetensors")}
            prepared.tokenizer.save_pretrained(folder)
            if results:
                _describe(job, prepared, folder, run.folder.name, results | {"weights": weights})
        trainer.check_folder()  # once more: writing takes a while
        if processes.is_first():
            also, finished = [RESULTS] if results else [], bool(results) and lost is None
            run.finish(folder, also, hashes=weights, finished=finished)
    except Exception as error:
        trainer.check_folder()
        if not files.is_write_error(error):
            raise
        raise ResourceError(
            f"{run}: the trained model cannot be saved: {files.unwritten(error)}; "
            "free some disk space, then --resume goes on from the last checkpoint"
        ) from error
    finally:
        files.remove(folder)
    if results and lost is not None:
        raise ResourceError(
            f"{run}: the best weights, of step {lost.step}, could not be kept ({lost.why}); the "
            f"model there is that of step {trainer.weights_step}; free some disk space, then "
            "--resume trains on from the newest checkpoint"
        )


def _describe(job: Job, prepared: Prepared, folder: Path, name: str, results: dict) -> None:
    """Write the model card of a run of that name, its picture and metrics.json beside the model."""
    config = prepared.model.config
    training = settings(job.recipe)
    if job.recipe.task.reads.kind == "examples":
        first = prepared.train_items[0]  # of a document, where those of one are one item
        drawn = pattern.of_input(first[0] if isinstance(first, list) else first, config)
        if drawn:
            rows, results["pattern"] = drawn
            svg = pattern.picture(rows, pattern_in_words(results["pattern"]))
            (folder / PATTERN).write_text(svg, encoding="utf-8")
    text = card(job.recipe.task, results, config, training, name)
    (folder / CARD).write_text(text, encoding="utf-8")
    lines = json.dumps(plain_numbers(results), indent=1, ensure_ascii=False) + "\n"
    (folder / RESULTS).write_text(lines, encoding="utf-8")


def _rescue(
    job: Job,
    prepared: Prepared,
    trainer: Trainer,
    run: Run,
    results: dict,
    begun: tuple[dict, Recipe, dict],
    why: str,
) -> NoReturn:
    """Save the model, and what resuming takes, beside a run folder that went away.

    Args:
        results: of a training that is over; empty before.
        begun: arguments of `Run.begin`.
        why: what happened to the run folder.

    Raises:
        ResourceError: always; it says where all is.
    """
    try:
        new = str(run.rescued()) if processes.is_first() else None
        place = Run(broadcast_object_list([new])[0])
        if processes.is_first():
            place.begin(*begun, resume=False)
        if not results:
            trainer.rescue(place)
        _save(job, prepared, trainer, place, results)
    except OSError as error:
        raise ResourceError(f"{run}: {why}, and the model cannot be saved: {error}") from error
    step = trainer.state.global_step
    saved = "the finished model" if results else f"the model of step {step}"
    further = "" if results else f"; --resume with training.output_dir={place} goes on"
    raise ResourceError(f"{run}: {why}; {saved} is in {place}{further}")


def _results(job: Job, prepared: Prepared, trainer: Trainer, measured: Measured) -> dict[str, Any]:
    """The content of metrics.json but for the versions; numbers in full."""
    return {
        "metrics": measured.metrics,
        "baseline": {name: each._asdict() for name, each in prepared.baselines.items()},
        "table": measured.table,
        **({"decisions": measured.decisions} if measured.decisions else {}),
        **({"by_length": measured.by_length} if measured.by_length else {}),
        "metric": trainer.args.metric_for_best_model,
        "step_of_weights": trainer.weights_step,
        "steps": trainer.state.global_step,
        "epochs": trainer.state.epoch,
        "skipped_steps": trainer.skipped,
        "inputs_at_a_time": trainer.micro_batch or trainer.batch_size,
        "task": job.recipe.task.name,
        "parameters": prepared.model.num_parameters(),
        **prepared.facts,
        **({"pooling_gates": found} if (found := gates(prepared.model)) else {}),
        "seconds": trainer.seconds,
        "tokens": trainer.state.num_input_tokens_seen,
        "tokens_per_second": trainer.tokens_per_second,
        "finished": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
