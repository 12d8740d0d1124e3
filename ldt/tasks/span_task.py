"""The base of tasks whose answer is cut from the document: input, alignment, best spans.

Input: <s> question </s> document </s>, the document in chunks where it is long. One separator
stands between the two, not the two of RoBERTa's pairs, and question and document are tokenized as
if a space stood in front, as in the authors' scripts/triviaqa.py (allenai/longformer): their
checkpoints were trained so. Tokenizers that number the parts of a pair (BERT's) give the document
the second number.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np

from ldt.data import evidence
from ldt.data.chunking import fit
from ldt.data.features import Feature
from ldt.data.options import Count, Length
from ldt.data.records import Example, text
from ldt.data.tokenization import tokenize, tokenize_inside
from ldt.errors import DataError
from ldt.tasks.base import Outputs, Segment, Task, ends, join
from ldt.tasks.explained import Reading
from ldt.tasks.text.alignment import Span, aligned, real_tokens, with_marks
from ldt.tasks.text.sentences import UNITS, Unit

if TYPE_CHECKING:
    from ldt.data.options import DataSection


class Found(NamedTuple):
    """A piece of the document: its logit, the sum of the two behind, and its characters."""

    logit: float
    span: Span
    start_logit: float
    end_logit: float


class SpanTask(Task):
    """An answer that is cut from the document.

    Args:
        max_question: tokens of the question that are read; none reads all.
        max_answer: tokens of the longest answer.
        top: starts and ends, the best of each, that are paired for the answer of a chunk.
        n_best: spans in an answer line, the best ones.
    """

    extras: ClassVar[tuple[str, ...]] = ("offsets", "first", "context")
    roles: ClassVar[tuple[str, ...]] = ("cls", "question", "sep", "document")
    document: ClassVar[str] = "context"
    asked: ClassVar[tuple[str, ...]] = ("question",)
    rests_on: ClassVar[Literal["logits", "places"] | None] = "places"
    label_names: ClassVar[tuple[str, ...]] = ("start_positions", "end_positions")
    outputs: ClassVar[tuple[str, ...]] = ("start_logits", "end_logits")
    answer_keys: ClassVar[tuple[str, ...]] = ("answer", "score", "start", "end", "n_best")

    global_attention: list[str] = ["cls", "question"]
    max_question: Length | None = None
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

    def chunks(
        self,
        example: Example,
        context: str,
        tokenizer,
        *,
        data: "DataSection",
        max_length: int,
        spans: Sequence[Span] | None = None,
    ) -> list[Feature]:
        """Return the features of a question and its document.

        Beside what every feature has: ``offsets`` [tokens, 2], where in ``context`` the tokens of
        the document stand that the chunk has, and ``first``, the place of the first of them in the
        input. With spans also ``start_positions`` and ``end_positions``, the places of the first
        and the last token of each one that is in the chunk, in order.

        Args:
            spans: characters of the right answers.

        Raises:
            DataError: the question is empty, or leaves no room for the document.
        """
        question = self.question(example, data)
        asked = tokenize(tokenizer, " " + question.strip())
        flags = {}
        if self.max_question is not None and len(asked) > self.max_question:
            asked, flags = asked[: self.max_question], {"question_cut": True}
        ids, offsets = _document(tokenizer, context)
        first = len(asked) + 2
        room = max_length - first - 1
        if room <= data.stride:
            raise DataError(
                f"{example.where}: the question has {len(asked):,} tokens and leaves {room:,} of "
                f"{max_length:,} for the document, windows share {data.stride:,}; a smaller "
                "task.max_question cuts it"
            )
        chunks, more = fit(len(ids), room, example, data, context)
        flags |= more
        cls, sep = ends(tokenizer)
        placed = None if spans is None else aligned(offsets, spans)
        features = []
        for start, end in chunks:
            segments = [
                cls,
                Segment("question", asked),
                sep,
                Segment("document", ids[start:end], token_type=1),
                replace(sep, token_type=1),
            ]
            feature = join(segments, self.global_attention, token_types=_numbers_pairs(tokenizer))
            if placed is not None:
                inside = [(a, b) for a, b in placed if start <= a and b < end]
                feature["start_positions"] = [a - start + first for a, _ in inside]
                feature["end_positions"] = [b - start + first for _, b in inside]
            feature |= {"offsets": offsets[start:end], "first": first, "read": (first, start, end)}
            feature |= {"document": 0, "tokens": first + len(ids) + 1, "flags": flags}
            features.append(feature)
        return features

    def reading(
        self, example: Example, tokenizer, data: "DataSection", unit: Unit = "sentence"
    ) -> Reading:
        """Return the document, whose passages are its sentences or paragraphs."""
        document, _ = self.parts(example, data)
        return Reading(document, _document(tokenizer, document)[1], UNITS[unit](document))

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
            for name in self.outputs
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


@lru_cache(2)  # questions on one document come one after the other
def _document(tokenizer, context: str) -> tuple[tuple[int, ...], np.ndarray]:
    ids, offsets = tokenize_inside(tokenizer, context)
    offsets.flags.writeable = False
    return tuple(ids), offsets


@lru_cache(2)
def _numbers_pairs(tokenizer) -> bool:
    return 1 in tokenizer("a", "b", return_token_type_ids=True)["token_type_ids"]
