"""Score answers in ldt's own layout against a gold file read as training data."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ldt import benchmarks
from ldt.benchmarks import formats
from ldt.benchmarks.base import once
from ldt.data import answer_files
from ldt.data.options import DataSection
from ldt.errors import DataError, UserError
from ldt.io import sources
from ldt.io.sources import Names
from ldt.metrics.baseline import no_better
from ldt.metrics.result import Result, compare, some, unmatched
from ldt.recipe import recipe as recipes
from ldt.recipe.recipe import Recipe
from ldt.recipe.run import recipe_file
from ldt.tasks import OWN, results
from ldt.tasks.base import not_empty


def evaluate(
    gold: Names,
    pred: Names,
    *,
    format: str | None = None,
    recipe: str | None = None,
    overrides: Iterable[str] = (),
) -> Result:
    """Score answers of `ldt predict`, or others in the same layout.

    Args:
        gold: labelled documents: a file, folder or pattern as in ``data.eval``, or several.
        pred: file of answers, JSON lines or a table.
        format: one of `ldt.tasks.OWN`; None if a recipe gives task and layout.
        recipe: recipe or run folder whose ``task`` and ``data`` sections say how to read the gold
            file; None uses the task's defaults.
        overrides: recipe keys to change, such as ``data.label=class``.

    Raises:
        UserError: a file is missing, or the recipe does not fit.
        DataError: a file cannot be used.
    """
    return scored(recipe_of(format, recipe, overrides), gold, pred)


def scored(asked: Recipe, gold: Names, pred: Names) -> Result:
    """Score answers by the task and data sections of a recipe.

    Data in a published layout is scored by its published metric, unless the task has a score for
    ldt's own answers.

    Args:
        asked: recipe, as from `recipe_of`.
        gold: labelled documents, as for `evaluate`.
        pred: answers, as for `evaluate`.

    Raises:
        UserError: a file is missing, or both are standard input.
        DataError: a file cannot be used, or no answer has the id of a document.
    """
    task, data = asked.task, asked.data
    if not task.answers.formats and data.format in benchmarks.METRICS:
        return _published(asked, gold, pred)
    golds, file = sources.each(gold), sources.only(pred, "answers")
    if [*golds, file].count("-") > 1:
        raise UserError("standard input can be one file only; name the other")
    name = "stdin" if file == "-" else file
    examples = list(not_empty(task, formats.read(golds, data), sources.brief(golds)))
    listed = list(answer_files.answers(file))
    if not listed:
        raise DataError(f"{name}: no answers in it")
    once((str(example.id) for example in examples), sources.brief(golds))
    once((str(each.id) for each in listed), name)
    answers = {str(each.id): each for each in listed}
    ids = [str(example.id) for example in examples]
    missing, extra = compare(ids, answers)
    if len(missing) == len(ids):
        raise DataError(
            f"{name}: no id of it is in {sources.brief(golds)}: {some(extra)}; there "
            f"{some(missing)}; data.id names the field"
        )
    score = task.answers.result or results.evaluate_by_scores
    result, right, config = score(task, data, examples, answers, name)
    result.extra = extra
    result.warnings[:0] = unmatched(result, name)
    result.baselines = task.baseline(right, right, config)
    result.warnings += no_better(result.metrics, result.baselines)
    return result


def _published(asked: Recipe, gold: Names, pred: Names) -> Result:
    task, data, format = asked.task, asked.data, str(asked.data.format)
    if format in ("squad", "cuad"):
        golds, files = sources.each(gold), sources.each(pred)
        if "-" in [*golds, *files]:
            raise UserError(f"--format says how standard input is scored, of {format} files")
        few = format == "cuad" and any(
            "n_best" not in each.fields for each in answer_files.answers(files[0])
        )
        if few or format == "squad":
            examples = formats.read(golds, data)
            answered = all(task.gold(each, data, None)["answers"] for each in examples)
            format = "squad" if answered else "squad2"
    return benchmarks.evaluate(gold, pred, format=format, data=data)


def reading_of(format: str, overrides: Iterable[str]) -> DataSection:
    """Data section for reading a gold file in a published layout; RecipeError for another key.

    Args:
        format: name of the layout, such as "conll".
        overrides: ``data.encoding=...``; for conll also ``data.fields.tokens`` and
            ``data.fields.tags``, for triviaqa also ``data.domain`` and ``data.evidence``.
    """
    names: tuple[str, ...] = ("encoding",)
    if format == "conll":
        names += ("fields.tokens", "fields.tags")
    if format == "triviaqa":
        names += ("domain", "evidence", "format")
        overrides = ["data.format=triviaqa", *overrides]
    return recipes.reading(overrides, names)


def recipe_of(format: str | None, name: str | None, overrides: Iterable[str]) -> Recipe:
    """Recipe for reading a gold file, with its task set to regression for that ``format``.

    Args:
        format: one of `ldt.tasks.OWN`, the answers to score; None for those of the named recipe.
        name: recipe file or run folder; None gives the defaults of ``format``.
        overrides: recipe keys to change, such as ``data.label=class``.

    Raises:
        UserError: the recipe is of a task without answers, or of others than ``format``.
        RecipeError: the recipe cannot be read.
    """
    if name is None:
        assert format is not None  # one of them is asked for
        return recipes.of_keys({**OWN[format]}, overrides, f"--format {format}")
    asked = recipes.load(recipe_file(Path(name).expanduser()), overrides)
    if asked.task.reads.kind != "examples":
        raise UserError(f"--recipe {name}: {asked.task.name} has no answers to score")
    if format is not None and format not in asked.task.answers.formats:
        raise UserError(f"--recipe {name}: answers of {asked.task.name}, not of {format}")
    if format == "regression" and asked.task.problem != "regression":
        task = asked.task.model_copy(update={"problem": "regression"})
        return Recipe(task, asked.model, asked.data, asked.training, asked.path, asked.places)
    return asked
