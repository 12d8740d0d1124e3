"""Merge the answers of all shards of an input into one file.

Lines of a shard, and of its rejects, have the number of their ``record`` in the whole input; they
are sorted by it and lose it. The settings saved with each shard (`AnswerFile.finish`) reveal
shards of different models or inputs.
"""

import heapq
import json
import logging
import os
import re
from collections.abc import Iterator
from contextlib import closing
from hashlib import sha256
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any

from ldt.errors import EXIT_OK, EXIT_REJECTS, DataError, UserError, listed, plural, refusal
from ldt.inference.answer_file import AnswerFile, Settings, layout_of, saved_settings
from ldt.inference.executor import THREADS
from ldt.inference.inputs import rejects_path
from ldt.inference.stream import Shard
from ldt.io.files import digest, resolved, write_whole
from ldt.io.records import SeenIds
from ldt.io.strict_json import json_line
from ldt.tasks import TASKS

log = logging.getLogger("ldt")

GROUP = 256  # answers that are written at a time
_OF_A_PART = ("--shard", "answers", "rejects", "overwrite")  # settings in which parts may differ
_OF_A_MACHINE = ("arithmetic", "int8", THREADS)

Line = dict[str, Any]


def merge(target: str, *, overwrite: bool = False) -> int:
    """Write the answers of all shards of ``target`` in input order, and their rejects.

    The shards are kept. An interrupted merge continues where it stopped.

    Args:
        target: file as named by ``--output``; its suffix decides the format.
        overwrite: True replaces an existing file, at the end.

    Returns:
        The exit code: 0, or 7 if records were skipped.

    Raises:
        UserError: a shard is missing, unfinished, changed or made with other settings, or the file
            exists or cannot be written.
        DataError: an id occurs in two shards.
    """
    parts = _parts(target)
    settings = _settings(parts)
    rejects = sum(each["rejects"] for each in settings)
    alike = sorted(_common(settings[0]) - {"documents", "records"})
    made_by = {name: settings[0][name] for name in alike}
    hashes = "".join(each["answers"] for each in settings)
    made_by["parts"] = sha256(hashes.encode()).hexdigest()
    path = Path(target)
    answers = TASKS[made_by["task"]].answers
    layout = layout_of(path, answers.layouts.get(made_by["--output-format"]), answers.kind)
    sink = AnswerFile(path, made_by=made_by, resume=True, overwrite=overwrite, layout=layout)
    with closing(sink):
        if sink.finished is not None:
            log.info("%s: merged already; nothing to do", target)
            return EXIT_REJECTS if rejects else EXIT_OK
        left = islice(_answers(parts), sink.count, None)  # those before are there
        while group := list(islice(left, GROUP)):
            sink.write(group)
        count = sink.count
        _write_rejects(target, parts, settings)
        sink.finish(documents=settings[0]["documents"], rejects=rejects)
    without = f", without {plural(rejects, 'rejected record')}" if rejects else ""
    log.info("%s: %s of %s%s", target, plural(count, "answer"), plural(len(parts), "part"), without)
    return EXIT_REJECTS if rejects else EXIT_OK


def _parts(target: str) -> list[Path]:
    """Finished shards of a file, in order."""
    path = resolved(Path(target))
    name = re.compile(re.escape(path.name) + r"\.([1-9]\d*)-of-([1-9]\d*)(\.partial)?")
    try:
        there = [each for entry in os.listdir(path.parent) if (each := name.fullmatch(entry))]
    except OSError as error:
        raise refusal(error, path.parent) from None
    counts = sorted({int(each[2]) for each in there})
    if not counts:
        raise UserError(
            f"{target}: no part of it is there, such as {Shard(1, 4).part(target)}; "
            f"ldt predict --shard 1/4 --output {target} makes that one"
        )
    if len(counts) > 1:
        of = " and ".join(f"{count:,}" for count in counts)
        raise UserError(f"{target}: parts of {of} shards; move away those that are not meant")
    shards = [Shard(number, counts[0]) for number in range(1, counts[0] + 1)]
    whole = {int(each[1]) for each in there if not each[3]}
    begun = {int(each[1]) for each in there if each[3]} - whole
    if begun:
        some = listed([shard.part(target) for shard in shards if shard.number in begun], 4, str)
        raise UserError(f"{some}: not finished; ldt predict with its --shard and --resume goes on")
    missing = [shard.part(target) for shard in shards if shard.number not in whole]
    if missing:
        raise UserError(f"{listed(missing, 4, str)}: missing; ldt predict with --shard makes it")
    return [Path(shard.part(str(path))) for shard in shards]


def _settings(parts: list[Path]) -> list[Settings]:
    settings: list[Settings] = []
    for part in parts:
        each = saved_settings(part)
        if each is None or "--shard" not in each:
            raise UserError(
                f"{part}: nothing beside it says what made it; ldt predict with --shard makes it "
                "again"
            )
        if each["answers"] != digest(part):
            raise UserError(
                f"{part}: was changed after it was finished; ldt predict with its --shard and "
                "--overwrite makes it again"
            )
        settings.append(each)
        names = _common(settings[0]) | _common(each)
        other = sorted(name for name in names if settings[0].get(name) != each.get(name))
        if other:
            words = {"documents": "input", "records": "number of records"}
            named = " and another ".join(words.get(name, name) for name in other)
            raise UserError(f"{part}: made with another {named} than {parts[0].name}")
    return settings


def _common(settings: Settings) -> set[str]:
    return settings.keys() - {*_OF_A_PART, *_OF_A_MACHINE}


def _answers(parts: list[Path]) -> Iterator[Line]:
    seen = SeenIds()
    for answer in _in_order(parts):
        if not seen.add(answer["id"]):
            raise DataError(
                f"{parts[0].parent}: id {answer['id']!r} is in two parts; an input in which every "
                "record has an id of its own can be merged"
            )
        yield answer


def _in_order(files: list[Path]) -> Iterator[Line]:
    """Lines of all files by record number, which is removed."""
    for line in heapq.merge(*map(_lines, files), key=itemgetter("record")):
        del line["record"]
        yield line


def _lines(file: Path) -> Iterator[Line]:
    try:
        with file.open("rb") as lines:
            yield from map(json.loads, lines)
    except OSError as error:
        raise refusal(error, file) from None


def _write_rejects(target: str, parts: list[Path], settings: list[Settings]) -> None:
    """Write the rejects of all shards in input order, if there are any."""
    files = []
    for part, each in zip(parts, settings, strict=True):
        if not each["rejects"]:
            continue
        files.append(rejects_path("", str(part)))
        count = sum(1 for _ in _lines(files[-1])) if files[-1].is_file() else 0
        if count != each["rejects"]:
            raise UserError(
                f"{files[-1]}: {plural(count, 'rejected record')}, but {part.name} was made "
                f"without {each['rejects']:,}; ldt predict with its --shard and --overwrite "
                "makes both again"
            )
    whole = rejects_path("", target)
    try:
        if files:
            write_whole(whole, b"".join(map(json_line, _in_order(files))))
        else:
            whole.unlink(missing_ok=True)
    except OSError as error:
        raise refusal(error, whole) from None
