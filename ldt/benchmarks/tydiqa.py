"""TyDi QA, primary tasks (Clark et al. 2020, arXiv:2003.05002): a question a line, in 11 languages.

All offsets of the files are bytes of the UTF-8 of ``document_plaintext``, ends exclusive.
Predictions are lines of {example_id, language, passage_answer_index, passage_answer_score,
minimal_answer: {start_byte_offset, end_byte_offset}, minimal_answer_score, yes_no_answer}; the
figures are F1 of passages and of minimal answers, in the mean over languages. As in the published
script the offsets of gold and predictions are compared without a look at the text.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from ldt.benchmarks import base, passage_qa
from ldt.benchmarks.base import AnswersById, Number, Shape, Whole
from ldt.benchmarks.passage_qa import (
    LEFT_OUT,
    NOTE,
    Curve,
    Pair,
    PassageAnswer,
    YesNo,
    divide,
    score_parts,
)
from ldt.data.options import DataSection
from ldt.data.sentences import Units
from ldt.errors import DataError, listed, plural
from ldt.io import records
from ldt.io.records import Example
from ldt.metrics.result import Item, Result, compare, count_words

LANGUAGES = (
    "arabic bengali english finnish indonesian japanese korean russian swahili telugu thai"
).split()
Language = Annotated[str, Field(pattern=f"^({'|'.join(LANGUAGES)})$")]
TASKS = ("passage", "minimal")

_ID: Any = {"example_id": (str, Whole), "language": Language}
_START = "plaintext_start_byte"
_SPAN: Any = {f"{_START}?": Whole, "plaintext_end_byte?": Whole}
_ANNOTATION: Any = {"passage_answer": {"candidate_index": Whole}, "minimal_answer": _SPAN}
_LINE = Shape(
    {
        **_ID,
        **{"question_text?": str, "document_plaintext": str, "passage_answer_candidates": [_SPAN]},
        **{"document_title?": Any, "document_url?": Any},
        "annotations?": [_ANNOTATION | {"yes_no_answer?": YesNo}],
    }
)
_PREDICTIONS = Shape(
    [
        {
            **_ID,
            **{"passage_answer_index": Whole, "passage_answer_score": Number},
            "minimal_answer": {"start_byte_offset": Whole, "end_byte_offset": Whole},
            **{"minimal_answer_score": Number, "yes_no_answer?": YesNo},
        }
    ]
)


def read(source: str, data: DataSection) -> Iterator[Example]:
    """Yield an example for each question of a file (path, or "-" for standard input), in the
    encoding of ``data``, one in memory at a time.

    Its fields: question; context, the whole text; language; title, where there is one;
    ``candidates``, [{start, end}] in characters of the context; ``annotations``, where the file has
    them, each {passage: number of a candidate or None, spans: [[start, end]] of one or none, in
    characters, yes_no: "yes", "no" or None}.
    """
    for example in passage_qa.lines(source, _LINE, data.encoding):
        fields, where = example.fields, example.where
        utf8 = Units(fields["document_plaintext"])

        def span(pair: Pair, utf8: Units = utf8) -> list[int | None]:
            return [utf8.character(pair[0]), utf8.character(pair[1])]

        candidates = []
        for number, item in enumerate(fields["passage_answer_candidates"]):
            here = f"{where}: candidate {number:,}"
            place = passage_qa.pair(item, _START, utf8, here)
            if place[0] < 0:
                raise DataError(f"{here}: {_START} is -1, expected a byte")
            candidates.append(dict(zip(("start", "end"), span(place), strict=True)))
        columns: dict[str, Any] = {
            "context": fields["document_plaintext"],
            "language": fields["language"],
            "candidates": candidates,
        }
        for name, key in (("question", "question_text"), ("title", "document_title")):
            if isinstance(fields.get(key), str):
                columns[name] = fields[key]
        if "annotations" in fields:
            columns["annotations"] = [
                {"passage": passage, "spans": [span(s) for s in spans], "yes_no": yes_no}
                for passage, spans, yes_no in _annotations(fields, utf8, where)
            ]
        yield Example(columns, example.id, where)


def offsets(
    fields: Mapping[str, Any], passage: int | None, span: tuple[int, int] | None
) -> dict[str, Any]:
    """Return {language, passage_answer_index, minimal_answer: {start_byte_offset, end_byte_offset}}
    of an answer, for `published`, in bytes of the context's UTF-8; -1 is none.

    Args:
        fields: fields of an example of `read`.
        passage: number of a candidate; None is no passage.
        span: start and end in characters of the context; None is no answer.
    """
    start, end = (-1, -1) if span is None else map(Units(fields["context"]).unit, span)
    places = {"start_byte_offset": start, "end_byte_offset": end}
    return {
        "language": fields["language"],
        "passage_answer_index": -1 if passage is None else passage,
        "minimal_answer": places,
    }


def _annotations(
    fields: dict[str, Any], utf8: Units | None, where: str
) -> Iterator[tuple[int | None, list[Pair], str | None]]:
    """Yield candidate, spans in bytes (one or none) and yes or no of each annotation."""
    for number, annotation in enumerate(fields["annotations"]):
        here = f"{where}: annotation {number:,}"
        candidates = len(fields["passage_answer_candidates"])
        span = passage_qa.pair(annotation["minimal_answer"], _START, utf8, here)
        yield (
            passage_qa.index(annotation["passage_answer"]["candidate_index"], candidates, here),
            [span] if span[0] >= 0 else [],
            annotation.get("yes_no_answer"),
        )


def published(answers: Iterable[dict]) -> Iterator[dict[str, Any]]:
    """Convert answers of ldt predict to dicts, lines of the published layout; yes or no takes the
    place of a span.

    Args:
        answers: each with ``id``, ``passage_score``, ``span_score``, ``yes_no`` ("yes", "no" or
            None) and ``offsets``, which `offsets` makes.
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


@dataclass
class TydiQAScorer(passage_qa.PageBenchmark):
    """TyDi QA: passages and minimal answers, each language by itself.

    Languages without any prediction have no part in the means, nor has English.
    """

    title = "tydiqa"
    shown = ("avg_passage_f1", "avg_minimal_f1")
    advice = "answers of passage_qa have it for documents that ldt predict data.format=tydiqa reads"
    line = _LINE
    published = staticmethod(published)

    def item(self, example: Example) -> Item:
        """Make the `Item` of a question: ``right`` is (language, annotations as (number of a
        passage or None, spans in bytes, yes or no)); the bootstrap unit is the page."""
        fields = example.fields
        annotations = tuple(
            _NULL if each == _NULL else each for each in _annotations(fields, None, example.where)
        )
        words, right = count_words(fields["document_plaintext"]), (fields["language"], annotations)
        return Item(str(example.id), passage_qa.page_key(example), {}, words, right=right)

    def load(self, files: Sequence[str]) -> list[dict[str, Any]]:
        """Read the lines of all files of predictions as dicts."""
        return [line.fields for file in files for line in records.read(file, format="jsonl")]

    def parse(self, value: Any, name: str) -> AnswersById:
        """Convert lines of the published layout to {(language, id): `PassageAnswer`}, with the
        number of a passage and spans in bytes; DataError if there are none."""
        lines = _PREDICTIONS([*value], name)
        if not lines:
            raise DataError(f"{name}: no predictions in it")
        keys = [(line["language"], str(line["example_id"])) for line in lines]
        base.once(keys, name)
        where = [f"{name}: {id}" for _, id in keys]
        return dict(zip(keys, map(_prediction, lines, where), strict=True))

    def aggregate(self, items: Sequence[Item], answers: AnswersById, name: str) -> Result:
        """F1, precision and recall of passages and of minimal answers, 0 to 100, in the mean over
        languages, each language at its own best threshold and as a subset; and ``total``, the
        number of questions."""
        keys = [(item.right[0], item.id) for item in items]
        missing, extra = compare(keys, answers)
        predicted = {language for language, _ in answers}
        parts = {name: _Part(name, items, answers) for name in LANGUAGES if name in predicted}

        def figures(counts: np.ndarray) -> dict[str, np.ndarray]:
            by_part = {language: part.figures(counts) for language, part in parts.items()}
            return _averages(parts, by_part, counts) | {
                f"{language} {key}": value
                for language, values in by_part.items()
                for key, value in values.items()
                if not key.endswith("-threshold")
            }

        one = np.ones((1, len(items)), int)
        by_part = {language: part.figures(one) for language, part in parts.items()}
        averages = _averages(parts, by_part, one)
        metrics = {key: float(value[0]) for key, value in averages.items()} | {"total": len(items)}
        ids = [[id for _, id in part] for part in (missing, extra)]
        result = self.result(items, metrics, *ids, figures=figures)
        result.subsets = {
            language: {key: float(value[0]) for key, value in values.items()}
            for language, values in by_part.items()
        }
        result.notes = dict.fromkeys(self.shown, f"each language: {NOTE}")
        result.warnings = _warnings(keys, predicted, missing, name)
        return result

    def constants(self, items: Sequence[Item]) -> dict[str, AnswersById]:
        """Trivial prediction: the first passage as the answer to every question."""
        first = {(item.right[0], item.id): PassageAnswer(0) for item in items}
        return {"always the first passage": first}

    def compared(self, name: str) -> bool:
        """True for metrics whose name begins with "avg_passage"."""
        return name.startswith("avg_passage")


_NULL: passage_qa.Annotation = (None, [], None)  # one for all that are so


def _prediction(item: dict[str, Any], where: str) -> PassageAnswer:
    span = passage_qa.pair(item["minimal_answer"], "start_byte_offset", None, where)
    passage, yes_no = item["passage_answer_index"], item.get("yes_no_answer")
    if yes_no and span[0] >= 0:
        raise DataError(f"{where}: {yes_no} beside a minimal answer; one of the two")
    return PassageAnswer(
        passage if passage >= 0 else None,
        item["passage_answer_score"],
        [span] if span[0] >= 0 else [],
        item["minimal_answer_score"],
        yes_no,
    )


class _Part:
    """The questions of one language, and their scores."""

    def __init__(self, language: str, items: Sequence[Item], answers: AnswersById):
        self._numbers = [n for n, item in enumerate(items) if item.right[0] == language]
        mine = [items[number] for number in self._numbers]
        scored = [
            score_parts(item.right[1], answers.get((language, item.id)), passage_qa.overlap)
            for item in mine
        ]
        parts = zip(*scored, strict=True) if scored else ((), ())
        self._curves = {task: Curve(each) for task, each in zip(TASKS, parts, strict=True)}

    def counted(self, counts: np.ndarray) -> np.ndarray:
        """True where a question of the language counts, or gold has none at all: [resamples]."""
        return (counts[:, self._numbers].sum(1) > 0) | (not self._numbers)

    def figures(self, counts: np.ndarray) -> dict[str, np.ndarray]:
        curves, selected = self._curves.items(), counts[:, self._numbers]
        parts = [curve.best(selected, f"{task}-") for task, curve in curves]
        return parts[0] | parts[1]


def _averages(
    parts: Mapping[str, _Part], by_part: Mapping[str, Mapping[str, np.ndarray]], counts: np.ndarray
) -> dict[str, np.ndarray]:
    """Means over the languages that count without English; 0 where there is no other."""
    others = [language for language in parts if language != LEFT_OUT]
    weights = {language: parts[language].counted(counts) for language in others}
    number = sum(weights.values(), np.zeros(len(counts)))
    means = {}
    for task in TASKS:
        for name in ("f1", "precision", "recall"):
            key = f"{task}-best-threshold-{name}"
            values = (weights[language] * by_part[language][key] for language in others)
            means[f"avg_{task}_{name}"] = divide(sum(values, np.zeros(len(counts))), number)
    return means


def _warnings(
    keys: Sequence[tuple], predicted: set[str], missing: Sequence[tuple], name: str
) -> list[str]:
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
