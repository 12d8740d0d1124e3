"""CUAD: area under the precision-recall curve, of the n best spans with their probabilities.

Predictions are {id: [{"text", "probability", ...}]}, as the n-best file of the SQuAD code of
transformers has them; "" says that there is no such clause.

Source: Hendrycks et al. 2021 (arXiv:2103.06268), the rules of their evaluation script.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ldt.data.formats import cuad as layout
from ldt.data.options import DEFAULTS, DataSection
from ldt.errors import DataError, plural, shown
from ldt.io.sources import Names
from ldt.io.strict_json import JsonFile, take
from ldt.metrics import baseline, prediction_files
from ldt.metrics.baseline import Baselines
from ldt.metrics.numbers import softmax
from ldt.metrics.prediction_files import read as read_predictions  # noqa: F401
from ldt.metrics.result import Item, Result, compare, count_words, defined

# The published thresholds [101], the highest first. numpy's own steps carry rounding: 0.5 is not
# exactly 0.5, and a probability of two decimals falls to the side that it has there.
THRESHOLDS = np.array([*np.arange(0.99, 0, -0.01), 0.001, 0.0])
OVERLAP = 0.5  # shared words of a match, of all words of the two
RECALLS = {"prec_at_80_recall": 0.8, "prec_at_90_recall": 0.9}
N_BEST = 20  # spans that are written of a question
_DROPPED = str.maketrans({".": None, ",": None, ";": None, ":": None, "/": " "})


def matches(answer: str, prediction: str, *, substring: bool) -> bool:
    """Tell whether a predicted span is a gold clause: half of their different words are shared.

    Words are parted by single blanks, so an empty text between two blanks is one.

    Args:
        substring: whether an answer that stands in the prediction, letter by letter, is enough.
    """
    one, other = _words(answer), _words(prediction)
    shared = len(one & other)
    similar = shared / (len(one) + len(other) - shared) >= OVERLAP
    return similar or (substring and answer in prediction)


def count(
    id: str, answers: Sequence[str], predictions: Mapping[str, float]
) -> tuple[np.ndarray, np.ndarray]:
    """Clauses that are found, and predictions that are none, at each threshold: [101] and [101].

    A prediction counts where its probability is above the threshold. One may find several clauses,
    and several may find one; where the id has "Parties" in it, a clause inside a prediction is
    found too.

    Args:
        answers: the gold clauses.
        predictions: text to probability, without "".
    """
    substring = "Parties" in id
    hits = np.zeros(len(THRESHOLDS), int)
    wrong = np.zeros(len(THRESHOLDS), int)
    right = {
        text: [matches(answer, text, substring=substring) for answer in answers]
        for text in predictions
    }
    for place in range(len(answers)):
        sure = [predictions[text] for text in predictions if right[text][place]]
        hits += max(sure, default=-1) > THRESHOLDS
    for text, probability in predictions.items():
        if not any(right[text]):
            wrong += probability > THRESHOLDS
    return hits, wrong


def curve_figures(found: Any, wrong: Any, clauses: Any) -> dict[str, np.ndarray]:
    """Return aupr, prec_at_80_recall and prec_at_90_recall, from 0 to 100, each [...].

    The curve begins at recall 0 with precision 1 and ends at the last recall that is reached;
    each precision becomes the highest at its recall or a higher one; the area is one of
    trapezoids. The precision at a recall is that of the first point that reaches it, 0 if none
    does; as in the published script the last point, that of threshold 0, is not looked at there.
    What is undefined (no clauses, no predictions) is 0.

    Args:
        found, wrong: [..., 101], as `count` has them, or sums of them.
        clauses: [...], the number of gold clauses.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        recall = _behind(0, found / np.asarray(clauses)[..., None])
        precision = _behind(1, found / (found + wrong))
    precision = np.fmax.accumulate(precision[..., ::-1], axis=-1)[..., ::-1]
    steps = np.diff(recall) * (precision[..., 1:] + precision[..., :-1]) / 2
    figures = {"aupr": 100 * np.nan_to_num(steps.sum(-1))}
    for name, wanted in RECALLS.items():
        reached = recall[..., :-1] >= wanted
        first = np.take_along_axis(precision, reached.argmax(-1)[..., None], -1)[..., 0]
        figures[name] = 100 * np.where(reached.any(-1), first, 0.0)
    return figures


def published(answers: Iterable[dict]) -> dict[str, list[dict]]:
    """The official layout: the `N_BEST` best spans of each question, "" always among them.

    Args:
        answers: each with id, ``n_best``, a list of {answer, start_logit, end_logit}, and ``null``,
            {start_logit, end_logit} of no answer; of equal texts the best one counts. The
            probability is the softmax over those written.
    """
    whole = {}
    for answer in answers:
        by_text: dict[str, dict] = {}
        spans = [*answer["n_best"], answer["null"] | {"answer": ""}]
        for span in sorted(spans, key=_logit, reverse=True):
            by_text.setdefault(span["answer"], span)
        best = list(by_text.values())[:N_BEST]
        if by_text[""] not in best:
            best[-1] = by_text[""]
        shares = softmax(np.array([_logit(span) for span in best], np.float64)).tolist()
        whole[str(answer["id"])] = [
            {
                "text": span["answer"],
                "probability": share,
                "start_logit": span["start_logit"],
                "end_logit": span["end_logit"],
            }
            for span, share in zip(best, shares, strict=True)
        ]
    return whole


def read_gold(source: Names, format: str, data: DataSection = DEFAULTS) -> JsonFile:
    """Read a gold file, which must have this layout (see `prediction_files.read_gold`)."""
    expected = "an object with data, a list of contracts with paragraphs, ids <title>__<category>"
    return prediction_files.read_gold(source, format, expected, data.encoding)


def evaluate(gold: JsonFile, predictions: JsonFile) -> Result:
    """Score by the published rules; every question needs its list, which may be empty.

    Raises:
        DataError: a file that cannot be used, or ids that are not the same on both sides, where
            the published script stops.
    """
    questions = {str(example.id): example for example in layout.gold(gold)}
    if not questions:
        raise DataError(f"{gold.name}: no questions in it")
    answers = _predictions(predictions)
    missing, extra = compare(list(questions), answers)
    for ids, what in ((missing, "no predictions of"), (extra, "not in the gold file:")):
        if ids:
            raise DataError(
                f"{predictions.name}: {what} {plural(len(ids), 'question')}, such as {ids[0]!r}; "
                "the ids must be those of the gold file, an empty list says no clause"
            )
    counts, clauses, items = [], [], []
    for id, question in questions.items():
        right = [answer["text"] for answer in question.fields["answers"]]
        counts.append(count(id, right, answers[id]))
        clauses.append(len(right))
        fields = question.fields
        items.append(Item(id, fields["paragraph"], {}, _length(fields["context"])))
    hits, wrong = np.array(counts, np.float64).transpose(1, 0, 2)  # [questions, 101] each
    of_each = np.array(clauses, np.float64)

    def figures(weights: np.ndarray) -> dict[str, np.ndarray]:
        weights = weights.astype(np.float64)
        return curve_figures(weights @ hits, weights @ wrong, weights @ of_each)

    metrics = defined(figures, np.ones((1, len(items))))
    result = Result("cuad", items, metrics, "contracts", [], [], figures=figures)
    result.no_place = "a contract has many clauses"
    categories = np.array([layout.category(id) for id in questions])
    for category in sorted(set(categories)):
        # As in the published script: of all ids with the category anywhere in them.
        chosen = np.array([[category in id for id in questions]])
        result.subsets[category] = {"aupr": float(figures(chosen)["aupr"][0])}
    return result


def baselines(gold: JsonFile, evaluate: Callable) -> Baselines:
    """Scores of the most frequent clause, given with certainty."""
    questions = list(layout.gold(gold))
    usual = baseline.commonest(
        [answer["text"] for answer in question.fields["answers"]] for question in questions
    )
    value = {str(each.id): [{"text": usual, "probability": 1.0}] for each in questions}
    return baseline.of_files(evaluate, gold, {baseline.quoted(usual): value})


@lru_cache(1 << 12)
def _words(text: str) -> frozenset[str]:
    return frozenset(text.translate(_DROPPED).lower().split(" "))


_length = lru_cache(2)(count_words)  # questions on one contract come one after the other


def _behind(first: float, values: np.ndarray) -> np.ndarray:
    return np.concatenate([np.full((*values.shape[:-1], 1), first, np.float64), values], -1)


def _logit(span: dict[str, Any]) -> float:
    return span["start_logit"] + span["end_logit"]


def _predictions(file: JsonFile) -> dict[str, dict[str, float]]:
    """Id to text to probability, without ""; of equal texts the last one's."""
    prediction_files.refuse_gold(file)
    if not isinstance(file.value, dict):
        raise DataError(
            f"{file.name}: {shown(file.value)}; expected an object, "
            "{id: [{text, probability}, ...]}"
        )
    answers: dict[str, dict[str, float]] = {}
    for id in file.value:
        answers[id] = {}
        for entry in take(file.value, id, list, file.name):
            where = f"{file.name}: {id}"
            text = take(entry, "text", str, where)
            probability = prediction_files.number(entry, "probability", where)
            if text:
                answers[id][text] = probability
    return answers
