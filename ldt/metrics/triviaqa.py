"""TriviaQA: exact match and F1 of {key: answer}, of all questions and of the verified ones.

The key is QuestionId in the Wikipedia domain; in the Web domain QuestionId--Filename, each page of
a question scored on its own.
"""

from pathlib import Path
from typing import Any, NamedTuple

from ldt.data import evidence as pages
from ldt.data.formats.triviaqa import Page, domain_of, golds_of, pages_of
from ldt.data.json_file import JsonFile, take
from ldt.errors import DataError, UserError, plural
from ldt.metrics import prediction_files
from ldt.metrics.result import Item, Result, compare, count_words, mean
from ldt.metrics.rules import triviaqa as rules


class _Question(NamedTuple):
    """What one key stands for: ``verified`` is None where the file does not say."""

    id: str
    golds: list[str]
    pages: list[Page]
    verified: bool | None


def evaluate(
    gold: JsonFile,
    predictions: JsonFile,
    *,
    domain: str | None = None,
    evidence: Path | None = None,
) -> Result:
    """Score predictions by the published rules.

    Args:
        domain: "wikipedia" or "web"; what the gold file says if None.
        evidence: folder with wikipedia/ and web/, for groups by length and position.

    Raises:
        DataError: a file that cannot be used, a page outside of ``evidence``.
        UserError: ``domain`` is not that of the file, or neither is given; no folder ``evidence``.
    """
    domain = domain_of(gold, domain, "--domain ")
    questions = _questions(gold, domain)
    found = prediction_files.answers_by_id(predictions)
    missing, extra = compare(list(questions), found)
    documents = _Documents(evidence) if evidence else None
    items = {}
    for key, question in questions.items():
        exact, f1 = rules.score(found[key], question.golds) if key in found else (0, 0.0)
        item = items[key] = Item(question.id, {"exact_match": exact, "f1": f1})
        if documents:
            item.words, item.place = documents.find(question)
    common = len(questions) - len(missing)

    def figures(keys, common):
        counts = {"common": common, "denominator": len(keys), "pred_len": len(found)}
        return mean([items[key] for key in keys]) | counts | {"gold_len": len(keys)}

    only = gold.value.get("VerifiedEval") is True
    title = "triviaqa, wikipedia" if domain == "wikipedia" else "triviaqa, web, each page by itself"
    verified = [] if only else [key for key, question in questions.items() if question.verified]
    result = Result(
        f"{title}, verified only" if only else title,
        list(items.values()),
        figures(items, common),
        "questions",
        missing,
        extra,
        parts={"verified ": [items[key] for key in verified]} if verified else {},
    )
    if verified:
        result.subsets["verified"] = figures(verified, sum(key in found for key in verified))
    if documents:
        result.warnings += documents.warnings()
    else:
        result.no_length = result.no_place = "--evidence FOLDER would tell"
    return result


def _questions(gold, domain):
    """Key to question; in a file of verified questions (``VerifiedEval``) only those."""
    data = gold.value["Data"]
    only = gold.value.get("VerifiedEval") is True
    questions, ids = {}, []
    for number, item in enumerate(data, 1):
        where = f"{gold.name}: question {number:,}"
        id = take(item, "QuestionId", str, where)
        ids.append(id)
        where = f"{gold.name}: {id}"
        verified = item.get("QuestionPartOfVerifiedEval")
        if only and not verified:
            continue
        golds = _golds(item, where)
        listed = pages_of(item, where)
        if domain == "wikipedia":
            questions[id] = _Question(id, golds, listed, verified)
            continue
        for page in listed:
            if not only or page.verified:
                both = verified and page.verified
                questions[f"{id}--{page.filename}"] = _Question(id, golds, [page], both)
    prediction_files.once(ids, gold.name)
    if not questions:
        what = "verified questions" if only else "questions"
        raise DataError(f"{gold.name}: no {what} in it")
    return questions


def _golds(item, where):
    if "Answer" not in item:
        raise DataError(f"{where}: no field 'Answer'; the files of a test set cannot be scored")
    return golds_of(item, where)


class _Documents:
    """Evidence: how long it is, and where in it an answer stands first."""

    def __init__(self, folder: Path):
        if not folder.is_dir():
            raise UserError(f"{folder}: no such folder; --evidence has wikipedia/ and web/ in it")
        self.folder = folder.resolve()
        self.absent: list[str] = []

    def find(self, question: _Question) -> tuple[int | None, Any]:
        """(words, place) in the question's pages laid end to end."""
        found = (self._read(page, question.id) for page in question.pages)
        texts = [text for text in found if text is not None]
        if not texts:
            return None, None
        text = f" {rules.normalise(' '.join(texts))} "
        names = {rules.normalise(gold) for gold in question.golds} - {""}
        starts = [start for name in names if (start := text.find(f" {name} ")) >= 0]
        place = min(starts) / len(text) if starts else "not in the document"
        return sum(map(count_words, texts)), place

    def _read(self, page, where):
        path = pages.inside(self.folder, page.path, where)
        try:
            return pages.read(path)
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
