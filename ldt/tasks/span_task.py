"""The base of tasks whose answer is cut from the document: best spans."""

import unicodedata
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from ldt.data import evidence
from ldt.data.features import Feature
from ldt.data.options import Count, Length
from ldt.data.records import Example, text
from ldt.errors import DataError
from ldt.tasks.base import Outputs
from ldt.tasks.question_task import QuestionTask
from ldt.tasks.text.alignment import Span, real_tokens

if TYPE_CHECKING:
    from ldt.data.options import DataSection


class SpanTask(QuestionTask):
    """An answer that is cut from the document.

    Args:
        max_answer: tokens of the longest answer.
        top: starts and ends, the best of each, that are paired for the answer of a chunk.
        n_best: spans in an answer line, the best ones.
    """

    rests_on: ClassVar[Literal["logits", "places"] | None] = "places"
    label_names: ClassVar[tuple[str, ...]] = ("start_positions", "end_positions")
    outputs: ClassVar[tuple[str, ...]] = ("start_logits", "end_logits")
    answer_keys: ClassVar[tuple[str, ...]] = ("answer", "score", "start", "end", "n_best")

    max_answer: Length = 30
    top: Count = 20
    n_best: Count = 1

    def head(self) -> type:
        from ldt.model import LdtForQuestionAnswering

        return LdtForQuestionAnswering

    def unit(self, example: Example, data: "DataSection") -> Hashable:
        """The document: questions on one are not parted."""
        return text(example, self.path("context", data))

    def default_metric(self, config) -> str:
        """f1."""
        return "f1"

    def places(
        self, answer: dict, example: Example, data: "DataSection"
    ) -> list[tuple[int, float]]:
        """Return the beginnings of the answers, with their scores; of "" none."""
        answers = answer.get("n_best") or [answer]
        return [(each["start"], each["score"]) for each in answers if answer["answer"]]

    def best(
        self, outputs: Sequence[Outputs], features: Sequence[Feature]
    ) -> list[tuple[float, Span]]:
        """Return the ``n_best`` best spans over all chunks, as (logit, characters), best first.

        The logit of a span is the sum of its two; of one that two chunks have, the higher sum.
        Question, separators and padding are left out. Without a word in the document there is
        none, else one at least.
        """
        logits: dict[Span, float] = {}
        for output, feature in zip(outputs, features, strict=True):
            for logit, span in self._best_of_chunk(output, feature):
                logits[span] = max(logit, logits.get(span, -np.inf))
        ranked = sorted(logits.items(), key=lambda item: (-item[1], item[0]))
        return [(logit, span) for span, logit in ranked[: self.n_best]]

    def _best_of_chunk(self, output: Outputs, feature: Feature) -> list[tuple[float, Span]]:
        offsets, first = feature["offsets"], feature["first"]
        start, end = (
            np.asarray(output[name][first : first + len(offsets)], np.float64)
            for name in SpanTask.outputs
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
        order = np.argsort(-logits, kind="stable")[: self.n_best]
        return [
            (logits[n].item(), (offsets[pairs[n, 0], 0].item(), offsets[pairs[n, 1], 1].item()))
            for n in order
        ]

    def answer(self, spans: Sequence[tuple[float, Span]], context: str) -> dict[str, Any]:
        """Return answer, score (the logit), start and end of the best span of `best`; with
        ``n_best`` those of all of them.

        An answer ends with the marks on its last letter, which some tokenizers drop. Without any
        span it is "", the rest None.
        """
        answers = []
        for logit, (start, end) in spans:
            while end < len(context) and unicodedata.category(context[end])[0] == "M":
                end += 1
            answers.append(
                {"answer": context[start:end], "score": logit, "start": start, "end": end}
            )
        nothing = {"answer": "", "score": None, "start": None, "end": None}
        first = answers[0] if answers else nothing
        return first | ({"n_best": answers} if self.n_best > 1 else {})


def context_of(source: str | Path) -> str:
    """The document of a feature, which has its text or, not to hold it in memory, its file.

    Raises:
        DataError: the file is not there any more.
    """
    if isinstance(source, str):
        return source
    try:
        return evidence.read(source)
    except OSError as error:
        raise DataError(f"{source}: {error.strerror}") from None
