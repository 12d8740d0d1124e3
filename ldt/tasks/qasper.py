"""Questions on scientific papers, answered by a span, yes or no, with evidence; as in QASPER."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from ldt.data.features import Feature
from ldt.data.formats.qasper import NO, UNANSWERABLE, YES, Reference
from ldt.data.sentences import bare
from ldt.data.tokenization import marker_ids
from ldt.io.records import Example, text
from ldt.metrics import baseline
from ldt.tasks import passages
from ldt.tasks.base import (
    NO_LABEL,
    Outputs,
    TaskAnswers,
    TaskInputs,
    TaskReads,
    named_labels,
    path_of,
    question_of,
)
from ldt.tasks.explained import ByPlaces
from ldt.tasks.paper_questions import PaperQuestions
from ldt.tasks.passages import Weight
from ldt.tasks.span_task import SPAN_LABELS, SPAN_LOGITS, SpanTask
from ldt.tasks.text.alignment import Span

if TYPE_CHECKING:
    from ldt.data.options import DataSection

CLS = 0  # where an input without a span points to
KINDS = ("span", "yes", "no", "unanswerable")  # of answers, in the order of the head
SAID = {"yes": YES, "no": NO, "unanswerable": UNANSWERABLE}
BREAK = "\n\n"  # between parts of a paper


class Qasper(PaperQuestions, SpanTask, ByPlaces):
    """A span of a paper, yes, no or unanswerable, and the paragraphs that are its evidence.

    Input: <s> question </s> title, abstract, and section and [PARAGRAPH] before paragraphs </s>.
    Evidence is read at the markers, as Dasigi et al. 2021 (arXiv:2105.03011) do, whose decoder
    writes answers; here they are cut from the paper, which their free ones are not. Of a question
    all annotators are right together: every paragraph that one of them names, and every mention of
    one's spans in that one's evidence, or where there is none in the paper. The kind of the answer
    is that of most annotators, a free one counts as a span and is learnt by its evidence alone.
    `ldt.tasks.passages` says what chunks learn of it and how they are merged; those without a right
    span point to their first token. Papers without paragraphs are left out of training, and
    questions on them are unanswerable.

    Args:
        weights: weights of the losses ``span``, ``class`` (the kind) and ``passages``; 1 where one
            is not named.
        threshold: probability above which a paragraph is evidence; the best one always is, unless
            the question is unanswerable.
    """

    reads: ClassVar[TaskReads] = replace(PaperQuestions.reads, asked=("question",))
    inputs: ClassVar[TaskInputs] = replace(
        SpanTask.inputs,
        roles=(*SpanTask.inputs.roles, "passages"),
        markers=("[PARAGRAPH]",),
        extras=(*SpanTask.inputs.extras, "passages", "paragraphs", "unplaced"),
        label_names=(*SPAN_LABELS, "labels", "passage_labels"),
    )
    answers: ClassVar[TaskAnswers] = replace(
        PaperQuestions.answers,
        outputs=(*SPAN_LOGITS, "logits", "passage_logits"),
        keys=(
            *SpanTask.answers.keys,
            *("type", "scores", "evidence", "paragraphs", "paragraph_probs"),
        ),
    )

    name: Literal["qasper"] = "qasper"
    global_attention: list[str] = ["cls", "question", "passages"]
    weights: dict[Literal["span", "class", "passages"], Weight] = {}
    threshold: float = Field(0.5, ge=0, le=1)

    def head(self) -> type:
        from ldt.model import LdtForPassageAnswering

        return LdtForPassageAnswering

    def parts(self, example: Example, data: "DataSection") -> tuple[str, str]:
        """Return the paper as it is read, and the question."""
        return self.paper(example, data)[0], question_of(self, example, data)

    def classes(self, example: Example, data: "DataSection") -> str | list[str] | None:
        """Return the kind of the answer."""
        return KINDS[_kind(self.gold(example, data, None)["references"])]

    def learn(self, examples: Iterable[Example], data: "DataSection") -> dict[str, Any]:
        """Return id2label, label2id, num_labels, evidence_weights and passage_loss.

        Raises:
            DataError: no examples, or one whose answers cannot be read.
        """
        super().learn(examples, data)
        weights = {"evidence_weights": self.weights, "passage_loss": "each"}
        return {**named_labels(KINDS), **weights}

    def encode(
        self, example: Example, tokenizer, *, data: "DataSection", max_length: int, config=None
    ) -> list[Feature]:
        """Return a feature per chunk (`QuestionTask.chunks`), with the ``paragraphs`` of the paper
        and, with labels, the number of extractive answers that are not found (``unplaced``).

        Raises:
            DataError: a field is missing or wrong, the question is empty or leaves no room.
        """
        context, places = self.paper(example, data)
        gold = None if config is None else self.gold(example, data, config)
        spans, unplaced = (None, 0) if gold is None else _mentions(gold, context, places)
        features = self.chunks(
            example, context, tokenizer, data=data, max_length=max_length, spans=spans
        )
        about = {"context": context, "paragraphs": np.array(places, np.int32).reshape(-1, 2)}
        for feature in features:
            feature |= about
        if gold is not None:
            kind = _kind(gold["references"])
            passages.label(features, kind, {n for each in gold["paragraphs"] for n in each})
            # Where a span is right that nobody has placed, no place is wrong.
            nowhere = NO_LABEL if KINDS[kind] == "span" and not spans else CLS
            for feature in features:
                for name in SPAN_LABELS:
                    feature[name] = feature[name] or [nowhere]
                feature["unplaced"] = unplaced
        return features

    def marks(
        self, example: Example, tokenizer, data: "DataSection"
    ) -> tuple[Sequence[Span], Sequence[int]]:
        """Return the paragraphs, with one marker for all."""
        places = self.paper(example, data)[1]
        return places, marker_ids(tokenizer, self.inputs.markers) * len(places)

    def instances(self, features: Sequence[Feature]) -> Sequence[Feature]:
        """Return them where the paper has a paragraph with a word that is read."""
        return features if any(len(feature["passages"]) for feature in features) else []

    def remarks(self, features: Iterable[Feature], left_out: int) -> list[str]:
        """Number of inputs with evidence, and of answers and papers that are not learnt."""
        inputs = found = 0
        unplaced: dict[int, int] = {}
        for feature in features:
            inputs, found = inputs + 1, found + any(feature["passage_labels"])
            unplaced[feature["document"]] = feature["unplaced"]
        lines = [f"{found:,} of {inputs:,} inputs have evidence"]
        if count := sum(unplaced.values()):
            lines.append(f"extractive answers not found in their paper: {count:,}")
        if left_out:
            lines.append(f"questions on papers without paragraphs: {left_out:,}, left out")
        return lines

    def decode(
        self, outputs: Sequence[Outputs], config, example: Example, features: Sequence[Feature]
    ) -> dict:
        """Return the answer and the flags.

        ``answer``, score, start and end (`SpanTask.answer`, in characters of the paper as it is
        read), or Yes, No or Unanswerable without a place; ``type``, one of `KINDS`, and ``scores``,
        their probabilities; ``evidence``, texts of paragraphs, each once, and ``paragraphs``, their
        numbers; ``paragraph_probs``, one a paragraph, 0 where it is not read.
        """
        context, places = features[0]["context"], features[0]["paragraphs"].tolist()
        scores, probs = passages.probabilities(outputs, features, len(places))
        answer = self.answer(self.best(outputs, features), context)
        kind = KINDS[int(scores.argmax())]
        if not self.instances(features) or (kind == "span" and not answer["answer"]):
            kind = "unanswerable"
        if kind != "span":
            answer |= {"answer": SAID[kind], "score": None, "start": None, "end": None}
        numbers: list[int] = []
        if kind != "unanswerable":
            limit = min(self.threshold, np.nextafter(probs.max(), 0))
            numbers = np.flatnonzero(probs > limit).tolist()
        answer |= {"type": kind, "scores": dict(zip(KINDS, scores.tolist(), strict=True))}
        answer["evidence"] = list(dict.fromkeys(context[slice(*places[n])] for n in numbers))
        answer |= {"paragraphs": numbers, "paragraph_probs": probs.tolist()}
        return answer | features[0]["flags"]

    def places(
        self, answer: dict, example: Example, data: "DataSection"
    ) -> list[tuple[int, float]]:
        """Return the beginnings of all paragraphs, with the probability of each."""
        starts = [start for start, _ in self.paper(example, data)[1]]
        return list(zip(starts, answer["paragraph_probs"], strict=True))

    def paper(self, example: Example, data: "DataSection") -> tuple[str, list[Span]]:
        """Title, abstract and paragraphs, the name of a section before its first one, as one text;
        and the characters of each paragraph."""
        pieces, places, length = [], [], 0

        def add(piece: str) -> None:
            nonlocal length
            pieces.append(piece)
            length += len(piece) + len(BREAK)

        for name in ("title", "abstract"):
            path = path_of(self, name, data)
            if example.fields.get(path):
                add(text(example, path))
        for section, paragraph in self.sectioned(example, data):
            if section:
                add(section)
            places.append((length, length + len(paragraph)))
            add(paragraph)
        return BREAK.join(pieces), places


def _kind(references: Sequence[Reference]) -> int:
    """The kind that most annotators say, of equal ones the first."""
    said = {answer: KINDS.index(name) for name, answer in SAID.items()}
    kinds = [
        said[each.answer] if each.type in ("boolean", "none") and each.answer in said else 0
        for each in references
    ]
    return baseline.commonest([kind] for kind in kinds)


def _mentions(gold: dict[str, Any], context: str, places: Sequence[Span]) -> tuple[list[Span], int]:
    """Where the spans of all annotators stand, and how many of these have none that does."""
    found: dict[Span, None] = {}
    unplaced = 0
    for reference, numbers in zip(gold["references"], gold["paragraphs"], strict=True):
        own = [
            [span for place in where for span in _all(context, words, *place)]
            or _all(context, words, 0, len(context))
            for where in [[places[n] for n in numbers]]
            for words in map(bare, reference.spans)
            if words
        ]
        found |= dict.fromkeys(span for spans in own for span in spans)
        unplaced += reference.type == "extractive" and not any(own)
    return list(found), unplaced


def _all(context: str, words: str, start: int, end: int) -> list[Span]:
    """Every place of these words between two places, one behind the other."""
    spans = []
    while (at := context.find(words, start, end)) >= 0:
        spans.append((at, at + len(words)))
        start = at + len(words)
    return spans
