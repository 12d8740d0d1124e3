"""Refit the decision policy of a finished model on labelled documents, without training.

Each change keeps the replaced files in `REPLACED`, from which `take_back` restores them.
"""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import ValidationError

from ldt.data.features import Collator, Items
from ldt.data.labels import MULTI, SINGLE
from ldt.errors import UserError, listed
from ldt.io.files import remove, remove_leftovers, write_whole
from ldt.metrics.decisions import DEFAULT, in_words
from ldt.model import load, load_tokenizer, usable_length
from ldt.recipe.problems import explain
from ldt.recipe.recipe import Recipe
from ldt.recipe.run import CARD, CONFIG, REPLACED, RESULTS, Run
from ldt.tasks.base import Task, metric_of, names_of
from ldt.tasks.deciding import Deciding
from ldt.training import TrainingResult
from ldt.training.arguments import settings
from ldt.training.evaluation import ByExample, Measured, MetricsByStep, no_better_than
from ldt.training.finetune import Finetuning, apply_fitted
from ldt.training.job import Prepared, build_trainer, longest_input
from ldt.training.labelled import DocumentEncoder, encode_all, golds_of, held_out, ids_of
from ldt.training.model_card import card
from ldt.training.progress import plain_numbers

log = logging.getLogger("ldt")

# Files that say what the model decides by; the config, which counts, is replaced last.
SAYING = (CARD, RESULTS, CONFIG)


def decide_anew(run: Path, recipe: Recipe, **changes: Any) -> TrainingResult:
    """Fit thresholds, calibration and abstention of a trained model, and save them in its config.

    The model answers as in training's evaluation, so the same documents and settings give the same
    policy. config.json is replaced, and the entries about decisions in metrics.json and README.md;
    `take_back` restores all three.

    Args:
        run: folder of the model.
        recipe: recipe of its training; ``data.eval`` names the documents.
        changes: keys of the task, overriding those of the last change, else the recipe.

    Returns:
        Out-of-fold metrics on the documents, and the policy.

    Raises:
        UserError: or a subclass: the folder, the documents or the settings are at fault, or the
            model would abstain from every document; nothing is changed.
    """
    with Run(run).locked(), TemporaryDirectory(prefix="ldt-") as scratch:
        _complete(run)
        trained = recipe.task
        task = _changed(trained, _settings_in_force(run) | changes)
        training = settings(recipe)
        model = load(run, task.head(), decisions={})
        if isinstance(task, Deciding):
            task = _tuning(task, model.config, changes)
        recipe = replace(recipe, task=task)
        prepared = _prepared(run, recipe, model, training["seed"])
        trainer = build_trainer(Finetuning(recipe), prepared, training, Run(scratch))
        trainer.evaluate()
        metrics = trainer.compute_metrics
        assert isinstance(metrics, MetricsByStep)  # there is a measure
        measured = metrics.last
        if not measured.changes:
            raise UserError(f"{run}: answers of {recipe.task.name} are decided by no threshold")
        if nothing := measured.decisions.get("nothing"):
            raise UserError(f"{run}: {nothing}; nothing is changed")
        apply_fitted(recipe, model.config, measured)
        decisions = measured.changes.get("decisions", {})
        values, before = task.model_dump(mode="json"), trained.model_dump(mode="json")
        if different := {key: values[key] for key in values if values[key] != before[key]}:
            decisions["settings"] = different
        _keep(run, recipe, model.config, training, measured)
    baseline = {name: each._asdict() for name, each in prepared.baselines.items()}
    figures = {"metrics": measured.metrics, "metric": prepared.metric, "baseline": baseline}
    for line in no_better_than(task, figures):
        log.warning("%s", line)
    return TrainingResult(
        measured.metrics,
        measured.table,
        run,
        baselines=prepared.baselines,
        decides=in_words(decisions),
    )


def take_back(run: Path) -> str:
    """Restore the files from before the last change of decisions.

    Returns:
        The restored policy, in words.

    Raises:
        UserError: there was no change, or files cannot be read.
    """
    with Run(run).locked():
        _complete(run)
        versions = _versions(run)
        if not versions:
            raise UserError(f"{run}: its decisions were never changed; there is nothing to undo")
        _restore(run, versions)
    return in_words(Run(run).decisions())


def _settings_in_force(run: Path) -> dict[str, Any]:
    """Keys of the task in which the last change differs from the recipe."""
    settings = Run(run).decisions().get("settings", {})
    return dict(settings) if isinstance(settings, dict) else {}


def _tuning(task: Deciding, config, changes: dict[str, Any]) -> Task:
    """Task with fitted thresholds, if requested or not set before."""
    wanted = {"threshold_target", "positive"} & changes.keys()
    if config.problem_type == SINGLE and wanted and task.positive is None:
        raise UserError(
            "task.threshold_target: which class is to be found? task.positive names it: "
            f"{listed(names_of(config))}"
        )
    default = config.problem_type == MULTI and (not changes or task.threshold == DEFAULT)
    return _changed(task, {"threshold": "auto"}) if wanted or default else task


def _changed(task: Task, changes: dict[str, Any]) -> Task:
    for key in changes:
        if key not in type(task).model_fields:
            raise UserError(f"task.{key}: {task.name} has no such key; nothing of it is decided so")
    values = task.model_dump() | changes
    try:
        return type(task).model_validate(values)
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, keys))}: {what}" for keys, what in explain(error, values)]
        raise UserError(f"task.{'; '.join(lines)}") from None


def _prepared(run: Path, recipe: Recipe, model, seed: int) -> Prepared:
    task, data, config = recipe.task, recipe.data, model.config
    if isinstance(task, Deciding):
        task.check_decisions(config.problem_type, names_of(config), data)
    evaluation = held_out(recipe, seed)
    task.check(evaluation, data, config)
    tokenizer = load_tokenizer(run, config)
    max_length = longest_input(recipe, usable_length(config))
    features = encode_all(evaluation, DocumentEncoder(task, tokenizer, data, max_length, config))
    items = Items(features) if task.inputs.loss_per_document else features
    golds = list(golds_of(evaluation, task, data, config))
    return Prepared(
        tokenizer=tokenizer,
        model=model,
        max_length=max_length,
        train_items=items,  # a Trainer asks for some; nothing is trained
        eval_items=items,
        collate=Collator(config.pad_token_id, task.head(), task.inputs.extras),
        names=ids_of(evaluation),
        measure=ByExample(task, config, features, evaluation, golds, decides=True),
        metric=metric_of(task, config),
        facts={},
        notices=[],
        baselines=task.baseline(golds, golds, config),
    )


def _keep(run: Path, recipe: Recipe, config, training: dict[str, Any], measured: Measured) -> None:
    files = {}
    if results := Run(run).results():
        decisions = dict(measured.decisions) | {"metrics": measured.metrics}
        results = plain_numbers(results | {"decisions": decisions})
        text = card(recipe.task, results, config, training, run.resolve().name)
        files[CARD] = text
        files[RESULTS] = json.dumps(results, indent=1, ensure_ascii=False) + "\n"
    values = json.loads((run / CONFIG).read_text(encoding="utf-8")) | dict(measured.changes)
    # The layout of transformers' config files.
    files[CONFIG] = json.dumps(values, indent=2, sort_keys=True) + "\n"
    there = {name: _text(run / name) for name in files if (run / name).is_file()}
    if there.get(CONFIG) != files[CONFIG]:
        _write_versions(run, [*_versions(run), there])
    for name, text in files.items():
        write_whole(run / name, text)


def _text(file: Path) -> str:
    return file.read_bytes().decode("utf-8")


def _versions(run: Path) -> list[dict[str, str]]:
    """Files replaced by changes, with their texts by name, the last change last."""
    file = run / REPLACED
    if not file.is_file():
        return []
    try:
        versions = json.loads(_text(file))["versions"]
        if all(each.keys() <= {*SAYING} and CONFIG in each for each in versions):
            return [{name: str(text) for name, text in each.items()} for each in versions]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        pass
    raise UserError(f"{file}: damaged; without the file there is nothing to undo, all else works")


def _write_versions(run: Path, versions: list[dict[str, str]]) -> None:
    if versions:
        lines = json.dumps({"versions": versions}, indent=1, ensure_ascii=False)
        write_whole(run / REPLACED, lines + "\n")
    else:
        remove(run / REPLACED)


def _restore(run: Path, versions: list[dict[str, str]]) -> None:
    for name in SAYING:
        if name in versions[-1]:
            write_whole(run / name, versions[-1][name])
    _write_versions(run, versions[:-1])


def _complete(run: Path) -> None:
    """Undo a change that a killed process left unfinished, before it replaced the config."""
    remove_leftovers(run)
    versions = _versions(run)
    if versions and versions[-1][CONFIG] == _text(run / CONFIG):
        _restore(run, versions)
