"""HotpotQA: answer, supporting facts, and both together.

Source: Yang et al. 2018 (arXiv:1809.09600), the rules of their evaluation script.
"""

from collections.abc import Iterable
from typing import NamedTuple

from ldt.metrics import word_overlap
from ldt.metrics.rules.squad import normalise

CLOSED = {"yes", "no", "noanswer"}  # as normalised; no credit for a part


class Score(NamedTuple):
    """Exact match, F1, precision and recall; each from 0 to 1."""

    em: float
    f1: float
    prec: float
    recall: float


NOTHING = Score(0.0, 0.0, 0.0, 0.0)


def answer(prediction: str, gold: str) -> Score:
    """Score an answer; where either is yes, no or noanswer, only the same one counts."""
    found, gold = normalise(prediction), normalise(gold)
    if found != gold and {found, gold} & CLOSED:
        return NOTHING
    return Score(float(found == gold), *word_overlap.overlap(found.split(), gold.split()))


def facts(prediction: Iterable[tuple[str, int]], gold: Iterable[tuple[str, int]]) -> Score:
    """Score a set of supporting sentences, each (title, number in its paragraph).

    None where none are wanted is an exact match with F1 0.
    """
    found, gold = set(prediction), set(gold)
    right = len(found & gold)
    found_right = word_overlap.of(right / max(len(found), 1), right / max(len(gold), 1))
    return Score(float(found == gold), *found_right)


def joint(answer: Score, facts: Score) -> Score:
    """Both at once: the products of exact matches, precisions and recalls, and their F1."""
    both = word_overlap.of(answer.prec * facts.prec, answer.recall * facts.recall)
    return Score(answer.em * facts.em, *both)
