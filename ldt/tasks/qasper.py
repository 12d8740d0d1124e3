"""Questions on scientific papers, answered by a span, yes or no, with evidence; as in QASPER."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from ldt.benchmarks import qasper
from ldt.benchmarks.qasper import NO, TYPES, UNANSWERABLE, YES, Reference
from ldt.data.features import Feature
from ldt.data.sentences import Span, bare
from ldt.errors import DataError, listed, shown
from ldt.io.records import Example, field, text, texts
from ldt.io.strict_json import take
from ldt.io.strict_json import texts as all_texts
from ldt.metrics import baseline
from ldt.metrics.baseline import Baselines
from ldt.metrics.result import mean
from ldt.tasks.base import (
    NO_LABEL,
    Outputs,
    PublishedLayout,
    SplitGroups,
    Task,
    TaskAnswers,
    TaskInputs,
    TaskReads,
    best_constant,
    named_labels,
    path_of,
    strata_of,
)
from ldt.tasks.explained import ByPlaces
from ldt.tasks.questions import (
    CLS,
    SPAN_LABELS,
    SPAN_LOGITS,
    RightAnswer,
    SpanTask,
    Weight,
    class_with_evidence,
    numbers_of,
    probabilities,
    with_evidence,
)

if TYPE_CHECKING:
    from ldt.data.options import DataSection

KINDS = ("span", "yes", "no", "unanswerable")  # of answers, in the order of the head
SAID = {"yes": YES, "no": NO, "unanswerable": UNANSWERABLE}
BREAK = "\n\n"  # between parts of a paper


class PaperQuestions(Task):
    """Questions on a paper, and the paragraphs that are the evidence.

    An example has ``question``, ``paragraphs`` and, where it has them, ``title``, ``abstract`` and
    ``sections`` (the name of each paragraph's section, or null); ``answers`` has an {answer, type,
    evidence, paragraphs, spans} of each annotator: ``type`` is extractive, abstractive, boolean or
    none, ``evidence`` are texts, ``paragraphs`` numbers of paragraphs from 0, and ``spans`` the
    texts of an extractive answer.
    """

    reads: ClassVar[TaskReads] = replace(
        Task.reads,
        document="paragraphs",
        fields=("question", "title", "abstract", "sections", "answers"),
        noun="questions",
        signs=(("question", "paragraphs", "answers"),),
    )
    answers: ClassVar[TaskAnswers] = replace(
        Task.answers,
        kind="paper",
        score=qasper.score_line,
        metric="Answer F1",
        layouts={"qasper": PublishedLayout(qasper.published)},
    )

    def groups(self, example: Example, data: "DataSection") -> SplitGroups:
        """The paper: questions on one are not parted."""
        return SplitGroups(self.parts(example, data)[0], strata_of(self, example, data))

    def paper(self, example: Example, data: "DataSection") -> tuple[str, list[Span]]:
        """The paper as one text, here a paragraph a line, and the characters of each paragraph."""
        places, start = [], 0
        paragraphs = self._paragraphs(example, data)
        for paragraph in paragraphs:
            places.append((start, start + len(paragraph)))
            start += len(paragraph) + 1
        return "\n".join(paragraphs), places

    def gold(self, example: Example, data: "DataSection", config) -> dict[str, Any]:
        """Return ``references``, of all annotators, and the numbers of ``paragraphs`` of each.

        Raises:
            DataError: there are no answers, or one has another form.
        """
        path, where = path_of(self, "answers", data), example.where
        answers = field(example, path)
        if not isinstance(answers, list) or not answers:
            raise DataError(
                f"{where}: field {path!r} is {shown(answers)}, expected a list of one at least"
            )
        count, references, numbers = len(self._paragraphs(example, data)), [], []
        for answer in answers:
            type = take(answer, "type", str, where)
            if type not in TYPES:
                raise DataError(f"{where}: type {type!r}, expected one of {listed(TYPES)}")
            evidence = all_texts(take(answer, "evidence", list, where), where)
            spans = all_texts(take(answer, "spans", list, where), where)
            references.append(Reference(take(answer, "answer", str, where), type, evidence, spans))
            listed_numbers = take(answer, "paragraphs", list, where)
            numbers.append(numbers_of(listed_numbers, count, f"{where}: evidence", "paragraphs"))
        return {"references": references, "paragraphs": numbers}

    def measure(
        self, answers: Sequence[dict], golds: Sequence[dict], config
    ) -> tuple[dict[str, float], list[dict]]:
        """Return Answer F1 and Evidence F1, from 0 to 100, by the published rules, and rows of the
        types of answers, to which questions belong as there."""
        groups: dict[str, list[dict[str, float]]] = {name: [] for name in TYPES}
        scores = []
        for answer, gold in zip(answers, golds, strict=True):
            scores.append(qasper.score(gold, answer))
            groups[qasper.best_type(gold["references"], answer["answer"])].append(scores[-1])
        rows = [
            {"type": name, "questions": len(members), **mean(members)}
            for name, members in groups.items()
            if members
        ]
        return mean(scores), rows

    def baseline(self, trained: Sequence[Any], golds: Sequence[Any], config) -> Baselines:
        """Return what Unanswerable has, or Yes, each without evidence."""
        answers = (UNANSWERABLE, YES)
        constant = {baseline.quoted(each): {"answer": each, "evidence": []} for each in answers}
        return best_constant(self, constant, golds, config)

    def sectioned(self, example: Example, data: "DataSection") -> Iterator[tuple[str | None, str]]:
        """Yield each paragraph behind the name of the section that begins with it, None where it
        begins none.

        Raises:
            DataError: there are no paragraphs, or not as many names of sections.
        """
        paragraphs = self._paragraphs(example, data)
        sections = example.fields.get(path_of(self, "sections", data)) or [None] * len(paragraphs)
        if not isinstance(sections, list) or len(sections) != len(paragraphs):
            raise DataError(
                f"{example.where}: field 'sections' is {shown(sections)}, expected the name of the "
                f"section of each of {len(paragraphs):,} paragraphs"
            )
        before = None
        for section, paragraph in zip(sections, paragraphs, strict=True):
            begins = isinstance(section, str) and section and section != before
            before = section
            yield section if begins else None, paragraph

    def _paragraphs(self, example: Example, data: "DataSection") -> list[str]:
        return texts(example, path_of(self, "paragraphs", data))


class Qasper(PaperQuestions, SpanTask, ByPlaces):
    """A span of a paper, yes, no or unanswerable, and the paragraphs that are its evidence.

    Input: <s> question </s> title, abstract, and section and [PARAGRAPH] before paragraphs </s>.
    Evidence is read at the markers, as Dasigi et al. 2021 (arXiv:2105.03011) do, whose decoder
    writes answers; here they are cut from the paper, which their free ones are not. Of a question
    all annotators are right together: every paragraph that one of them names, and every mention of
    one's spans in that one's evidence, or where there is none in the paper. The kind of the answer
    is that of most annotators, a free one counts as a span and is learnt by its evidence alone.
    Chunks without a right span point to their first token. Papers without paragraphs are left out
    of training, and
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

    def source(self, example: Example, data: "DataSection") -> str:
        """The paper as it is read."""
        return self.paper(example, data)[0]

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

    def marks(self, example: Example, data: "DataSection") -> list[tuple[Span, str]]:
        """Return the paragraphs, with one marker for all."""
        return [(place, self.inputs.markers[0]) for place in self.paper(example, data)[1]]

    def right(self, example: Example, data: "DataSection", config, context: str) -> RightAnswer:
        """The answers of all annotators; ``unplaced`` of a feature is how many of their extractive
        answers are not found."""
        gold = self.gold(example, data, config)
        spans, unplaced = _mentions(gold, context, self.paper(example, data)[1])
        kind = _kind(gold["references"])
        evidence = {number for numbers in gold["paragraphs"] for number in numbers}
        # Where a span is right that nobody has placed, no place is wrong.
        nowhere = NO_LABEL if KINDS[kind] == "span" and not spans else CLS
        label = class_with_evidence(kind, evidence)
        return RightAnswer(spans, nowhere, evidence, label, {"unplaced": unplaced})

    def about(self, example: Example, data: "DataSection") -> dict[str, Any]:
        """Return the places of the ``paragraphs`` [paragraphs, 2]."""
        places = self.paper(example, data)[1]
        return {"paragraphs": np.array(places, np.int32).reshape(-1, 2)}

    def instances(self, features: Sequence[Feature]) -> Sequence[Feature]:
        """Return them where the paper has a paragraph with a word that is read."""
        return features if any(len(feature["passages"]) for feature in features) else []

    def remarks(self, features: Iterable[Feature], left_out: int) -> list[str]:
        """Number of inputs with evidence, and of answers and papers that are not learnt."""
        features = list(features)
        lines = [with_evidence(features)]
        unplaced = {feature["document"]: feature["unplaced"] for feature in features}
        if count := sum(unplaced.values()):
            lines.append(f"extractive answers not found in their paper: {count:,}")
        return [*lines, *left_out_of(left_out)]

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
        scores, probs = probabilities(outputs, features, len(places))
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
    numbers = {answer: KINDS.index(name) for name, answer in SAID.items()}
    kinds = [
        numbers[each.answer] if each.type in ("boolean", "none") and each.answer in numbers else 0
        for each in references
    ]
    return baseline.commonest([kind] for kind in kinds)


def _mentions(gold: dict[str, Any], context: str, places: Sequence[Span]) -> tuple[list[Span], int]:
    """Where the spans of all annotators stand, and how many of these have none that does."""
    placed: dict[Span, None] = {}
    unplaced = 0
    for reference, numbers in zip(gold["references"], gold["paragraphs"], strict=True):
        places_of = [
            [span for place in where for span in _all(context, words, *place)]
            or _all(context, words, 0, len(context))
            for where in [[places[n] for n in numbers]]
            for words in map(bare, reference.spans)
            if words
        ]
        placed |= dict.fromkeys(span for spans in places_of for span in spans)
        unplaced += reference.type == "extractive" and not any(places_of)
    return list(placed), unplaced


def _all(context: str, words: str, start: int, end: int) -> list[Span]:
    """Every place of these words between two places, one behind the other."""
    spans = []
    while (at := context.find(words, start, end)) >= 0:
        spans.append((at, at + len(words)))
        start = at + len(words)
    return spans


def left_out_of(documents: int) -> list[str]:
    """Line about questions that are not trained on, or none."""
    what = f"questions on papers without paragraphs: {documents:,}, left out"
    return [what] if documents else []
