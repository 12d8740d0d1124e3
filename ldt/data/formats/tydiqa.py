"""TyDi QA, primary tasks (Clark et al. 2020, arXiv:2003.05002): a question a line, in 11 languages.

All offsets of the files are bytes of the UTF-8 of ``document_plaintext``, ends exclusive.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from ldt.data.formats import passage_qa
from ldt.errors import DataError, did_you_mean, shown
from ldt.io.records import Example
from ldt.io.sources import Names
from ldt.io.strict_json import take
from ldt.io.text_files import Utf8

LANGUAGES = (
    "arabic bengali english finnish indonesian japanese korean russian swahili telugu thai"
).split()
_KEYS = ("document_plaintext", "passage_answer_candidates", "language")
_START, _END = "plaintext_start_byte", "plaintext_end_byte"


def read(source: str, data) -> Iterator[Example]:
    """Yield an example for each question, one in memory at a time.

    Its fields: question; context, the whole text; language; title, where there is one;
    ``candidates``, [{start, end}] in characters of the context; ``annotations``, where the file has
    them, each {passage: number of a candidate or None, spans: [[start, end]] of one or none, in
    characters, yes_no: "yes", "no" or None}.

    Args:
        source: a path, or "-" for standard input; compressed or not.
        data: its ``encoding``.

    Raises:
        UserError: there is no such file.
        DataError: it is damaged, has another layout, or offsets that are none.
    """
    for example in passage_qa.lines(source, *_KEYS, "question_text", encoding=data.encoding):
        fields, where = example.fields, example.where
        text, utf8, candidates = _document(fields, where)

        def span(pair: tuple[int, int], utf8: Utf8 = utf8) -> list[int]:
            return [utf8.character(pair[0]), utf8.character(pair[1])]

        columns: dict[str, Any] = {
            "question": take(fields, "question_text", str, where),
            "context": text,
            "language": language(fields, where),
            "candidates": [dict(zip(("start", "end"), span(c), strict=True)) for c in candidates],
        }
        if isinstance(fields.get("document_title"), str):
            columns["title"] = fields["document_title"]
        if "annotations" in fields:
            columns["annotations"] = [
                {"passage": passage, "spans": [span(s) for s in spans], "yes_no": yes_no}
                for passage, spans, yes_no in _annotations(fields, utf8, len(candidates), where)
            ]
        yield Example(columns, example.id, where)


def gold(source: Names, encoding: str | None = None) -> Iterator[Example]:
    """Yield what a prediction is scored by, of each question of all files: language, unit,
    context, and ``annotations``: (number of a candidate or None, [(start, end)] in bytes, yes_no).

    Raises:
        UserError: there is no such file.
        DataError: as `read`; a question without annotations, an id that comes twice.
    """
    for example in passage_qa.gold_lines(source, *_KEYS, encoding=encoding):
        fields, where = example.fields, example.where
        text, utf8, candidates = _document(fields, where)
        columns = {
            "language": language(fields, where),
            "unit": passage_qa.unit(example),
            "context": text,
            "annotations": list(_annotations(fields, utf8, len(candidates), where)),
        }
        yield Example(columns, example.id, where)


def offsets(
    fields: Mapping[str, Any], passage: int | None, span: tuple[int, int] | None
) -> dict[str, Any]:
    """Bytes and language of an answer, for `ldt.metrics.tydiqa.published`.

    Args:
        fields: of an example of `read`.
        passage: number of a candidate; None is no passage.
        span: start and end in characters of the context; None is no answer.
    """
    start, end = (-1, -1) if span is None else map(Utf8(fields["context"]).byte, span)
    places = {"start_byte_offset": start, "end_byte_offset": end}
    return {
        "language": fields["language"],
        "passage_answer_index": -1 if passage is None else passage,
        "minimal_answer": places,
    }


def language(fields: Mapping[str, Any], where: str) -> str:
    """The language of a question or a prediction.

    Raises:
        DataError: there is none, or none of `LANGUAGES`.
    """
    name = fields.get("language")
    if name not in LANGUAGES:
        near = did_you_mean(name, LANGUAGES) if isinstance(name, str) else ""
        raise DataError(
            f"{where}: language is {shown(name)}, expected one of {', '.join(LANGUAGES)}{near}"
        )
    return name


def _document(fields: dict, where: str) -> tuple[str, Utf8, list[tuple[int, int]]]:
    """The text, its bytes, and the candidates in bytes."""
    text = take(fields, "document_plaintext", str, where)
    utf8 = Utf8(text)
    candidates = []
    for number, item in enumerate(take(fields, "passage_answer_candidates", list, where)):
        candidates.append(_span(item, utf8, f"{where}: candidate {number:,}"))
        if candidates[-1][0] < 0:
            raise DataError(f"{where}: candidate {number:,}: {_START} is -1, expected a byte")
    return text, utf8, candidates


def _annotations(
    fields: dict, utf8: Utf8, candidates: int, where: str
) -> Iterator[tuple[int | None, list[tuple[int, int]], str | None]]:
    """Yield candidate, spans in bytes (one or none) and yes or no of each annotation."""
    for number, annotation in enumerate(take(fields, "annotations", list, where)):
        here = f"{where}: annotation {number:,}"
        passage = take(annotation, "passage_answer", dict, here)
        span = _span(take(annotation, "minimal_answer", dict, here), utf8, here)
        yield (
            passage_qa.index(passage, candidates, here),
            [span] if span[0] >= 0 else [],
            passage_qa.yes_no(annotation, here),
        )


def _span(item: Any, utf8: Utf8, where: str) -> tuple[int, int]:
    span = passage_qa.pair(item, _START, _END, utf8.size, where)
    for name, byte in zip((_START, _END), span, strict=True):
        if byte >= 0 and not utf8.parts(byte):
            raise DataError(f"{where}: {name} {byte:,} is inside of a character of the UTF-8")
    return span
