"""Base of question answering tasks: chunks of the document, gold answers, best spans.

Input: <s> question </s> document </s>, with long documents in chunks. One separator stands between
the two (not two as in RoBERTa's pairs), and both are tokenized as if preceded by a space, as in the
authors' scripts/triviaqa.py (allenai/longformer), with which their checkpoints were trained.
Tokenizers with token types for pairs (BERT's) give the document type 1. A marker may stand before
each passage of the document.
"""

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
from pydantic import Field

from ldt.data.features import Feature, Segment, ends
from ldt.data.options import Count, DataSection, Length
from ldt.data.sentences import UNITS, Span, Unit, real_tokens
from ldt.data.tokenization import marker_ids, numbers_pairs, tokenize, tokenize_inside
from ldt.errors import DataError, quote
from ldt.io import text_files
from ldt.io.records import Example, text
from ldt.metrics.numbers import softmax
from ldt.tasks.base import (
    NO_LABEL,
    Outputs,
    SplitGroups,
    Task,
    TaskAnswers,
    TaskInputs,
    TaskReads,
    in_chunks,
    path_of,
    question_of,
    strata_of,
)
from ldt.tasks.explained import Reading
from ldt.tasks.text import aligned, with_marks

Weight = Annotated[float, Field(ge=0)]  # of a loss
CLS = 0  # where an input without the answer points to
EVIDENCE = "; data.evidence names the folder of the documents"
SPAN_LABELS = ("start_positions", "end_positions")
SPAN_LOGITS = ("start_logits", "end_logits")


class RightAnswer(NamedTuple):
    """Gold answer in the form used to label the chunks of a document.

    Args:
        spans: characters of the correct spans; None for a task without spans.
        nowhere: token that a chunk without a correct span points to; None for none.
        passages: indices of the correct passages.
        label: function from a feature, labelled with spans and passages, to its class; None for a
            task without classes.
        shared_keys: further keys of all features.
    """

    spans: Sequence[Span] | None = None
    nowhere: int | None = CLS
    passages: Collection[int] = ()
    label: Callable[[Feature], int] | None = None
    shared_keys: Mapping[str, Any] = {}


class CandidateSpan(NamedTuple):
    """Span of the document: its logit (the sum of the start and end logits), and its characters."""

    logit: float
    span: Span
    start_logit: float
    end_logit: float


class QuestionTask(Task):
    """Question about a document, with one input per chunk.

    Beyond the usual keys a feature has ``context``, the document or its file; ``offsets`` [tokens,
    2] of the chunk's document tokens, and ``first``, the position of the first of them in the
    input; for tasks with `marks` ``passages``, the indices of passages whose marker is in the
    chunk, and ``passage_positions``, their positions. Chunks split as few passages as possible.

    Args:
        max_question: number of tokens of the question that are read; none reads all.
    """

    reads: ClassVar[TaskReads] = replace(
        Task.reads, document="context", query_fields=("question",), noun="questions"
    )
    inputs: ClassVar[TaskInputs] = replace(
        Task.inputs,
        roles=("cls", "question", "sep", "document"),
        extras=("offsets", "first", "context"),
    )

    global_attention: list[str] = ["cls", "question"]
    max_question: Length | None = None

    def source(self, example: Example, data: DataSection) -> str | Path:
        """Return the text of the document, or the path of its file, which `context_of` reads."""
        return text(example, path_of(self, self.reads.document, data))

    def marks(self, example: Example, data: DataSection) -> Sequence[tuple[Span, str]] | None:
        """Return the characters of each passage, with the token that is put in front of it; None
        for tasks without passages."""
        return None

    @abstractmethod
    def labelling(self, example: Example, data: DataSection, config, context: str) -> RightAnswer:
        """Return the gold answer in the form used for labelling; ``context`` is the text of the
        document, ``config`` the model's, which numbers the classes."""

    def shared_keys(self, example: Example, data: DataSection) -> Mapping[str, Any]:
        """Return further keys that all features of the example get."""
        return {}

    def parts(self, example: Example, data: DataSection) -> tuple[str, str]:
        """Return the text of the document, also of one in a file, and the question."""
        asked = question_of(self, example, data, self.reads.query_fields[0])
        return context_of(self.source(example, data)), asked

    def groups(self, example: Example, data: DataSection) -> SplitGroups:
        """Keep questions about one document together; strata are the classes."""
        return SplitGroups(self.source(example, data), strata_of(self, example, data))

    def reading(self, example: Example, tokenizer, data, unit: Unit = "sentence") -> Reading:
        context = context_of(self.source(example, data))
        offsets = self._document(context, self.marks(example, data), tokenizer).offsets
        return Reading(context, offsets, UNITS[unit](context))

    def encode(
        self, example: Example, tokenizer, *, data: DataSection, max_length: int, config=None
    ) -> list[Feature]:
        """Return the features of an example, one per chunk, with the keys that `QuestionTask`
        describes; with ``config``, the model's, they have labels. DataError if the document's
        file cannot be read."""
        source, marks = self.source(example, data), self.marks(example, data)
        try:
            context = context_of(source)
        except DataError as error:
            raise DataError(f"{example.where}: {error}{EVIDENCE}") from None
        right = None if config is None else self.labelling(example, data, config, context)
        question = question_of(self, example, data, self.reads.query_fields[0])
        asked = tokenize(tokenizer, f" {question.strip()}")
        flags = {}
        if self.max_question is not None and len(asked) > self.max_question:
            asked, flags = asked[: self.max_question], {"question_cut": True}
        document = self._document(context, marks, tokenizer)
        cls, sep = ends(tokenizer)
        head, tail = [cls, Segment("question", asked), sep], [replace(sep, token_type=1)]
        parted, types = document.parted if marks else None, numbers_pairs(tokenizer)
        around = (head, document, tail, context, parted, types)
        features = in_chunks(self, example, data, max_length, *around)
        shared = {"context": source, **self.shared_keys(example, data)}
        for feature in features:
            first, start, end = feature["read"]
            feature["flags"] = flags | feature["flags"]
            feature |= {"offsets": document.offsets[start:end], "first": first, **shared}
            if marks is not None:
                numbers, places = document.marked(start, end)
                feature |= {"passages": numbers}
                feature |= {"passage_positions": (places - start + first).tolist()}
        if right is not None:
            self.add_labels(features, right, document)
        return features

    def add_labels(
        self, features: Sequence[Feature], right: RightAnswer, document: "Marked"
    ) -> None:
        """Add labels to all features of a document, made by `in_chunks`, in place:
        ``start_positions`` and ``end_positions`` of each correct span that a chunk contains,
        else [``right.nowhere``]; ``answer_tokens``, of the document's shortest one; with
        ``right.label`` also ``passage_labels``, 1 for each of the chunk's ``passages`` that is
        correct, and ``labels``, the class of the chunk; and ``right.shared_keys``."""
        spans = aligned(document.offsets, right.spans or ())
        for feature in features:
            feature |= right.shared_keys
            if right.spans is not None:
                first, start, end = feature["read"]
                inside = [(a, b) for a, b in spans if start <= a and b < end]
                feature["start_positions"] = [a - start + first for a, _ in inside]
                feature["end_positions"] = [b - start + first for _, b in inside]
            if spans:
                feature["answer_tokens"] = min(b - a + 1 for a, b in spans)
            if right.label is not None:
                numbers = feature["passages"].tolist()
                feature["passage_labels"] = [int(number in right.passages) for number in numbers]
                feature["labels"] = right.label(feature)
            if right.spans is not None and right.nowhere is not None:
                for name in SPAN_LABELS:
                    feature[name] = feature[name] or [right.nowhere]

    def _document(self, context: str, marks, tokenizer) -> "Marked":
        ids = marker_ids(tokenizer, self.inputs.markers)
        number = dict(zip(self.inputs.markers, ids, strict=True))
        spans = tuple(span for span, _ in marks or ())
        return _marked(tokenizer, context, spans, tuple(number[name] for _, name in marks or ()))


class SpanTask(QuestionTask):
    """Question answered by a span of the document.

    Args:
        max_answer: longest answer, in tokens.
        n_candidates: number of best starts and best ends that are combined in each chunk.
        n_best: number of best spans in an answer.
    """

    inputs: ClassVar[TaskInputs] = replace(
        QuestionTask.inputs, head="LdtForQuestionAnswering", label_names=SPAN_LABELS, stride=128
    )
    answers: ClassVar[TaskAnswers] = replace(
        QuestionTask.answers,
        outputs=SPAN_LOGITS,
        keys=("answer", "score", "start", "end", "n_best"),
    )

    max_answer: Length = 30
    n_candidates: Count = 20
    n_best: Count = 1

    def add_labels(
        self, features: Sequence[Feature], right: RightAnswer, document: "Marked"
    ) -> None:
        """Add start_positions, end_positions and other labels (`QuestionTask.add_labels`) in place;
        if no input contains all of the answer, or it exceeds ``max_answer``, the first feature
        gets ``unlearnt``: (kind of `ldt.data.findings`, tokens of the answer)."""
        super().add_labels(features, right, document)
        tokens = features[0].get("answer_tokens", 0)
        if tokens and not any(max(f["start_positions"], default=CLS) > CLS for f in features):
            features[0]["unlearnt"] = "answer_in_no_input", tokens
        elif tokens > self.max_answer:
            features[0]["unlearnt"] = "answer_too_long", tokens

    def places(self, answer: dict, example: Example, data: DataSection) -> list[tuple[int, float]]:
        """Return (start in characters, score) of each span in ``n_best``, else of the answer;
        without an answer []."""
        answers = answer.get("n_best") or [answer]
        return [(each["start"], each["score"]) for each in answers if answer["answer"]]

    def best_spans(
        self, outputs: Sequence[Outputs], features: Sequence[Feature]
    ) -> list[CandidateSpan]:
        """Return the ``n_best`` best spans over all chunks, best first; [] if the document has no
        word.

        The logit of a span is the sum of its two; if several token pairs give the same span, in one
        chunk (bytes of an emoji) or in two, the highest sum. Combining marks on the last letter
        belong to a span. Question, separators and padding are excluded.
        """
        context = context_of(features[0]["context"])
        best: dict[Span, CandidateSpan] = {}
        for output, feature in zip(outputs, features, strict=True):
            of_chunk: dict[Span, CandidateSpan] = {}
            for pair in self._pairs(output, feature):
                span = with_marks(pair.span, context)
                of_chunk.setdefault(span, pair._replace(span=span))
                if len(of_chunk) == self.n_best:
                    break
            for span, pair in of_chunk.items():
                best[span] = max(pair, best.get(span, pair), key=lambda each: each.logit)
        ranked = sorted(best.values(), key=lambda each: (-each.logit, each.span))
        return ranked[: self.n_best]

    def _pairs(self, output: Outputs, feature: Feature) -> Iterator[CandidateSpan]:
        """Token pairs of a chunk, best first."""
        offsets, first = feature["offsets"], feature["first"]
        start, end = (
            np.asarray(output[name][first : first + len(offsets)], np.float64)
            for name in SPAN_LOGITS  # a task may have others too
        )
        real = real_tokens(offsets)
        top, pairs = self.n_candidates, np.empty((0, 2), int)
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
            yield CandidateSpan(logits[place].item(), span, start[a].item(), end[b].item())

    def answer_of(self, spans: Sequence[CandidateSpan], context: str) -> dict[str, Any]:
        """Return ``answer`` (text), ``score`` (its logit), ``start`` and ``end`` (characters) of
        the first of the spans of `best_spans`; if the recipe asks for several, ``n_best`` has
        these of all, with start_logit and end_logit. Without any span the answer is "", the rest
        None."""
        answers = [
            {"answer": context[start:end], "score": logit, "start": start, "end": end}
            for logit, (start, end), *_ in spans
        ]
        nothing = {"answer": "", "score": None, "start": None, "end": None}
        first = answers[0] if answers else nothing
        if self.n_best == 1:
            return first
        n_best = [
            answer | {"start_logit": best.start_logit, "end_logit": best.end_logit}
            for answer, best in zip(answers, spans, strict=True)
        ]
        return first | {"n_best": n_best}


def thinned(
    answered: Sequence[bool], share: float, chosen: object, seed: int
) -> tuple[list[int], list[str]]:
    """Return the indices of inputs with an answer and of a random share of the others, and a line
    with their numbers, in a list.

    Args:
        answered: True for inputs with an answer.
        share, seed: share of the others, 1 or more for all, and seed of the sample.
        chosen: value of ``task.null_chunks``, for the line.
    """
    used = np.array(answered)
    without = np.flatnonzero(~used)
    used[without] = np.random.default_rng(seed).random(len(without)) < share
    line = (
        f"{used[without].sum():,} of {len(without):,} inputs without an answer are trained on "
        f"(task.null_chunks={chosen}), drawn once by the seed"
    )
    return np.flatnonzero(used).tolist(), [line]


def context_of(source: str | Path) -> str:
    """Return the text of a document, given as such or, to save memory, as the path of its file;
    DataError if that cannot be read."""
    if isinstance(source, str):
        return source
    try:
        return text_files.read_file(source)
    except OSError as error:
        raise DataError(f"{source}: {error.strerror}") from None


def class_with_evidence(number: int, passages: Collection[int]) -> Callable[[Feature], int]:
    """Return a `RightAnswer.label` that trains class ``number`` on chunks that contain some of its
    evidence, as in Span NLI BERT's script (``impossible_strategy: ignore``), and on all chunks
    if ``passages`` is empty."""
    return lambda feature: number if any(feature["passage_labels"]) or not passages else NO_LABEL


def probabilities(
    outputs: Sequence[Outputs], features: Sequence[Feature], passages: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the probabilities of the classes, [classes], and of each passage to be evidence,
    [passages].

    A passage's probability is the mean over the chunks with its marker, 0 if there are none. Class
    probabilities are a mean over chunks, each weighted by the mean probability of its passages, so
    that chunks with evidence count more; without passages all weigh the same. ``passages`` is their
    number.

    Source: Koreeda and Manning 2021 (arXiv:2110.01799), their script's means over windows; the
    weight there is a mean over all tokens of a window, here over its markers.
    """
    total, chunks = np.zeros((2, passages))
    classes, weights = [], []
    for output, feature in zip(outputs, features, strict=True):
        here = feature["passages"]
        logits = output["passage_logits"][: len(here)].astype(float)
        shares = softmax(np.stack([np.zeros_like(logits), logits], -1))[:, 1]
        total[here] += shares
        chunks[here] += 1
        weights.append(shares.mean() if len(here) else 0.0)
        classes.append(softmax(output["logits"].astype(float)))
    weight = np.array(weights) if any(weights) else np.ones(len(weights))
    return weight @ np.array(classes) / weight.sum(), total / np.maximum(chunks, 1)


def with_evidence(features: Iterable[Feature]) -> str:
    """Return a line with the number of inputs with evidence."""
    counts = Counter(any(feature["passage_labels"]) for feature in features)
    return f"{counts[True]:,} of {counts.total():,} inputs have evidence"


def spans_of(listed: Any, length: int, where: str) -> list[Span]:
    """Check that a field's value is a list of [start, end] in characters within a text of
    ``length``, and return it as pairs; DataError else. ``where`` is the place of the field, for
    the message."""
    for span in listed if isinstance(listed, list) else [listed]:
        match span:
            case [int(start), int(end)] if 0 <= start <= end <= length:
                pass
            case _:
                raise DataError(
                    f"{where}: {span!r:.60}, expected a list of [start, end] within the "
                    f"{length:,} characters of the text"
                )
    return [(start, end) for start, end in listed]


def numbers_of(listed: Any, count: int, where: str, of: str) -> list[int]:
    """Check that a value is a list of indices from 0 up to before ``count``, and return it;
    DataError else. ``where`` is its place for the message, ``of`` the name of what is numbered."""
    for number in listed if isinstance(listed, list) else [listed]:
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < count:
            raise DataError(
                f"{where}: {quote(number)}, expected numbers of {of}, of which there are "
                f"{count:,}, from 0"
            )
    return listed


@dataclass(frozen=True)
class Marked:
    """Tokenized document with markers.

    Args:
        ids: ids of the tokens.
        offsets: [tokens, 2], characters of each token; for a marker both are the start of its
            passage.
        numbers, places: [passages with tokens], in marker order: index of the passage, and position
            of its marker.
        parted: [tokens + 1], number of passages that a cut before each token would split.
    """

    ids: tuple[int, ...]
    offsets: np.ndarray
    numbers: np.ndarray
    places: np.ndarray
    parted: np.ndarray

    def marked(self, start: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Return passages (their indices) and positions of the markers from token ``start`` to
        before ``end``."""
        here = (start <= self.places) & (self.places < end)
        return self.numbers[here], self.places[here]

    def segments(self, start: int, end: int) -> Iterator[Segment]:
        """Yield the tokens from ``start`` to before ``end`` as segments, each marker a segment of
        its own."""
        for place in self.marked(start, end)[1].tolist():
            yield Segment("document", self.ids[start:place], token_type=1)
            yield Segment("passages", self.ids[place : place + 1], token_type=1)
            start = place + 1
        yield Segment("document", self.ids[start:end], token_type=1)
        # For the role that may have global attention, where a chunk has no marker.
        yield Segment("passages", (), token_type=1)


def mark(
    ids: Sequence[int], offsets: np.ndarray, passages: Sequence[Span], markers: Sequence[int]
) -> Marked:
    """Insert a marker before the first token of each passage, outer ones first; passages without
    tokens get none.

    Args:
        ids, offsets: tokens of the document, from `ldt.data.tokenization.tokenize_inside`.
        passages: characters of each passage, end exclusive; they may overlap.
        markers: id of each passage's marker.
    """
    real = real_tokens(offsets)
    starts, ends = offsets[real, 0], offsets[real, 1]
    placed = []  # (first token, the one behind the last, negative; number)
    for number, (start, end) in enumerate(passages):
        first, last = np.searchsorted(ends, start, "right"), np.searchsorted(starts, end) - 1
        if first <= last:
            placed.append((int(real[first]), -int(real[last]) - 1, number))
    placed.sort()
    before, after, numbers = np.array(placed, int).reshape(-1, 3).T
    after = -after
    places = before + np.arange(len(placed))
    lasts = after + np.searchsorted(before, after)  # in the marked document
    length = len(ids) + len(placed)
    changes = np.zeros(length + 2, int)
    np.add.at(changes, places + 1, 1)
    np.add.at(changes, lasts, -1)
    begins = np.array([passages[n][0] for n in numbers.tolist()], offsets.dtype)
    marked = Marked(
        tuple(np.insert(np.array(ids, int), before, [markers[n] for n in numbers]).tolist()),
        np.insert(offsets, before, np.stack([begins, begins], 1).reshape(-1, 2), axis=0),
        numbers.astype(np.int32),
        places,
        np.cumsum(changes)[: length + 1],
    )
    marked.offsets.flags.writeable = False
    return marked


@lru_cache(2)  # questions on one document come one after the other
def _marked(
    tokenizer, context: str, passages: tuple[Span, ...], markers: tuple[int, ...]
) -> Marked:
    return mark(*tokenize_inside(tokenizer, context), passages, markers)
