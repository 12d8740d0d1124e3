"""TriviaQA 1.0, Wikipedia and Web: a file of questions, and evidence in text files beside it."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ldt.data.formats.entries import entries, once
from ldt.errors import DataError, UserError, shown
from ldt.io import text_files
from ldt.io.records import Example
from ldt.io.strict_json import JsonFile, take, texts

log = logging.getLogger("ldt")

DOMAINS = {"Wikipedia": "wikipedia", "Web": "web"}  # as the files say it, as it is asked for
PAGES = {"EntityPages": "wikipedia", "SearchResults": "web"}  # and their folders of evidence


class Page(NamedTuple):
    """A document of a question: ``folder`` is that of the evidence, wikipedia or web."""

    folder: str
    filename: str
    verified: bool

    @property
    def path(self) -> str:
        """Path in the folder of the evidence; an absolute filename stays what it is."""
        return os.path.join(self.folder, self.filename)


class Question(NamedTuple):
    """A question of a file: ``verified`` is None where the file does not say."""

    item: dict[str, Any]
    id: str
    where: str
    pages: list[Page]
    verified: bool | None


def fits(value: Any) -> bool:
    """Tell whether a JSON value looks like a file of this layout."""
    return isinstance(value, dict) and isinstance(value.get("Data"), list)


def read(file: JsonFile, data) -> Iterator[Example]:
    """Yield an example for each question and document, as the published scripts pair them.

    Fields: question, question_id (what a prediction is keyed by: QuestionId in the Wikipedia
    domain, QuestionId--Filename in the Web domain), context_file, answers (all names, as the
    file has them; not in files of a test set) and, where the file says it, verified. The id is
    QuestionId--Filename in both domains. Of a file with VerifiedEval only what is verified is read.

    Args:
        data: its ``domain``, None for what the file says; and its ``evidence``, the folder with
            wikipedia/ and web/, None for the one beside the file's folder or the file.

    Raises:
        UserError: the domain is not known or not that of the file, or there is no evidence.
        DataError: another layout, or a page outside of the evidence.
    """
    if not fits(file.value):
        raise DataError(
            f"{file.name}: {shown(file.value)}, expected an object with Data, a list of questions"
        )
    domain = domain_of(file, data.domain)
    folder = text_files.real(_evidence(file.name, data.evidence))
    without = 0
    for item, id, where, pages, verified in _questions(file):
        fields = {"question": take(item, "Question", str, where)}
        if "Answer" in item:
            fields["answers"] = _names(item, where)
        without += not pages
        for page in dict.fromkeys(pages):  # a page may be listed twice
            if domain == "web" and only_verified(file) and not page.verified:
                continue
            pair = f"{id}--{page.filename}"
            path = text_files.inside(folder, page.path, where)
            key = id if domain == "wikipedia" else pair
            more: dict[str, Any] = {"question_id": key, "context_file": path}
            if verified is not None:
                more["verified"] = bool(verified and (domain == "wikipedia" or page.verified))
            yield Example(fields | more, pair, f"{file.name}: {pair}")
    if without:
        log.warning("%s: questions without a page, which get no answer: %d", file.name, without)


def gold(file: JsonFile, domain: str) -> Iterator[Example]:
    """Yield answers, pages, verified and question (its id) of all that a prediction is keyed by.

    That is the question in the domain "wikipedia"; question and page, as QuestionId--Filename, in
    "web". Of a file with VerifiedEval only what is verified is read.

    Raises:
        DataError: a question without an answer, as in the files of a test set; an id twice.
    """
    once((id for _, id, _ in entries(file, "QuestionId", "Data")), file.name)
    for item, id, where, pages, verified in _questions(file):
        if "Answer" not in item:
            raise DataError(f"{where}: no field 'Answer'; the files of a test set cannot be scored")
        fields = {"question": id, "answers": _names(item, where)}
        if domain == "wikipedia":
            yield Example(fields | {"pages": pages, "verified": verified}, id, where)
            continue
        for page in pages:
            if page.verified or not only_verified(file):
                facts = {"pages": [page], "verified": verified and page.verified}
                yield Example(fields | facts, f"{id}--{page.filename}", where)


def only_verified(file: JsonFile) -> bool:
    """Tell whether a file is one of verified questions, of which the others are left out."""
    return file.value.get("VerifiedEval") is True


def domain_of(file: JsonFile, asked: str | None) -> str:
    """Return "wikipedia" or "web": what was asked for or the file says, never by its name.

    Raises:
        UserError: neither is given, or they differ.
    """
    says = file.value.get("Domain")
    stated = DOMAINS.get(says) if isinstance(says, str) else None
    domain = asked or stated
    if domain is None:
        raise UserError(
            f"{file.name}: Domain is {shown(says)}; data.domain=web or data.domain=wikipedia says "
            "how the predictions are keyed"
        )
    if asked and stated and asked != stated:
        raise UserError(
            f"data.domain={asked}: {file.name} says Domain {says!r}; leave the key out, or give "
            f"the file of the {asked} domain"
        )
    return domain


def _questions(file: JsonFile) -> Iterator[Question]:
    """The questions of a file, those left out that are not verified in a file of verified ones."""
    for item, id, where in entries(file, "QuestionId", "Data"):
        verified = item.get("QuestionPartOfVerifiedEval")
        if verified or not only_verified(file):
            pages = [
                Page(
                    folder,
                    take(page, "Filename", str, where),
                    bool(page.get("DocPartOfVerifiedEval")),
                )
                for key, folder in PAGES.items()
                for page in item.get(key) or []
            ]
            yield Question(item, id, where, pages, verified)


def _names(item: dict[str, Any], where: str) -> list[str]:
    """All that counts as the right answer: ``NormalizedAliases``, and ``HumanAnswers`` if any.

    Raises:
        DataError: there is nothing, or something that is no text.
    """
    answer = take(item, "Answer", dict, where)
    names = texts(take(answer, "NormalizedAliases", list, where), where)
    names = names + texts(answer.get("HumanAnswers") or [], where)
    if not names:
        raise DataError(f"{where}: NormalizedAliases is empty; a question needs an answer")
    return names


def _evidence(name: str, asked: str | None) -> Path:
    folder = Path(name).parent
    for place in [Path(asked)] if asked else [folder.parent / "evidence", folder / "evidence"]:
        if place.is_dir():
            return place
    what = f"{asked}: no such folder" if asked else f"{name}: no folder evidence beside it"
    raise UserError(f"{what}; data.evidence names the one with wikipedia/ and web/ in it")
