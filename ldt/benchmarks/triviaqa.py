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
from ldt.benchmarks.base import AnswersById, Benchmark, Id, Shape
from ldt.data.options import DataSection
from ldt.errors import DataError, UserError, quote
from ldt.io import strict_json, text_files
from ldt.io.records import Example
from ldt.io.sources import only
from ldt.metrics import baseline, word_overlap
from ldt.metrics.result import Item, Result, compare, count_words, mean
from ldt.metrics.word_overlap import score_text

log = logging.getLogger("ldt")

DOMAINS = {"Wikipedia": "wikipedia", "Web": "web"}  # as the files say it, as it is asked for
PAGES = {"EntityPages": "wikipedia", "SearchResults": "web"}  # and their folders of evidence
_SPACES = str.maketrans(dict.fromkeys(string.punctuation + "‘’´`", " "))

_PAGES: Any = [{"Filename": str, "DocPartOfVerifiedEval?": Any}]
_FILE = Shape(
    {
        "Domain?": Any,
        "VerifiedEval?": Any,
        "Data": [
            {
                "QuestionId": Id,
                "Question?": str,
                "Answer?": {"NormalizedAliases": [str], "HumanAnswers?": ([str], None)},
                "QuestionPartOfVerifiedEval?": Any,
                "EntityPages?": _PAGES,
                "SearchResults?": _PAGES,
            }
        ],
    }
)


class Page(NamedTuple):
    """A document of a question: ``folder`` is that of the evidence, wikipedia or web."""

    folder: str
    filename: str
    verified: bool


class TriviaQuestion(NamedTuple):
    """A question of a file: ``verified`` is None where the file does not say; ``answers`` where
    it has none."""

    question: str | None
    id: str
    where: str
    answers: list[str] | None
    pages: list[Page]
    verified: bool | None


class TriviaFile(NamedTuple):
    """The questions of a file, in a file of verified ones (``only_verified``) these alone.

    ``domain`` is wikipedia or web: what was asked for or the file says, never by its name.
    """

    name: str
    domain: str
    only_verified: bool
    questions: list[TriviaQuestion]


def read(source: str | strict_json.JsonFile, data: DataSection) -> Iterator[Example]:
    """Yield an example for each question and document, as the published scripts pair them.

    Fields: question, question_id (what a prediction is keyed by: QuestionId in the Wikipedia
    domain, QuestionId--Filename in the Web domain), context_file (path of the text), answers (all
    names, as the file has them; not in files of a test set) and, where the file says it, verified.
    The id is QuestionId--Filename in both domains. Of a file with VerifiedEval only what is
    verified is read. Questions without a document are counted in a warning.

    Args:
        source: path, "-" for standard input, or the loaded JSON of a file.
        data: its ``domain``, None for what the file says; and its ``evidence``, the folder with
            wikipedia/ and web/, None for the one beside the file's folder or the file.
    """
    file = _open(source, data)
    folder = text_files.real(_evidence(file.name, data.evidence))
    of_page = file.domain == "web"
    for each in file.questions:
        fields: dict[str, Any] = {} if each.question is None else {"question": each.question}
        if each.answers is not None:
            fields["answers"] = each.answers
        for page in dict.fromkeys(each.pages):  # a page may be listed twice
            if of_page and file.only_verified and not page.verified:
                continue
            pair = f"{each.id}--{page.filename}"
            # An absolute filename stays what it is.
            path = text_files.inside(folder, os.path.join(*page[:2]), each.where)
            more = {"question_id": pair if of_page else each.id, "context_file": path}
            if each.verified is not None:
                more["verified"] = bool(each.verified and (page.verified or not of_page))
            yield Example(fields | more, pair, f"{file.name}: {pair}")
    if without := sum(not each.pages for each in file.questions):
        log.warning("%s: questions without a page, which get no answer: %d", file.name, without)


def _open(source: str | strict_json.JsonFile, data: DataSection) -> TriviaFile:
    name, value = strict_json.read(source, data.encoding)
    value, asked = _FILE(value, name), data.domain
    says, alone = value.get("Domain"), value.get("VerifiedEval") is True
    stated = DOMAINS.get(says) if isinstance(says, str) else None
    if not (asked or stated) or (asked and stated and asked != stated):
        raise UserError(
            f"{name}: Domain is {quote(says)}, data.domain is {asked or 'not given'}; "
            "data.domain=web or data.domain=wikipedia says how the predictions are keyed"
        )
    base.once((item["QuestionId"] for item in value["Data"]), name)
    questions = []
    for item in value["Data"]:
        id, verified = item["QuestionId"], item.get("QuestionPartOfVerifiedEval")
        names = None
        if answer := item.get("Answer"):
            names = answer["NormalizedAliases"] + (answer.get("HumanAnswers") or [])
            if not names:
                what = "NormalizedAliases is empty; a question needs an answer"
                raise DataError(f"{name}: {id}: {what}")
        pages = [
            Page(folder, page["Filename"], bool(page.get("DocPartOfVerifiedEval")))
            for key, folder in PAGES.items()
            for page in item.get(key, [])
        ]
        if verified or not alone:
            where = f"{name}: {id}"
            questions.append(
                TriviaQuestion(item.get("Question"), id, where, names, pages, verified)
            )
    return TriviaFile(name, asked or str(stated), alone, questions)


def _evidence(name: str, asked: str | None) -> Path:
    folder = Path(name).parent
    for place in [Path(asked)] if asked else [folder.parent / "evidence", folder / "evidence"]:
        if place.is_dir():
            return place
    what = f"{asked}: no such folder" if asked else f"{name}: no folder evidence beside it"
    raise UserError(f"{what}; data.evidence names the one with wikipedia/ and web/ in it")


def normalise(text: str) -> str:
    """Lower-case a text; punctuation (``_ ‘ ’ ´`` too) becomes space, articles go, spaces are
    single. Curly double quotes, dashes and accents stay."""
    return word_overlap.tidy(text.lower().translate(_SPACES))


def match(prediction: str, golds: Sequence[str]) -> tuple[int, float]:
    """Return (exact match, F1), 0 to 1, of an answer, each the best over the texts ``golds``;
    ValueError if there are none. An empty answer has F1 0, also beside an empty gold one, where
    its exact match is 1."""
    return word_overlap.best(normalise(prediction), [normalise(gold) for gold in golds])


def score(right: Mapping[str, Any], answer: Mapping[str, Any] | None) -> dict[str, float]:
    """Return exact_match and f1, 0 to 1 (`match`), of the text ``answer`` against the texts
    ``answers`` of ``right``; 0 without an answer."""
    return score_text(match, right, answer)


def better(answer: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """True if an answer has a higher ``score`` than another; None, no word in the document, is
    lowest."""
    return answer["score"] is not None and (
        other["score"] is None or answer["score"] > other["score"]
    )


def published(answers: Iterable[dict]) -> dict[str, str]:
    """Convert answers of ldt predict to {question id: answer}, that of the document with the
    highest ``score``."""
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

    heading: str = field(default="", init=False)  # domain and part of the file that was read

    title = "triviaqa"
    no_length = no_place = "data.evidence=FOLDER would tell"
    needs = ("answer", "score")
    advice = "answers of triviaqa have one"
    published = staticmethod(published)
    score = staticmethod(score)

    def gold(self, files: Sequence[str]) -> list[Item]:
        """Read one file of questions: an `Item` for each question (Wikipedia), or each page of a
        question (Web), with its ``answers`` and True if ``verified`` in ``right``.

        Sets ``heading``, the domain in words. With ``data.evidence`` items have lengths and places.
        """
        file = _open(only(files, "questions of triviaqa"), self.data)
        items = {}
        for each in file.questions:
            if each.answers is None:
                what = "no Answer; the files of a test set cannot be scored"
                raise DataError(f"{each.where}: {what}")
            beside = each.verified and not file.only_verified
            right = {"answers": each.answers, "verified": beside}
            if file.domain == "wikipedia":
                pages = self._pages(each.where, each.pages, each.answers)
                items[each.id] = Item(each.id, each.id, {}, right=right, **pages)
                continue
            for page in each.pages:
                if page.verified or not file.only_verified:
                    key = f"{each.id}--{page.filename}"
                    mine = right | {"verified": beside and page.verified}
                    pages = self._pages(each.where, [page], each.answers)
                    items[key] = Item(key, each.id, {}, right=mine, **pages)
        title = "wikipedia" if file.domain == "wikipedia" else "web, each page by itself"
        self.heading = f"triviaqa, {title}" + (", verified only" if file.only_verified else "")
        noun = "verified questions" if file.only_verified else "questions"
        return base.checked([*items.values()], file.name, noun)

    def _pages(self, where: str, pages: list[Page], answers: list[str]) -> dict[str, Any]:
        """Words of pages, laid end to end, and the place where an answer stands first."""
        if not self.data.evidence:
            return {}
        folder, texts = text_files.real(_evidence(where, self.data.evidence)), []
        for page in pages:
            path = text_files.inside(folder, os.path.join(*page[:2]), where)
            try:
                texts.append(text_files.read_file(path))
            except OSError as error:
                log.warning("%s: %s cannot be read: %s", where, path, error.strerror)
        text = f" {normalise(' '.join(texts))} "
        names = {normalise(answer) for answer in answers} - {""}
        starts = [start for name in names if (start := text.find(f" {name} ")) >= 0]
        place = min(starts) / len(text) if starts else "not in the document"
        return {"words": sum(map(count_words, texts)), "place": place} if texts else {}

    def aggregate(self, items: Sequence[Item], answers: AnswersById, name: str) -> Result:
        """exact_match and f1, 0 to 100, with the counts of the published script (common,
        denominator, pred_len, gold_len); for verified questions too, as a subset. Needs what
        `gold` sets."""
        items = [replace(i, scores=self.score(i.right, answers.get(i.id))) for i in items]

        def figures(some: Sequence[Item]) -> dict[str, float | int]:
            common = sum(item.id in answers for item in some)
            counts = {"common": common, "denominator": len(some), "pred_len": len(answers)}
            return {**mean([item.scores for item in some]), **counts, "gold_len": len(some)}

        missing = compare([item.id for item in items], answers)
        result = self.result(items, figures(items), *missing, title=self.heading)
        if verified := [item for item in items if item.right["verified"]]:
            result.parts, result.subsets = {"verified ": verified}, {"verified": figures(verified)}
        return result

    def constants(self, items: Sequence[Item]) -> dict[str, AnswersById]:
        """Trivial prediction: the most frequent answer."""
        return base.always(baseline.commonest(item.right["answers"] for item in items), items)
