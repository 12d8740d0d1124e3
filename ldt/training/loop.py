"""A recipe to a run folder, through transformers' Trainer; and fine-tuning."""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from accelerate.utils import broadcast_object_list

from ldt import files
from ldt.attention import matmul
from ldt.cli.console import say
from ldt.errors import ResourceError, UserError
from ldt.recipe.recipe import dump
from ldt.training import checkpoints, run_folder
from ldt.training.arguments import settings
from ldt.training.job import Job
from ldt.training.progress import METRICS, duration, plain_numbers
from ldt.training.summary import show_results
from ldt.training.trainer import Interrupted, Trainer

log = logging.getLogger("ldt")


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
        resume: go on from the newest valid checkpoint of the same run
            (`ldt.training.run_folder.identity`); on
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
    training, run = settings(recipe), run_folder.place(recipe)
    first = int(os.environ.get("RANK", "0")) == 0  # the one of several processes that writes
    with ExitStack() as stack:
        hashes = job.hashes(training, dry_run=dry_run)
        wanted = run_folder.identity(recipe, training, hashes)
        target, finished = run, False
        if dry_run:
            _check_writable(run)
            target = Path(stack.enter_context(TemporaryDirectory(prefix="ldt-")))  # Trainer's
        elif first:
            stack.enter_context(_claimed(run))
            files.remove_leftovers(run)
            finished = run_folder.check_use(run, wanted, resume=resume, overwrite=overwrite)
        elif resume:
            finished = (run_folder.read_run(run) or {}).get("finished", False)
        if finished and (run / run_folder.RESULTS).is_file():
            say(f"{run}: this run is finished, there is nothing left to do")
            return json.loads((run / run_folder.RESULTS).read_text(encoding="utf-8"))["metrics"]
        newest = None
        if resume and not dry_run:
            newest = checkpoints.newest_valid(run)
            stack.enter_context(matmul.chosen(run_folder.read_run(run).get("arithmetic", {})))
        ready = job.prepare(training, newest)
        if first:
            _require_space(run, ready.model, training)
        trainer = job.trainer(ready, training, target, first)
        if first:
            job.describe(ready, trainer, run)
            if (
                trainer.args.bf16
                and trainer.args.device.type == "cpu"
                and not matmul.has_bfloat16()
            ):
                log.warning(
                    "training.bf16: this CPU has no instructions for bfloat16 and takes many times "
                    "longer than with training.bf16=false"
                )
        if dry_run:
            say("dry run: nothing is trained and nothing written")
            return {}
        used = run_folder.versions(trainer.args.device.type)
        arithmetic = broadcast_object_list([matmul.choices()])[0]  # the same in all processes
        stack.enter_context(matmul.chosen(arithmetic))
        if first:
            resolved = replace(recipe, training=training | {"output_dir": str(run)})
            run_folder.begin(run, wanted, dump(resolved), used, arithmetic, resume)
            if newest:
                say(f"resuming from step {newest.name.partition('-')[2]}")
            elif resume:
                say("resuming from the beginning, nothing was saved yet")
                (run / METRICS).unlink(missing_ok=True)
        try:
            trainer.run(newest)
        except Interrupted:
            if first:
                steps = list(checkpoints.checkpoints(run))
                say(f"stopped; step {steps[-1]} is saved, --resume goes on" if steps else "stopped")
            raise
        metrics, table = job.evaluate(trainer, ready)
        results = _results(job, trainer, ready, metrics, table) | {"versions": used}
        _save(trainer, ready, run, results, job.card(results, ready, training), first)
        if first:
            run_folder.point_latest(run)
            show_results(results)
            say(f"{run}: {duration(trainer.seconds)}; {job.after(run)}")
        return metrics


# -- the folder


@contextmanager
def _claimed(run: Path) -> Iterator[None]:
    """The run folder for this process alone; what stays empty is removed."""
    try:
        with files.Lock(run):
            yield
    finally:
        with suppress(OSError):
            run.rmdir()


def _check_writable(run: Path) -> None:
    """Raise UserError where a run folder cannot be made; nothing is written."""
    there = files.existing(run)
    if not there.is_dir():
        raise UserError(f"{run}: is a file or lies in one, not a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UserError(f"{run}: cannot be written: {there} is read-only")


def _require_space(run: Path, model, training: dict[str, Any]) -> None:
    """Weights, and for each checkpoint that lies there at a time three times their size."""
    size = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    count = 0
    if training["save_strategy"] != "no":
        count = (training["save_total_limit"] or 2) + 2  # the best one, and the one being written
    what = f"{count} checkpoints and the model" if count else "the model"
    files.require_space(run, (3 * count + 1) * size, what)


# -- what is left behind


def _save(trainer: Trainer, ready, run: Path, results: dict, text: str, first: bool) -> None:
    """The finished model into the run folder.

    Raises:
        ResourceError: the disk did not take it; the checkpoints stay.
    """
    folder = files.temporary(run / "model")
    try:
        trainer.save_model(str(folder), _internal_call=True)
        if first:
            ready.tokenizer.save_pretrained(folder)
            (folder / run_folder.CARD).write_text(text, encoding="utf-8")
            lines = json.dumps(plain_numbers(results), indent=1, ensure_ascii=False) + "\n"
            (folder / run_folder.RESULTS).write_text(lines, encoding="utf-8")
            run_folder.finish(run, folder)
    except Exception as error:
        if not files.is_write_error(error):
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
