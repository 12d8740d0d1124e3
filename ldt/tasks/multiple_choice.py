"""The right one of a few choices about a text: [cls] question choice [sep] text [sep] for each."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from ldt.data.features import Feature, Segment, ends, fit, join
from ldt.data.sentences import UNITS, Unit
from ldt.data.tokenization import tokenize, tokenize_with_offsets
from ldt.errors import DataError, RecipeError
from ldt.io.records import Example, field, kind, text, texts
from ldt.metrics import baseline
from ldt.metrics.baseline import Baselines
from ldt.metrics.result import mean
from ldt.tasks import results
from ldt.tasks.base import (
    Outputs,
    TaskAnswers,
    TaskInputs,
    TaskReads,
    best_constant,
    path_of,
    question_of,
)
from ldt.tasks.explained import ByLogits, Reading, Target
from ldt.tasks.ranking import Ranking

if TYPE_CHECKING:
    from ldt.data.options import DataSection


class MultipleChoice(Ranking, ByLogits):
    """One of the choices of each question; questions may differ in their number.

    Each choice is an input of its own and scored at the first token; the probabilities are the
    softmax over the choices, as in RACE and QuALITY with RoBERTa or Longformer. The question stands
    in front, as in Longformer's question answering (Beltagy et al. 2020, arXiv:2004.05150), so that
    it is in each chunk of a text that does not fit. A choice's logit is its mean over the chunks.

    The field that `data.label` names holds the place of the right choice, from 0 on, or its text.
    """

    reads: ClassVar[TaskReads] = replace(
        Ranking.reads,
        document="context",
        asked=("question", "choices"),
        fields=("question", "choices"),
        also={"query": "question", "candidates": "choices", "supports": "context"},
        label_keys=("label",),
        signs=(("question", "choices"),),
    )
    inputs: ClassVar[TaskInputs] = replace(
        Ranking.inputs,
        roles=("cls", "question", "choice", "context", "sep"),
        extras=("texts",),
    )
    answers: ClassVar[TaskAnswers] = replace(
        Ranking.answers,
        kind="choice",
        own=("multiple_choice",),
        score=results.score_choice,
        result=results.choices,
        keys=("answer", "choice", "score", "scores", "abstained", "why"),
    )
    probability: ClassVar[str] = "scores"

    name: Literal["multiple_choice"] = "multiple_choice"
    global_attention: list[str] = ["cls", "question", "choice"]

    def head(self) -> type:
        from ldt.model import LdtForMultipleChoice

        return LdtForMultipleChoice

    def encode(
        self, example: Example, tokenizer, *, data: "DataSection", max_length: int, config=None
    ) -> list[Feature]:
        """Return a feature for each choice and chunk, those of a choice together.

        ``choices`` is the place of the feature's choice, ``texts`` are all of them. The chunks are
        the same for all choices; the longest one leaves the least room.

        Raises:
            DataError: the question or a choice is empty, or they leave no room for the text.
        """
        question = question_of(self, example, data)
        choices = self.choices(example, data)
        document = text(example, path_of(self, "context", data))
        cls, sep = ends(tokenizer)
        asked = tokenize(tokenizer, question)
        offered = [tokenize(tokenizer, f" {choice.strip()}") for choice in choices]
        read = tokenize(tokenizer, document)
        head = 3 + len(asked) + max(map(len, offered))
        if max_length - head <= data.stride:
            raise DataError(
                f"{example.where}: the question and its longest choice take {head:,} tokens of "
                f"the {max_length:,} of an input, which leaves too few for the text; a larger "
                "data.max_length would do"
            )
        chunks, flags = fit(len(read), max_length - head, example, data, document)
        shared = {"texts": choices, "document": 0, "chunks": len(chunks), "flags": flags}
        if config is not None:
            shared["labels"] = self._label(example, data)
        features = []
        for place, choice in enumerate(offered):
            size = 3 + len(asked) + len(choice) + len(read)
            facts = shared | {"choices": place, "tokens": size}
            for start, end in chunks:
                segments = [
                    cls,
                    Segment("question", asked),
                    Segment("choice", choice),
                    sep,
                    Segment("context", read[start:end]),
                    sep,
                ]
                place_of = {"read": (2 + len(asked) + len(choice), start, end)}
                features.append(join(segments, self.global_attention) | facts | place_of)
        return features

    def learn(self, examples: Iterable[Example], data: "DataSection") -> dict[str, Any]:
        """Return that nothing is decided yet, having looked at every answer.

        Raises:
            DataError: there are no examples, or a right answer that is not among the choices.
            RecipeError: there are no documents to calibrate by.
        """
        self.check_held_out(data)
        return super().learn(examples, data) | {"decisions": {}}

    def gold(self, example: Example, data: "DataSection", config) -> dict[str, int]:
        """Return the place of the right ``choice``."""
        return {"choice": self._label(example, data)}

    def decode(
        self, outputs: Sequence[Outputs], config, example: Example, features: Sequence[Feature]
    ) -> dict:
        """Return the ``answer``, which ``choice`` it is (from 0 on), its ``score``, the ``scores``
        of all choices, which add up to 1, the number of ``windows`` and the flags.

        Where the model is not as sure as it is to be, ``answer`` and ``choice`` are None,
        ``abstained`` is true, and ``why`` says so.
        """
        choices, chunks = features[0]["texts"], features[0]["chunks"]
        logits = np.array([output["logits"][0] for output in outputs], np.float64)
        merged = logits.reshape(len(choices), chunks).mean(1)
        scores = self.policy(config).scores(merged[None])[0]
        best = int(merged.argmax())
        answer = {"answer": choices[best], "choice": best, "score": float(scores[best])}
        answer |= {"scores": scores.tolist(), "windows": chunks}
        flags = features[0].get("flags", {})
        silence = self.silence(scores, config, empty="empty" in flags)
        nothing = {"answer": None, "choice": None} if silence else {}
        return answer | flags | nothing | silence

    def ranked(self, answer: dict, gold: Any) -> tuple[list[float], int | None]:
        return answer["scores"], gold["choice"]

    def reading(
        self, example: Example, tokenizer, data: "DataSection", unit: Unit = "sentence"
    ) -> Reading:
        """Return the text, whose passages are its sentences or paragraphs."""
        document = text(example, path_of(self, "context", data))
        _, offsets = tokenize_with_offsets(tokenizer, document)
        return Reading(document, offsets, UNITS[unit](document))

    def targets(
        self, answer: dict, config, features: Sequence[Feature], labels: Sequence[str] = ()
    ) -> list[Target]:
        """Return the logit of the choice that is the answer."""
        chunks, choice = features[0]["chunks"], int(np.argmax(answer["scores"]))
        return [Target(None, range(choice * chunks, (choice + 1) * chunks), 0, "mean")]

    def measure(
        self, answers: Sequence[dict], golds: Sequence[Any], config
    ) -> tuple[dict[str, float], list[dict]]:
        """Return accuracy in percent."""
        pairs = zip(answers, golds, strict=True)
        return mean([{"accuracy": one["choice"] == other["choice"]} for one, other in pairs]), []

    def baseline(self, trained: Sequence[Any], golds: Sequence[Any], config) -> Baselines:
        """Return what the place has where the right choice stands most often."""
        place = baseline.commonest([gold["choice"]] for gold in trained)
        return best_constant(self, {f"always choice {place}": {"choice": place}}, golds, config)

    def choices(self, example: Example, data: "DataSection") -> list[str]:
        """Return the texts of all choices.

        Raises:
            DataError: they are missing, or one is empty.
        """
        path = path_of(self, "choices", data)
        choices = texts(example, path)
        if not choices:
            raise DataError(f"{example.where}: field {path!r} is an empty list")
        if not all(choice.strip() for choice in choices):
            raise DataError(f"{example.where}: field {path!r}: a choice is empty")
        return choices

    def _label(self, example: Example, data: "DataSection") -> int:
        """The place of the right choice."""
        if isinstance(data.label, list):
            raise RecipeError("data.label: several fields; one choice is right")
        choices, label = self.choices(example, data), field(example, data.label)
        if isinstance(label, int) and not isinstance(label, bool) and 0 <= label < len(choices):
            return label
        if isinstance(label, str) and choices.count(label) == 1:
            return choices.index(label)
        value = repr(label)[:40] if isinstance(label, (str, int, float)) else kind(label)
        raise DataError(
            f"{example.where}: label {data.label!r} is {value}, expected the text of one of the "
            f"choices or its place, 0 to {len(choices) - 1}"
        )
