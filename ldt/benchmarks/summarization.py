"""Summaries: ROUGE, their lengths, and what of them stands in the source.

ROUGE is counted by the package rouge-score, which is imported when it is asked for. Predictions are
JSON lines of {id, summary}, or a text file with a summary a line.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from typing import Any

import numpy as np

from ldt.benchmarks import base
from ldt.benchmarks.base import AnswersById, Benchmark
from ldt.data import summaries
from ldt.data.sentences import sentences
from ldt.errors import DataError, UserError, plural
from ldt.io import records, streams
from ldt.io.progress import reported
from ldt.io.sources import only
from ldt.io.streams import Line
from ldt.io.strict_json import take
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


def score(right: Mapping[str, Any], answer: Mapping[str, Any] | None) -> dict[str, float]:
    """Return ROUGE, from 0 to 1, and counts of a summary; `metrics` makes figures of their means.

    Args:
        right: ``text``, a document or a list of several, and ``summary``, the reference.
        answer: ``summary``; None counts as an empty one.
    """
    summary = (answer or {}).get("summary") or ""
    return _scores(SourceText(_joined(right["text"])), right["summary"], summary, stemmer=True)


def rouge(target: str, prediction: str, *, stemmer: bool = True) -> dict[str, float]:
    """Return {rouge1, rouge2, rougeL, rougeLsum: F1 from 0 to 1}; 0 where a text has none of a to z
    and 0 to 9.

    rougeL takes each text as one sequence. rougeLsum compares line by line, a text without line
    breaks sentence by sentence. Both are called ROUGE-L in papers.

    Args:
        target: the reference summary.
        prediction: the summary to score.
        stemmer: True compares words of four letters and more by their stems.
    """
    scores = scorer(stemmer).score(_in_lines(target), _in_lines(prediction))
    return {name: scores[name].fmeasure for name in ROUGE}


@cache
def scorer(stemmer: bool = True) -> Any:
    """Return rouge-score's scorer of `ROUGE`, with stems or without, always the same object;
    UserError if the package is not installed."""
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
    """Compute the metrics of summaries from means of `score`, each times 100, or arrays of such
    means: ROUGE and shares in percent, ``longest_copied_run``, ``summary_words`` and
    ``reference_words`` in words. Metrics that are NaN everywhere are left out."""
    values = {name: means[name] for name in ROUGE} | figures(means)
    values |= {name: means[name] / 100 for name in ("summary_words", "reference_words")}
    values["empty"] = means["empty"]
    return {name: value for name, value in values.items() if not np.all(np.isnan(value))}


def published(answers: Iterable[Mapping[str, Any]]) -> str:
    """Write the ``summary`` of each answer as one line of a text, in their order; `BREAK` stands
    for a line break."""
    return "".join(BREAK.join(answer["summary"].splitlines()) + "\n" for answer in answers)


@dataclass
class SummarizationScorer(Benchmark):
    """Summaries: a document without one counts as if it were empty.

    Intervals draw documents, each with all of its summaries. Beside the figures of what stands in
    the source are those of the references. Lines of ldt predict are read as they are.

    Args:
        no_stemmer: compare words as they are, see `rouge`.
    """

    no_stemmer: bool = False

    title = "summarization"
    units = "documents"
    noun = "document"
    shown = (*ROUGE, "summary_words")
    no_place = "a summary has no place"

    def gold(self, files: Sequence[str]) -> list[Item]:
        """Read the documents of one file: ``right`` has ``text`` and the reference ``summary``; the
        bootstrap unit is the document's text."""
        file, name = only(files, "the documents of summarization"), base.name_of(files)
        items = []
        for example in summaries.with_fields(records.read(file, encoding=self.data.encoding)):
            document = _joined(summaries.text(example))
            right = {"text": document, "summary": summaries.summary(example)}
            items.append(Item(str(example.id), document, {}, count_words(document), right=right))
        return base.checked(items, name, "documents")

    def load(self, files: Sequence[str]) -> list[str] | list[records.Example]:
        """Read one file of predictions: records, or the lines of a text file with a summary a line,
        in which `BREAK` becomes a line break."""
        file = only(files, "predictions of summarization")
        head = streams.beginning(file, _HEAD, lambda head: b"\n" in head.lstrip())
        is_json = JSON.match(head.removeprefix(streams.BOM))
        if not is_json and records.suffix(file) not in _TABLES:
            lines = records.lines(file, max_line_bytes=_LINE)
            return [_line(line, base.name_of(files)) for line in lines]
        return list(records.read(file))

    def parse(self, value: Any, name: str) -> AnswersById:
        """Convert what `load` returns to {id: summary}; those of a text file are numbered
        from 0."""
        if value and isinstance(value[0], str):
            return dict(enumerate(value))
        base.once((str(each.id) for each in value), name)
        return {str(e.id): _breaks(take(e.fields, "summary", str, e.where)) for e in value}

    def aggregate(self, items: Sequence[Item], answers: AnswersById, name: str) -> Result:
        """ROUGE, copied shares and lengths of the summaries (`metrics`). Summaries that are
        numbered are matched in order, DataError if there are not as many as documents. Progress
        is logged."""
        if 0 in answers:
            if len(answers) != len(items):
                raise DataError(
                    f"{name}: {plural(len(answers), 'line')} of text; the gold file has "
                    f"{plural(len(items), 'document')}, each of which needs one"
                )
            ids = (item.id for item in items)
            answers = dict(zip(ids, answers.values(), strict=True))
        scored, references = [], []
        foreign: list[str] = []  # documents of which ROUGE leaves most out
        for item in reported(items, "scoring summaries"):
            target = item.right["summary"].strip()
            summary = answers.get(item.id, "").strip()
            source = SourceText(item.right["text"])
            scores = _scores(source, target, summary, stemmer=not self.no_stemmer)
            scored.append(replace(item, scores=scores))
            references.append(source.counts(target))
            if min(_coverage(target), _coverage(summary)) < _COVERED:
                foreign.append(item.id)
        of_all = mean([item.scores for item in scored], metrics)
        missing = compare([item.id for item in items], answers)
        result = self.result(scored, of_all, *missing, derive=metrics)
        result.notes = _notes(mean(references, figures), self.no_stemmer)
        if foreign:
            result.warnings.append(
                f"{name}: {plural(len(foreign), 'document')} of which most letters of the "
                "summary or the reference do not count: ROUGE knows a to z and 0 to 9 alone, so "
                f"that its figures say little: {some(foreign)}"
            )
        return result

    def baselines(self, items: Sequence[Item], answers: AnswersById, name: str) -> Baselines:
        """ROUGE of the first words of each document, as many as a reference has in the mean; only
        ``items`` is used. Progress is logged."""
        targets = [item.right["summary"] for item in items]
        most = round(sum(map(count_words, targets)) / len(items))
        scores = []
        for item in reported(items, "scoring the first words"):
            lead = beginning(item.right["text"], most)
            scores.append(rouge(item.right["summary"], lead, stemmer=not self.no_stemmer))
        return baseline.best({f"first {plural(most, 'word')}": mean(scores)})


def beginning(text: str | list[str], words: int) -> str:
    """First ``words`` words of a document, or of several documents joined, as they stand in the
    text."""
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
    kind = "F1, no stemmer" if no_stemmer else "F1, Porter stemmer of NLTK"
    notes = dict.fromkeys(ROUGE, kind)
    notes["rougeL"] += "; each text in one"
    notes["rougeLsum"] += "; lines of a text that has line breaks, else sentences by ldt's rule"
    for name, value in references.items():
        if not np.isnan(value):
            notes[name] = f"references {value:.2f}"
    notes["longest_copied_run"] = f"words; {notes['longest_copied_run']}"
    return notes | dict.fromkeys(("summary_words", "reference_words"), "in the mean")


def _in_lines(text: str) -> str:
    """The text, or without line breaks its sentences, one a line."""
    if "\n" in text:
        return text
    return "\n".join(text[start:end] for start, end in sentences(text))


def _coverage(text: str) -> float:
    """Share of letters and digits that ROUGE counts, 0 to 1; 1 where there are none."""
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
