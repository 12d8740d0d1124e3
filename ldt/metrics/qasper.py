"""QASPER: F1 of answers and of evidence, of {"question_id", "predicted_answer",
"predicted_evidence"}, a line each.

Source: Dasigi et al. 2021 (arXiv:2105.03011), the rules of their evaluation script.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ldt.data.formats import qasper as layout
from ldt.data.formats.qasper import FLOAT, TYPES, UNANSWERABLE, Reference
from ldt.data.formats.recognition import recognised
from ldt.data.options import DEFAULTS, DataSection
from ldt.errors import DataError
from ldt.io import records
from ldt.io.sources import Names, only
from ldt.io.streams import beginning
from ldt.io.strict_json import JsonFile, take, take_id, texts
from ldt.metrics import baseline, prediction_files, word_overlap
from ldt.metrics.baseline import Baselines
from ldt.metrics.result import Item, Result, compare, count_words, defined
from ldt.metrics.squad import normalise

SHOWN = ("Answer F1", "Evidence F1")
BY_TYPE = "Answer F1 by type"


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


def score(example: Mapping[str, Any], answer: Mapping[str, Any]) -> dict[str, float]:
    """Return Answer F1 and Evidence F1, from 0 to 1, each the best over the annotators.

    Args:
        example: ``references``, of all annotators.
        answer: ``answer``, a text, and ``evidence``, paragraphs.
    """
    references = example["references"]
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


def read_gold(source: Names, format: str, data: DataSection = DEFAULTS) -> JsonFile:
    """Read a gold file, which must have this layout (see `prediction_files.read_gold`).

    Raises:
        UserError, DataError: as there; lines of predictions, of which more than one is no JSON.
    """
    file = only(source, f"the questions of {format}")
    head = beginning(file, 1 << 16, lambda head: b"\n" in head)
    if b'"predicted_answer"' in head.partition(b"\n")[0]:
        name = "stdin" if file == "-" else file
        raise DataError(
            f"{name}: looks like predictions, not like a gold file; are --gold and --pred swapped?"
        )
    expected = "an object of papers with full_text and qas"
    return prediction_files.read_gold(source, format, expected, data.encoding)


def read_predictions(source: Names) -> JsonFile:
    """The lines of predictions.

    Raises:
        UserError: there is no such file, or there are several.
        DataError: it is damaged, or a gold file.
    """
    file = only(source, "predictions of qasper")
    name = "stdin" if file == "-" else file
    if recognised(file, "qasper"):
        raise DataError(
            f"{name}: looks like a qasper gold file, not like predictions; are --gold and --pred "
            "swapped?"
        )
    return JsonFile(name, [line.fields for line in records.read(file, format="jsonl")])


def evaluate(gold: JsonFile, predictions: JsonFile, *, text_evidence_only: bool = False) -> Result:
    """Score by the published rules; a question without a prediction counts 0, but in no type.

    Args:
        text_evidence_only: leave tables and figures out of the annotators' evidence.

    Raises:
        DataError: a file that cannot be used.
    """
    answers = _predictions(predictions)
    ids, items, types = [], [], []
    for example in layout.gold(gold):
        id, fields = str(example.id), example.fields
        references = fields["references"]
        if text_evidence_only:
            references = [_without_floats(each) for each in references]
        scores, type = dict.fromkeys(SHOWN, 0.0), ""
        if id in answers:
            scores = score({"references": references}, answers[id])
            type = best_type(references, answers[id]["answer"])
        ids.append(id)
        types.append(type)
        items.append(Item(id, fields["paper"], scores, count_words(fields["text"])))
    missing, extra = compare(ids, answers)
    values = np.array([list(item.scores.values()) for item in items])  # [questions, 2]
    of_type = np.array([[type == each for each in TYPES] for type in types], np.float64)

    def figures(weights: np.ndarray) -> dict[str, np.ndarray]:
        weights = weights.astype(np.float64)
        shown = dict(zip(SHOWN, (100 * weights @ values / weights.sum(1)[:, None]).T, strict=True))
        counts = weights @ of_type  # a mean over no question is 0
        means = 100 * (weights @ (of_type * values[:, :1])) / np.maximum(counts, 1)
        by_type = dict(zip(TYPES, means.T, strict=True))
        return shown | {f"{BY_TYPE} {name}": value for name, value in by_type.items()}

    whole = defined(figures, np.ones((1, len(items))))
    metrics: dict[str, float | int] = {name: whole[name] for name in SHOWN}
    metrics["Missing predictions"] = len(missing)
    result = Result("qasper", items, metrics, "papers", missing, extra, figures=figures)
    result.subsets[BY_TYPE] = {name: whole[f"{BY_TYPE} {name}"] for name in TYPES}
    result.shown = SHOWN
    result.no_place = "a qasper file does not tell"
    return result


def baselines(gold: JsonFile, evaluate: Callable) -> Baselines:
    """Scores of Unanswerable and of Yes, each without evidence."""
    ids = [str(each.id) for each in layout.gold(gold)]
    predictions = {
        baseline.quoted(text): [
            {"question_id": id, "predicted_answer": text, "predicted_evidence": []} for id in ids
        ]
        for text in (UNANSWERABLE, layout.YES)
    }
    return baseline.of_files(evaluate, gold, predictions)


def _without_floats(reference: Reference) -> Reference:
    texts = [text for text in reference.evidence if FLOAT not in text]
    return reference._replace(evidence=texts)


def _predictions(file: JsonFile) -> dict[str, dict[str, Any]]:
    """Id to answer and evidence; a later line of a question replaces the earlier."""
    answers = {}
    for number, line in enumerate(file.value, 1):
        where = f"{file.name}:{number}"
        answers[take_id(line, "question_id", where)] = {
            "answer": take(line, "predicted_answer", str, where),
            "evidence": texts(take(line, "predicted_evidence", list, where), where),
        }
    return answers
