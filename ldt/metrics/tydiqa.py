"""TyDi QA, primary tasks: F1 of passages and of minimal answers, in the mean over languages.

Predictions are lines of {example_id, language, passage_answer_index, passage_answer_score,
minimal_answer: {start_byte_offset, end_byte_offset}, minimal_answer_score, yes_no_answer}.

Source: Clark et al. 2020 (arXiv:2003.05002), the rules of their evaluation script.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ldt.data.formats import passage_qa
from ldt.data.formats import tydiqa as layout
from ldt.data.formats.tydiqa import LANGUAGES
from ldt.data.options import DEFAULTS, DataSection
from ldt.errors import DataError, listed, plural, shown
from ldt.io.sources import Names, each
from ldt.io.strict_json import JsonFile, take
from ldt.metrics import baseline, prediction_files, word_overlap
from ldt.metrics.baseline import Baselines
from ldt.metrics.result import Item, Result, compare, count_words
from ldt.metrics.thresholds import NEEDED, NOTE, Curve, Scored, divide

SHOWN = ("avg_passage_f1", "avg_minimal_f1")
LEFT_OUT = "english"  # of the means over languages
TASKS = ("passage", "minimal")
Annotation = tuple[int | None, list[tuple[int, int]], str | None]  # candidate, span, yes or no
Key = tuple[str, str]  # language and id


@dataclass(slots=True)
class Question:
    """A gold question in short."""

    id: str
    language: str
    unit: str | int
    words: int
    annotations: tuple[Annotation, ...]


class Prediction(NamedTuple):
    """The number of a candidate, a span in bytes or yes or no, and how sure each of the two is."""

    passage: int | None = None
    passage_score: float = 0.0
    span: tuple[int, int] | None = None
    span_score: float = 0.0
    yes_no: str | None = None


def score_passage(annotations: Sequence[Annotation], answer: Prediction | None) -> Scored:
    """A passage is right if it is that of any annotation, where two have one.

    No prediction at all is a wrong answer of score 0 where gold has none, and else silence.
    """
    gold = [passage for passage, _, _ in annotations if passage is not None]
    has_gold = len(gold) >= NEEDED
    if answer is None:
        return Scored(has_gold, not has_gold, 0.0, 0.0)
    right = has_gold and answer.passage in gold
    return Scored(has_gold, answer.passage is not None, float(right), answer.passage_score)


def score_minimal(annotations: Sequence[Annotation], answer: Prediction | None) -> Scored:
    """Yes or no is right if any annotation says it; a span has the best F1 over those of gold.

    A question has a minimal answer where two annotations have a span, yes or no; no prediction at
    all counts as in `score_passage`.
    """
    has_gold = sum(bool(spans or yes_no) for _, spans, yes_no in annotations) >= NEEDED
    if answer is None:
        return Scored(has_gold, not has_gold, 0.0, 0.0)
    answered = bool(answer.span or answer.yes_no)
    right = 0.0
    if has_gold and answer.yes_no:
        right = float(any(yes_no == answer.yes_no for _, _, yes_no in annotations))
    elif has_gold and answer.span:
        golds = [span for _, spans, _ in annotations for span in spans]
        right = max((overlap(answer.span, gold) for gold in golds), default=0.0)
    return Scored(has_gold, answered, right, answer.span_score)


def overlap(one: tuple[int, int], gold: tuple[int, int]) -> float:
    """F1 of the bytes that two spans share."""
    both = max(0, min(one[1], gold[1]) - max(one[0], gold[0]))
    return word_overlap.of(both / (one[1] - one[0]), both / (gold[1] - gold[0])).f1


def published(answers: Iterable[dict]) -> Iterator[dict[str, Any]]:
    """Yield the lines of the published layout; yes or no takes the place of a span.

    Args:
        answers: ``id``, ``passage_score``, ``span_score``, ``yes_no`` ("yes", "no" or None) and
            ``offsets``, which `ldt.data.formats.tydiqa.offsets` makes.
    """
    for answer in answers:
        offsets = answer["offsets"]
        nothing = {"start_byte_offset": -1, "end_byte_offset": -1}
        yield {
            "example_id": answer["id"],
            "language": offsets["language"],
            "passage_answer_index": offsets["passage_answer_index"],
            "passage_answer_score": answer["passage_score"],
            "minimal_answer": nothing if answer["yes_no"] else offsets["minimal_answer"],
            "minimal_answer_score": answer["span_score"],
            "yes_no_answer": (answer["yes_no"] or "none").upper(),
        }


def read_gold(source: Names, format: str, data: DataSection = DEFAULTS) -> JsonFile:
    """The questions of all files, of each no more than it is scored by."""
    questions = []
    for example in layout.gold(source, data.encoding):
        fields = example.fields
        words = count_words(fields["context"])
        annotations = tuple(_NULL if a == _NULL else a for a in fields["annotations"])
        values = (str(example.id), fields["language"], fields["unit"], words, annotations)
        questions.append(Question(*values))
    return JsonFile(passage_qa.name_of(source), questions)


_NULL: Annotation = (None, [], None)  # one for all that are so


def read_predictions(source: Names) -> JsonFile:
    """Predictions by language and id.

    Raises:
        UserError: there is no such file.
        DataError: another layout, an id that comes twice, or what the published script refuses or
            reads wrong: a line without minimal_answer or a score, yes or no beside a span, half a
            span, one of no bytes.
    """
    by_key: dict[Key, Prediction] = {}
    for file in each(source):
        keys = "passage_answer_index", "minimal_answer"
        for example in passage_qa.lines(file, *keys, swapped=passage_qa.SWAPPED):
            key = layout.language(example.fields, example.where), str(example.id)
            if key in by_key:
                raise DataError(f"{example.where}: the id {shown(key[1])} stands twice; each once")
            by_key[key] = _prediction(example.fields, example.where)
    if not by_key:
        raise DataError(f"{passage_qa.name_of(source)}: no predictions in it")
    return JsonFile(passage_qa.name_of(source), by_key)


def _prediction(item: dict, where: str) -> Prediction:
    passage = take(item, "passage_answer_index", int, where)
    if isinstance(passage, bool):
        raise DataError(f"{where}: passage_answer_index is {shown(passage)}, expected a number")
    span = passage_qa.pair(
        item["minimal_answer"], "start_byte_offset", "end_byte_offset", None, where
    )
    yes_no = passage_qa.yes_no(item, where)
    if yes_no and span[0] >= 0:
        raise DataError(f"{where}: {yes_no} beside a minimal answer; one of the two")
    passage_score, span_score = (
        prediction_files.number(item, f"{task}_answer_score", where) for task in TASKS
    )
    return Prediction(
        passage if passage >= 0 else None,
        passage_score,
        span if span[0] >= 0 else None,
        span_score,
        yes_no,
    )


def evaluate(gold: JsonFile, predictions: JsonFile) -> Result:
    """Score passages and minimal answers by the published rules, each language by itself.

    Languages without any prediction have no part in the means, nor has English.
    """
    questions: list[Question] = gold.value
    answers: Mapping[Key, Prediction] = predictions.value
    keys = [(question.language, question.id) for question in questions]
    missing, extra = compare(keys, answers)
    predicted = {language for language, _ in answers}
    parts = {
        language: _Part(language, questions, answers)
        for language in LANGUAGES
        if language in predicted
    }
    items = [Item(question.id, question.unit, {}, question.words) for question in questions]

    def figures(counts: np.ndarray) -> dict[str, np.ndarray]:
        by_part = {name: part.figures(counts) for name, part in parts.items()}
        others = {
            f"{language} {name}": value
            for language, values in by_part.items()
            for name, value in values.items()
            if not name.endswith("-threshold")
        }
        return _averages(parts, by_part, counts) | others

    once = np.ones((1, len(items)), int)
    by_part = {name: part.figures(once) for name, part in parts.items()}
    averages = _averages(parts, by_part, once)
    metrics: dict[str, float | int] = {name: float(value[0]) for name, value in averages.items()}
    metrics |= {"total": len(items)}
    ids = [[id for _, id in part] for part in (missing, extra)]
    result = Result("tydiqa", items, metrics, "pages", missing=ids[0], extra=ids[1])
    result.figures, result.shown = figures, SHOWN
    result.subsets = {
        language: {name: float(value[0]) for name, value in values.items()}
        for language, values in by_part.items()
    }
    result.notes = dict.fromkeys(SHOWN, f"each language: {NOTE}")
    result.no_place = "the annotations of a question stand in several places"
    result.warnings = _warnings(keys, predicted, missing, predictions.name)
    return result


class _Part:
    """The questions of one language, and their scores."""

    def __init__(
        self, language: str, questions: Sequence[Question], answers: Mapping[Key, Prediction]
    ):
        self._numbers = [n for n, each in enumerate(questions) if each.language == language]
        pairs = [
            (questions[n].annotations, answers.get((language, questions[n].id)))
            for n in self._numbers
        ]
        self._curves = {
            "passage": Curve([score_passage(*pair) for pair in pairs]),
            "minimal": Curve([score_minimal(*pair) for pair in pairs]),
        }

    def counted(self, counts: np.ndarray) -> np.ndarray:
        """True where a question of the language counts, or gold has none at all: [resamples]."""
        selected = counts[:, self._numbers].sum(1)
        return (selected > 0) | (len(self._numbers) == 0)

    def figures(self, counts: np.ndarray) -> dict[str, np.ndarray]:
        """Those of the language; see `Curve.best`."""
        own = counts[:, self._numbers]
        found: dict[str, np.ndarray] = {}
        for task, curve in self._curves.items():
            found |= curve.best(own, f"{task}-")
        return found


def _averages(
    parts: Mapping[str, _Part], found: Mapping[str, Mapping[str, np.ndarray]], counts: np.ndarray
) -> dict[str, np.ndarray]:
    """Means over the languages without English; 0 where there is no other.

    Of resamples and groups a language has no part in the mean where none of its questions counts.
    """
    others = [language for language in parts if language != LEFT_OUT]
    weights = {language: parts[language].counted(counts) for language in others}
    number = sum(weights.values(), np.zeros(len(counts)))
    means = {}
    for task in TASKS:
        for name in ("f1", "precision", "recall"):
            key = f"{task}-best-threshold-{name}"
            values = (weights[language] * found[language][key] for language in others)
            means[f"avg_{task}_{name}"] = divide(sum(values, np.zeros(len(counts))), number)
    return means


def _warnings(
    keys: Sequence[Key], predicted: set[str], missing: Sequence[Key], name: str
) -> list[str]:
    """Where the published rules surprise."""
    there = {language for language, _ in keys}
    lines = []
    if predicted == {LEFT_OUT}:
        lines.append(f"{name}: predictions in {LEFT_OUT} alone, left out of the means, which are 0")
    if silent := sorted(there - predicted):
        lines.append(f"{name}: no prediction in {listed(silent, show=str)}, left out of the means")
    if strange := sorted(predicted - there):
        lines.append(f"{name}: no gold in {listed(strange, show=str)}, which counts 0 in the means")
    if odd := sum(language in predicted for language, _ in missing):
        lines.append(
            f"{name}: {plural(odd, 'question')} without a prediction; as in the published script "
            "one that has no answer counts as wrongly answered, with score 0"
        )
    return lines


def baselines(gold: JsonFile, evaluate: Callable) -> Baselines:
    """Scores of the first passage as the answer to everything."""
    first = {(each.language, each.id): Prediction(0) for each in gold.value}
    figures = baseline.of_files(evaluate, gold, {"always the first passage": first})
    return {name: each for name, each in figures.items() if name.startswith("avg_passage")}
