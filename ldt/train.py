"""finetune: a recipe to a run folder, through transformers' Trainer."""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from accelerate.utils import broadcast_object_list
from rich.console import Console
from transformers import EarlyStoppingCallback, TrainerCallback, set_seed

from ldt import checkpoint, runs
from ldt.attention import BACKENDS
from ldt.card import card
from ldt.console import say, stderr
from ldt.data import (
    Collator,
    Features,
    LengthReport,
    encode_all,
    length_report,
    split,
    unique,
)
from ldt.errors import RecipeError, ResourceError, TrainingDiverged, UserError
from ldt.kernels import cpu
from ldt.model import load, load_tokenizer, usable_length
from ldt.model.config import layer_windows
from ldt.model.loading import find_folder, read_config
from ldt.progress import METRICS, ProgressReport, duration, is_metric, plain_numbers
from ldt.reading import Example, read
from ldt.recipe import Recipe, dump
from ldt.report import describe, show_results
from ldt.settings import arguments, settings
from ldt.trainer import Interrupted, Trainer

log = logging.getLogger("ldt")


def finetune(
    recipe: Recipe, *, resume: bool = False, overwrite: bool = False, dry_run: bool = False
) -> dict[str, float]:
    """Train a model as the recipe says and leave a self-describing run folder.

    Progress goes to standard error, the table of results to standard output. The folder has the
    best weights (the last ones without an evaluation set), config, tokenizer, ``recipe.yaml``,
    ``metrics.json``, ``metrics.jsonl``, ``README.md`` and the newest checkpoints; ``runs/latest``
    points to it.

    Args:
        recipe: where a model and training data are named.
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
    training, run = settings(recipe), runs.place(recipe)
    first = int(os.environ.get("RANK", "0")) == 0  # the one of several processes that writes
    with ExitStack() as stack:
        hashes = {key: _sha256(getattr(recipe.data, key)) for key in ("train", "eval")}
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
        if finished:
            say(f"{run}: this run is finished, there is nothing left to do")
            return json.loads((run / runs.RESULTS).read_text(encoding="utf-8"))["metrics"]
        newest = None
        if resume and not dry_run:
            newest = checkpoint.newest_valid(run)
            stack.enter_context(cpu.chosen(runs.read_run(run).get("arithmetic", {})))
        train, evaluation = _read(recipe, training["seed"])
        ready = _prepare(recipe, training["seed"], train, evaluation, newest)
        if first:
            _require_space(run, ready.model, training)
        trainer = _trainer(recipe, training, target, ready, first)
        if first:
            describe(ready, trainer, run)
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
        metrics, table = _final_evaluation(trainer, ready)
        results = _results(recipe, trainer, ready, hashes, metrics, table) | {"versions": used}
        _save(trainer, ready, run, results, card(results, ready.config, training), first)
        if first:
            runs.point_latest(run)
            show_results(results)
            say(f"{run}: {duration(trainer.seconds)}; ldt predict --input FILE --model {run}")
        return metrics


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


# -- data and model


@dataclass
class _Ready:
    """All that a Trainer needs; ``golds`` is empty without an evaluation set."""

    config: Any
    tokenizer: Any
    model: Any
    max_length: int
    train: Features
    evaluation: Features
    golds: list
    ids: list
    eval_ids: list
    reports: dict[str, LengthReport]
    labels: dict[str, Counter]


def _read(recipe: Recipe, seed: int) -> tuple[list[Example], list[Example]]:
    data = recipe.data
    if data.train is None or recipe.model.path is None:
        raise RecipeError(f"{recipe.where()}: finetune needs model.path and data.train")
    train = list(unique(read(data.train, id_field=data.id)))
    if data.eval:
        return train, list(unique(read(data.eval, id_field=data.id)))
    return split(train, recipe.task, data, seed) if data.eval_fraction else (train, [])


def _prepare(recipe, seed, train, evaluation, newest: Path | None) -> _Ready:
    """Learn, load and encode; what can be wrong with the data is found before weights are read."""
    task, data = recipe.task, recipe.data
    if recipe.model.attention not in ("auto", *BACKENDS):
        names = ", ".join(["auto", *BACKENDS])
        raise RecipeError(f"{recipe.where('model', 'attention')}: expected one of {names}")
    changes = task.learn(train, data) | {"attention_backend": recipe.model.attention}
    if recipe.model.window is not None:
        changes["attention_window"] = recipe.model.window
    folder = find_folder(newest or recipe.model.path)
    config = read_config(folder, **changes)
    longest = usable_length(config)
    max_length = data.max_length or longest
    if max_length > longest:
        path = recipe.model.path.rstrip("/")
        raise RecipeError(
            f"{recipe.where('data', 'max_length')}: {max_length:,} tokens, {path} reads "
            f"{longest:,}; ldt convert {path} {path}-{max_length} --max-length {max_length} "
            "makes a model that reads them"
        )
    if data.eval or data.eval_fraction:
        task.check(evaluation, data, config)
    tokenizer = load_tokenizer(folder, config)
    how = {"data": data, "max_length": max_length, "config": config}
    sets = {
        name: encode_all(examples, task, tokenizer, **how)
        for name, examples in (("train", train), ("eval", evaluation))
    }
    window = max(layer_windows(config))
    set_seed(seed)  # of a new head's weights
    return _Ready(
        config=config,
        tokenizer=tokenizer,
        model=load(folder, task.head(), **changes),
        max_length=max_length,
        train=sets["train"],
        evaluation=sets["eval"],
        golds=[task.gold(example, data, config) for example in evaluation],
        ids=[example.id for example in train],
        eval_ids=[example.id for example in evaluation],
        reports={
            name: length_report(features, max_length=max_length, window=window)
            for name, features in sets.items()
            if len(features)
        },
        labels={
            "train": _count(task.gold(example, data, config) for example in train),
            "eval": _count(task.gold(example, data, config) for example in evaluation),
        },
    )


def _count(golds) -> Counter:
    """How often each label occurs; nothing where golds are not labels."""
    counts = Counter()
    for gold in golds:
        counts.update(
            name for name in (gold if isinstance(gold, list) else [gold]) if isinstance(name, str)
        )
    return counts


# -- training


class Scorer(TrainerCallback):
    """Scores evaluations by document, over its windows, and remembers them by step.

    As the Trainer's compute_metrics it gets logits [inputs, ...] in the order of the inputs.
    """

    def __init__(self, task, config, features: Features, golds: list, ids: list):
        self.task, self.config, self.golds, self.ids = task, config, golds, ids
        self.starts = np.flatnonzero(np.diff(features.documents)) + 1
        self.found: dict[int, tuple[dict[str, float], list[dict]]] = {}
        self._table: list[dict] = []

    def __call__(self, prediction) -> dict[str, float]:
        documents = np.split(np.asarray(prediction.predictions, np.float64), self.starts)
        wrong = [number for number, d in enumerate(documents) if not np.isfinite(d).all()]
        if wrong:
            raise TrainingDiverged(
                "training diverged: the model's answers in evaluation are not finite, documents "
                f"{', '.join(str(self.ids[number]) for number in wrong[:10])}"
            )
        answers = [self.task.decode(windows, self.config) for windows in documents]
        metrics, self._table = self.task.score(answers, self.golds, self.config)
        return metrics

    def on_evaluate(self, args, state, control, metrics, **kwargs):
        kept = {key: value for key, value in metrics.items() if is_metric(key)}
        self.found[state.global_step] = kept, self._table


def _trainer(recipe, training, run: Path, ready: _Ready, first: bool) -> Trainer:
    score, metric, callbacks = None, None, []
    if ready.golds:
        metric = recipe.task.default_metric(ready.config)
        score = Scorer(recipe.task, ready.config, ready.evaluation, ready.golds, ready.eval_ids)
        callbacks.append(score)
    patience = training.get("early_stopping_patience")
    if patience:
        threshold = training.get("early_stopping_threshold", 0.0)
        callbacks.append(EarlyStoppingCallback(patience, threshold))
    trainer = Trainer(
        model=ready.model,
        args=arguments(recipe, training, run, len(ready.train), metric),
        train_dataset=ready.train,
        eval_dataset=ready.evaluation if ready.golds else None,
        data_collator=Collator(ready.config.pad_token_id),
        compute_metrics=score,
        callbacks=callbacks,
        tokenizer=ready.tokenizer,
        ids=ready.ids,
        progress=ProgressReport(stderr if first else Console(quiet=True), run),
    )
    if ready.golds:
        _check_metric(recipe, trainer, ready)
    return trainer


def _require_space(run: Path, model, training: dict[str, Any]) -> None:
    """Weights, and for each checkpoint that lies there at a time three times their size."""
    size = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    count = 0
    if training["save_strategy"] != "no":
        count = (training["save_total_limit"] or 2) + 2  # the best one, and the one being written
    what = f"{count} checkpoints and the model" if count else "the model"
    checkpoint.require_space(run, (3 * count + 1) * size, what)


def _check_metric(recipe, trainer: Trainer, ready: _Ready) -> None:
    """Answer one document, so that a metric that is not there does not end the first epoch."""
    size = int(np.sum(ready.evaluation.documents == 0))
    batch = trainer.data_collator([ready.evaluation[number] for number in range(size)])
    trainer.model.eval()
    logits = trainer.prediction_step(trainer.model, batch, prediction_loss_only=False)[1]
    answer = recipe.task.decode(logits.float().cpu().numpy(), ready.config)
    names = {*recipe.task.score([answer], ready.golds[:1], ready.config)[0], "loss"}
    wanted = trainer.args.metric_for_best_model.removeprefix("eval_")
    if wanted not in names:
        raise RecipeError(
            f"{recipe.where('training', 'metric_for_best_model')}: no metric {wanted!r}, there "
            f"are {', '.join(sorted(names))}"
        )


def _final_evaluation(trainer: Trainer, ready: _Ready) -> tuple[dict[str, float], list[dict]]:
    """Metrics and table of the weights that the model holds now."""
    if not ready.golds:
        return {"train_loss": trainer.train_loss}, []
    found = trainer.compute_metrics.found
    if trainer.weights_step not in found:  # evaluated in an earlier session, or not at all
        trainer.remove_callback(trainer.progress)  # it is no step of the run
        trainer.evaluate()
        found[trainer.weights_step] = found.pop(trainer.state.global_step)
    metrics, table = found[trainer.weights_step]
    return metrics | {"train_loss": trainer.train_loss}, table


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


def _results(recipe: Recipe, trainer: Trainer, ready: _Ready, hashes, metrics, table) -> dict:
    """What metrics.json holds but for the versions; figures in full."""
    return {
        "metrics": metrics,
        "table": table,
        "metric": trainer.args.metric_for_best_model,
        "step_of_weights": trainer.weights_step,
        "steps": trainer.state.global_step,
        "epochs": trainer.state.epoch,
        "skipped_steps": trainer.skipped,
        "task": recipe.task.name,
        "problem": ready.config.problem_type,
        "base_model": recipe.model.path,
        "parameters": ready.model.num_parameters(),
        "max_length": ready.max_length,
        "data": _data_report(recipe, ready, hashes),
        "seconds": trainer.seconds,
        "tokens": trainer.state.num_input_tokens_seen,
        "tokens_per_second": trainer.tokens_per_second,
        "finished": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def _data_report(recipe: Recipe, ready: _Ready, hashes: dict) -> dict[str, dict]:
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
