"""Natural Questions (Kwiatkowski et al. 2019, TACL): a question a line, with a whole web page.

Two layouts. The original one has tokens with their bytes in the UTF-8 of ``document_html``; the
simplified one has the tokens alone, joined by single blanks. A token is a word or an HTML tag; all
ends of spans are exclusive.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

from ldt.data.formats import passage_qa
from ldt.errors import DataError
from ldt.io.records import Example
from ldt.io.sources import Names
from ldt.io.strict_json import take
from ldt.io.text_files import Utf8

# Tokens that are tags; blanks inside of them, before attributes, are _ in the simplified layout.
_TAG = re.compile(r"</?(h[1-6]|p|table|tr|td|th|ul|ol|dl|li|dd|dt)([ _].*)?>", re.I | re.S)
_TYPES = {"p": "paragraph", "table": "table", "ul": "list", "ol": "list", "dl": "list"}


class Span(NamedTuple):
    """A part of a page, in bytes of the HTML and in tokens; -1 where not known."""

    start_byte: int
    end_byte: int
    start_token: int
    end_token: int


NO_BYTES = -1, -1
NOTHING = Span(-1, -1, -1, -1)


def read(source: str, data) -> Iterator[Example]:
    """Yield an example for each question, one in memory at a time.

    Its fields: question; title, where there is one; context, the tokens that are no tags, joined by
    blanks; ``tokens``, of each of those its ``number`` among all, its ``start`` and ``end`` in
    characters of the context and, in the original layout, ``start_byte`` and ``end_byte``;
    ``candidates``, each {type, top_level, start, end} in characters with the fields of a `Span`,
    start equal to end where there is no word in it, and type paragraph, table, list or other by its
    first tag; ``annotations``, where the file has them, each {passage: number of a candidate or
    None, spans: [[start, end], ...] in characters, tokens: the same in numbers of tokens, yes_no:
    "yes", "no" or None}.

    Args:
        source: a path, or "-" for standard input; compressed or not.
        data: its ``encoding``.

    Raises:
        UserError: there is no such file.
        DataError: it is damaged, has another layout, or offsets that are none.
    """
    for example in passage_qa.lines(
        source, "long_answer_candidates", "question_text", encoding=data.encoding
    ):
        fields, where = example.fields, example.where
        page = _page(fields, where)
        columns: dict[str, Any] = {
            "question": take(fields, "question_text", str, where),
            "context": page.context,
            "tokens": page.columns(where),
            "candidates": [
                {
                    "type": page.type_of(span),
                    "top_level": bool(item.get("top_level", True)),
                    **dict(zip(("start", "end"), page.characters(span), strict=True)),
                    **span._asdict(),
                }
                for item, span in _candidates(fields, page, where)
            ],
        }
        if isinstance(fields.get("document_title"), str):
            columns["title"] = fields["document_title"]
        if "annotations" in fields:
            columns["annotations"] = [
                {
                    "passage": passage,
                    "spans": [list(page.characters(span)) for span in short],
                    "tokens": [[span.start_token, span.end_token] for span in short],
                    "yes_no": yes_no,
                }
                for passage, _, short, yes_no in _annotations(fields, page, where)
            ]
        yield Example(columns, example.id, where)


def gold(source: Names, encoding: str | None = None) -> Iterator[Example]:
    """Yield what a prediction is scored by, of each question of all files.

    Its fields: unit; ``words``, their number; ``first``, the first candidate that is a paragraph,
    or None; ``annotations``, each (long `Span` or None, list of short ones, yes_no).

    Raises:
        UserError: there is no such file.
        DataError: as `read`; a question without annotations, an id that comes twice.
    """
    for example in passage_qa.gold_lines(source, "long_answer_candidates", encoding=encoding):
        fields, where = example.fields, example.where
        page = _page(fields, where)
        spans = [span for _, span in _candidates(fields, page, where)]
        first = (span for span in spans if page.type_of(span) == "paragraph")
        columns = {
            "unit": passage_qa.unit(example),
            "words": page.is_word.count(True),
            "first": next(first, None),
            "annotations": [
                (long, short, yes_no)
                for _, long, short, yes_no in _annotations(fields, page, where)
            ],
        }
        yield Example(columns, example.id, where)


def offsets(
    fields: Mapping[str, Any], passage: int | None, span: tuple[int, int] | None
) -> dict[str, Any]:
    """Bytes and tokens of an answer's spans, for `ldt.metrics.nq.published`.

    Args:
        fields: of an example of `read`.
        passage: number of a candidate; None is no long answer.
        span: start and end in characters of the context, with a part of a word in it, of which the
            whole word is taken; None is no short answer.
    """
    tokens = fields["tokens"]
    short = []
    if span is not None:
        first, last = _words(tokens, span)
        bytes = NO_BYTES
        if "start_byte" in tokens:
            bytes = tokens["start_byte"][first], tokens["end_byte"][last]
        places = Span(*bytes, tokens["number"][first], tokens["number"][last] + 1)
        short.append(places._asdict())
    long = NOTHING._asdict() if passage is None else fields["candidates"][passage]
    return {"long_answer": {name: long[name] for name in Span._fields}, "short_answers": short}


def whole_words(fields: Mapping[str, Any], span: tuple[int, int]) -> tuple[int, int]:
    """The characters of the words that a span has a part of; arguments are those of `offsets`."""
    tokens = fields["tokens"]
    first, last = _words(tokens, span)
    return tokens["start"][first], tokens["end"][last]


def _words(tokens: Mapping[str, list[int]], span: tuple[int, int]) -> tuple[int, int]:
    """Places of the first and the last word that a span has a part of."""
    return bisect_right(tokens["end"], span[0]), bisect_left(tokens["start"], span[1]) - 1


@dataclass
class _Page:
    """The tokens of a page.

    ``is_word`` is False at tags; ``places`` are the tokens with their bytes, and ``html`` is the
    text that these are of, both None in the simplified layout.
    """

    tokens: list[str]
    is_word: list[bool]
    places: list[dict] | None = None
    html: Utf8 | None = None

    @cached_property
    def context(self) -> str:
        return " ".join(t for t, word in zip(self.tokens, self.is_word, strict=True) if word)

    @cached_property
    def _before(self) -> list[int]:
        """Words before each token, and before the end."""
        return list(accumulate(self.is_word, initial=0))

    @cached_property
    def _ends(self) -> list[int]:
        """Where each word ends in the context."""
        words = (t for t, word in zip(self.tokens, self.is_word, strict=True) if word)
        return [end - 1 for end in accumulate(len(word) + 1 for word in words)]

    def columns(self, where: str) -> dict[str, list[int]]:
        """Numbers and places of the words; see ``tokens`` of `read`."""
        ends = self._ends
        numbers = [number for number, word in enumerate(self.is_word) if word]
        columns_by_name = {
            "number": numbers,
            "start": [0, *(end + 1 for end in ends[:-1])] if ends else [],
            "end": ends,
        }
        if self.places is not None and self.html is not None:
            pairs = [
                _bytes(self.places[number], self.html, f"{where}: token {number:,}")
                for number in numbers
            ]
            columns_by_name["start_byte"] = [start for start, _ in pairs]
            columns_by_name["end_byte"] = [end for _, end in pairs]
        return columns_by_name

    def characters(self, span: Span) -> tuple[int, int]:
        """Start and end of a span in the context, without the blanks around its words."""
        first, after = self._before[span.start_token], self._before[span.end_token]
        start = self._ends[first - 1] + 1 if first else 0
        return (start, self._ends[after - 1]) if first < after else (start, start)

    def type_of(self, span: Span) -> str:
        """The type of a candidate, by its first token."""
        match = _TAG.fullmatch(self.tokens[span.start_token])
        return _TYPES.get(match[1].lower(), "other") if match else "other"

    def span(self, item: Any, where: str) -> Span:
        """The span that an object names; `NOTHING` where all is -1."""
        bytes = _bytes(item, self.html, where) if self.html else NO_BYTES
        tokens = passage_qa.pair(item, "start_token", "end_token", len(self.tokens), where)
        if bytes[0] >= 0 > tokens[0]:
            raise DataError(f"{where}: bytes without tokens, expected both")
        return Span(*bytes, *tokens)


def _page(fields: dict, where: str) -> _Page:
    if "document_tokens" not in fields:
        if "document_text" not in fields:
            raise DataError(f"{where}: no field 'document_tokens', and no 'document_text' either")
        # At white space of other kinds, such as U+180E, tokens are not parted.
        tokens = take(fields, "document_text", str, where).split(" ")
        return _Page(tokens, [not _TAG.fullmatch(token) for token in tokens])
    places = take(fields, "document_tokens", list, where)
    try:
        tokens = [place["token"] for place in places]
        is_word = [place["html_token"] is False for place in places]
    except (KeyError, TypeError):
        raise DataError(
            f"{where}: document_tokens: expected objects with token and html_token"
        ) from None
    if not all(isinstance(token, str) for token in tokens):
        raise DataError(f"{where}: document_tokens: a token that is no text")
    return _Page(tokens, is_word, places, Utf8(take(fields, "document_html", str, where)))


def _bytes(item: Any, html: Utf8, where: str) -> tuple[int, int]:
    places = passage_qa.pair(item, "start_byte", "end_byte", html.size, where)
    for name, byte in zip(("start_byte", "end_byte"), places, strict=True):
        if byte >= 0 and not html.parts(byte):
            raise DataError(f"{where}: {name} {byte:,} is inside of a character of the UTF-8")
    return places


def _candidates(fields: dict, page: _Page, where: str) -> Iterator[tuple[dict, Span]]:
    for number, item in enumerate(take(fields, "long_answer_candidates", list, where)):
        span = page.span(item, f"{where}: candidate {number:,}")
        if span.start_token < 0:
            raise DataError(f"{where}: candidate {number:,}: start_token is -1, expected a token")
        yield item, span


def _annotations(
    fields: dict, page: _Page, where: str
) -> Iterator[tuple[int | None, Span | None, list[Span], str | None]]:
    """Yield number and span of the long answer, short answers, and yes or no, of each one."""
    candidates = len(fields["long_answer_candidates"])
    for number, annotation in enumerate(take(fields, "annotations", list, where)):
        here = f"{where}: annotation {number:,}"
        item = take(annotation, "long_answer", dict, here)
        long = page.span(item, here)
        short = [page.span(each, here) for each in take(annotation, "short_answers", list, here)]
        yield (
            passage_qa.index(item, candidates, here),
            None if long.start_token < 0 else long,
            [span for span in short if span.start_token >= 0],
            passage_qa.yes_no(annotation, here),
        )
