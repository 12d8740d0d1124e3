"""Passages of `ldt predict --passages K`: hits of gold spans.

Gold is lines with id and ``spans``, a list of {start, end} in characters of the document's text,
each with a ``label`` or not; the answers are lines with id and ``passages``.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ldt.benchmarks import base
from ldt.benchmarks.base import AnswersById, Benchmark, Shape, Whole
from ldt.data.answer_files import answers
from ldt.data.options import DataSection
from ldt.errors import DataError
from ldt.io.records import Example
from ldt.io.sources import only
from ldt.metrics.result import Item, Result, compare, mean

KS = (1, 3, 5, 10)

_SPAN: Any = {"start": Whole, "end": Whole, "label?": Any}
_SPANS, _PASSAGES = Shape({"spans": [_SPAN]}), Shape({"passages": [_SPAN]})

Passage = Mapping[str, Any]


def hit(passages: Sequence[Passage], spans: Sequence[Passage], k: int) -> float:
    """1.0 if one of the first k passages shares a character with one of the gold spans, else 0.0.

    Where a span has a ``label``, only passages of that label count, the first k of them.

    Args:
        passages: best first, each with ``start`` and ``end`` in characters, and ``label`` or not.
        spans: gold spans, of the same form.
        k: number of passages that count.
    """
    for span in spans:
        label = span.get("label")
        mine = [each for each in passages if label is None or each.get("label") == label]
        if any(p["start"] < span["end"] and span["start"] < p["end"] for p in mine[:k]):
            return 1.0
    return 0.0


@dataclass
class PassagesScorer(Benchmark):
    """Hits at each k of `KS` up to the most passages that an answer has.

    Questions without a gold span do not count; a missing answer is no hit.
    """

    title = "passages"
    units = "documents"
    noun = "document"
    no_length = no_place = "the gold file has spans, no text"

    def read(self, source: str, data: DataSection) -> Iterator[Example]:
        """Yield the lines of a file as examples with all their fields; ``data`` is not used."""
        return answers(source)

    def item(self, example: Example) -> Item:
        """Make the `Item` of a line, with the list of its gold spans as ``right``."""
        spans = _SPANS(example.fields, example.where)["spans"]
        return Item(str(example.id), str(example.id), {}, right=spans)

    def gold(self, files: Sequence[str]) -> list[Item]:
        """Read the lines that have gold spans, and leave out the others; DataError if none has."""
        if items := [item for item in super().gold(files) if item.right]:
            return items
        raise DataError(f"{base.name_of(files)}: no gold span in it; a line has id and spans")

    def load(self, files: Sequence[str]) -> list[Example]:
        """Read the lines of one file of answers."""
        return [*answers(only(files, "passages"))]

    def parse(self, value: list[Example], name: str) -> AnswersById:
        """Convert answers to {id: passages, best first, each {start, end} with ``label``
        or not}."""
        base.once((str(each.id) for each in value), name)
        return {str(each.id): _PASSAGES(each.fields, each.where)["passages"] for each in value}

    def aggregate(self, items: Sequence[Item], answers: AnswersById, name: str) -> Result:
        """hit@k, the share of lines with a `hit` among the first k passages, 0 to 100, for each k
        of `KS` up to the most passages that an answer has; and their number, ``total``."""
        most = max(map(len, answers.values()), default=0)
        ks = [k for k in KS if k <= most] or [1]
        items = [
            replace(i, scores={f"hit@{k}": hit(answers.get(i.id, ()), i.right, k) for k in ks})
            for i in items
        ]
        metrics = {**mean([item.scores for item in items]), "total": len(items)}
        return self.result(items, metrics, *compare([item.id for item in items], answers))

    def constants(self, items: Sequence[Item]) -> dict[str, AnswersById]:
        """Return {}: there is no trivial prediction."""
        return {}
