"""Natural Questions (Kwiatkowski et al. 2019, TACL): a question a line, with a whole web page.

Two layouts. The original one has tokens with their bytes in the UTF-8 of ``document_html``; the
simplified one has the tokens alone, joined by single blanks. A token is a word or an HTML tag; all
ends of spans are exclusive. Predictions are {"predictions": [{example_id, long_answer,
long_answer_score, short_answers, short_answers_score, yes_no_answer}]}, spans in bytes, in tokens,
or in both; the figures are F1 of long and of short answers at the best threshold of their scores.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from ldt.benchmarks import base, passage_qa
from ldt.benchmarks.base import AnswersById, Number, Shape, Truth, Whole
from ldt.benchmarks.passage_qa import NEEDED, NOTE, Curve, PassageAnswer, YesNo, score_parts
from ldt.data.options import DataSection
from ldt.data.sentences import Units
from ldt.errors import DataError
from ldt.io.records import Example
from ldt.metrics.result import Item, Result

# Tokens that are tags; blanks inside of them, before attributes, are _ in the simplified layout.
_TAG = re.compile(r"</?(h[1-6]|p|table|tr|td|th|ul|ol|dl|li|dd|dt)([ _].*)?>", re.I | re.S)
_TYPES = {"p": "paragraph", "table": "table", "ul": "list", "ol": "list", "dl": "list"}


class PageSpan(NamedTuple):
    """Part of a page, in bytes of the HTML and in tokens; -1 where not known."""

    start_byte: int
    end_byte: int
    start_token: int
    end_token: int


NO_BYTES = -1, -1
NOTHING = PageSpan(-1, -1, -1, -1)

_ID: Any = {"example_id": (str, Whole)}
_SPAN: Any = {f"{side}_{unit}?": Whole for unit in ("byte", "token") for side in ("start", "end")}
_LONG, _TOKEN = {"candidate_index": Whole}, {"token": str, "html_token": Truth}
_ANNOTATION: Any = {"long_answer": _SPAN | _LONG, "short_answers": [_SPAN], "yes_no_answer?": YesNo}
_LINE = Shape(
    {
        **_ID,
        **{"question_text?": str, "document_title?": Any, "document_url?": Any},
        **{"document_html?": str, "document_tokens?": [_SPAN | _TOKEN], "document_text?": str},
        "long_answer_candidates": [_SPAN | {"top_level?": Any}],
        "annotations?": [_ANNOTATION],
    }
)
_SCORES = {"long_answer_score": Number, "short_answers_score": Number}
_PREDICTIONS = Shape(
    {
        "predictions": [
            {
                **_ID,
                **{"long_answer?": (_SPAN, None), "short_answers?": ([_SPAN], None)},
                **_SCORES,
                "yes_no_answer?": YesNo,
            }
        ]
    }
)


def read(source: str, data: DataSection) -> Iterator[Example]:
    """Yield an example for each question of a file (path, or "-" for standard input), in the
    encoding of ``data``, one in memory at a time.

    Its fields: question; title, where there is one; context, the tokens that are no tags, joined by
    blanks; ``tokens``, of each of those its ``number`` among all, its ``start`` and ``end`` in
    characters of the context and, in the original layout, ``start_byte`` and ``end_byte``, a list
    each; ``candidates``, each {type, top_level, start, end} in characters with the fields of a
    `PageSpan`, start equal to end where there is no word in it, and type paragraph, table, list or
    other by its first tag; ``annotations``, where the file has them, each {passage: number of a
    candidate or None, spans: [[start, end], ...] in characters, tokens: the same in numbers of
    tokens, yes_no: "yes", "no" or None}.
    """
    for example in passage_qa.lines(source, _LINE, data.encoding):
        fields, where = example.fields, example.where
        page = _page(fields, where)
        columns: dict[str, Any] = {
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
        for name, key in (("question", "question_text"), ("title", "document_title")):
            if isinstance(fields.get(key), str):
                columns[name] = fields[key]
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


def offsets(
    fields: Mapping[str, Any], passage: int | None, span: tuple[int, int] | None
) -> dict[str, Any]:
    """Return {"long_answer": {start_byte, end_byte, start_token, end_token}, "short_answers": a
    list of one such object or none} of an answer, for `published`; -1 is unknown or no long answer.

    Args:
        fields: fields of an example of `read`.
        passage: number of a candidate; None is no long answer.
        span: start and end in characters of the context, which must touch a word; widened to whole
            words. None is no short answer, an empty list.
    """
    tokens = fields["tokens"]
    short = []
    if span is not None:
        first, last = _words(tokens, span)
        bytes = NO_BYTES
        if "start_byte" in tokens:
            bytes = tokens["start_byte"][first], tokens["end_byte"][last]
        places = PageSpan(*bytes, tokens["number"][first], tokens["number"][last] + 1)
        short.append(places._asdict())
    long = NOTHING._asdict() if passage is None else fields["candidates"][passage]
    return {"long_answer": {name: long[name] for name in PageSpan._fields}, "short_answers": short}


def whole_words(fields: Mapping[str, Any], span: tuple[int, int]) -> tuple[int, int]:
    """Widen a span (start, end) in characters of the context to the whole words that it shares a
    character with; ``fields`` are those of an example of `read`."""
    tokens = fields["tokens"]
    first, last = _words(tokens, span)
    return tokens["start"][first], tokens["end"][last]


def _words(tokens: Mapping[str, list[int]], span: tuple[int, int]) -> tuple[int, int]:
    """Indices of the first and the last word that a span has a part of."""
    return bisect_right(tokens["end"], span[0]), bisect_left(tokens["start"], span[1]) - 1


@dataclass
class _Page:
    """The tokens of a page. ``is_word`` is False at tags; ``places`` are the tokens with their
    bytes, and ``html`` is the text that these are of, both None in the simplified layout."""

    tokens: list[str]
    is_word: list[bool]
    places: list[dict] | None = None
    html: Units | None = None

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
        ends = self._ends
        numbers = [number for number, word in enumerate(self.is_word) if word]
        columns_by_name = {
            "number": numbers,
            "start": [0, *(end + 1 for end in ends[:-1])] if ends else [],
            "end": ends,
        }
        if self.places is not None and self.html is not None:
            pairs = [
                passage_qa.pair(
                    self.places[number], "start_byte", self.html, f"{where}: token {number:,}"
                )
                for number in numbers
            ]
            columns_by_name["start_byte"] = [start for start, _ in pairs]
            columns_by_name["end_byte"] = [end for _, end in pairs]
        return columns_by_name

    def characters(self, span: PageSpan) -> tuple[int, int]:
        first, after = self._before[span.start_token], self._before[span.end_token]
        start = self._ends[first - 1] + 1 if first else 0
        return (start, self._ends[after - 1]) if first < after else (start, start)

    def type_of(self, span: PageSpan) -> str:
        match = _TAG.fullmatch(self.tokens[span.start_token])
        return _TYPES.get(match[1].lower(), "other") if match else "other"

    def span(self, item: Any, where: str) -> PageSpan:
        bytes = passage_qa.pair(item, "start_byte", self.html, where) if self.html else NO_BYTES
        tokens = passage_qa.pair(item, "start_token", len(self.tokens), where)
        if bytes[0] >= 0 > tokens[0]:
            raise DataError(f"{where}: bytes without tokens, expected both")
        return PageSpan(*bytes, *tokens)


def _page(fields: Mapping[str, Any], where: str) -> _Page:
    if "document_text" in fields:
        # At white space of other kinds, such as U+180E, tokens are not parted.
        tokens = fields["document_text"].split(" ")
        return _Page(tokens, [not _TAG.fullmatch(token) for token in tokens])
    if "document_tokens" not in fields or "document_html" not in fields:
        raise DataError(f"{where}: no document_text, and not both document_tokens and _html")
    places = fields["document_tokens"]
    words = [not place["html_token"] for place in places]
    return _Page([p["token"] for p in places], words, places, Units(fields["document_html"]))


def _candidates(
    fields: Mapping[str, Any], page: _Page, where: str
) -> Iterator[tuple[dict, PageSpan]]:
    for number, item in enumerate(fields["long_answer_candidates"]):
        span = page.span(item, f"{where}: candidate {number:,}")
        if span.start_token < 0:
            raise DataError(f"{where}: candidate {number:,}: start_token is -1, expected a token")
        yield item, span


def _annotations(
    fields: Mapping[str, Any], page: _Page, where: str
) -> Iterator[tuple[int | None, PageSpan | None, list[PageSpan], str | None]]:
    """Yield number and span of the long answer, short answers, and yes or no, of each one."""
    candidates = len(fields["long_answer_candidates"])
    for number, annotation in enumerate(fields["annotations"]):
        here, item = f"{where}: annotation {number:,}", annotation["long_answer"]
        long = page.span(item, here)
        short = [page.span(each, here) for each in annotation["short_answers"]]
        yield (
            passage_qa.index(item["candidate_index"], candidates, here),
            None if long.start_token < 0 else long,
            [span for span in short if span.start_token >= 0],
            annotation.get("yes_no_answer"),
        )


def same(one: PageSpan, other: PageSpan) -> bool:
    """True if two spans have known and equal bytes, or equal tokens."""
    return one[:2] == other[:2] != NOTHING[:2] or one[2:] == other[2:] != NOTHING[2:]


def published(answers: Iterable[dict]) -> dict[str, list[dict[str, Any]]]:
    """Convert answers of ldt predict to the published layout, {"predictions": [...]}; yes or no
    takes the place of a span.

    Args:
        answers: each with ``id``, ``passage_score``, ``span_score``, ``yes_no`` ("yes", "no" or
            None) and ``offsets``, which `offsets` makes.
    """
    return {
        "predictions": [
            {
                "example_id": answer["id"],
                "long_answer": answer["offsets"]["long_answer"],
                "long_answer_score": answer["passage_score"],
                "short_answers": [] if answer["yes_no"] else answer["offsets"]["short_answers"],
                "short_answers_score": answer["span_score"],
                "yes_no_answer": (answer["yes_no"] or "none").upper(),
            }
            for answer in answers
        ]
    }


@dataclass
class NaturalQuestionsScorer(passage_qa.PageBenchmark):
    """Natural Questions: long and short answers; the ids of both files are the same."""

    title = "nq"
    shown = ("long-best-threshold-f1", "short-best-threshold-f1")
    advice = "answers of passage_qa have it for documents that ldt predict data.format=nq reads"
    line = _LINE
    published = staticmethod(published)

    def item(self, example: Example) -> Item:
        """Make the `Item` of a question: ``right`` is (`PageSpan` of the page's first paragraph or
        None, annotations as (long answer, short answers, yes or no)); the bootstrap unit is the
        page."""
        fields, where = example.fields, example.where
        page = _page(fields, where)
        spans = [span for _, span in _candidates(fields, page, where)]
        first = next((span for span in spans if page.type_of(span) == "paragraph"), None)
        annotations = tuple(
            (long, short, yes_no) if long or short or yes_no else _NULL
            for _, long, short, yes_no in _annotations(fields, page, where)
        )
        unit, words = passage_qa.page_key(example), page.is_word.count(True)
        return Item(str(example.id), unit, {}, words, right=(first, annotations))

    def parse(self, value: Any, name: str) -> AnswersById:
        """Convert {"predictions": [...]} to {id: `PassageAnswer`}, with `PageSpan`s for passage and
        spans; DataError for yes or no beside short answers."""
        items = _PREDICTIONS(value, name)["predictions"]
        ids = [str(item["example_id"]) for item in items]
        base.once(ids, name)
        where = [f"{name}: {id}" for id in ids]
        return dict(zip(ids, map(_prediction, items, where), strict=True))

    def aggregate(self, items: Sequence[Item], answers: AnswersById, name: str) -> Result:
        """F1, precision and recall of long and short answers, 0 to 100, at the best thresholds of
        their scores; DataError if the ids differ from gold."""
        base.same_ids([item.id for item in items], answers, name, "question")
        scored = [
            score_parts(item.right[1], answers[item.id], passage_qa.same_set, same)
            for item in items
        ]
        long, short = zip(*scored, strict=True)
        curves = {"long": Curve(long), "short": Curve(short)}

        def best(counts: np.ndarray) -> dict[str, np.ndarray]:
            figures: dict[str, np.ndarray] = {}
            for part, curve in curves.items():
                figures |= curve.best(counts, f"{part}-")
                figures |= curve.whole(counts, f"{part}-answer-")
            return figures

        def figures(counts: np.ndarray) -> dict[str, np.ndarray]:
            return {key: v for key, v in best(counts).items() if not key.endswith("-threshold")}

        whole = best(np.ones((1, len(items)), int))
        metrics = {key: float(value[0]) for key, value in whole.items()}
        metrics |= {f"{part}-answer-n": len(items) for part in curves}
        result = self.result(items, metrics, figures=figures)
        result.notes = dict.fromkeys(self.shown, NOTE)
        if max(len(item.right[1]) for item in items) < NEEDED:
            result.warnings.append(
                f"one annotation a question in the gold file, but {NEEDED} have to have an answer "
                "before there is one; all figures are 0"
            )
        return result

    def constants(self, items: Sequence[Item]) -> dict[str, AnswersById]:
        """Trivial prediction: the page's first paragraph as the long answer to every question."""
        first = {item.id: PassageAnswer(item.right[0]) for item in items}
        return {"always the first paragraph": first}

    def compared(self, name: str) -> bool:
        """True for metrics whose name begins with "long-", except thresholds."""
        return name.startswith("long-") and not name.endswith("-threshold")


_NULL: passage_qa.Annotation = (None, [], None)  # one for all that are so


def _prediction(item: dict[str, Any], where: str) -> PassageAnswer:
    long, yes_no = _span(item.get("long_answer"), where), item.get("yes_no_answer")
    short = [span for each in item.get("short_answers") or () if (span := _span(each, where))]
    if yes_no and short:
        raise DataError(f"{where}: {yes_no} beside short answers; one of the two")
    scores = item["long_answer_score"], item["short_answers_score"]
    return PassageAnswer(long, scores[0], short, scores[1], yes_no)


def _span(item: Mapping[str, Any] | None, where: str) -> PageSpan | None:
    bytes, tokens = (
        passage_qa.pair(item or {}, unit, None, where) for unit in ("start_byte", "start_token")
    )
    return PageSpan(*bytes, *tokens) if max(*bytes, *tokens) >= 0 else None
