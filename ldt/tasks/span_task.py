"""The base of tasks whose answer is cut from the document: best spans."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from ldt.data.features import Feature
from ldt.data.options import Count, Length
from ldt.errors import DataError
from ldt.io import text_files
from ldt.io.records import Example, text
from ldt.tasks.base import Outputs, SplitGroups, TaskAnswers, TaskInputs, path_of, strata_of
from ldt.tasks.question_task import QuestionTask
from ldt.tasks.text.alignment import Span, real_tokens, with_marks

if TYPE_CHECKING:
    from ldt.data.options import DataSection


SPAN_LABELS = ("start_positions", "end_positions")
SPAN_LOGITS = ("start_logits", "end_logits")


class Found(NamedTuple):
    """A piece of the document: its logit, the sum of the two behind, and its characters."""

    logit: float
    span: Span
    start_logit: float
    end_logit: float


class SpanTask(QuestionTask):
    """An answer that is cut from the document.

    Args:
        max_answer: tokens of the longest answer.
        top: starts and ends, the best of each, that are paired for the answer of a chunk.
        n_best: spans in an answer line, the best ones.
    """

    inputs: ClassVar[TaskInputs] = replace(QuestionTask.inputs, label_names=SPAN_LABELS, stride=128)
    answers: ClassVar[TaskAnswers] = replace(
        QuestionTask.answers,
        outputs=SPAN_LOGITS,
        keys=("answer", "score", "start", "end", "n_best"),
    )

    max_answer: Length = 30
    top: Count = 20
    n_best: Count = 1

    def head(self) -> type:
        from ldt.model import LdtForQuestionAnswering

        return LdtForQuestionAnswering

    def groups(self, example: Example, data: "DataSection") -> SplitGroups:
        """The document: questions on one are not parted."""
        return SplitGroups(
            text(example, path_of(self, "context", data)), strata_of(self, example, data)
        )

    def chunks(
        self, *args: Any, spans: Sequence[Span] | None = None, **options: Any
    ) -> list[Feature]:
        """Return the features of `QuestionTask.chunks`; an answer is not learnt that no input holds
        whole, or that is longer than ``max_answer``."""
        features = super().chunks(*args, spans=spans, **options)
        tokens = features[0].get("answer_tokens", 0)
        if tokens and not any(each["start_positions"] for each in features):
            features[0]["unlearnt"] = "answer_in_no_input", tokens
        elif tokens > self.max_answer:
            features[0]["unlearnt"] = "answer_too_long", tokens
        return features

    def places(
        self, answer: dict, example: Example, data: "DataSection"
    ) -> list[tuple[int, float]]:
        """Return the beginnings of the answers, with their scores; of "" none."""
        answers = answer.get("n_best") or [answer]
        return [(each["start"], each["score"]) for each in answers if answer["answer"]]

    def best(self, outputs: Sequence[Outputs], features: Sequence[Feature]) -> list[Found]:
        """Return the ``n_best`` best spans over all chunks, best first.

        The logit of a span is the sum of its two; of one that several pairs of tokens have, in one
        chunk (the bytes of an emoji) or in two, the highest sum. Marks on the last letter belong to
        a span. Question, separators and padding are left out. Without a word in the document there
        is none, else one at least.
        """
        context = context_of(features[0]["context"])
        best: dict[Span, Found] = {}
        for output, feature in zip(outputs, features, strict=True):
            of_chunk: dict[Span, Found] = {}
            for found in self._pairs(output, feature):
                span = with_marks(found.span, context)
                of_chunk.setdefault(span, found._replace(span=span))
                if len(of_chunk) == self.n_best:
                    break
            for span, found in of_chunk.items():
                best[span] = max(found, best.get(span, found), key=lambda each: each.logit)
        ranked = sorted(best.values(), key=lambda each: (-each.logit, each.span))
        return ranked[: self.n_best]

    def _pairs(self, output: Outputs, feature: Feature) -> Iterator[Found]:
        """Pairs of tokens of a chunk, best first."""
        offsets, first = feature["offsets"], feature["first"]
        start, end = (
            np.asarray(output[name][first : first + len(offsets)], np.float64)
            for name in SPAN_LOGITS  # a task may have others too
        )
        real = real_tokens(offsets)
        top, pairs = self.top, np.empty((0, 2), int)
        while len(real) and not len(pairs):  # at the latest every token is a pair with itself
            a, b = (real[np.argsort(-side[real], kind="stable")[:top]] for side in (start, end))
            pairs = np.array(np.meshgrid(a, b)).reshape(2, -1).T
            length = pairs[:, 1] - pairs[:, 0]
            pairs = pairs[(length >= 0) & (length < self.max_answer)]
            top *= 2
        logits = start[pairs[:, 0]] + end[pairs[:, 1]]
        for place in np.argsort(-logits, kind="stable"):
            a, b = pairs[place]
            span = offsets[a, 0].item(), offsets[b, 1].item()
            yield Found(logits[place].item(), span, start[a].item(), end[b].item())

    def answer(self, spans: Sequence[Found], context: str) -> dict[str, Any]:
        """Return answer, score (the logit), start and end of the best span of `best`; with
        ``n_best`` those of all of them, with start_logit and end_logit.

        Without any span the answer is "", the rest None.
        """
        answers = [
            {"answer": context[start:end], "score": logit, "start": start, "end": end}
            for logit, (start, end), *_ in spans
        ]
        nothing = {"answer": "", "score": None, "start": None, "end": None}
        first = answers[0] if answers else nothing
        if self.n_best == 1:
            return first
        n_best = [
            answer | {"start_logit": found.start_logit, "end_logit": found.end_logit}
            for answer, found in zip(answers, spans, strict=True)
        ]
        return first | {"n_best": n_best}


def thinned(
    answered: Sequence[bool], share: float, chosen: object, seed: int
) -> tuple[list[int], list[str]]:
    """The inputs with an answer and a share of the others, drawn by the seed; and a line about it.

    Args:
        answered: of each input, whether it has an answer.
        share: of those without that are trained on, from 0 on.
        chosen: ``task.null_windows``, for the line.
    """
    kept = np.array(answered)
    without = np.flatnonzero(~kept)
    kept[without] = np.random.default_rng(seed).random(len(without)) < share
    line = (
        f"{kept[without].sum():,} of {len(without):,} inputs without an answer are trained on "
        f"(task.null_windows={chosen}), drawn once by the seed"
    )
    return np.flatnonzero(kept).tolist(), [line]


def context_of(source: str | Path) -> str:
    """The document of a feature, which has its text or, not to hold it in memory, its file.

    Raises:
        DataError: the file is not there any more.
    """
    if isinstance(source, str):
        return source
    try:
        return text_files.read_file(source)
    except OSError as error:
        raise DataError(f"{source}: {error.strerror}") from None
