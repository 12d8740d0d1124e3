"""QASPER 0.1 to 0.3 (Dasigi et al. 2021, arXiv:2105.03011): papers with questions on them.

An object by id of the paper; or a list of papers with ``id``, ``full_text`` and ``qas`` as parallel
lists, as the library `datasets` writes them.
"""

import logging
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ldt.data.formats.entries import once
from ldt.errors import DataError, shown
from ldt.io.records import Example
from ldt.io.strict_json import JsonFile, take, take_id, texts

log = logging.getLogger("ldt")

UNANSWERABLE, YES, NO = "Unanswerable", "Yes", "No"  # as answers say it
TYPES = ("extractive", "abstractive", "boolean", "none")  # of answers
FLOAT = "FLOAT SELECTED"  # what evidence that is a table or figure has before its caption


class Reference(NamedTuple):
    """The answer of an annotator; ``type`` is a name in `TYPES`, ``spans`` are what is joined in an
    extractive one."""

    answer: str
    type: str
    evidence: list[str]
    spans: Sequence[str] = ()


def fits(value: Any) -> bool:
    """Tell whether a JSON value looks like a file of this layout."""
    if isinstance(value, dict):
        value = list(value.values())
    papers = value if isinstance(value, list) else []
    return "qas" in next((paper for paper in papers if isinstance(paper, dict)), {})


def read(file: JsonFile, data) -> Iterator[Example]:
    """Yield an example for each question: question, title, abstract, paragraphs, sections, answers.

    ``sections`` has the name of each paragraph's section, None where it has none. ``answers`` has
    a {answer, type, evidence, spans, paragraphs} of each annotator (`reference`): ``paragraphs``
    are numbers of those that are equal to a text of the evidence; a test set may have no answers.
    Text evidence that equals no paragraph is counted and told in a warning.

    Raises:
        DataError: another layout, or an id twice.
    """
    once((id for each in papers(file) for _, id, _ in _questions(*each)), file.name)
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


def gold(file: JsonFile) -> Iterator[Example]:
    """Yield references, paper (its number) and text (all of it) of each question.

    Raises:
        DataError: another layout, an id twice, or a question without answers, as in a test set.
    """
    ids = []
    for number, (paper, where) in enumerate(papers(file)):
        _, paragraphs = _paragraphs(paper, where)
        whole = "\n".join([*_front(paper, where).values(), *paragraphs])
        for question, id, here in _questions(paper, where):
            ids.append(id)
            annotators = references(question, here)
            if not annotators:
                raise DataError(f"{here}: no answers; a question needs one at least")
            yield Example({"references": annotators, "paper": number, "text": whole}, id, here)
    once(ids, file.name)


def papers(file: JsonFile) -> Iterator[tuple[dict[str, Any], str]]:
    """The papers, with ``full_text`` and ``qas`` as lists of objects, and their places in words.

    Raises:
        DataError: another layout.
    """
    if not fits(file.value):
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
    for number, question in enumerate(take(paper, "qas", list, where), 1):
        id = take_id(question, "question_id", f"{where}: question {number:,}")
        yield question, id, f"{where}: {id}"


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
