"""The texts of documents for a page: marked, folded around the marks, and packed to a budget."""

import json
import zlib
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ldt.report.escaping import cut, visible
from ldt.report.model import ANSWER, GOLD, PASSAGE, Document, Mark

CONTEXT = 300  # characters on either side of a mark
GAP = 200  # characters that are not worth a fold
LETTER = 30  # characters in which a fold looks for a space


@dataclass(frozen=True)
class Extent:
    """Limits on the text of a document in a page.

    Args:
        context: characters on either side of a mark and at the beginning of a text; at that of a
            text without marks four times as many.
        shown: characters of the text in all.
        value: characters of each other text, such as gold and question.
        whole: whether what is folded goes with it.
    """

    context: int = CONTEXT
    shown: int = 1 << 40
    value: int = 20_000
    whole: bool = False


WHOLE = Extent(whole=True)
EXTENTS = (  # the first one that fits for all documents is taken
    Extent(),
    Extent(shown=8_000, value=4_000),
    Extent(context=120, shown=2_500, value=1_000),
    Extent(context=60, shown=600, value=400),
    Extent(context=0, shown=0, value=200),
)


@dataclass(frozen=True)
class PackedTexts:
    """Documents as a page has them.

    Args:
        texts: of each document in their order: JSON, deflated, base64.
        whole: how many texts are there to their end.
        extent: of the others.
    """

    texts: list[str]
    whole: int
    extent: Extent


def packed(documents: Sequence[Document], budget: int) -> PackedTexts:
    """Text of the documents as far as it fits: first around their marks, then whole texts.

    Args:
        budget: of all of them, in bytes.
    """
    for extent in EXTENTS:
        texts = _within(documents, extent, budget)
        if texts is not None:
            break
    else:
        texts = [pack(document, extent) for document in documents]
    left = budget - sum(map(len, texts))
    whole = 0
    # Wrong answers are looked at first.
    for i in sorted(range(len(documents)), key=lambda i: documents[i].right is not False):
        size = len(documents[i].text or "")
        if size <= shown(documents[i], extent):
            whole += 1
        elif size // 8 < left:  # hardly any text shrinks that much
            text = pack(documents[i], WHOLE)
            if len(text) - len(texts[i]) <= left:
                left -= len(text) - len(texts[i])
                texts[i] = text
                whole += 1
    return PackedTexts(texts, whole, extent)


def _within(documents: Iterable[Document], extent: Extent, budget: int) -> list[str] | None:
    texts: list[str] = []
    for document in documents:
        texts.append(pack(document, extent))
        budget -= len(texts[-1])
        if budget < 0:
            return None
    return texts


def pack(document: Document, extent: Extent) -> str:
    """A document's texts as deflated JSON in base64."""
    values = {"gold": document.gold, "answer": document.answer}
    content: dict[str, Any] = {
        **{key: _value(text, extent) for key, text in values.items() if text is not None},
        "asks": [[visible(name), _value(text, extent)] for name, text in document.asks.items()],
    }
    if document.text is not None:
        marks = merged(document.marks, len(document.text))
        content["marks"] = [
            {
                "kinds": kinds,
                "label": visible(cut(mark.label, 200)),
                "score": mark.score,
                "start": mark.start,
                "end": mark.end,
            }
            for mark, kinds in marks
        ]
        content["parts"] = parts(document.text, [mark for mark, _ in marks], extent)
    # A script of the page reads it, so that nothing in it is ever HTML.
    plain = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    return b64encode(zlib.compress(plain, 9)).decode("ascii")


def merged(marks: Iterable[Mark], length: int) -> list[tuple[Mark, list[str]]]:
    """The marks in the order of their places, each with its kinds: two of the same characters that
    say the same are one, as gold and answer are where an answer is right. What lies outside of the
    text's ``length`` characters is left out."""
    found: dict[tuple[int, int, str], tuple[Mark, list[str]]] = {}
    for mark in sorted(marks, key=lambda mark: (mark.start, -mark.end)):
        start, end = max(mark.start, 0), min(mark.end, length)
        if start >= end:
            continue
        label = "" if mark.label == mark.kind else mark.label  # the kind says it already
        key = start, end, label
        known, kinds = found.get(key, (None, []))
        score = mark.score if known is None or known.score is None else known.score
        kinds = [kind for kind in (GOLD, ANSWER, PASSAGE) if kind in (mark.kind, *kinds)]
        found[key] = Mark(start, end, kinds[0], label, score), kinds
    return list(found.values())


def parts(text: str, marks: Sequence[Mark], extent: Extent) -> list[Any]:
    """A text as a page shows it.

    Returns:
        in the order of the text: pieces that are seen, [text, indices of their marks]; and folds,
        {"count": characters, "marks": how many begin there, "pieces": of the text} without the
        pieces where the text is not there.
    """
    seen = _seen(text, marks, extent)
    pieces = _pieces(text, marks, sorted({0, len(text), *(edge for pair in seen for edge in pair)}))
    found: list[Any] = []
    stretches = iter([*seen, (len(text), len(text))])
    start, end = next(stretches)
    for place, piece in pieces:
        if place >= end:
            start, end = next(stretches)
        if place >= start:
            found.append(piece)
            continue
        if not (found and isinstance(found[-1], dict)):
            begin = sum(place <= mark.start < start for mark in marks)
            found.append({"count": start - place} | ({"marks": begin} if begin else {}))
        if extent.whole:
            found[-1].setdefault("pieces", []).append(piece)
    return found


def shown(document: Document, extent: Extent) -> int:
    """Number of characters of a document's text that are seen before anything is unfolded."""
    if document.text is None:
        return 0
    marks = [mark for mark, _ in merged(document.marks, len(document.text))]
    return sum(end - start for start, end in _seen(document.text, marks, extent))


def _value(text: str, extent: Extent) -> str:
    more = len(text) - extent.value
    return visible(text) if more <= 0 else f"{visible(text[: extent.value])}… ({more:,} more)"


def _seen(text: str, marks: Sequence[Mark], extent: Extent) -> list[tuple[int, int]]:
    """Which characters are seen: those around the edges of marks, and the beginning."""
    wanted = [(0, extent.context if marks else 4 * extent.context)]
    for mark in marks:
        # Of a long one, where it begins and where it ends.
        is_long = mark.end - mark.start > 4 * extent.context
        edges = [(mark.start,) * 2, (mark.end,) * 2] if is_long else [(mark.start, mark.end)]
        wanted += [(start - extent.context, end + extent.context) for start, end in edges]
    found: list[tuple[int, int]] = []
    left = extent.shown
    for start, end in sorted(wanted):
        start, end = _between_words(text, max(start, 0), min(end, len(text)))
        if found and start <= found[-1][1] + GAP:
            start, end = found[-1][1], max(end, found[-1][1])
        if len(text) - end <= GAP:
            end = len(text)
        end = min(end, start + left)
        if start >= end:
            continue
        left -= end - start
        if found and start == found[-1][1]:
            found[-1] = found[-1][0], end
        else:
            found.append((start, end))
    return found


def _between_words(text: str, start: int, end: int) -> tuple[int, int]:
    """Move two places outwards to spaces, where there are some nearby."""
    for place in range(start, max(start - LETTER, 0), -1):
        if text[place - 1].isspace():
            start = place
            break
    for place in range(end, min(end + LETTER, len(text))):
        if text[place].isspace():
            end = place
            break
    return start, end


def _pieces(
    text: str, marks: Sequence[Mark], borders: Sequence[int]
) -> Iterator[tuple[int, list[Any]]]:
    """A text cut at its borders and at the edges of marks: the place of each piece, the piece and
    the indices of the marks it is in. The marks are in the order of their places."""
    edges = sorted({*borders, *(edge for mark in marks for edge in (mark.start, mark.end))})
    inside: list[int] = []
    following = 0
    for left, right in pairwise(edges):
        inside = [i for i in inside if marks[i].end > left]
        while following < len(marks) and marks[following].start == left:
            inside.append(following)
            following += 1
        yield left, [visible(text[left:right]), list(inside)]
