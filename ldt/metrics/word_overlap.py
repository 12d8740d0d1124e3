"""Rules that the published metrics share: articles, white space, overlap of words."""

import re
import string
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

CJK = "\u3040-\u30ff\u3400-\u9fff"  # Japanese and Chinese have no space between words
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


class Overlap(NamedTuple):
    """Words that two answers share, as ratios from 0 to 1."""

    f1: float
    precision: float
    recall: float


NOTHING = Overlap(0.0, 0.0, 0.0)


def tidy(text: str) -> str:
    """``text`` in lower case, already without punctuation, without articles and spare space."""
    return " ".join(_ARTICLES.sub(" ", text).split())


def normalise(text: str) -> str:
    """``text`` in lower case, without ASCII punctuation ("well-known" is one word) and articles:
    the rule of SQuAD."""
    return tidy(text.lower().translate(_PUNCTUATION))


def overlap(answer: Sequence[Hashable], gold: Sequence[Hashable]) -> Overlap:
    """Return F1, precision and recall of an answer's words, or of other things that can be counted,
    each as often as it stands there.

    Nothing in common, or no words at all, is 0 in all three.
    """
    same = sum((Counter(answer) & Counter(gold)).values())
    if not same:
        return NOTHING
    return of(same / len(answer), same / len(gold))


def of(precision: float, recall: float) -> Overlap:
    """``precision`` and ``recall`` with their F1; 0 where both are."""
    if precision + recall == 0:
        return NOTHING
    return Overlap(2 * precision * recall / (precision + recall), precision, recall)


def best(answer: str, golds: Sequence[str]) -> tuple[int, float]:
    """(exact match, F1) of a normalised answer, each the best over normalised ``golds``.

    Raises:
        ValueError: ``golds`` is empty.
    """
    words = answer.split()
    return int(max(answer == gold for gold in golds)), max(
        overlap(words, gold.split()).f1 for gold in golds
    )


def score_text(
    match: Callable[[str, Sequence[str]], tuple[int, float]],
    right: Mapping[str, Any],
    answer: Mapping[str, Any] | None,
) -> dict[str, float]:
    """Return exact_match and f1 of an answer by the rule ``match``.

    Args:
        right: ``answers``, the texts of all that are right.
        answer: ``answer``, a text; None, or None for the text, is no prediction, which counts 0.
    """
    text = None if answer is None else answer.get("answer")
    exact, f1 = (0, 0.0) if text is None else match(text, right["answers"])
    return {"exact_match": exact, "f1": f1}
