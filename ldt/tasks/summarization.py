"""Summaries of one or several documents, by a model with a decoder."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np

from ldt.benchmarks import summarization
from ldt.data.features import Feature, Segment, cut_off, ends, join
from ldt.data.options import DataSection
from ldt.data.tokenization import tokenize
from ldt.errors import DataError, plural, quote
from ldt.io.records import Example, field, flat, text, texts
from ldt.metrics import baseline
from ldt.metrics.baseline import Baselines
from ldt.metrics.result import count_words, mean
from ldt.tasks.base import (
    Outputs,
    PublishedLayout,
    Scores,
    TaskAnswers,
    TaskInputs,
    TaskReads,
    path_of,
    question_of,
)
from ldt.tasks.writing import WritingTask, wordless

log = logging.getLogger("ldt")


class Summarization(WritingTask):
    """Summary of a document.

    An example has ``text``, a text or a list of documents, its ``summary``, and optionally a
    ``question`` that the summary answers.

    Input: <s> text </s>, with a question <s> question </s> text </s>, several documents with a
    separator between them, as in PRIMERA (Xiao et al. 2022, arXiv:2110.08499): if they do not fit,
    each is truncated to the same length, and what shorter ones leave is given to the others.
    `WritingTask` describes the rest.
    """

    reads: ClassVar[TaskReads] = replace(
        WritingTask.reads, fields=("summary", "question"), signs=(("summary",),)
    )
    inputs: ClassVar[TaskInputs] = replace(
        WritingTask.inputs,
        roles=("cls", "question", "separator", "document", "sep"),
        one_class=True,
    )
    answers: ClassVar[TaskAnswers] = replace(
        WritingTask.answers,
        kind="summary",
        score=summarization.score,
        keys=("summary", "summary_tokens", "unfinished", "read_tokens"),
        metric="rougeLsum",  # by sentences, which papers on long documents call ROUGE-L
        scorer=summarization.scorer,
        layouts={"summarization": PublishedLayout(summarization.published, default=())},  # no JSON
    )
    written: ClassVar[str] = "summaries"

    name: Literal["summarization"] = "summarization"
    global_attention: list[str] = ["cls", "question", "separator"]

    def parts(self, example: Example, data: DataSection) -> tuple[str, str]:
        """Return the documents, one per line, and the question, "" for none."""
        return flat(self._documents(example, data)), self._question(example, data) or ""

    def answer_key(self, example: Example, data: DataSection) -> str:
        """Return the summary."""
        return self._summary(example, data)

    def encode(
        self, example: Example, tokenizer, *, data: DataSection, max_length: int, config=None
    ) -> list[Feature]:
        """Return the only feature of an example.

        ``labels`` [tokens] int32 are those of its summary; ``target`` is how many it would have
        without a limit. With several documents ``read_tokens`` of the flags has how many of each
        are read. RecipeError if the model's decoder is missing or has too few positions.
        """
        self._tokenizer = tokenizer
        documents, question = self._documents(example, data), self._question(example, data)
        cls, sep = ends(tokenizer)
        separator = Segment("separator", sep.ids)
        segments, flags = [cls], {} if any(map(str.strip, documents)) else {"empty": True}
        if question is not None:
            asked, cut = self.question_segment(question.strip(), tokenizer)
            flags |= cut
            segments += [asked, separator]
        ids = [tokenize(tokenizer, document) for document in documents]
        taken = sum(len(each.ids) for each in segments) + len(ids)  # with separators and the end
        room, lengths = max_length - taken, [len(each) for each in ids]
        self.check_room(example, sum(lengths), room, len(ids), data)
        read = shares(lengths, room)
        for number, (document, size) in enumerate(zip(ids, read, strict=True)):
            segments += [separator] * (number > 0) + [Segment("document", document[:size])]
        # For the roles that may have global attention, where an input has none of these.
        segments += [Segment("question", ()), Segment("separator", ()), sep]
        flags |= cut_off(sum(lengths) - sum(read)) | ({"read_tokens": read} if len(ids) > 1 else {})
        feature = join(segments, self.global_attention)
        feature |= {"document": 0, "tokens": taken + sum(lengths), "flags": flags}
        if config is not None:
            feature |= self.target_labels(self._summary(example, data), tokenizer, config)
        return [feature]

    def gold(self, example: Example, data: DataSection, config) -> dict[str, Any]:
        """Return {"summary": text, "text": list of its documents}."""
        return {"summary": self._summary(example, data), "text": self._documents(example, data)}

    def decode(self, outputs: Sequence[Outputs], config, example: Example, features) -> dict:
        """Return ``summary``, ``summary_tokens``, their number without special ones, ``unfinished``
        (true) if it became too long before its end came, and flags such as ``truncated``."""
        (feature,), (output,) = features, outputs
        return self.decode_text("summary", output) | feature["flags"]

    def measure(self, answers: Sequence[dict], golds: Sequence[Any], config) -> Scores:
        """Return ROUGE and the other figures of `ldt.benchmarks.summarization`, 0 to 100, without
        rows; logs a warning if most summaries are empty or a single token."""
        blank = sum(answer.get("summary_tokens", 2) < 2 for answer in answers)
        if len(answers) > 1 and (doubt := wordless(blank, len(answers))):
            log.warning("%s", doubt)
        scores = map(summarization.score, golds, answers)
        return mean([*scores], summarization.metrics), []

    def baseline(self, trained: Sequence[Any], golds: Sequence[Any], config) -> Baselines:
        """Return the ROUGE scores of the first words of each document, as many as a summary has on
        average in training."""
        words = round(float(np.mean([count_words(gold["summary"]) for gold in trained])))
        leads = [summarization.beginning(gold["text"], words) for gold in golds]
        summaries = [gold["summary"] for gold in golds]
        figures = mean([*map(summarization.rouge, summaries, leads)])
        return baseline.best({f"the first {plural(words, 'word')}": figures})

    def _documents(self, example: Example, data: DataSection) -> list[str]:
        path = path_of(self, "text", data)
        value = field(example, path)
        if isinstance(value, str):
            return [value]
        if not isinstance(value, list) or not value:
            raise DataError(
                f"{example.where}: field {path!r} is {quote(value)}, expected text or a list of "
                "documents"
            )
        return texts(example, path)

    def _question(self, example: Example, data: DataSection) -> str | None:
        """The question, None if there is none; one named in the recipe must exist."""
        path = path_of(self, "question", data)
        if "question" not in data.fields and example.fields.get(path) is None:
            return None
        return question_of(self, example, data)

    def _summary(self, example: Example, data: DataSection) -> str:
        summary = text(example, path_of(self, "summary", data))
        if not summary.strip():
            raise DataError(f"{example.where}: the summary is empty")
        return summary


def shares(lengths: Sequence[int], room: int) -> list[int]:
    """Divide ``room`` tokens among documents of these lengths: equal for all, or the whole of a
    shorter one; returns the tokens to read of each."""
    read, left = [0] * len(lengths), room
    rising = sorted(range(len(lengths)), key=lengths.__getitem__)
    for place, number in enumerate(rising):
        read[number] = min(lengths[number], left // (len(lengths) - place))
        left -= read[number]
    return read
