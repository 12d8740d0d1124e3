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
    """Entity from ``start`` up to but not including ``end``, in words or characters."""

    start: int
    end: int
    label: str


def entities(tags: Sequence[str]) -> list[Entity]:
    """Read the entities of one sentence from its tags; ValueError for a tag of another form.

    IOB1, IOB2, IOBES, BILOU and BMES tags are accepted. An entity starts at B, S, U or W, and at I,
    E or L after O or another type; E, L, S, U and W end it.

    Args:
        tags: one per word: O, or a letter of `LETTERS` with a type, such as B-PER.
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
    """IOB2 tags of a sentence of ``length`` words from its entities, which count in words; what
    lies beyond its end is dropped."""
    written = ["O"] * length
    for start, end, label in entities:
        for place in range(start, min(end, length)):
            written[place] = f"{'B' if place == start else 'I'}-{label}"
    return written


def by_sentence(sentences: Iterable[Sequence[str]]) -> list[Entity]:
    """Entities of a document, in words from its beginning, given the tags of each of its sentences;
    none crosses a sentence border. ValueError for a tag of another form than `entities` reads."""
    listed, begin = [], 0
    for tags in sentences:
        listed += [Entity(a + begin, b + begin, label) for a, b, label in entities(tags)]
        begin += len(tags)
    return listed


def ratios(gold: Any, found: Any, right: Any) -> tuple[Any, Any, Any]:
    """Precision, recall and F1, from 0 to 1; 0 where undefined.

    Args:
        gold, found, right: numbers of gold, predicted and correct entities, or arrays of them.
    """
    both = gold + found
    return (
        right / (found + (found == 0)),
        right / (gold + (gold == 0)),
        2 * right / (both + (both == 0)),
    )


def score(example: Mapping[str, Any], answer: Mapping[str, Any]) -> dict[str, float]:
    """Count gold, predicted and correct entities of a document; correct ones match in place and
    type.

    Args:
        example, answer: dicts with ``entities``, a set of tuples whose last element is the type.

    Returns:
        Counts under "type:gold", "type:found" and "type:right"; with an empty type, ":gold" and so
            on, over all types. `ratios` turns sums or means of them into precision, recall and F1.
    """
    gold, predicted = example["entities"], answer["entities"]
    counts: dict[str, float] = {}
    for label in ("", *sorted({entity[-1] for entity in gold | predicted})):
        sides = [{e for e in side if label in ("", e[-1])} for side in (gold, predicted)]
        numbers = (*map(len, sides), len(sides[0] & sides[1]))
        counts |= {f"{label}:{name}": n for name, n in zip(COUNTS, numbers, strict=True)}
    return counts


def result_of(title: str, items: list[Item]) -> Result:
    """Make the `Result`, under this title, of documents whose ``scores`` `score` counted:
    precision, recall and F1, 0 to 100, over all types and for each type. In the items, types
    that a document lacks get the count 0."""
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
