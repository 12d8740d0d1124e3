"""GAP (Webster et al. 2018, arXiv:1810.05201): ambiguous pronouns and two names before or behind.

For both names it is decided if the pronoun is of that person. Predictions are lines of ID, A-coref
and B-coref, parted by tabs, or clusters as `ldt predict` writes them. The figures are those of the
published gap_scorer.py: F1 of all decisions, of masculine and of feminine pronouns, and their bias,
the feminine F1 as a share of the masculine.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ldt.benchmarks.base import AnswersById, Benchmark, Shape, Whole, once
from ldt.benchmarks.conll import lines
from ldt.benchmarks.recognition import GAP, begins_with_object
from ldt.data import answer_files
from ldt.data.options import DataSection
from ldt.errors import DataError, quote
from ldt.io.records import Example
from ldt.io.streams import open_source
from ldt.metrics.coreference import ratios
from ldt.metrics.entities import NAMES
from ldt.metrics.result import Item, Result, compare, count_words, mean

COLUMNS = tuple("ID Text Pronoun Pronoun-offset A A-offset A-coref B B-offset B-coref URL".split())
GENDERS = {"masculine": ("he", "him", "his"), "feminine": ("she", "her", "hers")}
_TRUTH = {"TRUE": True, "FALSE": False}
_COUNTS = ("right", "gold", "found")
_ANSWER = Shape({"clusters": [[{"start": Whole, "end": Whole}]]})

Span = tuple[int, int]


def read(source: str, data: DataSection | None) -> Iterator[Example]:
    """Yield an example for each row of a tab-separated file (path, or "-" for standard input), in
    the encoding of ``data``, None for UTF-8: text; pronoun, a and b, each a {start, end, text} in
    characters, end exclusive; and labels, [bool of a, bool of b], where the file has them."""
    with open_source(source) as file:
        for number, line in lines(file, data.encoding if data else "utf-8"):
            cells, where = line.split("\t"), f"{file.name}:{number}"
            if number == 1 and line.startswith(GAP):
                continue
            if len(cells) != len(COLUMNS):
                what = f"{len(cells)} columns, expected {len(COLUMNS)}: {', '.join(COLUMNS)}"
                raise DataError(f"{where}: {what}")
            row = dict(zip(COLUMNS, cells, strict=True))
            fields: dict[str, Any] = {"text": row["Text"]}
            for name in ("Pronoun", "A", "B"):
                start = row[f"{name}-offset"]
                place = int(start) if start.isdecimal() else -1
                end = place + len(row[name])
                if not 0 <= place < end or row["Text"][place:end] != row[name]:
                    what = f"{name}-offset {start}: there stands no {row[name]!r} in the text"
                    raise DataError(f"{where}: {what}")
                fields[name.lower()] = {"start": place, "end": end, "text": row[name]}
            labels = [row["A-coref"], row["B-coref"]]
            if any(labels):
                fields["labels"] = [_truth(label, where) for label in labels]
            yield Example(fields, row["ID"], where)


def _truth(cell: str, where: str) -> bool:
    if cell.strip().upper() not in _TRUTH:
        raise DataError(f"{where}: {quote(cell)}, expected TRUE or FALSE")
    return _TRUTH[cell.strip().upper()]


def decisions(example: Mapping[str, Any], clusters: Iterable[Iterable[Mapping]]) -> list[bool]:
    """Decide for each of the names a and b whether it is in the cluster of the pronoun: [bool,
    bool].

    A span counts as the mention with which it shares most characters, of equal ones the shortest.

    Args:
        example: ``pronoun``, ``a`` and ``b``, each with ``start`` and ``end`` in characters.
        clusters: mentions of each cluster, with ``start`` and ``end`` too.
    """
    mentions = [
        (each["start"], each["end"], number)
        for number, cluster in enumerate(clusters)
        for each in cluster
    ]

    def cluster_of(span: Mapping[str, Any]) -> int | None:
        best = (0, 0, -1)
        for start, end, number in mentions:
            shared = min(end, span["end"]) - max(start, span["start"])
            if shared > 0:
                best = max(best, (shared, start - end, number))
        return best[2] if best[0] else None

    pronoun = cluster_of(example["pronoun"])
    return [pronoun is not None and cluster_of(example[name]) == pronoun for name in ("a", "b")]


def published(answers: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Return the lines of ldt predict unchanged; their clusters are what `score` takes."""
    return iter(answers)


def score(right: Mapping[str, Any], answer: Any) -> dict[str, float]:
    """Count the decisions that are right, gold, and predicted (``all:right``, ``all:gold``,
    ``all:found``); also for ``masculine`` and ``feminine``, 0 unless the pronoun is of it.

    Args:
        right: fields of an example of `read`.
        answer: clusters as `decisions` takes them, or [bool of a, bool of b]; None, no answer,
            counts as two gold names that are not found.
    """
    if answer is not None and not (answer and isinstance(answer[0], bool)):
        answer = decisions(right, answer)
    pairs = [*zip(right["labels"], answer or [False, False], strict=True)]
    counts = (sum(map(all, pairs)), sum(gold for gold, _ in pairs), sum(x for _, x in pairs))
    if answer is None:  # two false negatives in the published script, whatever is right
        counts = 0, 2, 0
    pronoun = right["pronoun"]["text"].lower()
    return {
        f"{name}:{counted}": float(value * (name == "all" or pronoun in GENDERS[name]))
        for name in ("all", *GENDERS)
        for counted, value in zip(_COUNTS, counts, strict=True)
    }


def figures(sums: Mapping[str, Any]) -> dict[str, Any]:
    """Compute f1, precision and recall, 0 to 100, of all, masculine_ and feminine_ decisions, and
    the bias (100 times feminine by masculine F1) from sums or means of results of `score`, or
    arrays of them."""
    metrics: dict[str, Any] = {}
    for name in ("all", *GENDERS):
        right, gold, hits = (sums[f"{name}:{counted}"] for counted in _COUNTS)
        prefix = "" if name == "all" else f"{name}_"
        values = zip(NAMES, ratios(right, gold, right, hits), strict=True)
        metrics |= {f"{prefix}{figure}": 100 * value for figure, value in values}
    masculine = metrics["masculine_f1"]
    bias = 100 * metrics["feminine_f1"] / (masculine + (masculine == 0))
    return {"f1": metrics.pop("f1"), **metrics, "bias": bias}


@dataclass
class GapScorer(Benchmark):
    """GAP: a pronoun without an answer counts as two names that are not found."""

    title = "gap"
    noun = "pronoun"
    units = "pronouns"
    right = ("labels",)
    shown = ("f1", "masculine_f1", "feminine_f1", "bias")
    no_place = "a pronoun has two names"
    read = staticmethod(read)
    published = staticmethod(published)
    score = staticmethod(score)

    def item(self, example: Example) -> Item:
        """Make the `Item` of a row, with all of its fields as ``right``."""
        words = count_words(example.fields["text"])
        return Item(str(example.id), example.id, {}, words, right=example.fields)

    def load(self, files: Sequence[str]) -> list[Example] | list[tuple[str, str]]:
        """Read one file of predictions: examples of ldt predict, or (place, line) of a table."""
        (file,) = files
        if begins_with_object(file, ("id",)):
            return [*answer_files.answers(file)]
        with open_source(file) as each:
            return [(f"{each.name}:{n}", line) for n, line in lines(each, "utf-8") if line.strip()]

    def parse(self, value: Any, name: str) -> AnswersById:
        """Convert what `load` returns to {id: clusters of an answer, or [bool of A, bool of B]};
        DataError for other columns."""
        pairs: list[tuple[str, Any]] = []
        for each in value:
            if isinstance(each, Example):
                pairs.append((str(each.id), _ANSWER(each.fields, each.where)["clusters"]))
                continue
            where, line = each
            cells = line.split("\t")
            if len(cells) != 3:
                raise DataError(f"{where}: {len(cells)} columns, expected ID, A-coref, B-coref")
            pairs.append((cells[0], [_truth(cell, where) for cell in cells[1:]]))
        once((id for id, _ in pairs), name)
        return dict(pairs)

    def aggregate(self, items: Sequence[Item], answers: AnswersById, name: str) -> Result:
        """F1, precision and recall of all decisions and by gender, 0 to 100, and the bias."""
        # Copies, since trivial decisions are scored on the same items.
        items = [replace(each, scores=score(each.right, answers.get(each.id))) for each in items]
        metrics = mean([item.scores for item in items], figures)
        ids = compare([item.id for item in items], answers)
        return self.result(items, metrics, *ids, derive=figures)

    def constants(self, items: Sequence[Item]) -> dict[str, AnswersById]:
        """Trivial predictions: always both names, always A, always B."""
        return {
            words: {item.id: decision for item in items}
            for words, decision in (
                ("always both", [True, True]),
                ("always A", [True, False]),
                ("always B", [False, True]),
            )
        }

    def compared(self, name: str) -> bool:
        """True for all metrics but the bias."""
        return name != "bias"
