"""Summaries: ROUGE, their lengths, and what of them stands in the source.

ROUGE is counted by the package rouge-score, which is imported when it is asked for. Predictions are
JSON lines of {id, summary}, or a text file with a summary a line.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import islice
from typing import Any

import numpy as np

from ldt.data.formats import summarization as layout
from ldt.data.formats.entries import once
from ldt.data.formats.passage_qa import name_of
from ldt.data.options import DEFAULTS, DataSection
from ldt.data.sentences import sentences
from ldt.errors import DataError, UserError, plural
from ldt.io import records, streams
from ldt.io.progress import reported
from ldt.io.sources import Names, only
from ldt.io.streams import Line
from ldt.io.strict_json import JsonFile, take
from ldt.io.text_files import JSON
from ldt.metrics import baseline
from ldt.metrics.baseline import Baselines
from ldt.metrics.result import Item, Result, compare, count_words, mean, some
from ldt.metrics.source_overlap import SourceText, figures

ROUGE = ("rouge1", "rouge2", "rougeL", "rougeLsum")
BREAK = "<n>"  # a line break inside of a line of text, as Pegasus writes it
_TABLES = ("json", "jsonl", "csv", "tsv", "parquet")  # endings
_HEAD = 1 << 16  # bytes that tell the layout
_LINE = 1 << 28  # bytes of a summary at most
_COVERED = 0.5  # share of letters below which ROUGE says little


def score(example: Mapping[str, Any], answer: Mapping[str, Any]) -> dict[str, float]:
    """Return ROUGE, from 0 to 1, and counts of a summary; `metrics` makes figures of their means.

    Args:
        example: ``text``, a document or a list of several, and ``summary``, the reference.
        answer: ``summary``.
    """
    source = SourceText(_joined(example["text"]))
    return _scores(source, example["summary"], answer["summary"], stemmer=True)


def rouge(target: str, prediction: str, *, stemmer: bool = True) -> dict[str, float]:
    """Return the F1, from 0 to 1, of each of `ROUGE`; 0 where a text has none of a to z and 0 to 9.

    rougeL takes each text as one sequence. rougeLsum compares line by line, a text without line
    breaks sentence by sentence. Both are called ROUGE-L in papers.

    Args:
        target: the reference summary.
        prediction: the summary to score.
        stemmer: whether words of four letters and more are compared by their stems.

    Raises:
        UserError: as `scorer`.
    """
    scores = scorer(stemmer).score(_in_lines(target), _in_lines(prediction))
    return {name: scores[name].fmeasure for name in ROUGE}


@cache
def scorer(stemmer: bool = True) -> Any:
    """Return the scorer of rouge-score.

    Raises:
        UserError: the package is not installed.
    """
    try:
        from rouge_score.rouge_scorer import RougeScorer  # takes a second
        from rouge_score.tokenizers import DefaultTokenizer
    except ImportError:
        raise UserError(
            "ROUGE of summaries needs rouge-score: pip install 'ldt-toolkit[summaries]'"
        ) from None
    # Without a tokenizer it logs one line by absl, which gives the root logger a handler.
    return RougeScorer(ROUGE, tokenizer=DefaultTokenizer(stemmer))


def metrics(means: dict[str, Any]) -> dict[str, Any]:
    """Figures of means of scores, times 100, or of arrays of them; those that are defined.

    ROUGE and shares in percent, ``longest_copied_run``, ``summary_words`` and ``reference_words``
    in words.
    """
    values = {name: means[name] for name in ROUGE} | figures(means)
    values |= {name: means[name] / 100 for name in ("summary_words", "reference_words")}
    values["empty"] = means["empty"]
    return {name: value for name, value in values.items() if not np.all(np.isnan(value))}


def read_gold(source: Names, format: str, data: DataSection = DEFAULTS) -> JsonFile:
    """The records of a gold file (see `ldt.data.formats.summarization.named`).

    Raises:
        UserError: there is no such file, or there are several.
        DataError: it is damaged, has another layout, or no record.
    """
    file = only(source, f"the documents of {format}")
    examples, name = list(layout.named(records.read(file, encoding=data.encoding))), name_of(file)
    if not examples:
        raise DataError(f"{name}: no documents in it")
    if "summary" in examples[0].fields and "text" not in examples[0].fields:
        raise DataError(
            f"{name}: looks like predictions, not like a gold file: no field with the text; are "
            "--gold and --pred swapped?"
        )
    once((str(example.id) for example in examples), name)
    return JsonFile(name, examples)


def read_predictions(source: Names) -> JsonFile:
    """Summaries by id, or a list of them from a text file with a summary a line.

    `BREAK` is a line break of the summary.

    Raises:
        UserError: there is no such file, or there are several.
        DataError: it is damaged, or a record has no summary.
    """
    file = only(source, "predictions of summarization")
    name = name_of(file)
    head = streams.beginning(file, _HEAD, lambda head: b"\n" in head.lstrip())
    is_json = JSON.match(head.removeprefix(streams.BOM))
    if not is_json and records.suffix(file) not in _TABLES:
        lines = records.lines(file, max_line_bytes=_LINE)
        return JsonFile(name, [_line(line, name) for line in lines])
    examples = list(records.read(file))
    once((str(line.id) for line in examples), name)
    return JsonFile(
        name,
        {str(each.id): _breaks(take(each.fields, "summary", str, each.where)) for each in examples},
    )


def published(answers: Iterable[Mapping[str, Any]]) -> str:
    """A summary a line, in the order of the documents; `BREAK` for a line break."""
    return "".join(BREAK.join(answer["summary"].splitlines()) + "\n" for answer in answers)


def evaluate(gold: JsonFile, predictions: JsonFile, *, no_stemmer: bool = False) -> Result:
    """Score summaries; a document without one counts as if it were empty.

    Intervals draw documents, each with all of its summaries. Beside the figures of what stands in
    the source are those of the references.

    Args:
        gold, predictions: as `read_gold` and `read_predictions` have them.
        no_stemmer: compare words as they are, see `rouge`.

    Raises:
        UserError: as `scorer`.
        DataError: a file that cannot be used.
    """
    summaries = _by_id(gold, predictions)
    items, references = [], []
    foreign: list[str] = []  # documents of which ROUGE leaves most out
    for example in reported(gold.value, "scoring summaries"):
        id, target = str(example.id), layout.summary(example).strip()
        document = _joined(layout.text(example))
        summary = summaries.get(id, "").strip()
        source = SourceText(document)
        scores = _scores(source, target, summary, stemmer=not no_stemmer)
        items.append(Item(id, document, scores, count_words(document)))
        references.append(source.counts(target))
        if min(_coverage(target), _coverage(summary)) < _COVERED:
            foreign.append(id)
    missing, extra = compare([str(example.id) for example in gold.value], summaries)
    figures_of_all = mean([item.scores for item in items], metrics)
    result = Result("summarization", items, figures_of_all, "documents", missing, extra)
    result.derive, result.noun = metrics, "document"
    result.shown = (*ROUGE, "summary_words")
    result.no_place = "a summary has no place"
    result.notes = _notes(mean(references, figures), no_stemmer)
    if foreign:
        result.warnings.append(
            f"{predictions.name}: {plural(len(foreign), 'document')} of which most letters of the "
            "summary or the reference do not count: ROUGE knows a to z and 0 to 9 alone, so that "
            f"its figures say little: {some(foreign)}"
        )
    return result


def baselines(gold: JsonFile, evaluate: Callable, no_stemmer: bool = False) -> Baselines:
    """ROUGE of the first words of each document, as many as a reference has in the mean."""
    most = round(sum(count_words(layout.summary(each)) for each in gold.value) / len(gold.value))
    scores = []
    for example in reported(gold.value, "scoring the first words"):
        lead = beginning(layout.text(example), most)
        scores.append(rouge(layout.summary(example), lead, stemmer=not no_stemmer))
    return baseline.best({f"first {plural(most, 'word')}": mean(scores)})


def beginning(text: str | list[str], words: int) -> str:
    """A document, or several of them, up to the end of so many words."""
    joined = _joined(text)
    ends = [word.end() for word in islice(re.finditer(r"\S+", joined), words)]
    return joined[: ends[-1]] if ends else ""


def _scores(source: SourceText, target: str, summary: str, stemmer: bool) -> dict[str, float]:
    return {
        **rouge(target, summary, stemmer=stemmer),
        **source.counts(summary),
        "summary_words": count_words(summary),
        "reference_words": count_words(target),
        "empty": not summary.strip(),
    }


def _notes(references: dict[str, float], no_stemmer: bool) -> dict[str, str]:
    """Notes beside the figures: how ROUGE is counted, and the figures of the references."""
    kind = "F1, no stemmer" if no_stemmer else "F1, Porter stemmer of NLTK"
    notes = dict.fromkeys(ROUGE, kind)
    notes["rougeL"] += "; each text in one"
    notes["rougeLsum"] += "; lines of a text that has line breaks, else sentences by ldt's rule"
    for name, value in references.items():
        if not np.isnan(value):
            notes[name] = f"references {value:.2f}"
    notes["longest_copied_run"] = f"words; {notes['longest_copied_run']}"
    return notes | dict.fromkeys(("summary_words", "reference_words"), "in the mean")


def _by_id(gold: JsonFile, predictions: JsonFile) -> dict[str, str]:
    """Predictions by id, those of a text file by the order of the gold file.

    Raises:
        DataError: lines of a text file that are not as many as there are documents.
    """
    if isinstance(predictions.value, dict):
        return predictions.value
    if len(predictions.value) != len(gold.value):
        raise DataError(
            f"{predictions.name}: {plural(len(predictions.value), 'line')} of text; {gold.name} "
            f"has {plural(len(gold.value), 'document')}, each of which needs one"
        )
    ids = (str(example.id) for example in gold.value)
    return dict(zip(ids, predictions.value, strict=True))


def _in_lines(text: str) -> str:
    """The text, or without line breaks its sentences, one a line."""
    if "\n" in text:
        return text
    return "\n".join(text[start:end] for start, end in sentences(text))


def _coverage(text: str) -> float:
    """The share of letters and digits that ROUGE counts, 0 to 1; 1 where there are none."""
    letters = [letter for letter in text if letter.isalnum()]
    return sum(map(str.isascii, letters)) / len(letters) if letters else 1.0


def _joined(text: str | list[str]) -> str:
    return text if isinstance(text, str) else "\n\n".join(text)


def _line(line: Line, name: str) -> str:
    try:
        text = line.raw.decode("utf-8")
    except UnicodeDecodeError as error:
        what = streams.not_utf8(line.raw, error, line.offset)
        raise DataError(f"{name}:{line.number}: {what}") from None
    return text.strip("\r\n").replace(BREAK, "\n")


def _breaks(summary: str) -> str:
    """A summary with the line breaks that it has in a text file of them."""
    return "\n".join(summary.splitlines()).replace(BREAK, "\n")
