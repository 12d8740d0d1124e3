"""CoNLL: precision, recall and F1 of the entities that BIO tags say.

Source: Tjong Kim Sang and Buchholz 2000 (CoNLL-2000) and Tjong Kim Sang and De Meulder 2003
(CoNLL-2003, arXiv:cs/0306050), the rules of their script conlleval.
"""

from collections.abc import Iterable, Sequence, Set
from typing import Any, NamedTuple


class Entity(NamedTuple):
    """From ``start`` to before ``end``, counted in words or characters."""

    start: int
    end: int
    label: str


class Score(NamedTuple):
    """From 0 to 1 each; and how many entities there are, were found, and are the same."""

    precision: float
    recall: float
    f1: float
    gold: int
    found: int
    right: int


def entities(tags: Sequence[str]) -> list[Entity]:
    """The entities of a sentence, counted in words.

    One begins at B, and at I where the word before is outside or of another type; so tags that
    mark only the border between two neighbours (IOB1) are read as well as those that mark each
    beginning (IOB2).

    Args:
        tags: O, B-type or I-type, one a word.

    Raises:
        ValueError: another tag.
    """
    found, before = [], ""
    for place, tag in enumerate(tags):
        kind, _, label = tag.partition("-")
        if tag != "O" and not (kind in ("B", "I") and label):
            raise ValueError(f"{tag!r} is no tag; O, B-type and I-type are")
        if label and kind == "I" and label == before:
            found[-1] = found[-1]._replace(end=place + 1)
        elif label:
            found.append(Entity(place, place + 1, label))
        before = label
    return found


def tags(entities: Iterable[Entity], length: int) -> list[str]:
    """IOB2 tags of so many words; what lies beyond them is left out."""
    found = ["O"] * length
    for start, end, label in entities:
        for place in range(start, min(end, length)):
            found[place] = f"{'B' if place == start else 'I'}-{label}"
    return found


def figures(gold: Any, found: Any, right: Any) -> tuple[Any, Any, Any]:
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


def score(found: Set, gold: Set) -> Score:
    """Compare entities of a whole set of documents; right are those of the same place and type."""
    numbers = len(gold), len(found), len(found & gold)
    return Score(*figures(*numbers), *numbers)
