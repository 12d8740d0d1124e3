"""TyDi QA, primary tasks (Clark et al. 2020, arXiv:2003.05002): a question a line, in 11 languages.

All offsets of the files are bytes of the UTF-8 of ``document_plaintext``, ends exclusive.
Predictions are lines of {example_id, language, passage_answer_index, passage_answer_score,
minimal_answer: {start_byte_offset, end_byte_offset}, minimal_answer_score, yes_no_answer}; the
figures are F1 of passages and of minimal answers, in the mean over languages. As in the published
script the offsets of gold and predictions are compared without a look at the text.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ldt.benchmarks import base, passage_qa
from ldt.benchmarks.base import Answers, Benchmark
from ldt.benchmarks.passage_qa import LEFT_OUT, NOTE, Curve, PassageAnswer, divide, score_parts
from ldt.errors import DataError, did_you_mean, listed, plural, shown
from ldt.io.records import Example
from ldt.io.sources import each
from ldt.io.strict_json import take
from ldt.io.text_files import Utf8
from ldt.metrics.result import Item, compare, count_words

LANGUAGES = (
    "arabic bengali english finnish indonesian japanese korean russian swahili telugu thai"
).split()
TASKS = ("passage", "minimal")
_KEYS = ("document_plaintext", "passage_answer_candidates", "language")
_START, _END = "plaintext_start_byte", "plaintext_end_byte"


def read(source: str, data) -> Iterator[Example]:
    """Yield an example for each question, one in memory at a time.

    Its fields: question; context, the whole text; language; title, where there is one;
    ``candidates``, [{start, end}] in characters of the context; ``annotations``, where the file has
    them, each {passage: number of a candidate or None, spans: [[start, end]] of one or none, in
    characters, yes_no: "yes", "no" or None}.

    Args:
        source: a path, or "-" for standard input; compressed or not.
        data: its ``encoding``.

    Raises:
        UserError: there is no such file.
        DataError: it is damaged, has another layout, or offsets that are none.
    """
    for example in passage_qa.lines(source, *_KEYS, "question_text", encoding=data.encoding):
        fields, where = example.fields, example.where
        text, utf8, candidates = _document(fields, where)

        def span(pair: tuple[int, int], utf8: Utf8 = utf8) -> list[int]:
            return [utf8.character(pair[0]), utf8.character(pair[1])]

        columns: dict[str, Any] = {
            "question": take(fields, "question_text", str, where),
            "context": text,
            "language": language(fields, where),
            "candidates": [dict(zip(("start", "end"), span(c), strict=True)) for c in candidates],
        }
        if isinstance(fields.get("document_title"), str):
            columns["title"] = fields["document_title"]
        if "annotations" in fields:
            columns["annotations"] = [
                {"passage": passage, "spans": [span(s) for s in spans], "yes_no": yes_no}
                for passage, spans, yes_no in _annotations(fields, utf8, len(candidates), where)
            ]
        yield Example(columns, example.id, where)


def offsets(
    fields: Mapping[str, Any], passage: int | None, span: tuple[int, int] | None
) -> dict[str, Any]:
    """Bytes and language of an answer, for `published`.

    Args:
        fields: of an example of `read`.
        passage: number of a candidate; None is no passage.
        span: start and end in characters of the context; None is no answer.
    """
    start, end = (-1, -1) if span is None else map(Utf8(fields["context"]).byte, span)
    places = {"start_byte_offset": start, "end_byte_offset": end}
    return {
        "language": fields["language"],
        "passage_answer_index": -1 if passage is None else passage,
        "minimal_answer": places,
    }


def language(fields: Mapping[str, Any], where: str) -> str:
    """The language of a question or a prediction.

    Raises:
        DataError: there is none, or none of `LANGUAGES`.
    """
    name = fields.get("language")
    if name not in LANGUAGES:
        near = did_you_mean(name, LANGUAGES) if isinstance(name, str) else ""
        raise DataError(
            f"{where}: language is {shown(name)}, expected one of {', '.join(LANGUAGES)}{near}"
        )
    return name


def _document(fields: dict, where: str) -> tuple[str, Utf8, list[tuple[int, int]]]:
    """The text, its bytes, and the candidates in bytes."""
    text = take(fields, "document_plaintext", str, where)
    utf8 = Utf8(text)
    candidates = []
    for number, item in enumerate(take(fields, "passage_answer_candidates", list, where)):
        candidates.append(_span(item, utf8, f"{where}: candidate {number:,}"))
        if candidates[-1][0] < 0:
            raise DataError(f"{where}: candidate {number:,}: {_START} is -1, expected a byte")
    return text, utf8, candidates


def _annotations(
    fields: dict, utf8: Utf8 | None, candidates: int, where: str
) -> Iterator[tuple[int | None, list[tuple[int, int]], str | None]]:
    """Yield candidate, spans in bytes (one or none) and yes or no of each annotation."""
    for number, annotation in enumerate(take(fields, "annotations", list, where)):
        here = f"{where}: annotation {number:,}"
        passage = take(annotation, "passage_answer", dict, here)
        span = _span(take(annotation, "minimal_answer", dict, here), utf8, here)
        yield (
            passage_qa.index(passage, candidates, here),
            [span] if span[0] >= 0 else [],
            passage_qa.yes_no(annotation, here),
        )


def _span(item: Any, utf8: Utf8 | None, where: str) -> tuple[int, int]:
    """A span in bytes; within the text and between its characters, if that is asked for."""
    span = passage_qa.pair(item, _START, _END, utf8.size if utf8 else None, where)
    for name, byte in zip((_START, _END), span, strict=True):
        if utf8 and byte >= 0 and not utf8.parts(byte):
            raise DataError(f"{where}: {name} {byte:,} is inside of a character of the UTF-8")
    return span


def published(answers: Iterable[dict]) -> Iterator[dict[str, Any]]:
    """Yield the lines of the published layout; yes or no takes the place of a span.

    Args:
        answers: ``id``, ``passage_score``, ``span_score``, ``yes_no`` ("yes", "no" or None) and
            ``offsets``, which `offsets` makes.
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
class TydiQAScorer(Benchmark):
    """TyDi QA: passages and minimal answers, each language by itself.

    Languages without any prediction have no part in the means, nor has English.
    """

    title = "tydiqa"
    units = "pages"
    shown = ("avg_passage_f1", "avg_minimal_f1")
    no_place = "the annotations of a question stand in several places"
    needs = ("passage_score", "span_score", "yes_no", "offsets")
    advice = "answers of passage_qa have it for documents that ldt predict data.format=tydiqa reads"

    def gold(self, files):
        items = []
        for example in passage_qa.gold_lines(files, *_KEYS, encoding=self.data.encoding):
            fields, where = example.fields, example.where
            candidates = take(fields, "passage_answer_candidates", list, where)
            annotations = tuple(
                _NULL if each == _NULL else each
                for each in _annotations(fields, None, len(candidates), where)
            )
            right = language(fields, where), annotations
            words = count_words(take(fields, "document_plaintext", str, where))
            unit = passage_qa.unit(example)
            items.append(Item(str(example.id), unit, {}, words, right=right))
        return items

    def load(self, files):
        keys = "passage_answer_index", "minimal_answer"
        return (example for file in each(files) for example in passage_qa.lines(file, *keys))

    def published(self, lines):
        for number, fields in enumerate(published(lines), 1):
            yield Example(fields, fields["example_id"], f"answer {number:,}")

    def parse(self, value, name):
        """Predictions by language and id.

        Raises:
            DataError: another layout, an id that comes twice, or what the published script refuses
                or reads wrong: a line without minimal_answer or a score, yes or no beside a span,
                half a span, one of no bytes.
        """
        by_key: dict[tuple[str, str], PassageAnswer] = {}
        for example in value:
            key = language(example.fields, example.where), str(example.id)
            if key in by_key:
                raise DataError(f"{example.where}: the id {shown(key[1])} stands twice; each once")
            by_key[key] = _prediction(example.fields, example.where)
        if not by_key:
            raise DataError(f"{name}: no predictions in it")
        return by_key

    def aggregate(self, items, answers, name):
        keys = [(item.right[0], item.id) for item in items]
        missing, extra = compare(keys, answers)
        predicted = {language for language, _ in answers}
        parts = {name: _Part(name, items, answers) for name in LANGUAGES if name in predicted}

        def figures(counts: np.ndarray) -> dict[str, np.ndarray]:
            by_part = {language: part.figures(counts) for language, part in parts.items()}
            others = {
                f"{language} {key}": value
                for language, values in by_part.items()
                for key, value in values.items()
                if not key.endswith("-threshold")
            }
            return _averages(parts, by_part, counts) | others

        one = np.ones((1, len(items)), int)
        by_part = {language: part.figures(one) for language, part in parts.items()}
        averages = _averages(parts, by_part, one)
        metrics: dict[str, float | int] = {key: float(value[0]) for key, value in averages.items()}
        metrics |= {"total": len(items)}
        ids = [[id for _, id in part] for part in (missing, extra)]
        result = self.result(items, metrics, *ids, figures=figures)
        result.subsets = {
            language: {key: float(value[0]) for key, value in values.items()}
            for language, values in by_part.items()
        }
        result.notes = dict.fromkeys(self.shown, f"each language: {NOTE}")
        result.warnings = _warnings(keys, predicted, missing, name)
        return result

    def constants(self, items):
        """The first passage as the answer to everything."""
        first = {(item.right[0], item.id): PassageAnswer(0) for item in items}
        return {"always the first passage": first}

    def compared(self, name):
        return name.startswith("avg_passage")


_NULL: passage_qa.Annotation = (None, [], None)  # one for all that are so


def _prediction(item: dict, where: str) -> PassageAnswer:
    passage = take(item, "passage_answer_index", int, where)
    if isinstance(passage, bool):
        raise DataError(f"{where}: passage_answer_index is {shown(passage)}, expected a number")
    span = passage_qa.pair(
        item["minimal_answer"], "start_byte_offset", "end_byte_offset", None, where
    )
    yes_no = passage_qa.yes_no(item, where)
    if yes_no and span[0] >= 0:
        raise DataError(f"{where}: {yes_no} beside a minimal answer; one of the two")
    passage_score, span_score = (base.number(item, f"{task}_answer_score", where) for task in TASKS)
    return PassageAnswer(
        passage if passage >= 0 else None,
        passage_score,
        [span] if span[0] >= 0 else [],
        span_score,
        yes_no,
    )


class _Part:
    """The questions of one language, and their scores."""

    def __init__(self, language: str, items: Sequence[Item], answers: Answers):
        self._numbers = [n for n, item in enumerate(items) if item.right[0] == language]
        scored = [
            score_parts(item.right[1], answers.get((language, item.id)), passage_qa.overlap)
            for item in (items[n] for n in self._numbers)
        ]
        parts = zip(*scored, strict=True) if scored else ((), ())
        self._curves = {task: Curve(each) for task, each in zip(TASKS, parts, strict=True)}

    def counted(self, counts: np.ndarray) -> np.ndarray:
        """True where a question of the language counts, or gold has none at all: [resamples]."""
        selected = counts[:, self._numbers].sum(1)
        return (selected > 0) | (len(self._numbers) == 0)

    def figures(self, counts: np.ndarray) -> dict[str, np.ndarray]:
        """Those of the language; see `Curve.best`."""
        selected = counts[:, self._numbers]
        figures: dict[str, np.ndarray] = {}
        for task, curve in self._curves.items():
            figures |= curve.best(selected, f"{task}-")
        return figures


def _averages(
    parts: Mapping[str, _Part], by_part: Mapping[str, Mapping[str, np.ndarray]], counts: np.ndarray
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
            values = (weights[language] * by_part[language][key] for language in others)
            means[f"avg_{task}_{name}"] = divide(sum(values, np.zeros(len(counts))), number)
    return means


def _warnings(
    keys: Sequence[tuple], predicted: set[str], missing: Sequence[tuple], name: str
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
