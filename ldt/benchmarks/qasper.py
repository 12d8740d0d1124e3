"""QASPER 0.1 to 0.3 (Dasigi et al. 2021, arXiv:2105.03011): papers with questions on them.

An object by id of the paper; or a list of papers with ``id``, ``full_text`` and ``qas`` as parallel
lists, as the library `datasets` writes them. Predictions are lines of {"question_id",
"predicted_answer", "predicted_evidence"}; the figures are F1 of answers and of evidence, by the
rules of the published script.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ldt.benchmarks import base
from ldt.benchmarks.base import AnswersById, Benchmark, Id, Shape, Truth
from ldt.data.options import DataSection
from ldt.errors import DataError
from ldt.io import records, strict_json
from ldt.io.records import Example
from ldt.io.sources import only
from ldt.metrics import word_overlap
from ldt.metrics.result import Item, Result, count_words, defined
from ldt.metrics.word_overlap import normalise

log = logging.getLogger("ldt")

UNANSWERABLE, YES, NO = "Unanswerable", "Yes", "No"  # as answers say it
TYPES = ("extractive", "abstractive", "boolean", "none")  # of answers
FLOAT = "FLOAT SELECTED"  # what evidence that is a table or figure has before its caption
SHOWN = ("Answer F1", "Evidence F1")
BY_TYPE = "Answer F1 by type"

_words = lru_cache(2)(count_words)  # questions on one paper come one after the other


class Reference(NamedTuple):
    """The answer of an annotator; ``type`` is a name in `TYPES`, ``spans`` are what is joined in an
    extractive one."""

    answer: str
    type: str
    evidence: list[str]
    spans: Sequence[str] = ()


_ANSWER: Any = {"evidence": [str], "extractive_spans": [str], "free_form_answer": str}
_ANSWER |= {"unanswerable": Truth, "yes_no?": (Truth, None)}
_QUESTION: Any = {"question_id": Id, "question": str, "answers?": [{"answer": _ANSWER}]}
_SECTION: Any = {"section_name?": (str, None), "paragraphs": [str]}
_PAPER: Any = {"title?": (str, None), "abstract?": (str, None), "full_text": [_SECTION]}
_PAPER |= {"qas": [_QUESTION]}
_FILE = Shape({str: _PAPER})
_NAMED = Shape([{"id": Id, **dict.fromkeys(("title?", "abstract?", "full_text", "qas"), Any)}])
_PREDICTIONS = Shape([{"question_id": Id, "predicted_answer": str, "predicted_evidence": [str]}])


def read(source: str | strict_json.JsonFile, data: DataSection) -> Iterator[Example]:
    """Yield an example for each question of a file (a path, "-" for standard input, or its loaded
    JSON, an object by paper or a list of papers), in the encoding of ``data``: question, title,
    abstract, paragraphs, sections, answers.

    ``sections`` has the name of each paragraph's section, None where it has none. ``answers`` has a
    {answer, type, evidence, spans, paragraphs} of each annotator (`reference`): ``paragraphs`` are
    numbers of those that are equal to a text of the evidence; a test set may have no answers. Text
    evidence that equals no paragraph is counted and told in a warning.
    """
    file = strict_json.read(source, data.encoding)
    papers, strange = file.value, 0
    if isinstance(papers, list):
        papers = {paper["id"]: _by_row(paper) for paper in _NAMED(papers, file.name)}
    for id, paper in _FILE(papers, file.name).items():
        fields: dict[str, Any] = {key: paper.get(key) or "" for key in ("title", "abstract")}
        sections = paper["full_text"]
        paragraphs = [text for section in sections for text in section["paragraphs"]]
        fields["paragraphs"] = paragraphs
        fields["sections"] = [s.get("section_name") for s in sections for _ in s["paragraphs"]]
        place = {text: number for number, text in reversed([*enumerate(paragraphs)])}
        for question in paper["qas"]:
            where = f"{file.name}: {id}: {question['question_id']}"
            more: dict[str, Any] = {"question": question["question"]}
            if "answers" in question:
                more["answers"] = []
                for each in (reference(a["answer"], where) for a in question["answers"]):
                    numbers = [place[text] for text in each.evidence if text in place]
                    missing = [text for text in each.evidence if text not in place]
                    strange += sum(FLOAT not in text for text in missing)
                    answer = each._asdict() | {"spans": list(each.spans), "paragraphs": numbers}
                    more["answers"].append(answer)
            yield Example(fields | more, question["question_id"], where)
    if strange:
        log.warning("%s: texts of evidence that equal no paragraph: %d", file.name, strange)


def _by_row(value: Any) -> Any:
    """Convert parallel lists, as `datasets` writes them, to lists of objects."""
    if isinstance(value, dict) and value and all(isinstance(x, list) for x in value.values()):
        value = [dict(zip(value, row, strict=False)) for row in zip(*value.values(), strict=False)]
    if isinstance(value, dict):
        return {key: _by_row(each) for key, each in value.items()}
    return [_by_row(each) for each in value] if isinstance(value, list) else value


def reference(answer: Mapping[str, Any], where: str) -> Reference:
    """Convert an annotator's answer, an object of the file, to a `Reference`: the first of
    unanswerable (then without evidence), spans, free form, and yes or no that it has; DataError
    if it has none."""
    evidence = answer["evidence"]
    if answer["unanswerable"]:
        return Reference(UNANSWERABLE, "none", [])
    if spans := answer["extractive_spans"]:
        return Reference(", ".join(spans), "extractive", evidence, spans)
    if text := answer["free_form_answer"]:
        return Reference(text, "abstractive", evidence)
    if answer.get("yes_no") is None:
        raise DataError(
            f"{where}: an answer that says nothing; expected unanswerable, extractive_spans, "
            "free_form_answer or yes_no"
        )
    return Reference(YES if answer["yes_no"] else NO, "boolean", evidence)


def answer_f1(prediction: str, answer: str) -> float:
    """F1 of the words that two texts share, as SQuAD 1.1 has it, 0 to 1; 0 also where neither has a
    word."""
    return word_overlap.overlap(normalise(prediction).split(), normalise(answer).split()).f1


def evidence_f1(prediction: Sequence[str], evidence: Sequence[str]) -> float:
    """F1 of two lists of paragraphs, compared letter by letter, from 0 to 1; 1 where both are
    empty. A paragraph that is listed twice is shared once and counted twice."""
    if not prediction and not evidence:
        return 1.0
    same = len(set(prediction) & set(evidence))
    if not same:
        return 0.0
    return word_overlap.with_f1(same / len(prediction), same / len(evidence)).f1


def score(right: Mapping[str, Any], answer: Mapping[str, Any] | None) -> dict[str, float]:
    """Return "Answer F1" and "Evidence F1", from 0 to 1, each the best over the annotators.

    Args:
        right: ``references``, the `Reference` of each annotator.
        answer: ``answer``, a text, and ``evidence``, texts of paragraphs; None counts 0.
    """
    if answer is None:
        return dict.fromkeys(SHOWN, 0.0)
    references = right["references"]
    return {
        "Answer F1": max(answer_f1(answer["answer"], each.answer) for each in references),
        "Evidence F1": max(evidence_f1(answer["evidence"], each.evidence) for each in references),
    }


def best_type(references: Sequence[Reference], answer: str) -> str:
    """Type (`TYPES`) of the annotator's answer with the highest F1 against ``answer``; of equal
    ones the first."""
    return max(references, key=lambda each: answer_f1(answer, each.answer)).type


def published(answers: Iterable[dict]) -> Iterator[dict]:
    """Convert answers of ldt predict to {question_id, predicted_answer, predicted_evidence} each,
    the lines that Qasper's official evaluator reads.

    Args:
        answers: each with id, answer and ``evidence``, texts of paragraphs; an answer "" becomes
            "Unanswerable", without evidence.
    """
    for answer in answers:
        yield {
            "question_id": str(answer["id"]),
            "predicted_answer": answer["answer"] or UNANSWERABLE,
            "predicted_evidence": list(answer["evidence"]) if answer["answer"] else [],
        }


def score_line(right: Mapping[str, Any], answer: Mapping[str, Any] | None) -> dict[str, float]:
    """Score a line of ldt predict by `score`; its answer "" stands for Unanswerable, without
    evidence."""
    if answer is not None and not answer["answer"]:
        answer = {"answer": UNANSWERABLE, "evidence": []}
    return score(right, answer)


@dataclass
class QasperScorer(Benchmark):
    """QASPER: a question without a prediction counts 0, but in no type.

    Args:
        text_evidence_only: leave tables and figures out of the annotators' evidence.
    """

    text_evidence_only: bool = False

    title = "qasper"
    units = "papers"
    shown = SHOWN
    no_place = "a qasper file does not tell"
    right = ("answers",)
    needs = ("answer", "evidence")
    advice = "answers of qasper have one"
    read = staticmethod(read)
    published = staticmethod(published)
    score = staticmethod(score)

    def item(self, example: Example) -> Item:
        """Make the `Item` of a question: ``right`` has ``references``, the `Reference` of each
        annotator, with ``text_evidence_only`` without tables and figures; the bootstrap unit is
        the paper. DataError without any."""
        fields = example.fields
        if not fields["answers"]:
            raise DataError(f"{example.where}: no answers; a question needs one at least")
        references = []
        for answer in fields["answers"]:
            evidence = answer["evidence"]
            if self.text_evidence_only:
                evidence = [text for text in evidence if FLOAT not in text]
            references.append(Reference(answer["answer"], answer["type"], evidence))
        paper = "\n".join([fields["title"], fields["abstract"], *fields["paragraphs"]])
        right = {"references": references}
        unit = example.where.removesuffix(f": {example.id}")
        return Item(str(example.id), unit, {}, _words(paper), right=right)

    def load(self, files: Sequence[str]) -> list[dict[str, Any]]:
        """Read the lines of one file of predictions as dicts."""
        file = only(files, "predictions of qasper")
        return [line.fields for line in records.read(file, format="jsonl")]

    def parse(self, value: Any, name: str) -> AnswersById:
        """Convert dicts {question_id, predicted_answer, predicted_evidence} to {question id:
        {"answer": text, "evidence": paragraphs}}; a later one of a question replaces the
        earlier."""
        lines = _PREDICTIONS([*value], name)
        return {
            line["question_id"]: {
                name: line[f"predicted_{name}"] for name in ("answer", "evidence")
            }
            for line in lines
        }

    def aggregate(self, items: Sequence[Item], answers: AnswersById, name: str) -> Result:
        """Answer F1 and Evidence F1, 0 to 100, the number of missing predictions, and as a subset
        the Answer F1 by the type of the best annotator's answer."""
        result = super().aggregate(items, answers, name)
        types = [
            item.id in answers and best_type(item.right["references"], answers[item.id]["answer"])
            for item in items
        ]
        values = np.array([[*item.scores.values()] for item in result.items])  # [questions, 2]
        of_type = np.array([[type == each for each in TYPES] for type in types], np.float64)

        def figures(weights: np.ndarray) -> dict[str, np.ndarray]:
            weights = weights.astype(np.float64)
            means = (100 * weights @ values / weights.sum(1)[:, None]).T
            counts = weights @ of_type  # a mean over no question is 0
            by_type = (100 * (weights @ (of_type * values[:, :1])) / np.maximum(counts, 1)).T
            names = [f"{BY_TYPE} {name}" for name in TYPES]
            return dict(zip((*SHOWN, *names), (*means, *by_type), strict=True))

        whole = defined(figures, np.ones((1, len(items))))
        result.metrics = {key: whole[key] for key in SHOWN}
        result.metrics["Missing predictions"] = len(result.missing)
        result.figures = figures
        result.subsets[BY_TYPE] = {key: whole[f"{BY_TYPE} {key}"] for key in TYPES}
        return result

    def constants(self, items: Sequence[Item]) -> dict[str, AnswersById]:
        """Trivial predictions: Unanswerable and Yes, each without evidence."""
        return base.always(UNANSWERABLE, items, evidence=[]) | base.always(YES, items, evidence=[])
