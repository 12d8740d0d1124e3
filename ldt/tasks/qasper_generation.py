"""Questions on scientific papers, whose answers are written, with evidence; as in QASPER."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from ldt.benchmarks.qasper import UNANSWERABLE, Reference
from ldt.data.features import Feature, Segment, cut_off, ends, join
from ldt.data.tokenization import tokenize
from ldt.errors import DataError
from ldt.io.records import Example
from ldt.metrics.numbers import logistic
from ldt.tasks.base import WRITTEN, Outputs, TaskAnswers, TaskInputs, question_of
from ldt.tasks.qasper import PaperQuestions, left_out_of
from ldt.tasks.questions import Weight
from ldt.tasks.writing_task import Generation, WritingTask

if TYPE_CHECKING:
    from ldt.data.options import DataSection

HEADING = -1  # in place of the number of a paragraph


class Likeliest(Generation):
    """Generation settings; by default the likeliest token at each place, any number of times."""

    num_beams: int = Field(default=1, ge=1, le=1024)
    no_repeat_ngram_size: int = Field(default=0, ge=0, le=1 << 24)


class QasperGeneration(PaperQuestions, WritingTask):
    """An answer to a question on a paper, and the paragraphs that are its evidence.

    Input: <s> question </s> heading </s> paragraph </s> paragraph ..., as in Dasigi et al. 2021
    (arXiv:2105.03011) and their code: without title and abstract, line ends as spaces, blank
    paragraphs left out, nothing behind the last; a long paper is read from its beginning. Evidence
    is read at the separators, those of headings among them, which are never named. A paragraph is
    right that a text of the evidence stands in.

    The answers of several annotators are learnt as so many inputs, the loss of an evaluation is
    that of the first. An answer is the text of a free one, of spans with commas between them, Yes,
    No or Unanswerable. Papers without paragraphs are left out of training, and questions on them
    are unanswerable.

    Args:
        weights: weights of the losses ``answer`` and ``passages``; 1 where one is not named.
            Without that of passages no evidence is learnt, and none is named.
    """

    inputs: ClassVar[TaskInputs] = replace(
        WritingTask.inputs,
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

    def head(self) -> type:
        from ldt.model import LdtForEvidenceGeneration

        return LdtForEvidenceGeneration

    def parts(self, example: Example, data: "DataSection") -> tuple[str, str]:
        """Return headings and paragraphs, a line for each, and the question."""
        pieces = "\n".join(words for _, words in self._pieces(example, data))
        return pieces, question_of(self, example, data)

    def learn(self, examples: Iterable[Example], data: "DataSection") -> dict[str, Any]:
        """Return evidence_weights.

        Raises:
            DataError: no examples, or one whose answers cannot be read.
        """
        super().learn(examples, data)
        return {"evidence_weights": self.weights}

    def encode(
        self, example: Example, tokenizer, *, data: "DataSection", max_length: int, config=None
    ) -> list[Feature]:
        """Return the only feature of an example.

        ``passages`` [k] int32 are the numbers of the paragraphs that are read, `HEADING` of a
        heading, and ``passage_positions`` their separators. ``context`` is the text of all
        paragraphs end to end, ``paragraphs`` [paragraphs, 2] int32 where each stands in it.
        The labels are those of the first annotator, ``others`` has those of the rest.

        Raises:
            DataError: a field is missing or wrong, the question is empty or leaves no room, or the
                paper does not fit and ``data.overflow`` is "error".
            RecipeError: the model has no decoder, or one with fewer positions.
        """
        self._tokenizer = tokenizer
        pieces = list(self._pieces(example, data))
        asked = tokenize(tokenizer, question_of(self, example, data))
        question, flags = self.cut(asked)
        cls, sep = ends(tokenizer)
        segments = [cls, Segment("question", question)]
        begin = 1 + len(question)
        room = max_length - begin
        if room < 2:
            raise DataError(
                f"{example.where}: the question has {len(question):,} tokens and leaves none of "
                f"{max_length:,} for the paper; a smaller task.max_question cuts it"
            )
        ids = _tokens(tokenizer, tuple(words for _, words in pieces))
        length = sum(1 + len(each) for each in ids)
        if length > room and data.overflow == "error":
            raise DataError(
                f"{example.where}: paper {example.id!r} has {length:,} tokens, {room:,} fit; "
                "data.overflow=truncate reads its beginning"
            )
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
        feature = join(segments, self.global_attention)
        numbers = [number for number, _ in pieces[: len(places)]]
        feature |= {"passages": np.array(numbers, np.int32), "passage_positions": places}
        paragraphs = self._paragraphs(example, data)
        borders = np.cumsum([0, *map(len, paragraphs)], dtype=np.int32)
        feature |= {"context": "".join(paragraphs)}
        feature |= {"paragraphs": np.stack([borders[:-1], borders[1:]], -1)}
        feature |= {"document": 0, "tokens": begin + max(length, 1), "flags": flags}
        feature["chunks"] = 1  # however many are learnt
        if config is not None:
            read = pieces[: len(places)]
            first, *others = (
                self._labels(each, read, tokenizer, config)
                for each in self.gold(example, data, config)["references"]
            )
            feature |= first | {"others": others}
        return [feature]

    def instances(self, features: Sequence[Feature]) -> list[Feature]:
        """Return an input for each annotator, where the paper has a paragraph with a word."""
        (feature,) = features
        several = ({}, *feature["others"]) if len(feature["passages"]) else ()
        return [feature | labels for labels in several]

    def remarks(self, features: Iterable[Feature], left_out: int) -> list[str]:
        """Lengths of the answers; numbers of inputs with evidence, and of papers left out."""
        inputs = with_evidence = 0

        def noted() -> Iterator[Feature]:
            nonlocal inputs, with_evidence
            for feature in features:
                inputs, with_evidence = inputs + 1, with_evidence + any(feature["passage_labels"])
                yield feature

        lines = super().remarks(noted(), left_out)
        lines.append(f"{with_evidence:,} of {inputs:,} inputs have evidence")
        return [*lines, *left_out_of(left_out)]

    def run(self, model, inputs, *, quick: bool = False) -> dict[str, Any]:
        """Return ``sequences`` [rows, tokens] int64 and ``passage_logits`` [rows, passages]; the
        paper is encoded once for both."""
        masks = {name: inputs[name] for name in ("attention_mask", "global_attention_mask")}
        encoded = model.get_encoder()(inputs["input_ids"], **masks)
        written = super().run(model, {**inputs, "encoder_outputs": encoded}, quick=quick)
        logits = model.passage_logits(encoded.last_hidden_state, inputs["passage_positions"])
        return {**written, "passage_logits": logits}

    def decode(
        self, outputs: Sequence[Outputs], config, example: Example, features: Sequence[Feature]
    ) -> dict:
        """Return the answer and the flags.

        ``answer`` and what `WritingTask.read_off` has beside it; ``evidence``, texts of paragraphs,
        each once, and ``paragraphs``, their numbers; ``paragraph_probs``, one a paragraph, 0 where
        it is not read. Whatever the answer is, all paragraphs above 0.5 are evidence.
        """
        (output,), (feature,) = outputs, features
        answer = self.read_off("answer", output)
        if not len(feature["passages"]):
            answer["answer"] = UNANSWERABLE
        probs = [0.0] * len(feature["paragraphs"])
        if config.evidence_weights.get("passages", 1):
            for number, logit in zip(feature["passages"], output["passage_logits"], strict=False):
                if number != HEADING:
                    probs[number] = logistic(float(logit))
        right = [number for number, share in enumerate(probs) if share > 0.5]
        context, places = feature["context"], feature["paragraphs"].tolist()
        texts = dict.fromkeys(context[slice(*places[number])] for number in right)
        answer |= {"evidence": list(texts), "paragraphs": right, "paragraph_probs": probs}
        return answer | feature["flags"]

    def _pieces(self, example: Example, data: "DataSection") -> Iterator[tuple[int, str]]:
        """Headings and paragraphs with a word, each with its number."""
        for number, (section, paragraph) in enumerate(self.sectioned(example, data)):
            if section:
                yield HEADING, _plain(section)
            if words := _plain(paragraph):
                yield number, words

    def _labels(
        self, reference: Reference, read: Sequence[tuple[int, str]], tokenizer, config
    ) -> Feature:
        """The labels of an annotator's answer and of the pieces that are read."""
        evidence = list(filter(None, map(_plain, reference.evidence)))
        right = [int(any(text in words for text in evidence)) for _, words in read]
        return {**self.learnt(reference.answer, tokenizer, config), "passage_labels": right}


def _plain(text: str) -> str:
    return text.replace("\n", " ").strip()


@lru_cache(2)  # questions on one paper come one after the other
def _tokens(tokenizer, pieces: tuple[str, ...]) -> list[list[int]]:
    return [tokenize(tokenizer, words) for words in pieces]
