"""Answers for a remote store: written and resumed here, sent there when they are complete."""

import hashlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ldt.errors import ResourceError, UserError
from ldt.inference.inputs import rejects_path
from ldt.io import sources
from ldt.io.files import remove

log = logging.getLogger("ldt")

UNSENT = Path("ldt-unsent")  # in the current directory


@contextmanager
def sending(output: str | None, *, overwrite: bool, resume: bool) -> Iterator[str | None]:
    """Give the file to write answers to: ``output``, or one in `UNSENT` where that is remote.

    That file and its rejects are sent and removed at the end, if the answers are complete by then;
    else, and where sending fails, they stay for ``resume``, which sends complete ones as well.

    Args:
        overwrite: replace a remote file that is there.
        resume: answers may be there from a run before.

    Raises:
        UserError: the file exists, or the store cannot be reached or written.
    """
    if output is None or not sources.is_remote(output):
        yield output
        return
    name = output.rstrip("/").rpartition("/")[2]
    folder = UNSENT / hashlib.sha256(output.encode()).hexdigest()[:12]
    file = folder / name
    if not overwrite and sources.exists_remote(output):
        raise UserError(f"{output}: exists already; --overwrite replaces it")
    if file.exists() and not (resume or overwrite):
        raise UserError(f"{file}: answers for {output} that were not sent; --resume sends them")
    folder.mkdir(parents=True, exist_ok=True)
    log.info("%s: %s until it is complete", output, file)
    try:
        yield str(file)
        if file.exists():
            _send(file, output)
    finally:
        _clean(folder)


def _send(file: Path, output: str) -> None:
    rejects = rejects_path("", str(file))
    try:
        # The rejects first: who finds the answers finds them as well.
        if rejects.exists():
            sources.put_remote(rejects, output + rejects.name.removeprefix(file.name))
        sources.put_remote(file, output)
    except UserError as error:
        raise ResourceError(f"{error}; the answers are in {file}, --resume sends them") from None
    for each in file.parent.iterdir():
        remove(each)
    log.info("%s: complete", output)


def _clean(folder: Path) -> None:
    """Remove the folder, and that of all, where nothing is in it."""
    for each in (folder, UNSENT):
        try:
            each.rmdir()
        except OSError:
            return
