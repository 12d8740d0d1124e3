"""Entities: tags to entities, and precision, recall and F1 of them, as conlleval counts.

Source: Tjong Kim Sang and Buchholz 2000 (CoNLL-2000) and Tjong Kim Sang and De Meulder 2003
(CoNLL-2003, arXiv:cs/0306050), the rules of their script conlleval.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ldt.metrics.result import Item, Result, mean

NAMES = ("precision", "recall", "f1")
COUNTS = ("gold", "found", "right")
_INSIDE, _LAST = "IMEL", "ELSUW"  # letters that go on with an entity, and that end one
LETTERS = tuple("BIMELSUW")


class Entity(NamedTuple):
    """From ``start`` to before ``end``, counted in words or characters."""

    start: int
    end: int
    label: str


def entities(tags: Sequence[str]) -> list[Entity]:
    """The entities of a sentence, counted in words.

    One begins at B, and at I where the word before is outside or of another type; so tags that
    mark only the border between two neighbours (IOB1) are read as well as those that mark each
    beginning (IOB2). E and L, the last word, and S, U and W, the only one, end it too (IOBES,
    BILOU, BMES).

    Args:
        tags: O or a letter of `LETTERS` with a type, as B-type, one a word.

    Raises:
        ValueError: another tag.
    """
    listed: list[Entity] = []
    before = ""
    for place, tag in enumerate(tags):
        kind, _, label = tag.partition("-")
        if tag != "O" and not (label and kind in LETTERS):
            raise ValueError(
                f"{tag!r} is no tag; O, B-type and I-type are, of IOBES and BILOU E, L, S and U too"
            )
        if label and kind in _INSIDE and label == before:
            listed[-1] = listed[-1]._replace(end=place + 1)
        elif label:
            listed.append(Entity(place, place + 1, label))
        before = "" if kind in _LAST else label
    return listed


def tags_of(entities: Iterable[Entity], length: int) -> list[str]:
    """IOB2 tags of so many words; what lies beyond them is left out."""
    written = ["O"] * length
    for start, end, label in entities:
        for place in range(start, min(end, length)):
            written[place] = f"{'B' if place == start else 'I'}-{label}"
    return written


def by_sentence(sentences: Iterable[Sequence[str]]) -> list[Entity]:
    """The entities of all sentences, counted in words of the document; none crosses a border."""
    listed, begin = [], 0
    for tags in sentences:
        listed += [Entity(a + begin, b + begin, label) for a, b, label in entities(tags)]
        begin += len(tags)
    return listed


def ratios(gold: Any, found: Any, right: Any) -> tuple[Any, Any, Any]:
    """Precision, recall and F1, from 0 to 1, of numbers of entities; 0 where there are none.

    Args:
        gold, found, right: numbers, or arrays of them; of one document, of all, or in the mean.
    """
    both = gold + found
    return (
        right / (found + (found == 0)),
        right / (gold + (gold == 0)),
        2 * right / (both + (both == 0)),
    )


def score(example: Mapping[str, Any], answer: Mapping[str, Any]) -> dict[str, float]:
    """Count the entities of a document: those there are, were found, and are right.

    Right are those of the same place and type.

    Args:
        example, answer: ``entities``, a set of tuples with the type last.

    Returns:
        The numbers by "type:gold", "type:found" and "type:right", those of all types by ":gold" and
        so on; `ratios` makes precision, recall and F1 of sums or means of them.
    """
    gold, predicted = example["entities"], answer["entities"]
    counts: dict[str, float] = {}
    for label in ("", *sorted({entity[-1] for entity in gold | predicted})):
        sides = [{e for e in side if label in ("", e[-1])} for side in (gold, predicted)]
        numbers = (*map(len, sides), len(sides[0] & sides[1]))
        counts |= {f"{label}:{name}": n for name, n in zip(COUNTS, numbers, strict=True)}
    return counts


def result_of(title: str, items: list[Item]) -> Result:
    """The figures of documents whose scores are counts (`score`), of all types and of each."""
    # Every document counts every type, those without it 0 times.
    labels = sorted({name.rpartition(":")[0] for item in items for name in item.scores})  # "" first
    for item in items:
        item.scores = {
            name: item.scores.get(name, 0)
            for name in (f"{label}:{count}" for label in labels for count in COUNTS)
        }

    def derive(means: dict[str, Any]) -> dict[str, Any]:
        metrics: dict[str, Any] = {}
        for label in labels:
            values = ratios(*(means[f"{label}:{count}"] for count in COUNTS))
            prefix = f"{label}_" if label else ""
            metrics |= {
                f"{prefix}{name}": 100 * value for name, value in zip(NAMES, values, strict=True)
            }
        return metrics

    metrics = mean([item.scores for item in items], derive)
    result = Result(title, items, metrics, "documents", [], [], derive=derive)
    result.shown, result.noun = NAMES, "document"
    return result
