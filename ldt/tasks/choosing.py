"""One of several candidates, any number per question, as in RACE and WikiHop.

multiple_choice: an input for each choice, <s> question choice </s> text </s>
wikihop:         <s> [question] query [/question] ([ent] candidate [/ent])* (</s> support </s>)*
"""

import logging
import math
import re
import sys
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

import numpy as np

from ldt.benchmarks import wikihop
from ldt.data.features import Feature, Segment, ends
from ldt.data.options import Count, DataSection
from ldt.data.sentences import UNITS, Unit
from ldt.data.tokenization import marker_ids, tokenize, tokenize_with_offsets
from ldt.errors import DataError, RecipeError, listed, quote
from ldt.io.records import Example, field, flat, text, texts
from ldt.metrics import baseline
from ldt.metrics.baseline import Baselines
from ldt.metrics.decisions import Rules
from ldt.metrics.result import mean
from ldt.tasks import results
from ldt.tasks.base import (
    NO_LABEL,
    DocumentTokens,
    Fault,
    Outputs,
    PublishedLayout,
    Scores,
    TaskAnswers,
    TaskInputs,
    TaskReads,
    best_constant,
    evaluation_set,
    grouped,
    in_chunks,
    not_empty,
    path_of,
    question_of,
)
from ldt.tasks.deciding import Abstaining, Decision, fit_calibration, logits_of
from ldt.tasks.explained import MERGES, ByLogits, Reading, Target

log = logging.getLogger("ldt")

_ABSENT = -1e5  # a logit whose probability is 0 at any temperature
_SPACED = ((" .", "."), (" ,", ","), (" !", "!"), (" ?", "?"), ("( ", "("), (" )", ")"))
_GROUPS = {9: "up to 9", 19: "10 to 19", 39: "20 to 39", 79: "40 to 79", math.inf: "80 and more"}


class Choosing(Abstaining, ByLogits):
    """Task whose answer is one of several candidates, any number per question.

    The confidence of an answer is the probability of the best candidate.

    Args:
        calibration: calibration of the candidates' probabilities on the evaluation set:
            ``temperature``, or ``auto``, which uses it only if it helps.
    """

    reads: ClassVar[TaskReads] = replace(Abstaining.reads, noun="questions")
    inputs: ClassVar[TaskInputs] = replace(Abstaining.inputs, loss_per_document=True)
    answers: ClassVar[TaskAnswers] = replace(Abstaining.answers, metric="accuracy")

    calibration: Literal["none", "auto", "temperature"] = "none"

    @abstractmethod
    def ranked(self, answer: dict, gold: Any) -> tuple[list[float], int | None]:
        """Return the probabilities of all candidates, and the index among them of the gold one;
        None if it is not a candidate.

        Args:
            answer: answer of the task `uncalibrated`.
            gold: gold answer of `gold`.
        """

    def learn(self, examples: Iterable[Example], data: DataSection) -> dict[str, Any]:
        """Return {"decisions": {}}, an empty decision policy; DataError if a gold answer is not
        among the candidates, RecipeError if calibration or abstention has no held-out documents."""
        self.check_held_out(data)
        return super().learn(examples, data) | {"decisions": {}}

    def decide(self, answers: Sequence[dict], golds: Sequence[Any], config) -> Decision:
        """Fit a temperature and the abstention threshold; the answers stay as they are.

        Questions whose gold answer is not among the candidates are left out of the temperature's
        fit; as answers they are wrong. Neither changes the order of candidates.
        """
        pairs = [self.ranked(answer, gold) for answer, gold in zip(answers, golds, strict=True)]
        if not self.decides or all(place is None for _, place in pairs):
            return Decision(answers, {"decisions": {}})
        logits = np.full((len(pairs), max(len(scores) for scores, _ in pairs)), _ABSENT)
        right = np.zeros(logits.shape, bool)
        for row, there, (scores, place) in zip(logits, right, pairs, strict=True):
            row[: len(scores)] = logits_of(np.array(scores), several=False)
            if place is not None:
                there[place] = True
        rules = Rules(several=False, calibration=self.calibration, abstain=self.asked_abstention)
        return fit_calibration(answers, logits, right, rules)[0]

    def _candidate_texts(self, example: Example, name: str, data: DataSection) -> list[str]:
        """Texts of the candidates, one at least and none blank, else DataError."""
        path = path_of(self, name, data)
        candidates = texts(example, path)
        if not candidates or not all(each.strip() for each in candidates):
            raise DataError(
                f"{example.where}: field {path!r}: {quote(candidates)}, expected a list of one "
                "text or more, none of them empty"
            )
        return candidates


class MultipleChoice(Choosing):
    """One of the choices of each question; questions may have different numbers of choices.

    Each choice is an input of its own, scored at the first token; the probabilities are a softmax
    over the choices, as for RACE and QuALITY with RoBERTa or Longformer. The question comes first,
    as in Longformer's question answering (Beltagy et al. 2020, arXiv:2004.05150), so every chunk of
    a long text contains it. A choice's logit is the mean over the chunks.

    The field named by `data.label` holds the index of the right choice, from 0, or its text.
    """

    reads: ClassVar[TaskReads] = replace(
        Choosing.reads,
        document="context",
        query_fields=("question", "choices"),
        fields=("question", "choices"),
        also={"query": "question", "candidates": "choices", "supports": "context"},
        label_keys=("label",),
        signs=(("question", "choices"),),
    )
    inputs: ClassVar[TaskInputs] = replace(
        Choosing.inputs,
        head="LdtForMultipleChoice",
        roles=("cls", "question", "choice", "context", "sep"),
        extras=("texts",),
    )
    answers: ClassVar[TaskAnswers] = replace(
        Choosing.answers,
        kind="choice",
        formats=("multiple_choice",),
        score=results.score_choice,
        result=results.evaluate_choices,
        keys=("answer", "choice", "score", "scores", "abstained", "why"),
    )
    probability: ClassVar[str] = "scores"

    name: Literal["multiple_choice"] = "multiple_choice"
    global_attention: list[str] = ["cls", "question", "choice"]

    def encode(
        self, example: Example, tokenizer, *, data: DataSection, max_length: int, config=None
    ) -> list[Feature]:
        """Return a feature for each choice and chunk, those of a choice together.

        ``choices`` is the index of the feature's choice, ``texts`` are all choices, ``labels`` is
        the index of the right one. The longest choice determines the room, so that all are read
        with the same chunks.
        """
        asked = tokenize(tokenizer, question_of(self, example, data))
        choices = self.choices(example, data)
        document = text(example, path_of(self, "context", data))
        cls, sep = ends(tokenizer)
        offered = [tokenize(tokenizer, f" {choice.strip()}") for choice in choices]
        read = DocumentTokens("context", tokenize(tokenizer, document))
        labels = {} if config is None else {"labels": self._label(example, data)}
        longest, features = max(map(len, offered)), []
        for place, choice in enumerate(offered):
            head = [cls, Segment("question", asked), Segment("choice", choice), sep]
            length = max_length - longest + len(choice)  # the same room for all
            of_choice = in_chunks(self, example, data, length, head, read, [sep], document)
            more = {"choices": place, "texts": choices} | labels
            features += [feature | more for feature in of_choice]
        return features

    def gold(self, example: Example, data: DataSection, config) -> dict[str, int]:
        """Return {"choice": index of the right one}; DataError if the label is neither its index
        nor its text."""
        return {"choice": self._label(example, data)}

    def decode(self, outputs: Sequence[Outputs], config, example: Example, features) -> dict:
        """Return ``answer`` (a text), ``choice`` (its index from 0), ``score`` (its probability),
        ``scores`` (of all choices, with the sum 1), ``chunks`` (per choice), and flags such as
        ``truncated``.

        If the model abstains, ``answer`` and ``choice`` are None, ``abstained`` is true, and
        ``why`` gives the reason.
        """
        choices, chunks = features[0]["texts"], features[0]["chunks"]
        logits = np.array([output["logits"][0] for output in outputs], np.float64)
        merged = logits.reshape(len(choices), chunks).mean(1)
        scores = self.policy(config).scores(merged[None])[0]
        best = int(merged.argmax())
        answer = {"answer": choices[best], "choice": best, "score": float(scores[best])}
        answer |= {"scores": scores.tolist(), "chunks": chunks}
        flags = features[0].get("flags", {})
        silence = self.policy(config).abstention(scores, "empty" in flags)
        nothing = {"answer": None, "choice": None} if silence else {}
        return answer | flags | nothing | silence

    def ranked(self, answer: dict, gold: Any) -> tuple[list[float], int | None]:
        return answer["scores"], gold["choice"]

    def reading(self, example: Example, tokenizer, data, unit: Unit = "sentence") -> Reading:
        document = text(example, path_of(self, "context", data))
        _, offsets = tokenize_with_offsets(tokenizer, document)
        return Reading(document, offsets, UNITS[unit](document))

    def targets(self, answer: dict, config, features, labels: Sequence[str] = ()) -> list[Target]:
        """Return the logit of the best choice, the mean over its chunks; ``labels`` have
        no effect."""
        chunks, choice = features[0]["chunks"], int(np.argmax(answer["scores"]))
        return [Target(None, range(choice * chunks, (choice + 1) * chunks), 0, "mean")]

    def measure(self, answers: Sequence[dict], golds: Sequence[Any], config) -> Scores:
        """Return accuracy in percent, and no rows."""
        pairs = zip(answers, golds, strict=True)
        return mean([{"accuracy": one["choice"] == other["choice"]} for one, other in pairs]), []

    def baseline(self, trained: Sequence[Any], golds: Sequence[Any], config) -> Baselines:
        """Return the accuracy of always choosing the index that is most often right in training."""
        place = baseline.commonest([gold["choice"]] for gold in trained)
        return best_constant(self, {f"always choice {place}": {"choice": place}}, golds, config)

    def choices(self, example: Example, data: DataSection) -> list[str]:
        """Return the texts of all choices; DataError if there is none or a blank one."""
        return self._candidate_texts(example, "choices", data)

    def _label(self, example: Example, data: DataSection) -> int:
        if isinstance(data.label, list):
            raise RecipeError("data.label: several fields; one choice is right")
        choices, label = self.choices(example, data), field(example, data.label)
        if type(label) is int and 0 <= label < len(choices):
            return label
        if isinstance(label, str) and choices.count(label) == 1:
            return choices.index(label)
        raise DataError(
            f"{example.where}: label {data.label!r} is {quote(label)}, expected the text of one of "
            f"the choices or its place, 0 to {len(choices) - 1}"
        )


class WikiHop(Choosing):
    """One of the candidates of each question, from documents that must be read together.

    Encoding, head and shuffling follow Beltagy et al. 2020 (arXiv:2004.05150), as in the authors'
    scripts/wikihop.py. A candidate's logit is read at the [ent] before it. Supports that do not fit
    are read in chunks, each with question and candidates; unlike there, the last chunk has full
    length and overlaps the one before. Training shuffles candidates and supports in every epoch.

    As in the authors' code, question, candidates and supports are tokenized with a leading space
    and without the spaces that tokenized text has around punctuation (`joined`): byte-level
    vocabularies have different tokens for " ," and ",", and pretraining saw the latter. The answer
    is spelt as in the file. Repeated candidates are ranked once.

    Args:
        merge: how a candidate's logits of several chunks are combined before the softmax: their
            ``mean``, as in the paper, or their ``sum``, as in the authors' code.
        n_best: number of best candidates in an answer.
    """

    reads: ClassVar[TaskReads] = replace(
        Choosing.reads,
        document="supports",
        query_fields=("query", "candidates"),
        fields=("query", "candidates", "answer"),
        also={"question": "query", "choices": "candidates", "context": "supports"},
        several=True,
        signs=(("query", "candidates", "supports", "answer"),),
    )
    inputs: ClassVar[TaskInputs] = replace(
        Choosing.inputs,
        head="LdtForCandidateRanking",
        roles=("cls", "question", "candidates", "supports"),
        markers=("[question]", "[/question]", "[ent]", "[/ent]"),
        extras=("candidates",),
        shuffled=("candidates", "supports"),
    )
    answers: ClassVar[TaskAnswers] = replace(
        Choosing.answers,
        kind="candidate",
        score=wikihop.score,
        keys=("answer", "score", "n_best", "best", "abstained", "why"),
        layouts={"wikihop": PublishedLayout(wikihop.published)},
    )
    probability: ClassVar[str] = "score"

    name: Literal["wikihop"] = "wikihop"
    global_attention: list[str] = ["cls", "question", "candidates"]
    merge: Literal["mean", "sum"] = "mean"
    n_best: Count = 1

    def learn(self, examples: Iterable[Example], data: DataSection) -> dict[str, Any]:
        """Return {"decisions": {}, "window_merge": value of ``task.merge``}; DataError if a gold
        answer is not among the candidates, RecipeError if calibration or abstention has no
        held-out documents."""

        def answerable() -> Iterator[Example]:
            for example in examples:
                if fault := self._misplaced(example, data):
                    raise DataError(f"{example.where}: {fault.what}; training needs it among them")
                yield example

        return super().learn(answerable(), data) | {"window_merge": self.merge}

    def check(self, examples: Iterable[Example], data: DataSection, config) -> None:
        """Log a warning with the number of questions whose gold answer is not among the
        candidates."""
        source = evaluation_set(data)
        wrong = [bool(self._misplaced(each, data)) for each in not_empty(self, examples, source)]
        if any(wrong):
            log.warning(
                f"{source}: the answers of {sum(wrong):,} of {len(wrong):,} questions are none of "
                "the candidates; they count as wrong"
            )

    def faults(self, example: Example, data: DataSection) -> Iterator[Fault]:
        """Yield a gold answer that is not a candidate, and candidates mentioned in no support."""
        if fault := self._misplaced(example, data):
            yield fault
        supports = _words(flat(texts(example, path_of(self, "supports", data))))
        missing = [x for x in self._candidates(example, data) if _words(x) not in supports]
        if missing:
            yield Fault("candidate_never_occurs", listed(missing, 3, _cut))

    def encode(
        self, example: Example, tokenizer, *, data: DataSection, max_length: int, config=None
    ) -> list[Feature]:
        """Return a feature for each chunk of the supports.

        ``positions`` are the [ent] of the ``candidates``, ``labels`` is the index of the right one,
        -100 if there is none. Questions without a support are flagged ``empty``.
        """
        question = question_of(self, example, data, "query")
        candidates = self._candidates(example, data)
        supports = texts(example, path_of(self, "supports", data))
        asks, asked, here, there = marker_ids(tokenizer, self.inputs.markers)
        cls, sep = ends(tokenizer)
        named: list[int] = []
        positions: list[int] = []
        start = [asks, *_ids(tokenizer, question), asked]
        for candidate in candidates:
            positions.append(1 + len(start) + len(named))
            named += [here, *_ids(tokenizer, candidate), there]
        read = [
            token
            for support in supports
            for token in (*sep.ids, *_ids(tokenizer, support), *sep.ids)
        ]
        shared = {"positions": positions, "candidates": candidates}
        if config is not None:
            answer = self._answer(example, data)
            shared["labels"] = candidates.index(answer) if answer in candidates else NO_LABEL
        head = [cls, Segment("question", start), Segment("candidates", named)]
        document, words = DocumentTokens("supports", read), " ".join(supports)
        features = in_chunks(self, example, data, max_length, head, document, [], words)
        return [feature | shared for feature in features]

    def gold(self, example: Example, data: DataSection, config) -> dict[str, Any]:
        """Return {"answer": text, "candidates": number of them}."""
        candidates = self._candidates(example, data)
        return {"answer": self._answer(example, data), "candidates": len(candidates)}

    def decode(self, outputs: Sequence[Outputs], config, example: Example, features) -> dict:
        """Return the ``answer`` with its ``score``, the probability among the candidates; if
        requested, ``n_best`` of {answer, score}, best first; and flags such as ``truncated``.

        If the model abstains, ``answer`` is None, ``best`` is the candidate it would be,
        ``abstained`` is true, and ``why`` gives the reason.
        """
        candidates = features[0]["candidates"]
        logits = np.stack([output["logits"][: len(candidates)] for output in outputs])
        merged = MERGES[self.merge].value(logits.astype(np.float64))
        scores = self.policy(config).scores(merged[None])[0]
        best = [
            {"answer": candidates[place], "score": float(scores[place])}
            for place in np.argsort(-merged, kind="stable")[: self.n_best]
        ]
        flags = features[0].get("flags", {})
        answer = best[0] | ({"n_best": best} if self.n_best > 1 else {}) | flags
        if silence := self.policy(config).abstention(scores, "empty" in flags):
            answer |= {"answer": None, "best": answer["answer"]} | silence
        return answer

    def uncalibrated(self) -> Self:
        """Return a copy of the task whose answers have all candidates in ``n_best``."""
        return self.model_copy(update={"n_best": sys.maxsize})

    def ranked(self, answer: dict, gold: Any) -> tuple[list[float], int | None]:
        best = answer["n_best"]
        places = [place for place, each in enumerate(best) if each["answer"] == gold["answer"]]
        return [each["score"] for each in best], places[0] if places else None

    def reading(self, example: Example, tokenizer, data, unit: Unit = "sentence") -> Reading:
        """Return the supports, one per line, with their sentences or paragraphs as passages."""
        supports = texts(example, path_of(self, "supports", data))
        outside = np.full((1, 2), -1, np.int32)  # the separators around a support
        offsets, passages, start = [], [], 0
        for support in supports:
            offsets += [outside, start + offsets_in(support, tokenizer), outside]
            passages += [(start + a, start + b) for a, b in UNITS[unit](support)]
            start += len(support) + 1
        return Reading("\n".join(supports), np.concatenate(offsets or [outside[:0]]), passages)

    def targets(self, answer: dict, config, features, labels: Sequence[str] = ()) -> list[Target]:
        """Return the logit of the chosen candidate; ``labels`` have no effect."""
        place = features[0]["candidates"].index(answer.get("best", answer["answer"]))
        return [Target(None, range(len(features)), place, self.merge)]

    def measure(self, answers: Sequence[dict], golds: Sequence[Any], config) -> Scores:
        """Return accuracy in percent, and a row for each range of the number of candidates."""
        scores = [
            (next(name for most, name in _GROUPS.items() if gold["candidates"] <= most),)
            + (wikihop.score(gold, answer),)
            for answer, gold in zip(answers, golds, strict=True)
        ]
        return grouped("candidates", scores, [*_GROUPS.values()], "questions")

    def baseline(self, trained: Sequence[Any], golds: Sequence[Any], config) -> Baselines:
        """Return the accuracy to expect from guessing, from the number of candidates of each gold
        answer."""
        return wikihop.guessing(gold["candidates"] for gold in golds)

    def _misplaced(self, example: Example, data: DataSection) -> Fault | None:
        answer, candidates = self._answer(example, data), self._candidates(example, data)
        if answer in candidates:
            return None
        what = f"the answer {_cut(answer)} is none of {listed(candidates, 5, _cut)}"
        return Fault("answer_not_in_candidates", what)

    def _answer(self, example: Example, data: DataSection) -> str:
        return text(example, path_of(self, "answer", data))

    def _candidates(self, example: Example, data: DataSection) -> list[str]:
        return list(dict.fromkeys(self._candidate_texts(example, "candidates", data)))


def joined(text: str) -> str:
    """Attach punctuation to its word and make spaces single, as the authors' normalize_string: "the
    Games ( 2004 ) , held" becomes "the Games (2004), held"."""
    for spaced, close in (*_SPACED, (" 's", "'s")):
        text = text.replace(spaced, close)
    return " ".join(text.split())


def offsets_in(text: str, tokenizer) -> np.ndarray:
    """Tokenize the `joined` text, with a space in front, and return where each token stands in
    ``text`` itself: [tokens, 2] int32, characters."""
    _, offsets = tokenize_with_offsets(tokenizer, f" {(short := joined(text))}")
    places = np.array([place for place, sign in enumerate(text) if not sign.isspace()], np.int32)
    before = np.cumsum([0] + [not sign.isspace() for sign in f" {short}"])  # signs, by character
    real = offsets[:, 1] > offsets[:, 0]
    in_text = np.zeros_like(offsets)
    in_text[real, 0] = places[before[offsets[real, 0]]]
    in_text[real, 1] = places[before[offsets[real, 1]] - 1] + 1
    return in_text


def _words(text: str) -> str:
    """Lower-cased words with a space around each, for substring search."""
    words = " ".join(re.findall(r"\w+", text.casefold()))
    return f" {words} "


def _ids(tokenizer, text: str) -> list[int]:
    return tokenize(tokenizer, f" {joined(text)}")


def _cut(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:39]}…")
