"""SQuAD 1.1 and 2.0 and what has their layout, XQuAD and CUAD: read, written and scored.

Predictions of SQuAD are one object {id: text}, or a list of entries with id, prediction_text and,
for squad2, no_answer_probability, as the library `evaluate` has them; those of CUAD are
{id: [{"text", "probability", ...}]}, as the n-best file of the SQuAD code of transformers has them.

XQuAD uses the same rules in every language: English articles only, ASCII punctuation only, words
between spaces, so that F1 on Chinese is nearly exact match. CUAD is scored by the area under the
precision-recall curve of its spans; a paragraph is a whole contract with any number of answers to a
question, whose id is ``<title>__<category>``.

Sources: Rajpurkar et al. 2016 (arXiv:1606.05250) and 2018 (arXiv:1806.03822), Hendrycks et al. 2021
(arXiv:2103.06268), the rules of their evaluation scripts.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from ldt.benchmarks import base
from ldt.benchmarks.base import AnswersById, Benchmark, Id, Number, Shape, Whole
from ldt.data.options import DataSection
from ldt.errors import DataError, plural
from ldt.io import strict_json
from ldt.io.records import Example
from ldt.metrics import baseline
from ldt.metrics.numbers import softmax
from ldt.metrics.result import Item, Result, compare, count_words, defined, mean
from ldt.metrics.word_overlap import best, normalise, score_text

CERTAIN = 1.0  # a prediction counts as "no answer" above it, by default of the published script
# The published thresholds [101] of CUAD, the highest first. numpy's own steps carry rounding: 0.5
# is not exactly 0.5, and a probability of two decimals falls to the side that it has there.
THRESHOLDS = np.array([*np.arange(0.99, 0, -0.01), 0.001, 0.0])
OVERLAP = 0.5  # shared words of a match, of all words of the two
RECALLS = {"prec_at_80_recall": 0.8, "prec_at_90_recall": 0.9}
N_BEST = 20  # spans that are written of a question
_DROPPED = str.maketrans({".": None, ",": None, ";": None, ":": None, "/": " "})

_words = lru_cache(2)(count_words)  # questions on one paragraph come one after the other

_ANSWER: Any = {"text": str, "answer_start?": Whole}
_QUESTION: Any = {"id": Id, "question?": str, "answers?": [_ANSWER]}
_FILE = Shape({"data": [{"title?": str, "paragraphs": [{"context": str, "qas": [_QUESTION]}]}]})
_ENTRIES = Shape([{"id": Id, "prediction_text": str, "no_answer_probability?": Number}])
_CHANCES = Shape({str: Number})
_N_BEST = Shape({str: [{"text": str, "probability": Number}]})


def read(source: str | strict_json.JsonFile, data: DataSection) -> Iterator[Example]:
    """Yield an example for each question of a file (a path, "-" for standard input, or its loaded
    JSON), in the encoding of ``data``: title, context, question, answers; and with ``data.format``
    cuad its category, the end of its id.

    ``answers`` is a list of {text, answer_start}, empty where there is no answer in the context;
    files of a test set have none, and neither have their examples.
    """
    file = strict_json.read(source, data.encoding)
    for article in _FILE(file.value, file.name)["data"]:
        title = {"title": article["title"]} if "title" in article else {}
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                id = question.pop("id")
                fields = {"context": paragraph["context"], **title, **question}
                if data.format == "cuad":
                    fields["category"] = _category(id)
                yield Example(fields, id, f"{file.name}: {id}")


def _category(id: str) -> str:
    return id.rpartition("__")[2]


def _place(answers: list[dict[str, Any]], context: str) -> float | str:
    """Place of the first gold answer, from 0 to 1; in words why it has none."""
    if not answers:
        return "no answer"
    places = [(answer["text"], answer.get("answer_start", -1)) for answer in answers]
    starts = [at for text, at in places if at >= 0 and text and context.startswith(text, at)]
    return min(starts) / len(context) if starts else "not at its answer_start"


def match(prediction: str, golds: Sequence[str]) -> tuple[int, float]:
    """Return (exact match, F1) of an answer by SQuAD 1.1, each 0 to 1, the best over the texts
    ``golds``; ValueError if there are none. An answer without words has F1 0, also beside such a
    gold one."""
    return best(normalise(prediction), [normalise(gold) for gold in golds])


def match2(prediction: str, golds: Sequence[str]) -> tuple[int, float]:
    """Return (exact match, F1) of an answer by SQuAD 2.0, each 0 to 1, the best over the texts
    ``golds``; "" says no answer.

    Gold answers without words do not count; where none is left, only an answer without words is
    right, with F1 1.
    """
    golds = [gold for gold in golds if normalise(gold)] or [""]
    exact, f1 = match(prediction, golds)
    return exact, float(exact) if golds == [""] else f1


def score(right: Mapping[str, Any], answer: Mapping[str, Any] | None) -> dict[str, float]:
    """Return exact_match and f1, 0 to 1, by SQuAD 1.1 (`match`), of the text ``answer`` against the
    texts ``answers`` of ``right``; 0 without an answer."""
    return score_text(match, right, answer)


def score2(right: Mapping[str, Any], answer: Mapping[str, Any] | None) -> dict[str, float]:
    """Return exact_match and f1, 0 to 1, by SQuAD 2.0 (`match2`), of the text ``answer`` against
    the texts ``answers`` of ``right``; 0 without an answer."""
    return score_text(match2, right, answer)


def best_threshold(
    scores: Mapping[str, float],
    answered: Iterable[str],
    no_answer: Mapping[str, float],
    answerable: Iterable[str],
) -> tuple[float, float]:
    """Return the largest sum of scores that a threshold of no answer gives, and that threshold.

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
    now: float = len(scores.keys() - answerable)  # "no answer" to everything
    highest, threshold = now, 0.0
    for question in sorted(no_answer, key=no_answer.__getitem__):
        if question in scores:
            now += scores[question] if question in answerable else -(question in answered)
            if now > highest:
                highest, threshold = now, no_answer[question]
    return highest, threshold


published = base.by_id


@dataclass
class SquadScorer(Benchmark):
    """SQuAD 1.1: every question has an answer; one without a prediction counts 0."""

    title = "squad 1.1"
    units = "paragraphs"
    right = ("answers",)
    needs = ("answer",)
    advice = "answers of squad and triviaqa have one"
    read = staticmethod(read)
    published = staticmethod(published)
    score = staticmethod(score)

    def item(self, example: Example) -> Item:
        """Make the `Item` of a question: ``right`` has ``answers``, the gold texts; DataError
        without one."""
        item = _item(example)
        if not item.right["answers"]:
            raise DataError(f"{example.where}: no answers; --format squad2 has such")
        return item

    def parse(self, value: Any, name: str) -> AnswersById:
        """Convert {id: text}, or a list of {id, prediction_text, no_answer_probability}, to {id:
        {"answer": text}}, with ``no_answer``, the probability, where it is given."""
        if not isinstance(value, list):
            return super().parse(value, name)
        entries = _ENTRIES(value, name)
        base.once((entry["id"] for entry in entries), name)
        answers = {entry["id"]: {"answer": entry["prediction_text"]} for entry in entries}
        for entry in entries:
            if "no_answer_probability" in entry:
                answers[entry["id"]]["no_answer"] = entry["no_answer_probability"]
        return answers

    def constants(self, items: Sequence[Item]) -> dict[str, AnswersById]:
        """Trivial predictions: the most frequent answer, and "" where questions have no answer."""
        rights = [item.right["answers"] for item in items]
        constants = base.always(baseline.commonest(rights), items)
        if not all(rights):
            constants["always no answer"] = {item.id: {"answer": ""} for item in items}
        return constants


@dataclass
class Squad2Scorer(SquadScorer):
    """SQuAD 2.0: "" says that there is no answer; a question without a prediction counts 0.

    With probabilities of no answer (in ``na_prob`` or the predictions) the best threshold is
    searched too. The published script stops at a missing prediction.

    Args:
        na_prob: a JSON file {id: probability}, of every predicted question.
    """

    na_prob: str | None = None

    title = "squad 2.0"
    score = staticmethod(score2)

    def item(self, example: Example) -> Item:
        """Make the `Item` of a question: ``right`` has ``answers``, the gold texts, [] if it has no
        answer."""
        return _item(example)

    def answers(self, files: Sequence[str]) -> AnswersById:
        """Read predictions, {id: {answer, no_answer}}; the probabilities in the file ``na_prob``,
        if that is given, take the place of those of the predictions."""
        answers = super().answers(files)
        if self.na_prob:
            file = strict_json.read(self.na_prob)
            chances = _CHANCES(file.value, file.name)
            # In the order of the probabilities, in which equal ones are searched.
            answers = {id: answers[id] for id in [*chances, *answers] if id in answers}
            for id, each in answers.items():
                each.pop("no_answer", None)
                each |= {"no_answer": chances[id]} if id in chances else {}
        return answers

    def aggregate(self, items: Sequence[Item], answers: AnswersById, name: str) -> Result:
        """exact and f1, 0 to 100, of all questions and of those with (HasAns) and without an answer
        (NoAns); with probabilities of no answer also the best of both, each with its threshold,
        a DataError if a prediction has none, and a warning if one is above 1."""
        answerable = {item.id for item in items if item.right["answers"]}
        scores = {item.id: score2(item.right, answers.get(item.id)) for item in items}
        predicted = {id: each for id, each in answers.items() if id in scores}
        no_answer = {id: e["no_answer"] for id, e in predicted.items() if "no_answer" in e}
        where, warnings = self.na_prob or name, []
        if no_answer and (lacking := sorted(predicted.keys() - no_answer.keys())):
            what = f"{plural(len(lacking), 'predicted question')}, such as {lacking[0]!r}"
            raise DataError(f"{where}: no probability of {what}; each needs one")
        if sure := {id for id, chance in no_answer.items() if chance > CERTAIN}:
            what = "as in the published script those predictions count as"
            warnings.append(f'{where}: {len(sure):,} probabilities are above 1; {what} ""')
        counted = []
        for item in items:
            exact, f1 = scores[item.id].values()
            if item.id in sure:
                exact = f1 = float(item.id not in answerable)
            counted.append(replace(item, scores={"exact": exact, "f1": f1}))
        # The figures of all questions, then of those with and without an answer.
        metrics, parts = _figures(counted), {}
        for prefix, wanted in (("HasAns_", True), ("NoAns_", False)):
            if part := [item for item in counted if (item.id in answerable) == wanted]:
                parts[prefix] = part
                metrics |= {prefix + key: value for key, value in _figures(part).items()}
        # The best threshold is searched with the predictions as they are, not as `sure` has them.
        if no_answer:
            answered = [id for id, each in predicted.items() if each["answer"]]
            for figure, key in (("exact", "exact_match"), ("f1", "f1")):
                one = {id: both[key] for id, both in scores.items()}
                highest, threshold = best_threshold(one, answered, no_answer, answerable)
                metrics[f"best_{figure}"] = 100.0 * highest / len(scores)
                metrics[f"best_{figure}_thresh"] = threshold
        missing = compare([*scores], answers)
        return self.result(counted, metrics, *missing, parts=parts, warnings=warnings)


def _item(example: Example) -> Item:
    context, answers = example.fields["context"], example.fields["answers"]
    right = {"answers": [answer["text"] for answer in answers]}
    unit = id(context)  # of the paragraph, which lives as long as its file is read
    return Item(str(example.id), unit, {}, _words(context), _place(answers, context), right)


def _figures(items: Sequence[Item]) -> dict[str, float | int]:
    return {**mean([item.scores for item in items]), "total": len(items)}


def matches(answer: str, prediction: str, *, substring: bool) -> bool:
    """True if a predicted span finds a gold clause (``answer``): of the distinct words in either,
    at least half are in both.

    Words are lower-cased, without ``. , ; :``, and parted at each blank and slash, so an empty text
    between two blanks is one.

    Args:
        substring: True if an answer that stands in the prediction, letter by letter, is enough.
    """
    one, other = _different(answer), _different(prediction)
    similar = len(one & other) / len(one | other) >= OVERLAP
    return similar or (substring and answer in prediction)


@lru_cache(1 << 12)
def _different(text: str) -> frozenset[str]:
    return frozenset(text.translate(_DROPPED).lower().split(" "))


def count(
    id: str, answers: Sequence[str], predictions: Mapping[str, float]
) -> tuple[np.ndarray, np.ndarray]:
    """Count gold clauses that are found, and wrong predictions, at each of 101 thresholds: ([101],
    [101]).

    A prediction counts where its probability is above the threshold. One may find several clauses,
    and several may find one; where the id has "Parties" in it, a clause inside a prediction is
    found too.

    Args:
        id: id of the question.
        answers: the gold clauses.
        predictions: text to probability, without "".
    """
    right = {
        text: [matches(answer, text, substring="Parties" in id) for answer in answers]
        for text in predictions
    }
    hits, wrong = np.zeros((2, len(THRESHOLDS)), int)
    for place in range(len(answers)):
        sure = [predictions[text] for text in predictions if right[text][place]]
        hits += max(sure, default=-1) > THRESHOLDS
    for text, probability in predictions.items():
        if not any(right[text]):
            wrong += probability > THRESHOLDS
    return hits, wrong


def curve_figures(hits: Any, wrong: Any, clauses: Any) -> dict[str, np.ndarray]:
    """Return aupr, prec_at_80_recall and prec_at_90_recall, from 0 to 100, each [...].

    The curve begins at recall 0 with precision 1 and ends at the last recall that is reached; each
    precision becomes the highest at its recall or a higher one; the area is one of trapezoids. The
    precision at a recall is that of the first point that reaches it, 0 if none does; as in the
    published script the last point, that of threshold 0, is not looked at there. What is undefined
    (no clauses, no predictions) is 0.

    Args:
        hits, wrong: [..., 101], as `count` has them, or sums of them.
        clauses: [...], the number of gold clauses.
    """
    first = np.ones((*np.shape(hits)[:-1], 1))
    with np.errstate(invalid="ignore", divide="ignore"):
        recall = np.concatenate([0 * first, hits / np.asarray(clauses)[..., None]], -1)
        precision = np.concatenate([first, hits / (hits + wrong)], -1)
    precision = np.fmax.accumulate(precision[..., ::-1], axis=-1)[..., ::-1]
    steps = np.diff(recall) * (precision[..., 1:] + precision[..., :-1]) / 2
    figures = {"aupr": 100 * np.nan_to_num(steps.sum(-1))}
    for name, wanted in RECALLS.items():
        reached = recall[..., :-1] >= wanted
        there = np.take_along_axis(precision, reached.argmax(-1)[..., None], -1)[..., 0]
        figures[name] = 100 * np.where(reached.any(-1), there, 0.0)
    return figures


def published_n_best(answers: Iterable[dict]) -> dict[str, list[dict]]:
    """Convert answers to the layout of CUAD, {id: [{text, probability, start_logit, end_logit}]}:
    the `N_BEST` best spans of each question, "" always among them.

    Args:
        answers: each with id, ``n_best``, a list of {answer, start_logit, end_logit}, and ``null``,
            {start_logit, end_logit} of no answer; of equal texts the best one counts. The
            probability is the softmax over those written.
    """

    def logit(span: dict[str, Any]) -> float:
        return span["start_logit"] + span["end_logit"]

    by_question = {}
    for answer in answers:
        by_text: dict[str, dict] = {}
        spans = [*answer["n_best"], answer["null"] | {"answer": ""}]
        for span in sorted(spans, key=logit, reverse=True):
            by_text.setdefault(span["answer"], span)
        likeliest = list(by_text.values())[:N_BEST]
        if by_text[""] not in likeliest:
            likeliest[-1] = by_text[""]
        shares = softmax(np.array([logit(span) for span in likeliest], np.float64)).tolist()
        by_question[str(answer["id"])] = [
            {"text": span["answer"], "probability": share}
            | {name: span[name] for name in ("start_logit", "end_logit")}
            for span, share in zip(likeliest, shares, strict=True)
        ]
    return by_question


@dataclass
class CuadScorer(Benchmark):
    """CUAD: every question needs its list of predictions, which may be empty."""

    title = "cuad"
    units = "contracts"
    no_place = "a contract has many clauses"
    right = ("answers",)
    needs = ("n_best", "null")
    advice = f"answers of squad have it: ldt predict --n-best {N_BEST}"
    read = staticmethod(read)

    def item(self, example: Example) -> Item:
        """Make the `Item` of a question: ``right`` has ``answers``, the gold clauses; DataError for
        an empty one."""
        item = replace(_item(example), place=None)
        if not all(item.right["answers"]):
            raise DataError(f"{example.where}: the text of an answer is empty")
        return item

    @staticmethod
    def published(lines: Sequence[dict]) -> dict[str, list[dict]]:
        """Convert answers by `published_n_best`; ValueError unless one has the `N_BEST` spans of
        the layout."""
        most = max((len(line["n_best"]) for line in lines), default=0)
        if most < N_BEST:
            what = f"{most:,} spans of a question at most; the layout has {N_BEST}"
            raise ValueError(f"{what}: ldt predict --n-best {N_BEST}")
        return published_n_best(lines)

    def parse(self, value: Any, name: str) -> AnswersById:
        """Convert {id: [{text, probability}]} to {id: {text: probability}}, without ""; of equal
        texts the last one's."""
        answers = _N_BEST(value, name)
        return {
            id: {span["text"]: span["probability"] for span in spans if span["text"]}
            for id, spans in answers.items()
        }

    def aggregate(self, items: Sequence[Item], answers: AnswersById, name: str) -> Result:
        """aupr, prec_at_80_recall and prec_at_90_recall, 0 to 100 (`curve_figures`), and aupr of
        each category as a subset; DataError if the ids differ from gold."""
        ids = [item.id for item in items]
        base.same_ids(ids, answers, name, "question")
        counts = [count(item.id, item.right["answers"], answers[item.id]) for item in items]
        hits, wrong = np.array(counts, np.float64).transpose(1, 0, 2)  # [questions, 101] each
        clauses = np.array([len(item.right["answers"]) for item in items], np.float64)

        def figures(weights: np.ndarray) -> dict[str, np.ndarray]:
            weights = weights.astype(np.float64)
            return curve_figures(weights @ hits, weights @ wrong, weights @ clauses)

        metrics = defined(figures, np.ones((1, len(items))))
        result = self.result(items, metrics, figures=figures)
        for each in sorted({_category(id) for id in ids}):
            # As in the published script: of all ids with the category anywhere in them.
            chosen = np.array([[each in id for id in ids]])
            result.subsets[each] = {"aupr": float(figures(chosen)["aupr"][0])}
        return result

    def constants(self, items: Sequence[Item]) -> dict[str, AnswersById]:
        """Trivial prediction: the most frequent clause, with probability 1."""
        usual = baseline.commonest(item.right["answers"] for item in items)
        sure = {usual: 1.0} if usual else {}
        return {baseline.quoted(usual): {item.id: sure for item in items}}
