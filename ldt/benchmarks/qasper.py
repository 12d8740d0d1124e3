"""QASPER 0.1 to 0.3 (Dasigi et al. 2021, arXiv:2105.03011): papers with questions on them.

An object by id of the paper; or a list of papers with ``id``, ``full_text`` and ``qas`` as parallel
lists, as the library `datasets` writes them. Predictions are lines of {"question_id",
"predicted_answer", "predicted_evidence"}; the figures are F1 of answers and of evidence, by the
rules of the published script.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ldt.benchmarks import base
from ldt.benchmarks.base import Benchmark
from ldt.errors import DataError, shown
from ldt.io import records, strict_json
from ldt.io.records import Example
from ldt.io.sources import only
from ldt.io.strict_json import JsonFile, take, take_id, texts
from ldt.metrics import baseline, word_overlap
from ldt.metrics.result import Item, count_words, defined
from ldt.metrics.word_overlap import normalise

log = logging.getLogger("ldt")

UNANSWERABLE, YES, NO = "Unanswerable", "Yes", "No"  # as answers say it
TYPES = ("extractive", "abstractive", "boolean", "none")  # of answers
FLOAT = "FLOAT SELECTED"  # what evidence that is a table or figure has before its caption
SHOWN = ("Answer F1", "Evidence F1")
BY_TYPE = "Answer F1 by type"


class Reference(NamedTuple):
    """The answer of an annotator; ``type`` is a name in `TYPES`, ``spans`` are what is joined in an
    extractive one."""

    answer: str
    type: str
    evidence: list[str]
    spans: Sequence[str] = ()


def read(source: str, data) -> Iterator[Example]:
    """Yield an example for each question: question, title, abstract, paragraphs, sections, answers.

    ``sections`` has the name of each paragraph's section, None where it has none. ``answers`` has
    a {answer, type, evidence, spans, paragraphs} of each annotator (`reference`): ``paragraphs``
    are numbers of those that are equal to a text of the evidence; a test set may have no answers.
    Text evidence that equals no paragraph is counted and told in a warning.

    Raises:
        DataError: another layout, or an id twice.
    """
    file = strict_json.read(source, data.encoding)
    base.once((id for each in papers(file) for _, id, _ in _questions(*each)), file.name)
    strange = 0
    for paper, where in papers(file):
        fields: dict[str, Any] = _front(paper, where)
        sections, paragraphs = _paragraphs(paper, where)
        fields |= {"sections": sections, "paragraphs": paragraphs}
        place = {text: number for number, text in reversed([*enumerate(paragraphs)])}
        for question, id, here in _questions(paper, where):
            more: dict[str, Any] = {"question": take(question, "question", str, here)}
            if "answers" in question:
                more["answers"] = []
                for each in references(question, here):
                    numbers = [place[text] for text in each.evidence if text in place]
                    strange += sum(
                        text not in place and FLOAT not in text for text in each.evidence
                    )
                    answer = each._asdict() | {"spans": list(each.spans), "paragraphs": numbers}
                    more["answers"].append(answer)
            yield Example(fields | more, id, here)
    if strange:
        log.warning("%s: texts of evidence that equal no paragraph: %d", file.name, strange)


def papers(file: JsonFile) -> Iterator[tuple[dict[str, Any], str]]:
    """The papers, with ``full_text`` and ``qas`` as lists of objects, and their places in words.

    Raises:
        DataError: another layout.
    """
    listed = [*file.value.values()] if isinstance(file.value, dict) else file.value
    first = next((each for each in listed if isinstance(each, dict)), {}) if listed else {}
    if not isinstance(file.value, dict | list) or "qas" not in first:
        raise DataError(
            f"{file.name}: {shown(file.value)}, expected an object of papers with full_text and qas"
        )
    if isinstance(file.value, dict):
        listed = [(id, paper) for id, paper in file.value.items()]
    else:
        listed = [
            (take_id(paper, "id", f"{file.name}: paper {number:,}"), _by_row(paper))
            for number, paper in enumerate(file.value, 1)
        ]
    for id, paper in listed:
        where = f"{file.name}: {id}"
        if not isinstance(paper, dict):
            raise DataError(f"{where}: {shown(paper)}, expected a paper with full_text and qas")
        yield paper, where


def references(question: dict[str, Any], where: str) -> list[Reference]:
    """The answers of all annotators of a question.

    Raises:
        DataError: it has none, or one that says nothing.
    """
    return [
        reference(take(answer, "answer", dict, where), where)
        for answer in take(question, "answers", list, where)
    ]


def reference(answer: dict[str, Any], where: str) -> Reference:
    """Answer of an annotator: the first that holds of unanswerable, which has no evidence whatever
    is listed, spans, a free form, yes or no.

    Raises:
        DataError: none of them holds.
    """
    if take(answer, "unanswerable", bool, where):
        return Reference(UNANSWERABLE, "none", [])
    evidence = texts(take(answer, "evidence", list, where), where)
    if spans := texts(take(answer, "extractive_spans", list, where), where):
        return Reference(", ".join(spans), "extractive", evidence, spans)
    if text := take(answer, "free_form_answer", str, where):
        return Reference(text, "abstractive", evidence)
    if answer.get("yes_no") is None:
        raise DataError(
            f"{where}: an answer that says nothing; expected unanswerable, extractive_spans, "
            "free_form_answer or yes_no"
        )
    return Reference(YES if answer["yes_no"] else NO, "boolean", evidence)


def _questions(paper: dict[str, Any], where: str) -> Iterator[tuple[dict[str, Any], str, str]]:
    """Each question with its id and its place in words."""
    return base.entries(take(paper, "qas", list, where), where, "question_id")


def _front(paper: dict[str, Any], where: str) -> dict[str, str]:
    """Title and abstract, each "" where it is missing or null."""
    front = {key: paper.get(key) or "" for key in ("title", "abstract")}
    return {key: take(front, key, str, where) for key in front}


def _paragraphs(paper: dict[str, Any], where: str) -> tuple[list[str | None], list[str]]:
    """The section of each paragraph, and the paragraphs."""
    sections, paragraphs = [], []
    for section in take(paper, "full_text", list, where):
        listed = texts(take(section, "paragraphs", list, where), where)
        sections += [section.get("section_name")] * len(listed)
        paragraphs += listed
    return sections, paragraphs


def _by_row(paper: dict[str, Any]) -> dict[str, Any]:
    """A paper of parallel lists as one of lists of objects; any other as it is."""
    paper = dict(paper)
    for key in ("full_text", "qas"):
        if isinstance(paper.get(key), dict):
            paper[key] = _rows(paper[key])
    for question in paper["qas"] if isinstance(paper.get("qas"), list) else []:
        if isinstance(question, dict) and isinstance(question.get("answers"), dict):
            question["answers"] = _rows(question["answers"])
    return paper


def _rows(columns: dict[str, list]) -> list[dict[str, Any]]:
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


# -- score


def answer_f1(prediction: str, answer: str) -> float:
    """F1 of words as SQuAD 1.1 has it, from 0 to 1; 0 also where neither has a word."""
    return word_overlap.overlap(normalise(prediction).split(), normalise(answer).split()).f1


def evidence_f1(prediction: Sequence[str], evidence: Sequence[str]) -> float:
    """F1 of paragraphs, which are equal letter by letter, from 0 to 1; 1 where neither has any.

    A paragraph that is listed twice is shared once and counted twice.
    """
    if not prediction and not evidence:
        return 1.0
    same = len(set(prediction) & set(evidence))
    if not same:
        return 0.0
    return word_overlap.of(same / len(prediction), same / len(evidence)).f1


def score(right: Mapping[str, Any], answer: Mapping[str, Any] | None) -> dict[str, float]:
    """Return Answer F1 and Evidence F1, from 0 to 1, each the best over the annotators.

    Args:
        right: ``references``, of all annotators.
        answer: ``answer``, a text, and ``evidence``, paragraphs; None counts 0.
    """
    if answer is None:
        return dict.fromkeys(SHOWN, 0.0)
    references = right["references"]
    return {
        "Answer F1": max(answer_f1(answer["answer"], each.answer) for each in references),
        "Evidence F1": max(evidence_f1(answer["evidence"], each.evidence) for each in references),
    }


def best_type(references: Sequence[Reference], answer: str) -> str:
    """The type of the annotator whose answer is met best; of equal ones the first."""
    return max(references, key=lambda each: answer_f1(answer, each.answer)).type


def published(answers: Iterable[dict]) -> Iterator[dict]:
    """Yield the lines of the official layout.

    Args:
        answers: each with id, answer and ``evidence``, texts of paragraphs; an answer ""
            becomes "Unanswerable", without evidence.
    """
    for answer in answers:
        yield {
            "question_id": str(answer["id"]),
            "predicted_answer": answer["answer"] or UNANSWERABLE,
            "predicted_evidence": list(answer["evidence"]) if answer["answer"] else [],
        }


def score_line(right: Mapping[str, Any], answer: Mapping[str, Any] | None) -> dict[str, float]:
    """Return `score` of a line of ldt predict, in which "" stands for Unanswerable."""
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
    needs = ("answer", "evidence")
    advice = "answers of qasper have one"

    def gold(self, files):
        file, items = base.whole(files, "questions of qasper", self.data.encoding), []
        for number, (paper, where) in enumerate(papers(file)):
            _, paragraphs = _paragraphs(paper, where)
            words = count_words("\n".join([*_front(paper, where).values(), *paragraphs]))
            for question, id, here in _questions(paper, where):
                annotators = references(question, here)
                if not annotators:
                    raise DataError(f"{here}: no answers; a question needs one at least")
                if self.text_evidence_only:
                    annotators = [_without_floats(each) for each in annotators]
                items.append(Item(id, number, {}, words, right={"references": annotators}))
        return base.checked(items, file.name)

    def load(self, files):
        file = only(files, "predictions of qasper")
        return (line.fields for line in records.read(file, format="jsonl"))

    def published(self, lines):
        return published(lines)

    def score(self, right, answer):
        return score(right, answer)

    def parse(self, value, name):
        """Id to answer and evidence; a later line of a question replaces the earlier."""
        answers = {}
        for number, line in enumerate(value, 1):
            where = f"{name}:{number}"
            answers[take_id(line, "question_id", where)] = {
                "answer": take(line, "predicted_answer", str, where),
                "evidence": texts(take(line, "predicted_evidence", list, where), where),
            }
        return answers

    def aggregate(self, items, answers, name):
        result = super().aggregate(items, answers, name)
        types = [
            best_type(item.right["references"], answers[item.id]["answer"])
            if item.id in answers
            else ""
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

    def constants(self, items):
        """Unanswerable and Yes, each without evidence."""
        return {
            baseline.quoted(text): {item.id: {"answer": text, "evidence": []} for item in items}
            for text in (UNANSWERABLE, YES)
        }


def _without_floats(reference: Reference) -> Reference:
    texts = [text for text in reference.evidence if FLOAT not in text]
    return reference._replace(evidence=texts)
