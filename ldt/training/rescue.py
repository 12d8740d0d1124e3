"""A run folder that goes away while its run trains: noticed, and the model saved beside it."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from ldt.training import run_folder

log = logging.getLogger("ldt")


class FolderLost(Exception):
    """The run folder is no longer the one that the training began in; the message says why."""


class Held:
    """A run folder as it is when its training begins, to notice that it went away.

    Args:
        run: the folder, with its run.json.
        session: the word by which its run.json is told from that of another run.
    """

    def __init__(self, run: Path, session: str):
        self.run, self.session = run, session
        self._number = self._stat()

    def _stat(self) -> tuple[int, int]:
        found = os.stat(self.run)
        return found.st_dev, found.st_ino

    def fault(self) -> str | None:
        """What happened to the folder, in words that go on behind its name; None if nothing did."""
        try:
            number = self._stat()
        except OSError:
            return "was removed or renamed while it was trained in"
        if not self.run.is_dir():
            return "was replaced by a file while it was trained in"
        if number != self._number:
            return "was replaced by another folder while it was trained in"
        try:
            record = run_folder.read_run(self.run)
        except run_folder.ModelError:
            record = None
        if record is None:
            return f"lost its {run_folder.RUN} while it was trained in"
        if record.get("session") != self.session:
            return "was taken by another run while it was trained in"
        return None

    def check(self) -> None:
        """Raise FolderLost if the folder went away."""
        if fault := self.fault():
            raise FolderLost(fault)


def new_place(run: Path) -> Path:
    """Make an empty folder for what is rescued: ``RUN-rescued`` or, if it exists, ``-rescued-2`` …

    Beside the run folder, else in the current directory, else among the temporary files.

    Raises:
        OSError: none of them can be made.
    """
    for place in _places(run):
        try:
            place.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            log.warning("%s: cannot be made: %s", place, error.strerror)
            continue
        return place
    raise OSError(f"{run}-rescued: cannot be made")


def _places(run: Path) -> Iterator[Path]:
    for parent in (run.parent, Path(), Path(tempfile.gettempdir())):
        for number in count(1):
            place = parent / f"{run.name}-rescued{'' if number == 1 else f'-{number}'}"
            yield place
            if not os.path.lexists(place):
                break
