"""TriviaQA: exact match and F1 of {key: answer}, of all questions and of the verified ones.

The key is QuestionId in the Wikipedia domain; in the Web domain QuestionId--Filename, each page of
a question scored on its own.

Source: Joshi et al. 2017 (arXiv:1705.03551), the rules of their evaluation script for version 1.0.
"""

import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ldt.data.formats import triviaqa as layout
from ldt.data.options import DEFAULTS, DataSection
from ldt.errors import DataError, UserError, plural
from ldt.io import text_files as pages
from ldt.io.records import Example
from ldt.io.sources import Names
from ldt.io.strict_json import JsonFile
from ldt.metrics import baseline, prediction_files, word_overlap
from ldt.metrics.baseline import Baselines
from ldt.metrics.prediction_files import read as read_predictions  # noqa: F401
from ldt.metrics.result import Item, Result, compare, count_words, mean

_SPACES = str.maketrans(dict.fromkeys(string.punctuation + "‘’´`", " "))


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


def score(example: Mapping[str, Any], answer: Mapping[str, Any]) -> dict[str, float]:
    """Return exact_match and f1 by `match`.

    Args:
        example: ``answers``, all names of the answer.
        answer: ``answer``, a text; None for no prediction, which counts 0.
    """
    exact, f1 = (0, 0.0)
    if answer["answer"] is not None:
        exact, f1 = match(answer["answer"], example["answers"])
    return {"exact_match": exact, "f1": f1}


def better(answer: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Tell whether an answer has a higher ``score``; None, no word in the document, has none."""
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


def read_gold(source: Names, format: str, data: DataSection = DEFAULTS) -> JsonFile:
    """Read a gold file, which must have this layout (see `prediction_files.read_gold`)."""
    expected = "an object with Data, a list of questions with QuestionId and Answer"
    return prediction_files.read_gold(source, format, expected, data.encoding)


def evaluate(
    gold: JsonFile,
    predictions: JsonFile,
    *,
    domain: str | None = None,
    evidence: str | None = None,
) -> Result:
    """Score predictions by the published rules.

    Args:
        domain: "wikipedia" or "web"; what the gold file says if None.
        evidence: folder with wikipedia/ and web/, for groups by length and position.

    Raises:
        DataError: a file that cannot be used, a page outside of ``evidence``.
        UserError: ``domain`` is not that of the file, or neither is given; no folder ``evidence``.
    """
    domain = layout.domain_of(gold, domain)
    only = layout.only_verified(gold)
    questions = _questions(gold, domain)
    answers = prediction_files.answers_by_id(predictions)
    missing, extra = compare(list(questions), answers)
    documents = _Documents(Path(evidence)) if evidence else None
    items = {}
    for key, question in questions.items():
        scores = score(question.fields, {"answer": answers.get(key)})
        item = items[key] = Item(key, question.fields["question"], scores)
        if documents:
            item.words, item.place = documents.find(question)

    def figures(keys: Sequence[str]) -> dict[str, float | int]:
        common = sum(key in answers for key in keys)
        counts = {"common": common, "denominator": len(keys), "pred_len": len(answers)}
        return {**mean([items[key].scores for key in keys]), **counts, "gold_len": len(keys)}

    title = "triviaqa, wikipedia" if domain == "wikipedia" else "triviaqa, web, each page by itself"
    verified = [key for key, each in questions.items() if each.fields["verified"] and not only]
    result = Result(
        f"{title}, verified only" if only else title,
        list(items.values()),
        figures(list(questions)),
        "questions",
        missing,
        extra,
        parts={"verified ": [items[key] for key in verified]} if verified else {},
    )
    if verified:
        result.subsets["verified"] = figures(verified)
    if documents:
        result.warnings += documents.warnings()
    else:
        result.no_length = result.no_place = "data.evidence=FOLDER would tell"
    return result


def baselines(gold: JsonFile, evaluate: Callable, domain: str | None = None) -> Baselines:
    """Scores of the most frequent answer."""
    questions = _questions(gold, layout.domain_of(gold, domain))
    usual = baseline.commonest(question.fields["answers"] for question in questions.values())
    predictions = {baseline.quoted(usual): dict.fromkeys(questions, usual)}
    return baseline.of_files(partial(evaluate, domain=domain), gold, predictions)


def _questions(gold: JsonFile, domain: str) -> dict[str, Example]:
    """Key to question; in a file of verified questions (``VerifiedEval``) only those."""
    questions = {str(example.id): example for example in layout.gold(gold, domain)}
    if not questions:
        what = "verified questions" if layout.only_verified(gold) else "questions"
        raise DataError(f"{gold.name}: no {what} in it")
    return questions


class _Documents:
    """Documents of questions: their length, and the place where an answer stands first."""

    def __init__(self, folder: Path):
        if not folder.is_dir():
            raise UserError(
                f"{folder}: no such folder; data.evidence has wikipedia/ and web/ in it"
            )
        self.folder = pages.real(folder)
        self.absent: list[str] = []

    def find(self, question: Example) -> tuple[int | None, float | str | None]:
        """(words, place) in the question's pages laid end to end."""
        fields = question.fields
        read = (self._read(page, fields["question"]) for page in fields["pages"])
        texts = [text for text in read if text is not None]
        if not texts:
            return None, None
        text = f" {normalise(' '.join(texts))} "
        names = {normalise(gold) for gold in fields["answers"]} - {""}
        starts = [start for name in names if (start := text.find(f" {name} ")) >= 0]
        place = min(starts) / len(text) if starts else "not in the document"
        return sum(map(count_words, texts)), place

    def _read(self, page, where):
        path = pages.inside(self.folder, page.path, where)
        try:
            return pages.read_file(path)
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
