"""What a finished model decides by, chosen anew on labelled documents; nothing is trained."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import ValidationError

from ldt.data.collate import Collator
from ldt.data.features import Items
from ldt.data.labels import MULTI
from ldt.errors import UserError
from ldt.files import write_whole
from ldt.metrics.baseline import Baselines
from ldt.model import load, load_tokenizer, usable_length
from ldt.recipe.problems import explain
from ldt.recipe.recipe import Recipe
from ldt.tasks.base import Task
from ldt.tasks.deciding import Deciding, names_of
from ldt.tasks.decisions import in_words
from ldt.training import run_folder
from ldt.training.arguments import settings
from ldt.training.evaluation import ByExample, Measured, MetricsByStep
from ldt.training.finetune import Finetuning, settle
from ldt.training.job import Prepared, longest_input
from ldt.training.labelled import Golds, Ids, encode_all, held_out
from ldt.training.making import make_trainer
from ldt.training.model_card import card
from ldt.training.progress import plain_numbers

CONFIG = "config.json"


@dataclass(frozen=True)
class Decided:
    """The outcome of `decide_anew`.

    Args:
        metrics: on the documents, each by what was chosen without it.
        table: of the classes.
        baselines: by metric what an answer has that needs no reading.
        decides: what the model decides by now, in words.
    """

    metrics: dict[str, float]
    table: list[dict[str, Any]]
    baselines: Baselines
    decides: str


def decide_anew(run: Path, recipe: Recipe, **changes: Any) -> Decided:
    """Choose thresholds, calibration and abstention of a trained model; keep them in its config.

    The model answers as it does when its training evaluates it, so the same documents and settings
    give the same decisions. config.json is replaced, and with it what metrics.json (``decisions``)
    and README.md say.

    Args:
        run: the folder of the model.
        recipe: that it was trained by; its ``data.eval`` are the documents.
        changes: keys of the task, in place of those that it was trained with.

    Raises:
        UserError: or a subclass: the folder, the documents or the settings are to blame.
    """
    recipe = replace(recipe, task=_changed(recipe.task, changes))
    with run_folder.locked(run), TemporaryDirectory(prefix="ldt-") as scratch:
        training = settings(recipe)
        model = load(run, recipe.task.head(), decisions={})
        if model.config.problem_type == MULTI:
            recipe = replace(recipe, task=_changed(recipe.task, {"threshold": "auto"}))
        prepared = _prepared(run, recipe, model, training["seed"])
        trainer = make_trainer(Finetuning(recipe), prepared, training, Path(scratch), None)
        trainer.evaluate()
        metrics = trainer.compute_metrics
        assert isinstance(metrics, MetricsByStep)  # there is a measure
        measured = metrics.last
        if not measured.changes:
            raise UserError(f"{run}: answers of {recipe.task.name} are decided by no threshold")
        settle(recipe, model.config, measured)
        _keep(run, recipe, model.config, training, measured)
    words = in_words(measured.changes.get("decisions", {}))
    return Decided(measured.metrics, measured.table, prepared.baselines, words)


def _changed(task: Task, changes: dict[str, Any]) -> Task:
    """A copy of a task with other values of some keys.

    Raises:
        UserError: it has no such key, or not this value.
    """
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
    options = {"data": data, "max_length": max_length, "config": config}
    features = encode_all(evaluation, task, tokenizer, **options)
    items = Items(features) if task.together else features
    golds = list(Golds(evaluation, task, data, config))
    return Prepared(
        tokenizer=tokenizer,
        model=model,
        max_length=max_length,
        train_items=items,  # a Trainer asks for some; nothing is trained
        eval_items=items,
        collate=Collator(config.pad_token_id, task.head(), task.extras),
        names=Ids(evaluation),
        measure=ByExample(task, config, features, evaluation, golds, decides=True),
        metric=task.default_metric(config),
        facts={},
        notices=[],
        baselines=task.baseline(golds, golds, config),
    )


def _keep(run: Path, recipe: Recipe, config, training: dict[str, Any], measured: Measured) -> None:
    """Replace the files that say what the model decides by; the config, which counts, is last."""
    if (run / run_folder.RESULTS).is_file():
        results = run_folder.read_results(run)
        decisions = dict(measured.decisions) | {"metrics": measured.metrics}
        results = plain_numbers(results | {"decisions": decisions})
        text = card(recipe.task, results, config, training, run.resolve().name)
        write_whole(run / run_folder.CARD, text)
        lines = json.dumps(results, indent=1, ensure_ascii=False)
        write_whole(run / run_folder.RESULTS, lines + "\n")
    values = json.loads((run / CONFIG).read_text(encoding="utf-8")) | dict(measured.changes)
    # The layout of transformers' config files.
    write_whole(run / CONFIG, json.dumps(values, indent=2, sort_keys=True) + "\n")
