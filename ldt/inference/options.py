"""Options of ``ldt predict``: what cannot be asked for, and what they change of a recipe."""

from dataclasses import replace
from typing import Any, get_args

from ldt.data.formats import FORMATS, TEXT, unread
from ldt.data.options import check_encoding
from ldt.errors import UserError
from ldt.inference.runtimes import RUNTIMES, Runtime
from ldt.io.text_files import is_text
from ldt.recipe.recipe import Recipe
from ldt.tasks.base import AnyTask


def check(
    on_error: str,
    batch_tokens: int,
    format: str | None,
    encoding: str | None,
    int8_bound: float,
) -> None:
    """Refuse values that no model and no input can have.

    Raises:
        UserError: it is one of them.
    """
    if on_error not in ("stop", "skip"):
        raise ValueError(f"on_error must be stop or skip, got {on_error!r}")
    if batch_tokens < 1:
        raise UserError(f"--batch-tokens must be at least 1, got {batch_tokens}")
    if not 0 <= int8_bound <= 1:
        raise UserError(f"--int8-bound {int8_bound:g}: expected a share from 0 to 1")
    if format is not None and format not in FORMATS:
        raise UserError(f"--format must be one of {', '.join(FORMATS)}, got {format!r}")
    if encoding is not None:
        require_encoding(encoding)


def require_encoding(name: str) -> None:
    """Raise a UserError unless lines can be read in the encoding that ``--encoding`` names."""
    try:
        check_encoding(name)
    except ValueError as error:
        raise UserError(f"--encoding: {error}") from None


def check_reading(source: str, format: str | None, filed: bool, **named: str | None) -> None:
    """Refuse keys of the data section that files of a format have no use for.

    Args:
        source: the first of them.
        format: as it was asked for or seen.
        filed: whether records name files that hold the documents.
        named: the values by their keys.

    Raises:
        UserError: one is given.
    """
    format = format or (TEXT if is_text(source) else None)
    why = ({} if filed else {"evidence": "records name no files of documents"}) | unread(format)
    for key, value in named.items():
        if value not in (None, "utf-8") and key in why:
            raise UserError(f"data.{key}={value}: not read, {why[key]}; leave it out")


def check_runtime(runtime: str, precision: str) -> None:
    """Refuse a precision that is not the file's to choose.

    Raises:
        UserError: one is asked of an exported model.
    """
    if runtime not in get_args(Runtime):
        raise ValueError(f"runtime must be one of {', '.join(get_args(Runtime))}, got {runtime!r}")
    if runtime in RUNTIMES and precision != "auto":
        raise UserError(
            f"--precision {precision}: an exported model has its own; ldt export --precision "
            "makes another"
        )


def check_shown(task: AnyTask, raw_scores: bool, label_sets: float | None) -> None:
    """Refuse options for classes.

    Raises:
        UserError: the answers of the task have none, or the share is none.
    """
    name = "--raw-scores" if raw_scores else "--label-sets"
    if (raw_scores or label_sets is not None) and task.name != "classification":
        raise UserError(f"{name}: answers of {task.name} have no scores by class")
    if label_sets is not None and getattr(task, "problem", None) == "regression":
        raise UserError("--label-sets: a regression has no classes")
    if label_sets is not None and not 0 < label_sets < 1:
        raise UserError(f"--label-sets {label_sets:g}: expected a share between 0 and 1")


def changed(
    recipe: Recipe,
    n_best: int | None,
    format: str | None,
    encoding: str | None,
    **fields: str | None,
) -> Recipe:
    """A copy of a recipe with what differs at prediction.

    Args:
        n_best: of the task; None keeps that of the recipe, as it does for
        fields: of the data section.
        encoding: None keeps that of the training.
        format: of the documents; None is that of lines, whatever the training read.

    Raises:
        UserError: the task has one answer only.
    """
    changes: dict[str, Any] = {key: value for key, value in fields.items() if value is not None}
    changes |= {"format": format} | ({"encoding": encoding} if encoding else {})
    data = recipe.data.model_copy(update=changes)
    task = recipe.task
    if n_best is not None:
        if "n_best" not in type(task).model_fields:
            raise UserError(f"--n-best: {task.name} has one answer a document")
        task = task.model_copy(update={"n_best": n_best})
    return replace(recipe, task=task, data=data)


def with_options_of(layout: str | None, task: AnyTask, asked: dict[str, Any]) -> dict[str, Any]:
    """Options of what answers hold, at least those that a published layout wants."""
    wanted = task.layout_options.get(layout, {}) if layout else {}
    return asked | {name: max(asked[name] or 0, least) for name, least in wanted.items()}
