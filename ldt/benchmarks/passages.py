"""Passages of `ldt predict --passages K`: hits of gold spans.

Gold is lines with id and ``spans``, a list of {start, end} in characters of the document's text,
each with a ``label`` or not; the answers are lines with id and ``passages``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ldt.benchmarks import base
from ldt.benchmarks.base import Benchmark, Shape, Whole
from ldt.data.answer_files import answers
from ldt.errors import DataError
from ldt.io.sources import only
from ldt.metrics.result import Item, compare, mean

KS = (1, 3, 5, 10)

_SPAN: Any = {"start": Whole, "end": Whole, "label?": Any}
_SPANS, _PASSAGES = Shape({"spans": [_SPAN]}), Shape({"passages": [_SPAN]})

Passage = Mapping[str, Any]


def hit(passages: Sequence[Passage], spans: Sequence[Passage], k: int) -> float:
    """1.0 if one of the first k passages shares a character with one of the gold spans, else 0.0.

    Where a span has a ``label``, only passages of that label count, the first k of them.
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

    def read(self, source, data):
        """Yield the lines of a file as examples."""
        return answers(source)

    def item(self, example):
        """Item of a line, with its gold spans as the right answer."""
        spans = _SPANS(example.fields, example.where)["spans"]
        return Item(str(example.id), str(example.id), {}, right=spans)

    def gold(self, files):
        """Read the lines that have gold spans; DataError if none has."""
        if items := [item for item in super().gold(files) if item.right]:
            return items
        raise DataError(f"{base.name_of(files)}: no gold span in it; a line has id and spans")

    def load(self, files):
        """Read the lines of one file of answers."""
        return [*answers(only(files, "passages"))]

    def parse(self, value, name):
        """Passages of each answer by id, best first."""
        base.once((str(each.id) for each in value), name)
        return {str(each.id): _PASSAGES(each.fields, each.where)["passages"] for each in value}

    def aggregate(self, items, answers, name):
        """Share of lines with a `hit` among the first k passages, 0 to 100, for each k; and their
        number."""
        most = max(map(len, answers.values()), default=0)
        ks = [k for k in KS if k <= most] or [1]
        items = [
            replace(i, scores={f"hit@{k}": hit(answers.get(i.id, ()), i.right, k) for k in ks})
            for i in items
        ]
        metrics = {**mean([item.scores for item in items]), "total": len(items)}
        return self.result(items, metrics, *compare([item.id for item in items], answers))

    def constants(self, items):
        """No baseline: {}."""
        return {}
