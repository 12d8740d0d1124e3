"""CoNLL: precision, recall and F1 of the entities that BIO tags say.

Source: Tjong Kim Sang and Buchholz 2000 (CoNLL-2000) and Tjong Kim Sang and De Meulder 2003
(CoNLL-2003, arXiv:cs/0306050), the rules of their script conlleval.
"""

from collections.abc import Iterable, Sequence, Set
from typing import NamedTuple

from ldt.official import words


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


def score(found: Set, gold: Set) -> Score:
    """Compare entities of a whole set of documents; right are those of the same place and type.

    Nothing found, or nothing to find, is 0 in all three.
    """
    right = len(found & gold)
    f1, precision, recall = words.of(right / max(len(found), 1), right / max(len(gold), 1))
    return Score(precision, recall, f1, len(gold), len(found), right)
