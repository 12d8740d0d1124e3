"""TriviaQA 1.0, Wikipedia and Web: a file of questions, and evidence in text files beside it."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ldt.data import evidence
from ldt.data.json_file import JsonFile, shown, take, texts
from ldt.data.records import Example
from ldt.errors import DataError, UserError

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
        """Where it lies in the evidence; an absolute filename stays what it is."""
        return os.path.join(self.folder, self.filename)


def read(file: JsonFile, data) -> Iterator[Example]:
    """Yield an example for each question and document, as the published scripts pair them.

    Fields: question, question_id (what a prediction is keyed by: QuestionId in the Wikipedia
    domain, QuestionId--Filename in the Web domain), context_file, answers (normalised; not in
    files of a test set) and, where the file says it, verified. The id is QuestionId--Filename in
    both domains. Of a file with VerifiedEval only what is verified is read.

    Args:
        data: its ``domain``, None for what the file says; and its ``evidence``, the folder with
            wikipedia/ and web/, None for the one beside the file's folder or the file.

    Raises:
        UserError: the domain is not known or not that of the file, or there is no evidence.
        DataError: another layout, or a page outside of the evidence.
    """
    if not (isinstance(file.value, dict) and isinstance(file.value.get("Data"), list)):
        raise DataError(
            f"{file.name}: {shown(file.value)}, expected an object with Data, a list of questions"
        )
    domain = domain_of(file, data.domain, "data.domain=")
    folder = _evidence(file.name, data.evidence).resolve()
    only = file.value.get("VerifiedEval") is True
    without = 0
    for number, item in enumerate(file.value["Data"], 1):
        id = take(item, "QuestionId", str, f"{file.name}: question {number:,}")
        where = f"{file.name}: {id}"
        fields = {"question": take(item, "Question", str, where)}
        if "Answer" in item:
            fields["answers"] = golds_of(item, where)
        verified = item.get("QuestionPartOfVerifiedEval")
        if only and not verified:
            continue
        listed = dict.fromkeys(pages_of(item, where))  # a page may be listed twice
        without += not listed
        for page in listed:
            if domain == "web" and only and not page.verified:
                continue
            pair = f"{id}--{page.filename}"
            path = evidence.inside(folder, page.path, where)
            more = {"question_id": id if domain == "wikipedia" else pair, "context_file": str(path)}
            if verified is not None:
                more["verified"] = bool(verified and (domain == "wikipedia" or page.verified))
            yield Example(fields | more, pair, f"{file.name}: {pair}")
    if without:
        log.warning("%s: questions without a page, which get no answer: %d", file.name, without)


def domain_of(file: JsonFile, asked: str | None, option: str) -> str:
    """Return "wikipedia" or "web": what was asked for or the file says, never by its name.

    Args:
        option: what it is asked for with, as "--domain ", for messages.

    Raises:
        UserError: neither is given, or they differ.
    """
    says = file.value.get("Domain")
    told = DOMAINS.get(says) if isinstance(says, str) else None
    if asked is None and told is None:
        raise UserError(
            f"{file.name}: Domain is {shown(says)}; {option}web or {option}wikipedia "
            "says how the predictions are keyed"
        )
    if asked and told and asked != told:
        raise UserError(
            f"{option}{asked}: {file.name} says Domain {says!r}; leave the option out, or give "
            f"the file of the {asked} domain"
        )
    return asked or told


def pages_of(item: dict[str, Any], where: str) -> list[Page]:
    """Return the documents of a question.

    Raises:
        DataError: one has no Filename.
    """
    found = []
    for key, folder in PAGES.items():
        for page in item.get(key) or []:
            filename = take(page, "Filename", str, where)
            found.append(Page(folder, filename, bool(page.get("DocPartOfVerifiedEval"))))
    return found


def golds_of(item: dict[str, Any], where: str) -> list[str]:
    """Return all that counts as the right answer (`rules.names`).

    Raises:
        DataError: there is nothing, or something that is no text.
    """
    from ldt.metrics.rules import triviaqa as rules

    answer = take(item, "Answer", dict, where)
    texts(take(answer, "NormalizedAliases", list, where), where)
    texts(answer.get("HumanAnswers") or [], where)
    golds = rules.names(answer)
    if not golds:
        raise DataError(f"{where}: NormalizedAliases is empty; a question needs an answer")
    return golds


def _evidence(name: str, asked: str | None) -> Path:
    folder = Path(name).parent
    for place in [Path(asked)] if asked else [folder.parent / "evidence", folder / "evidence"]:
        if place.is_dir():
            return place
    what = f"{asked}: no such folder" if asked else f"{name}: no folder evidence beside it"
    raise UserError(
        f"{what}; data.evidence, or --evidence of ldt predict, names the one with wikipedia/ and "
        "web/ in it"
    )
