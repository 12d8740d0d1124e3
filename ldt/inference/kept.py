"""Fields of the records that are copied into the answers."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from ldt.errors import UserError
from ldt.inference.stream import Beside
from ldt.io.records import Example, field
from ldt.tasks.base import ANSWER_KEYS, AnyTask


def copier(keep: Sequence[str], task: AnyTask, more: Sequence[str] = ()) -> Beside | None:
    """What copies fields of a record for its answer; None for no fields.

    Args:
        keep: FIELD, or NAME=FIELD for another name than that of the field.
        more: keys that answers have besides those of the task.

    Raises:
        UserError: a name that the answers of the task use themselves, or one that comes twice.
    """
    found: dict[str, str] = {}
    for option in keep:
        name, _, path = option.rpartition("=")
        name = name or path
        if not path:
            raise UserError(f"--keep {','.join(keep)!r}: a name is empty; FIELD,FIELD names fields")
        if name.partition(".")[0] in (*ANSWER_KEYS, *task.answer_keys, *more):
            raise UserError(
                f"--keep {option}: answers of {task.name} have {name!r} themselves; "
                f"--keep my_{name}={path} gives it another name"
            )
        if name in found:
            raise UserError(f"--keep {option}: {name!r} stands twice; each name once")
        found[name] = path
    return partial(_copied, fields=found) if found else None


def _copied(example: Example, fields: dict[str, str]) -> dict[str, Any]:
    """The fields of a record by their names in the answer.

    Raises:
        DataError: the record lacks one.
    """
    return {name: _json(field(example, path)) for name, path in fields.items()}


def _json(value: Any) -> Any:
    """A value as JSON has it: dates and the like of Parquet as text, NaN and infinity as null."""
    if isinstance(value, dict):
        return {str(key): _json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_json(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int) else str(value)
