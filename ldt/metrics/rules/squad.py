"""SQuAD 1.1 and 2.0: exact match and F1, and the best threshold for no answer.

XQuAD uses the same rules in every language: English articles only, ASCII punctuation only, words
between spaces, so that F1 on Chinese is nearly exact match.

Sources: Rajpurkar et al. 2016 (arXiv:1606.05250) and 2018 (arXiv:1806.03822), the rules of their
evaluation scripts.
"""

import string
from collections.abc import Iterable, Mapping, Sequence

from ldt.metrics import word_overlap

_NOTHING = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """``text`` in lower case, without ASCII punctuation ("well-known" is one word) and articles."""
    return word_overlap.tidy(text.lower().translate(_NOTHING))


def score(prediction: str, golds: Sequence[str]) -> tuple[int, float]:
    """SQuAD 1.1: return (exact match, F1), each the best over ``golds``.

    An answer without words has F1 0, also beside such a gold one.

    Raises:
        ValueError: ``golds`` is empty.
    """
    return word_overlap.best(normalise(prediction), [normalise(gold) for gold in golds])


def score2(prediction: str, golds: Sequence[str]) -> tuple[int, float]:
    """SQuAD 2.0: return (exact match, F1), each the best over ``golds``; "" says no answer.

    Gold answers without words do not count; where none is left, only an answer without words is
    right, with F1 1.
    """
    golds = [gold for gold in golds if normalise(gold)] or [""]
    exact, f1 = score(prediction, golds)
    if golds == [""]:
        f1 = float(exact)
    return exact, f1


def best_threshold(
    scores: Mapping[str, float],
    answered: Iterable[str],
    no_answer: Mapping[str, float],
    answerable: Iterable[str],
) -> tuple[float, float]:
    """Return the largest sum of scores that a threshold gives, and that threshold.

    Questions whose probability is not above the threshold keep their prediction, the others count
    as "no answer". Questions of the same probability are taken in the order of ``no_answer``, one
    by one, as the published search does: its best figure can lie between two of them.

    Args:
        scores: question to exact match or F1 of its prediction, all questions.
        answered: questions whose prediction is not "".
        no_answer: question to probability that it has no answer; others than in ``scores`` are
            passed over.
        answerable: questions that have an answer.
    """
    answered, answerable = set(answered), set(answerable)
    now = best = len(scores.keys() - answerable)  # "no answer" to everything
    threshold = 0.0
    for question in sorted(no_answer, key=no_answer.__getitem__):
        if question not in scores:
            continue
        if question in answerable:
            now += scores[question]
        elif question in answered:
            now -= 1
        if now > best:
            best, threshold = now, no_answer[question]
    return best, threshold
