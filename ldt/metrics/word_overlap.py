"""Answer normalisation and word overlap shared by the published QA metrics."""

import re
import string
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

CJK = "\u3040-\u30ff\u3400-\u9fff"  # Japanese and Chinese have no space between words
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


class Overlap(NamedTuple):
    """Word overlap of two answers, from 0 to 1."""

    f1: float
    precision: float
    recall: float


NOTHING = Overlap(0.0, 0.0, 0.0)


def tidy(text: str) -> str:
    """Remove the articles a, an and the, and extra white space, from a text in lower case."""
    return " ".join(_ARTICLES.sub(" ", text).split())


def normalise(text: str) -> str:
    """SQuAD's normalisation: lower-case, remove ASCII punctuation ("well-known" becomes one word)
    and articles."""
    return tidy(text.lower().translate(_PUNCTUATION))


def overlap(answer: Sequence[Hashable], gold: Sequence[Hashable]) -> Overlap:
    """Return F1, precision and recall, 0 to 1, of an answer's words, counted with multiplicity; all
    are 0 if nothing is shared or a side is empty."""
    same = sum((Counter(answer) & Counter(gold)).values())
    if not same:
        return NOTHING
    return with_f1(same / len(answer), same / len(gold))


def with_f1(precision: float, recall: float) -> Overlap:
    """Make an `Overlap` of precision and recall with their harmonic mean as F1, 0 if both are 0."""
    if precision + recall == 0:
        return NOTHING
    return Overlap(2 * precision * recall / (precision + recall), precision, recall)


def best(answer: str, golds: Sequence[str]) -> tuple[int, float]:
    """Return (exact match, F1), 0 to 1, of a normalised answer, each the best over the normalised
    gold answers; ValueError if there are none."""
    words = answer.split()
    return int(max(answer == gold for gold in golds)), max(
        overlap(words, gold.split()).f1 for gold in golds
    )


def score_text(
    match: Callable[[str, Sequence[str]], tuple[int, float]],
    right: Mapping[str, Any],
    answer: Mapping[str, Any] | None,
) -> dict[str, float]:
    """Return exact_match and f1 of an answer, 0 to 1.

    Args:
        match: returns (exact match, f1) of a text and the gold texts, as `best` does.
        right: ``answers``, the accepted texts.
        answer: ``answer``, a text; None in either place is a missing prediction, which scores 0.
    """
    text = None if answer is None else answer.get("answer")
    exact, f1 = (0, 0.0) if text is None else match(text, right["answers"])
    return {"exact_match": exact, "f1": f1}
