"""TriviaQA 1.0, Wikipedia and Web: exact match and F1 of {key: answer}.

A file of questions, with their evidence in text files beside it. The key of a prediction is
QuestionId in the Wikipedia domain; in the Web domain QuestionId--Filename, each page of a question
scored on its own.

Source: Joshi et al. 2017 (arXiv:1705.03551), the rules of their evaluation script.
"""

import logging
import os
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from ldt.benchmarks import base
from ldt.benchmarks.base import Benchmark
from ldt.errors import DataError, UserError, plural, shown
from ldt.io import strict_json, text_files
from ldt.io.records import Example
from ldt.io.strict_json import JsonFile, take, texts
from ldt.metrics import baseline, word_overlap
from ldt.metrics.result import Item, compare, count_words, mean

log = logging.getLogger("ldt")

DOMAINS = {"Wikipedia": "wikipedia", "Web": "web"}  # as the files say it, as it is asked for
PAGES = {"EntityPages": "wikipedia", "SearchResults": "web"}  # and their folders of evidence
_SPACES = str.maketrans(dict.fromkeys(string.punctuation + "‘’´`", " "))


class Page(NamedTuple):
    """A document of a question: ``folder`` is that of the evidence, wikipedia or web."""

    folder: str
    filename: str
    verified: bool

    @property
    def path(self) -> str:
        """Path in the folder of the evidence; an absolute filename stays what it is."""
        return os.path.join(self.folder, self.filename)


class TriviaQuestion(NamedTuple):
    """A question of a file: ``verified`` is None where the file does not say."""

    item: dict[str, Any]
    id: str
    where: str
    pages: list[Page]
    verified: bool | None


def read(source: str, data) -> Iterator[Example]:
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
    file = strict_json.read(source, data.encoding)
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


def only_verified(file: JsonFile) -> bool:
    """Tell whether a file is one of verified questions, of which the others are left out."""
    return file.value.get("VerifiedEval") is True


def domain_of(file: JsonFile, asked: str | None) -> str:
    """Return "wikipedia" or "web": what was asked for or the file says, never by its name.

    Raises:
        UserError: neither is given, or they differ.
        DataError: another layout.
    """
    if not (isinstance(file.value, dict) and isinstance(file.value.get("Data"), list)):
        raise DataError(
            f"{file.name}: {shown(file.value)}, expected an object with Data, a list of questions"
        )
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


def _questions(file: JsonFile) -> Iterator[TriviaQuestion]:
    """The questions of a file, those left out that are not verified in a file of verified ones."""
    for item, id, where in base.entries(file.value["Data"], file.name, "QuestionId"):
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
            yield TriviaQuestion(item, id, where, pages, verified)


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


def normalise(text: str) -> str:
    """``text`` in lower case, punctuation (``_ ‘ ’ ´`` too) as space, no articles, single spaces.

    Curly double quotes, dashes and accents stay.
    """
    return word_overlap.tidy(text.lower().translate(_SPACES))


def match(prediction: str, golds: Sequence[str]) -> tuple[int, float]:
    """Return (exact match, F1), each the best over ``golds``.

    An empty answer has F1 0, also beside an empty gold one, where its exact match is 1.

    Raises:
        ValueError: ``golds`` is empty.
    """
    return word_overlap.best(normalise(prediction), [normalise(gold) for gold in golds])


def score(right: Mapping[str, Any], answer: Mapping[str, Any] | None) -> dict[str, float]:
    """Return exact_match and f1 by `match`.

    Args:
        right: ``answers``, all names of the answer.
        answer: ``answer``, a text; None, or None for the text, is no prediction, which counts 0.
    """
    exact, f1 = (0, 0.0)
    if answer is not None and answer.get("answer") is not None:
        exact, f1 = match(answer["answer"], right["answers"])
    return {"exact_match": exact, "f1": f1}


def better(answer: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """True if an answer has a higher ``score``; None, no word in the document, has none."""
    return answer["score"] is not None and (
        other["score"] is None or answer["score"] > other["score"]
    )


def published(answers: Iterable[dict]) -> dict[str, str]:
    """{question: answer}, of each question from the document with the highest score."""
    chosen: dict[str, dict] = {}
    for answer in answers:
        key = str(answer.get("question_id", answer["id"]))
        if key not in chosen or better(answer, chosen[key]):
            chosen[key] = {name: answer[name] for name in ("answer", "score")}
    return {key: answer["answer"] for key, answer in chosen.items()}


@dataclass
class TriviaQAScorer(Benchmark):
    """TriviaQA: each question of the Wikipedia domain, each page of one in the Web domain.

    With ``data.evidence``, the folder with wikipedia/ and web/, there are groups by length of the
    pages and by place of the answer.
    """

    about: str = field(default="", init=False)  # domain and part of the file that was read
    warnings: list[str] = field(default_factory=list, init=False)

    title = "triviaqa"
    needs = ("answer", "score")
    advice = "answers of triviaqa have one"

    def gold(self, files):
        file = base.whole(files, "questions of triviaqa", self.data.encoding)
        domain = domain_of(file, self.data.domain)
        ids = base.entries(file.value["Data"], file.name, "QuestionId")
        base.once((id for _, id, _ in ids), file.name)
        items, only = [], only_verified(file)
        for item, id, where, pages, verified in _questions(file):
            if "Answer" not in item:
                what = "no field 'Answer'; the files of a test set cannot be scored"
                raise DataError(f"{where}: {what}")
            right = {"answers": _names(item, where), "question": id, "pages": pages}
            if domain == "wikipedia":
                items.append(Item(id, id, {}, right=right | {"verified": verified and not only}))
                continue
            for page in pages:
                if page.verified or not only:
                    each = {"pages": [page], "verified": verified and page.verified and not only}
                    items.append(Item(f"{id}--{page.filename}", id, {}, right=right | each))
        title = "wikipedia" if domain == "wikipedia" else "web, each page by itself"
        items = list({item.id: item for item in items}.values())  # a page may be listed twice
        self.about = f"triviaqa, {title}" + (", verified only" if only else "")
        base.checked(items, file.name, "verified questions" if only else "questions")
        if self.data.evidence:
            documents = _Documents(Path(self.data.evidence))
            for item in items:
                item.words, item.place = documents.find(item.right)
            self.warnings = documents.warnings()
        return items

    def published(self, lines):
        return published(lines)

    def score(self, right, answer):
        return score(right, answer)

    def aggregate(self, items, answers, name):
        items = [replace(i, scores=self.score(i.right, answers.get(i.id))) for i in items]

        def figures(some: Sequence[Item]) -> dict[str, float | int]:
            common = sum(item.id in answers for item in some)
            counts = {"common": common, "denominator": len(some), "pred_len": len(answers)}
            return {**mean([item.scores for item in some]), **counts, "gold_len": len(some)}

        verified = [item for item in items if item.right["verified"]]
        missing = compare([item.id for item in items], answers)
        result = self.result(items, figures(items), *missing, title=self.about)
        result.parts = {"verified ": verified} if verified else {}
        if verified:
            result.subsets["verified"] = figures(verified)
        result.warnings += self.warnings
        if not self.data.evidence:
            result.no_length = result.no_place = "data.evidence=FOLDER would tell"
        return result

    def constants(self, items):
        """The most frequent answer."""
        usual = baseline.commonest(item.right["answers"] for item in items)
        return {baseline.quoted(usual): {item.id: {"answer": usual} for item in items}}


class _Documents:
    """Documents of questions: their length, and the place where an answer stands first."""

    def __init__(self, folder: Path):
        if not folder.is_dir():
            raise UserError(
                f"{folder}: no such folder; data.evidence has wikipedia/ and web/ in it"
            )
        self.folder = text_files.real(folder)
        self.absent: list[str] = []

    def find(self, right: Mapping[str, Any]) -> tuple[int | None, float | str | None]:
        """(words, place) in the question's pages laid end to end."""
        read = (self._read(page, right["question"]) for page in right["pages"])
        texts = [text for text in read if text is not None]
        if not texts:
            return None, None
        text = f" {normalise(' '.join(texts))} "
        names = {normalise(gold) for gold in right["answers"]} - {""}
        starts = [start for name in names if (start := text.find(f" {name} ")) >= 0]
        place = min(starts) / len(text) if starts else "not in the document"
        return sum(map(count_words, texts)), place

    def _read(self, page, where):
        path = text_files.inside(self.folder, page.path, where)
        try:
            return text_files.read_file(path)
        except OSError:
            self.absent.append(page.filename)
            return None

    def warnings(self) -> list[str]:
        """A line on pages that could not be read."""
        if not self.absent:
            return []
        names = ", ".join(map(repr, self.absent[:3]))
        pages = plural(len(self.absent), "page")
        return [f"{self.folder}: {pages} could not be read: {names}"]
