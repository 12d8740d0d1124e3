"""Parts that Natural Questions and TyDi QA share: lines, ids, spans, answers."""

from collections.abc import Iterator
from typing import Any

from ldt.errors import DataError, shown
from ldt.io import records
from ldt.io.records import Example
from ldt.io.sources import Names, each, named
from ldt.io.strict_json import take

YES_NO = ("YES", "NO", "NONE")
SWAPPED = "; are --gold and --pred swapped?"
# Keys by which a record of the other kind is known.
_PREDICTED = dict.fromkeys(("predictions", "passage_answer_index"), "predictions")
_GOLD = {"annotations": "a gold file"}


def lines(
    source: str, *needed: str, encoding: str | None = None, swapped: str = ""
) -> Iterator[Example]:
    """Yield the records of a file, one in memory at a time, with ``example_id`` as id.

    Args:
        needed: keys that a record of the layout has, one at least.
        encoding: as of `ldt.io.records.read`.
        swapped: what to ask where there is gold in the place of predictions, or the other way
            round.

    Raises:
        UserError: there is no such file.
        DataError: it is damaged or breaks off; a record without these keys, or whose id is neither
            a whole number nor text.
    """
    marks = _GOLD if needed[0] in _PREDICTED else _PREDICTED
    for example in records.read(source, format="jsonl", encoding=encoding):
        fields = example.fields
        for key in ("example_id", *needed):
            if key not in fields:
                looks = next((what for mark, what in marks.items() if mark in fields), "")
                hint = f"; it looks like {looks}{swapped}" if looks else ""
                raise DataError(f"{example.where}: no field {key!r}{hint}")
        if fields["example_id"] in (None, ""):
            raise DataError(
                f"{example.where}: field 'example_id' is {shown(fields['example_id'])}, expected "
                "text or a whole number"
            )
        example.id = records.identified(example, "example_id")
        yield example


def gold_lines(source: Names, *needed: str, encoding: str | None = None) -> Iterator[Example]:
    """Yield the records of all files, which have annotations; an id comes once.

    Raises:
        UserError, DataError: as `lines` does; no record at all.
    """
    seen: set[str] = set()
    for file in each(source):
        for example in lines(file, *needed, "annotations", encoding=encoding, swapped=SWAPPED):
            if str(example.id) in seen:
                raise DataError(
                    f"{example.where}: the id {shown(example.id)} stands twice; each question once"
                )
            seen.add(str(example.id))
            yield example
    if not seen:
        raise DataError(f"{name_of(source)}: no questions in it")


def name_of(source: Names) -> str:
    """The files in messages: ``stdin``, or as `ldt.io.sources.named` has them."""
    return "stdin" if named(source) == "-" else named(source)


def pair(item: Any, start: str, end: str, most: int | None, where: str) -> tuple[int, int]:
    """Two offsets, start and end (exclusive); (-1, -1) where there are none.

    Args:
        item: the object that holds them, under ``start`` and ``end``; missing ones are -1.
        most: the largest end that there is; None is not known.

    Raises:
        DataError: no whole numbers, one of them alone is negative, start is not below end, or the
            end is beyond the text.
    """
    if not isinstance(item, dict):
        raise DataError(f"{where}: {shown(item)}, expected an object with {start!r}")
    first, last = item.get(start, -1), item.get(end, -1)
    for name, value in ((start, first), (end, last)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise DataError(f"{where}: {name} is {shown(value)}, expected a whole number")
    if first < 0 and last < 0:
        return -1, -1
    if first < 0 or last < 0:
        raise DataError(f"{where}: {start} {first}, {end} {last}; both are -1, or neither")
    if first >= last:
        raise DataError(f"{where}: {start} {first:,} is not below {end} {last:,}")
    if most is not None and last > most:
        raise DataError(f"{where}: {end} {last:,} is beyond the text, which has {most:,}")
    return first, last


def index(item: Any, candidates: int, where: str) -> int | None:
    """The ``candidate_index`` of an object, from 0; None where it is -1.

    Raises:
        DataError: it is no number of a candidate.
    """
    number = take(item, "candidate_index", int, where)
    if isinstance(number, bool) or not -1 <= number < candidates:
        raise DataError(
            f"{where}: candidate_index is {shown(number)}, expected 0 to {candidates - 1:,}, or -1"
        )
    return None if number < 0 else number


def yes_no(item: dict[str, Any], where: str) -> str | None:
    """``yes_no_answer`` as "yes", "no" or None, in any case; missing is None.

    Raises:
        DataError: another value.
    """
    value = item.get("yes_no_answer")
    if value is None:
        return None
    if not isinstance(value, str) or value.upper() not in YES_NO:
        raise DataError(f"{where}: yes_no_answer is {shown(value)}, expected {', '.join(YES_NO)}")
    return None if value.upper() == "NONE" else value.lower()


def unit(example: Example) -> str | int:
    """Key that questions on one page share: its address, else its title, else the question's id."""
    return example.fields.get("document_url") or example.fields.get("document_title") or example.id
