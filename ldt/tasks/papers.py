"""Questions about papers, as in QASPER: extracted or generated answers with evidence."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from ldt.benchmarks import qasper
from ldt.benchmarks.qasper import NO, TYPES, UNANSWERABLE, YES, Reference
from ldt.data.features import Feature, Segment, cut_off, ends, join
from ldt.data.options import DataSection
from ldt.data.sentences import Span, bare
from ldt.data.tokenization import tokenize
from ldt.errors import DataError, listed, quote
from ldt.io.records import Example, field, text, texts
from ldt.io.strict_json import take
from ldt.io.strict_json import texts as all_texts
from ldt.metrics import baseline
from ldt.metrics.baseline import Baselines
from ldt.metrics.numbers import logistic
from ldt.tasks.base import (
    NO_LABEL,
    WRITTEN,
    Outputs,
    PublishedLayout,
    Scores,
    SplitGroups,
    Task,
    TaskAnswers,
    TaskInputs,
    TaskReads,
    best_constant,
    grouped,
    named_labels,
    path_of,
    question_of,
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
from ldt.tasks.writing import Generation, WritingTask

KINDS = ("span", "yes", "no", "unanswerable")  # of answers, in the order of the head
SAID = {"yes": YES, "no": NO, "unanswerable": UNANSWERABLE}
BREAK = "\n\n"  # between parts of a paper
HEADING = -1  # in place of the number of a paragraph


class PaperQuestions(Task):
    """Question about a paper, with evidence paragraphs.

    An example has ``question``, ``paragraphs`` and optionally ``title``, ``abstract`` and
    ``sections`` (name of each paragraph's section, or null); ``answers`` has an {answer, type,
    evidence, paragraphs, spans} per annotator: ``type`` is extractive, abstractive, boolean or
    none, ``evidence`` are texts, ``paragraphs`` indices of paragraphs from 0, and ``spans`` the
    texts of an extractive answer. Papers without paragraphs are left out of training, and questions
    about them are unanswerable.
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

    def groups(self, example: Example, data: DataSection) -> SplitGroups:
        """Keep questions about one paper together; strata are the types of answers."""
        return SplitGroups(self.parts(example, data)[0], strata_of(self, example, data))

    def gold(self, example: Example, data: DataSection, config) -> dict[str, Any]:
        """Return ``references``, the answer of each annotator (`ldt.benchmarks.qasper.Reference`),
        and ``paragraphs``, for each the indices of the evidence; DataError if one is not of this
        form."""
        path, where = path_of(self, "answers", data), example.where
        answers = field(example, path)
        if not isinstance(answers, list) or not answers:
            raise DataError(
                f"{where}: field {path!r} is {quote(answers)}, expected a list of one at least"
            )
        count, references, numbers = len(self._paragraphs(example, data)), [], []
        for answer in answers:
            type = take(answer, "type", str, where)
            if type not in TYPES:
                raise DataError(f"{where}: type {type!r}, expected one of {listed(TYPES)}")
            evidence = all_texts(take(answer, "evidence", list, where), where)
            spans = all_texts(take(answer, "spans", list, where), where)
            references.append(Reference(take(answer, "answer", str, where), type, evidence, spans))
            places = take(answer, "paragraphs", list, where)
            numbers.append(numbers_of(places, count, f"{where}: evidence", "paragraphs"))
        return {"references": references, "paragraphs": numbers}

    def measure(self, answers: Sequence[dict], golds: Sequence[Any], config) -> Scores:
        """Return Answer F1 and Evidence F1, from 0 to 100, by the published rules, and a row per
        type of answer: that of the annotator who agrees best."""
        scores = (
            (qasper.best_type(gold["references"], answer["answer"]), qasper.score(gold, answer))
            for answer, gold in zip(answers, golds, strict=True)
        )
        return grouped("type", scores, TYPES, "questions")

    def baseline(self, trained: Sequence[Any], golds: Sequence[Any], config) -> Baselines:
        """Return, for each metric, the better score of always Unanswerable and always Yes, without
        evidence."""
        answers = (UNANSWERABLE, YES)
        constant = {baseline.quoted(each): {"answer": each, "evidence": []} for each in answers}
        return best_constant(self, constant, golds, config)

    def _left_out(self, documents: int) -> list[str]:
        what = f"questions on papers without paragraphs: {documents:,}, left out"
        return [what] if documents else []

    def _sectioned(self, example: Example, data: DataSection) -> Iterator[tuple[str | None, str]]:
        """Yield (section, paragraph), with the name of a section at its first paragraph and else
        None."""
        paragraphs = self._paragraphs(example, data)
        sections = example.fields.get(path_of(self, "sections", data)) or [None] * len(paragraphs)
        if not isinstance(sections, list) or len(sections) != len(paragraphs):
            raise DataError(
                f"{example.where}: field 'sections' is {quote(sections)}, expected the name of the "
                f"section of each of {len(paragraphs):,} paragraphs"
            )
        before = None
        for section, paragraph in zip(sections, paragraphs, strict=True):
            begins = isinstance(section, str) and section and section != before
            before = section
            yield section if begins else None, paragraph

    def paper(self, example: Example, data: DataSection) -> tuple[str, list[Span]]:
        """Join title, abstract, names of sections and paragraphs to one text; returns it and the
        characters of each paragraph. DataError if there are no paragraphs."""
        paths = [path_of(self, name, data) for name in ("title", "abstract")]
        pieces = [(False, text(example, path)) for path in paths if example.fields.get(path)]
        for section, paragraph in self._sectioned(example, data):
            pieces += [(False, section)] if section else []
            pieces.append((True, paragraph))
        starts = accumulate((len(piece) + len(BREAK) for _, piece in pieces), initial=0)
        places = [
            (start, start + len(piece))
            for start, (is_paragraph, piece) in zip(starts, pieces, strict=False)
            if is_paragraph
        ]
        return BREAK.join(piece for _, piece in pieces), places

    def _paragraphs(self, example: Example, data: DataSection) -> list[str]:
        return texts(example, path_of(self, "paragraphs", data))


class Qasper(PaperQuestions, SpanTask, ByPlaces):
    """Span of a paper, yes, no or unanswerable, with evidence paragraphs.

    Input: <s> question </s> title, abstract, and section and [PARAGRAPH] before paragraphs </s>.
    Evidence is read at the markers, as in Dasigi et al. 2021 (arXiv:2105.03011), whose decoder
    generates answers; here they are extracted from the paper, so free-form ones cannot be given.
    All annotators count: every paragraph that one of them names, and every mention of an
    annotator's spans in that annotator's evidence, or in the paper if there is none. The type of
    answer is that of most annotators; a free-form answer counts as a span and is trained by its
    evidence alone. Chunks without a correct span point to their first token.

    Args:
        weights: weights of the losses ``span``, ``class`` (the type) and ``passages``; 1 if not
            given.
        threshold: probability above which a paragraph is evidence; the best one always is, unless
            the question is unanswerable.
    """

    reads: ClassVar[TaskReads] = replace(PaperQuestions.reads, query_fields=("question",))
    inputs: ClassVar[TaskInputs] = replace(
        SpanTask.inputs,
        head="LdtForPassageAnswering",
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

    def source(self, example: Example, data: DataSection) -> str:
        """Return the text of the paper as it is read."""
        return self.paper(example, data)[0]

    def classes(self, example: Example, data: DataSection) -> str | list[str] | None:
        """Return the type of the answer, one of `KINDS`."""
        return KINDS[_kind(self.gold(example, data, None)["references"])]

    def learn(self, examples: Iterable[Example], data: DataSection) -> dict[str, Any]:
        """Return id2label, label2id, num_labels, and the settings of the loss, evidence_weights and
        passage_loss."""
        super().learn(examples, data)
        weights = {"evidence_weights": self.weights, "passage_loss": "each"}
        return {**named_labels(KINDS), **weights}

    def marks(self, example: Example, data: DataSection) -> list[tuple[Span, str]]:
        """Return the characters of each paragraph, all with the marker [PARAGRAPH]."""
        return [(place, self.inputs.markers[0]) for place in self.paper(example, data)[1]]

    def labelling(self, example: Example, data: DataSection, config, context: str) -> RightAnswer:
        """Return the answers of all annotators together; the key ``unplaced`` of a feature counts
        annotators whose extractive answer is not found."""
        gold = self.gold(example, data, config)
        spans, unplaced = _mentions(gold, context, self.paper(example, data)[1])
        kind = _kind(gold["references"])
        evidence = {number for numbers in gold["paragraphs"] for number in numbers}
        # Where a span is right that nobody has placed, no place is wrong.
        nowhere = NO_LABEL if KINDS[kind] == "span" and not spans else CLS
        label = class_with_evidence(kind, evidence)
        return RightAnswer(spans, nowhere, evidence, label, {"unplaced": unplaced})

    def shared_keys(self, example: Example, data: DataSection) -> dict[str, Any]:
        """Return {"paragraphs": characters of each, [paragraphs, 2] int32}."""
        places = self.paper(example, data)[1]
        return {"paragraphs": np.array(places, np.int32).reshape(-1, 2)}

    def training_features(self, features: Sequence[Feature]) -> Sequence[Feature]:
        """Return the features, or [] if no paragraph with a word is read."""
        return features if any(len(feature["passages"]) for feature in features) else []

    def remarks(self, features: Iterable[Feature], left_out: int) -> list[str]:
        """Return lines with the numbers of inputs with evidence, and of answers and papers not
        trained on."""
        lines = [with_evidence(features)]
        unplaced = {feature["document"]: feature["unplaced"] for feature in features}
        if count := sum(unplaced.values()):
            lines.append(f"extractive answers not found in their paper: {count:,}")
        return [*lines, *self._left_out(left_out)]

    def decode(self, outputs: Sequence[Outputs], config, example: Example, features) -> dict:
        """Return the answer, and flags such as ``truncated``.

        ``answer``, ``score``, ``start`` and ``end`` of the best span (`SpanTask.answer_of`) in
        characters of the paper as read, or Yes, No or Unanswerable without a place; ``type``, one
        of `KINDS`, and ``scores``, their probabilities; ``evidence``, texts of paragraphs without
        repetition, and ``paragraphs``, their indices; ``paragraph_probs``, one per paragraph, 0 if
        unread.
        """
        context, places = features[0]["context"], features[0]["paragraphs"].tolist()
        scores, probs = probabilities(outputs, features, len(places))
        answer = self.answer_of(self.best_spans(outputs, features), context)
        kind = KINDS[int(scores.argmax())]
        if not self.training_features(features) or (kind == "span" and not answer["answer"]):
            kind = "unanswerable"
        if kind != "span":
            answer |= {"answer": SAID[kind], "score": None, "start": None, "end": None}
        limit = 1.0
        if kind != "unanswerable":
            limit = min(self.threshold, np.nextafter(probs.max(), 0))
        answer |= {"type": kind, "scores": dict(zip(KINDS, scores.tolist(), strict=True))}
        return answer | _evidence(context, places, probs, limit) | features[0]["flags"]

    def places(self, answer: dict, example: Example, data: DataSection) -> list[tuple[int, float]]:
        """Return the start of every paragraph, in characters of `paper`, with its probability."""
        starts = [start for start, _ in self.paper(example, data)[1]]
        return list(zip(starts, answer["paragraph_probs"], strict=True))


def _evidence(
    context: str, places: Sequence[Span], probs: np.ndarray, limit: float
) -> dict[str, Any]:
    """Paragraphs above a limit, as distinct texts and as indices; and the probabilities of all."""
    numbers = np.flatnonzero(probs > limit).tolist()
    evidence = dict.fromkeys(context[slice(*places[number])] for number in numbers)
    return {"evidence": [*evidence], "paragraphs": numbers, "paragraph_probs": probs.tolist()}


def _kind(references: Sequence[Reference]) -> int:
    """Type given by most annotators, of equal ones the first."""
    numbers = {answer: KINDS.index(name) for name, answer in SAID.items()}
    kinds = [
        numbers[each.answer] if each.type in ("boolean", "none") and each.answer in numbers else 0
        for each in references
    ]
    return baseline.commonest([kind] for kind in kinds)


def _mentions(gold: dict[str, Any], context: str, places: Sequence[Span]) -> tuple[list[Span], int]:
    """Positions of all annotators' spans, and the number of annotators without any."""
    placed: dict[Span, None] = {}
    unplaced = 0
    for reference, numbers in zip(gold["references"], gold["paragraphs"], strict=True):
        spans: list[Span] = []
        for words in filter(None, map(bare, reference.spans)):
            there = [span for n in numbers for span in _all(context, words, *places[n])]
            spans += there or _all(context, words, 0, len(context))
        placed |= dict.fromkeys(spans)
        unplaced += reference.type == "extractive" and not spans
    return list(placed), unplaced


def _all(context: str, words: str, start: int, end: int) -> list[Span]:
    """All non-overlapping occurrences of a text between two offsets."""
    spans = []
    while (at := context.find(words, start, end)) >= 0:
        spans.append((at, at + len(words)))
        start = at + len(words)
    return spans


class Likeliest(Generation):
    """Generation settings, by default greedy and without a limit on repetitions."""

    num_beams: int = Field(default=1, ge=1, le=1024)
    no_repeat_ngram_size: int = Field(default=0, ge=0, le=1 << 24)


class QasperGeneration(PaperQuestions, WritingTask):
    """Generated answer to a question about a paper, with evidence paragraphs.

    Input: <s> question </s> heading </s> paragraph </s> paragraph ..., as in Dasigi et al. 2021
    (arXiv:2105.03011) and their code: without title and abstract, line ends as spaces, blank
    paragraphs left out, nothing after the last; a long paper is truncated. Evidence is read at the
    separators; those of headings are never named. A paragraph is correct if it contains a text of
    the evidence.

    Each annotator's answer is a training input of its own; evaluation loss uses the first. An
    answer is the text of a free-form one, spans joined by commas, Yes, No or Unanswerable.

    Args:
        weights: weights of the losses ``answer`` and ``passages``; 1 if not given. Without the
            latter no evidence is trained or predicted.
    """

    inputs: ClassVar[TaskInputs] = replace(
        WritingTask.inputs,
        head="LdtForEvidenceGeneration",
        roles=("cls", "question", "separator", "document"),
        extras=(*WritingTask.inputs.extras, "passages", "context", "paragraphs", "others"),
        label_names=("labels", "passage_labels"),
    )
    answers: ClassVar[TaskAnswers] = replace(
        PaperQuestions.answers,
        outputs=(WRITTEN, "passage_logits"),
        keys=(
            *("answer", "answer_tokens", "unfinished"),
            *("evidence", "paragraphs", "paragraph_probs"),
        ),
    )
    written: ClassVar[str] = "answers"

    name: Literal["qasper_generation"] = "qasper_generation"
    global_attention: list[str] = ["cls", "question", "separator"]
    generation: Likeliest = Likeliest()
    weights: dict[Literal["answer", "passages"], Weight] = {}

    def parts(self, example: Example, data: DataSection) -> tuple[str, str]:
        """Return headings and paragraphs, one per line, and the question."""
        pieces = "\n".join(words for _, words in self._pieces(example, data))
        return pieces, question_of(self, example, data)

    def learn(self, examples: Iterable[Example], data: DataSection) -> dict[str, Any]:
        """Return {"evidence_weights": weights of the recipe}."""
        super().learn(examples, data)
        return {"evidence_weights": self.weights}

    def encode(
        self, example: Example, tokenizer, *, data: DataSection, max_length: int, config=None
    ) -> list[Feature]:
        """Return the only feature of an example.

        ``passages`` [k] int32 are the indices of the paragraphs read, `HEADING` for a heading, and
        ``passage_positions`` their separators. ``context`` is the concatenated text of all
        paragraphs, ``paragraphs`` [paragraphs, 2] int32 their offsets in it. The labels are those
        of the first annotator, ``others`` has the rest. RecipeError if the model's decoder is
        missing or has too few positions.
        """
        self._tokenizer = tokenizer
        pieces = list(self._pieces(example, data))
        question, flags = self.question_segment(question_of(self, example, data), tokenizer)
        cls, sep = ends(tokenizer)
        segments = [cls, question]
        begin = 1 + len(question.ids)
        ids = _tokens(tokenizer, tuple(words for _, words in pieces))
        length, room = sum(1 + len(each) for each in ids), max_length - begin
        self.check_room(example, length, room, 2, data)
        places, left = [], room
        for each in ids:
            if not left:
                break
            places.append(begin + room - left)
            segments += [Segment("separator", sep.ids), Segment("document", each[: left - 1])]
            left -= min(1 + len(each), left)
        if not places:  # for the role that may have global attention
            segments.append(Segment("separator", sep.ids))
        flags |= cut_off(max(length - room, 0)) | ({} if places else {"empty": True})
        read, paragraphs = pieces[: len(places)], self._paragraphs(example, data)
        borders = np.cumsum([0, *map(len, paragraphs)], dtype=np.int32)
        feature = join(segments, self.global_attention) | {
            "passages": np.array([number for number, _ in read], np.int32),
            "passage_positions": places,
            "context": "".join(paragraphs),
            "paragraphs": np.stack([borders[:-1], borders[1:]], -1),
            "document": 0,
            "tokens": begin + max(length, 1),
            "flags": flags,
            "chunks": 1,  # however many are learnt
        }
        if config is not None:
            first, *others = (
                self._labels(each, read, tokenizer, config)
                for each in self.gold(example, data, config)["references"]
            )
            feature |= first | {"others": others}
        return [feature]

    def training_features(self, features: Sequence[Feature]) -> list[Feature]:
        """Return a copy of the only feature for each annotator, with that one's labels; [] if no
        paragraph has a word."""
        (feature,) = features
        several = ({}, *feature["others"]) if len(feature["passages"]) else ()
        return [feature | labels for labels in several]

    def remarks(self, features: Iterable[Feature], left_out: int) -> list[str]:
        """Return lines with the lengths of the answers, and the numbers of inputs with evidence and
        papers left out."""
        lines = [*super().remarks(features, left_out), with_evidence(features)]
        return [*lines, *self._left_out(left_out)]

    def run(self, model, inputs: Mapping[str, Any], *, quick: bool = False) -> dict[str, Any]:
        """Return ``sequences`` [rows, tokens] int64 and ``passage_logits`` [rows, passages]; the
        paper is encoded once for both."""
        masks = {name: inputs[name] for name in ("attention_mask", "global_attention_mask")}
        encoded = model.get_encoder()(inputs["input_ids"], **masks)
        written = super().run(model, {**inputs, "encoder_outputs": encoded}, quick=quick)
        logits = model.passage_logits(encoded.last_hidden_state, inputs["passage_positions"])
        return {**written, "passage_logits": logits}

    def decode(self, outputs: Sequence[Outputs], config, example: Example, features) -> dict:
        """Return the answer, and flags such as ``truncated``.

        ``answer``, ``answer_tokens`` and ``unfinished`` (`WritingTask.decode_text`); ``evidence``,
        texts of paragraphs without repetition, and ``paragraphs``, their indices;
        ``paragraph_probs``, one per paragraph, 0 if unread. All paragraphs above 0.5 are evidence,
        whatever the answer.
        """
        (output,), (feature,) = outputs, features
        answer = self.decode_text("answer", output)
        if not len(feature["passages"]):
            answer["answer"] = UNANSWERABLE
        probs = np.zeros(len(feature["paragraphs"]))
        if config.evidence_weights.get("passages", 1):
            for number, logit in zip(feature["passages"], output["passage_logits"], strict=False):
                if number != HEADING:
                    probs[number] = logistic(float(logit))
        places = feature["paragraphs"].tolist()
        return answer | _evidence(feature["context"], places, probs, 0.5) | feature["flags"]

    def _pieces(self, example: Example, data: DataSection) -> Iterator[tuple[int, str]]:
        """Non-blank headings and paragraphs, each with its index."""
        for number, (section, paragraph) in enumerate(self._sectioned(example, data)):
            if section:
                yield HEADING, _plain(section)
            if words := _plain(paragraph):
                yield number, words

    def _labels(
        self, reference: Reference, read: Sequence[tuple[int, str]], tokenizer, config
    ) -> Feature:
        evidence = list(filter(None, map(_plain, reference.evidence)))
        right = [int(any(text in words for text in evidence)) for _, words in read]
        return {**self.target_labels(reference.answer, tokenizer, config), "passage_labels": right}


def _plain(text: str) -> str:
    return text.replace("\n", " ").strip()


@lru_cache(2)  # questions on one paper come one after the other
def _tokens(tokenizer, pieces: tuple[str, ...]) -> list[list[int]]:
    return [tokenize(tokenizer, words) for words in pieces]
