"""What made a finished file of answers, in a small hidden file beside it.

``answers.jsonl`` has ``.answers.jsonl.run.json``, with the settings that decide the answers, the
sha256 of the answers and that of the documents. By it ``--resume`` knows that nothing is left.
"""

import json
from pathlib import Path
from typing import Any

from ldt.errors import UserError
from ldt.io.files import digest, remove_abandoned, write_whole

Settings = dict[str, Any]


def note(target: Path, answers: Path, settings: Settings) -> None:
    """Write down what made the answers that are about to become ``target``."""
    text = json.dumps(settings | {"answers": digest(answers)}, indent=1)
    remove_abandoned(_beside(target))
    write_whole(_beside(target), f"{text}\n")


def settings_of(target: Path, made_by: dict[str, str]) -> Settings:
    """What made a finished file.

    Raises:
        UserError: it was not made by these settings, or is not as it was made.
    """
    settings = noted(target)
    if settings is None:
        raise UserError(
            f"{target}: exists already, and nothing beside it says what made it; --overwrite "
            "replaces it"
        )
    if other := different(settings, made_by):
        raise UserError(f"{target}: finished, with another {other}; --overwrite replaces it")
    if settings["answers"] != digest(target):
        raise UserError(f"{target}: was changed after it was finished; --overwrite replaces it")
    return settings


def noted(target: Path) -> Settings | None:
    """What `note` wrote down of a file; None where there is no such note."""
    try:
        if not _beside(target).is_file():  # a pipe in its place would be waited for
            return None
        settings = json.loads(_beside(target).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return settings if isinstance(settings, dict) and "answers" in settings else None


def different(settings: Settings, made_by: dict[str, str]) -> str:
    """Names of what two runs were not alike in, for a message; "" for none."""
    names = [name for name in made_by if settings.get(name) != made_by[name]]
    return " and another ".join(names)


def _beside(target: Path) -> Path:
    return target.with_name(f".{target.name}.run.json")
