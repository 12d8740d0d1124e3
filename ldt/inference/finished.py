"""What made a finished file of answers, in a small hidden file beside it.

``answers.jsonl`` has ``.answers.jsonl.run.json``, with the settings that decide the answers, the
sha256 of the answers and that of the documents. By it ``--resume`` knows that nothing is left.
"""

import hashlib
import json
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, Protocol

from ldt.data.records import Example, OnError
from ldt.errors import UserError
from ldt.files import digest, write_whole

Settings = dict[str, Any]


class Records(Protocol):
    """What makes the records of an input anew, such as `ldt.data.formats.read` with its source."""

    def __call__(self, *, on_error: OnError | None) -> Iterator[Example]:
        """Yield them; a broken one goes to ``on_error``, and is raised where that is None."""


class Documents:
    """`Records`, of which a hash is taken while they are read."""

    def __init__(self, records: Records):
        self.records = records
        self._total = hashlib.sha256()

    def __call__(self, *, on_error: OnError | None) -> Generator[Example, None, None]:
        """Yield the records; the hash is complete once the last one is read."""
        self._total = hashlib.sha256()

        def broken(error, raw):
            assert on_error is not None
            self._total.update(raw)
            on_error(error, raw)

        for example in self.records(on_error=broken if on_error else None):
            value = [example.id, example.fields]
            self._total.update(json.dumps(value, default=str).encode())
            yield example

    def sha256(self) -> str:
        """The hash of what was read last."""
        return self._total.hexdigest()


def note(target: Path, answers: Path, settings: Settings) -> None:
    """Write down what made the answers that are about to become ``target``."""
    text = json.dumps(settings | {"answers": digest(answers)}, indent=1)
    write_whole(_beside(target), f"{text}\n")


def settings_of(target: Path, made_by: dict[str, str]) -> Settings:
    """What made a finished file.

    Raises:
        UserError: it was not made by these settings, or is not as it was made.
    """
    try:
        if not _beside(target).is_file():  # a pipe in its place would be waited for
            raise FileNotFoundError
        settings = json.loads(_beside(target).read_text(encoding="utf-8"))
        answers = settings["answers"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise UserError(
            f"{target}: exists already, and nothing beside it says what made it; --overwrite "
            "replaces it"
        ) from None
    if other := different(settings, made_by):
        raise UserError(f"{target}: finished, with another {other}; --overwrite replaces it")
    if answers != digest(target):
        raise UserError(f"{target}: was changed after it was finished; --overwrite replaces it")
    return settings


def different(settings: Settings, made_by: dict[str, str]) -> str:
    """Names of what two runs were not alike in, for a message; "" for none."""
    # A setting that an older version did not have is as if it were empty.
    names = [name for name in made_by if settings.get(name, "") != made_by[name]]
    return " and another ".join(names)


def require_same(target: Path, settings: Settings, documents: Documents, skip: bool) -> None:
    """Read all documents, and compare them with those that a finished file was made of.

    Args:
        settings: of the file.
        skip: records that cannot be read are left out.

    Raises:
        UserError: they are others.
        DataError: a record cannot be read.
    """
    for _ in documents(on_error=(lambda error, raw: None) if skip else None):
        pass
    if documents.sha256() != settings.get("documents"):
        raise UserError(
            f"{target}: finished, of other documents than there are now; --overwrite replaces it"
        )


def _beside(target: Path) -> Path:
    return target.with_name(f".{target.name}.run.json")
