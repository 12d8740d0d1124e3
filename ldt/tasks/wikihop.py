"""The right one of many candidates, by documents that must be read together; as in WikiHop.

Input: <s> [question] query [/question] ([ent] candidate [/ent])* (</s> support </s>)*
"""

import logging
import math
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np

from ldt.benchmarks import wikihop
from ldt.data.features import Feature, Segment, ends, fit, join
from ldt.data.options import Count
from ldt.data.sentences import UNITS, Unit
from ldt.data.tokenization import marker_ids, tokenize, tokenize_with_offsets
from ldt.errors import DataError, listed
from ldt.io.records import Example, flat, text, texts
from ldt.metrics.baseline import Baselines
from ldt.metrics.result import mean
from ldt.tasks.base import (
    NO_LABEL,
    Fault,
    Outputs,
    PublishedLayout,
    TaskAnswers,
    TaskInputs,
    TaskReads,
    evaluation_set,
    not_empty,
    path_of,
    question_of,
    training_set,
)
from ldt.tasks.explained import ByLogits, Reading, Target
from ldt.tasks.ranking import Ranking

if TYPE_CHECKING:
    from ldt.data.options import DataSection

log = logging.getLogger("ldt")

_SPACED = ((" .", "."), (" ,", ","), (" !", "!"), (" ?", "?"), ("( ", "("), (" )", ")"))
_GROUPS = (
    *((9, "up to 9"), (19, "10 to 19"), (39, "20 to 39"), (79, "40 to 79")),
    (math.inf, "80 and more"),
)


class WikiHop(Ranking, ByLogits):
    """One of the candidates of each question.

    Encoding, head and shuffling are those of Beltagy et al. 2020 (arXiv:2004.05150), as in the
    authors' scripts/wikihop.py. A candidate's logit is that of the [ent] in front of it. Supports
    that do not fit are read in chunks, question and candidates in front of each; other than there,
    the last chunk is as long as the others and overlaps the one before. Training sees candidates
    and supports in a new order in every epoch.

    Question, candidates and supports are tokenized as the authors did, each with a space in front
    and without the spaces that tokenized text has around punctuation (`joined`): byte-level
    vocabularies know " ," as another token than ",", and pretraining saw the second one. The
    answer is the candidate as the file has it. One that stands twice is ranked once.

    Args:
        merge: how a candidate's logits in the chunks become one, before the softmax: by their
            ``mean``, as in the paper, or their ``sum``, as in the authors' code.
        n_best: candidates in an answer line, the best ones.
    """

    reads: ClassVar[TaskReads] = replace(
        Ranking.reads,
        document="supports",
        asked=("query", "candidates"),
        fields=("query", "candidates", "answer"),
        also={"question": "query", "choices": "candidates", "context": "supports"},
        several=True,
        signs=(("query", "candidates", "supports", "answer"),),
    )
    inputs: ClassVar[TaskInputs] = replace(
        Ranking.inputs,
        roles=("cls", "question", "candidates", "supports"),
        markers=("[question]", "[/question]", "[ent]", "[/ent]"),
        extras=("candidates",),
        shuffled=("candidates", "supports"),
    )
    answers: ClassVar[TaskAnswers] = replace(
        Ranking.answers,
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

    def head(self) -> type:
        from ldt.model import LdtForCandidateRanking

        return LdtForCandidateRanking

    def learn(self, examples: Iterable[Example], data: "DataSection") -> dict[str, Any]:
        """Return window_merge, and that nothing is decided yet, having looked at every answer.

        Raises:
            DataError: no examples, or an answer that is not among its candidates.
            RecipeError: there are no documents to calibrate by.
        """
        self.check_held_out(data)
        for example in not_empty(self, examples, training_set(data)):
            answer, candidates = self._answer(example, data), self._candidates(example, data)
            if answer not in candidates:
                raise DataError(
                    f"{example.where}: the answer {_cut(answer)} is none of the "
                    f"{len(candidates):,} candidates ({listed(candidates, 5, _cut)}); "
                    "training needs it among them"
                )
        return {"window_merge": self.merge, "decisions": {}}

    def check(self, examples: Iterable[Example], data: "DataSection", config) -> None:
        """Warn of questions that cannot be answered, as no candidate is right.

        Raises:
            DataError: no examples, or one without answer or candidates.
        """
        strange, total = [], 0
        for example in not_empty(self, examples, evaluation_set(data)):
            total += 1
            if self._answer(example, data) not in self._candidates(example, data):
                strange.append(example.where)
        if strange:
            log.warning(
                "%s: the answer is none of the candidates; so in %s of %s questions, which count "
                "as wrong",
                strange[0],
                f"{len(strange):,}",
                f"{total:,}",
            )

    def faults(self, example: Example, data: "DataSection") -> Iterator[Fault]:
        """Yield an answer that is no candidate, and candidates that no support mentions."""
        answer, candidates = self._answer(example, data), self._candidates(example, data)
        if answer not in candidates:
            yield Fault("answer_not_in_candidates", f"the answer is {_cut(answer)}")
        supports = _words(flat(texts(example, path_of(self, "supports", data))))
        missing = [each for each in candidates if _words(each) not in supports]
        if missing:
            yield Fault("candidate_never_occurs", listed(missing, 3, _cut))

    def encode(
        self, example: Example, tokenizer, *, data: "DataSection", max_length: int, config=None
    ) -> list[Feature]:
        """Return a feature for each chunk of the supports.

        ``positions`` are the [ent] of the ``candidates``, ``labels`` is the place of the right one
        among them, -100 if none is. Questions without a support are flagged ``empty``.

        Raises:
            DataError: the question is empty, or candidates leave no room for the supports.
        """
        question = question_of(self, example, data, "query")
        candidates = self._candidates(example, data)
        supports = texts(example, path_of(self, "supports", data))
        asks, asked, here, there = marker_ids(tokenizer, self.inputs.markers)
        cls, sep = ends(tokenizer)

        # Question and candidates stand in front of each chunk of the supports.
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
        head = 1 + len(start) + len(named)
        if max_length - head <= data.stride:
            raise DataError(
                f"{example.where}: the question and its {len(candidates):,} candidates take "
                f"{head:,} tokens of the {max_length:,} of an input, which leaves too few for the "
                "supports; fewer candidates would do, or a larger data.max_length (ldt convert "
                "SOURCE --max-length N makes a longer model)"
            )
        chunks, flags = fit(len(read), max_length - head, example, data, " ".join(supports))
        shared = {"positions": positions, "candidates": candidates, "flags": flags}
        shared |= {"document": 0, "tokens": head + len(read)}
        if config is not None:
            answer = self._answer(example, data)
            shared["labels"] = candidates.index(answer) if answer in candidates else NO_LABEL
        features = []
        for begin, end in chunks:
            segments = [
                cls,
                Segment("question", start),
                Segment("candidates", named),
                Segment("supports", read[begin:end]),
            ]
            place = {"read": (head, begin, end)}
            features.append(join(segments, self.global_attention) | shared | place)
        return features

    def gold(self, example: Example, data: "DataSection", config) -> dict[str, Any]:
        """Return the ``answer`` and the number of ``candidates``."""
        candidates = self._candidates(example, data)
        return {"answer": self._answer(example, data), "candidates": len(candidates)}

    def decode(
        self, outputs: Sequence[Outputs], config, example: Example, features: Sequence[Feature]
    ) -> dict:
        """Return the ``answer`` with its ``score``, a probability among the candidates; where
        several are asked for, ``n_best`` of {answer, score} from the best on; and the flags.

        Where the model is not as sure as it is to be, ``answer`` is None and ``best`` the candidate
        that it would be, ``abstained`` is true, and ``why`` says so.
        """
        candidates = features[0]["candidates"]
        logits = np.stack([output["logits"][: len(candidates)] for output in outputs])
        logits = logits.astype(np.float64)
        merged = logits.mean(0) if self.merge == "mean" else logits.sum(0)
        scores = self.policy(config).scores(merged[None])[0]
        best = [
            {"answer": candidates[place], "score": float(scores[place])}
            for place in np.argsort(-merged, kind="stable")[: self.n_best]
        ]
        several = {"n_best": best} if self.n_best > 1 else {}
        flags = features[0].get("flags", {})
        answer = best[0] | several | flags
        if silence := self.silence(scores, config, empty="empty" in flags):
            answer |= {"answer": None, "best": answer["answer"]} | silence
        return answer

    def in_full(self) -> Self:
        return self.model_copy(update={"n_best": sys.maxsize})

    def ranked(self, answer: dict, gold: Any) -> tuple[list[float], int | None]:
        best = answer["n_best"]
        places = [place for place, each in enumerate(best) if each["answer"] == gold["answer"]]
        return [each["score"] for each in best], places[0] if places else None

    def reading(
        self, example: Example, tokenizer, data: "DataSection", unit: Unit = "sentence"
    ) -> Reading:
        """Return the supports, a line each, whose passages are their sentences or paragraphs."""
        supports = texts(example, path_of(self, "supports", data))
        outside = np.full((1, 2), -1, np.int32)  # the separators around a support
        offsets, passages, start = [], [], 0
        for support in supports:
            offsets += [outside, start + offsets_in(support, tokenizer), outside]
            passages += [(start + a, start + b) for a, b in UNITS[unit](support)]
            start += len(support) + 1
        return Reading("\n".join(supports), np.concatenate(offsets or [outside[:0]]), passages)

    def targets(
        self, answer: dict, config, features: Sequence[Feature], labels: Sequence[str] = ()
    ) -> list[Target]:
        """Return the logit of the candidate that is the answer."""
        place = features[0]["candidates"].index(answer.get("best", answer["answer"]))
        return [Target(None, range(len(features)), place, self.merge)]

    def measure(
        self, answers: Sequence[dict], golds: Sequence[Any], config
    ) -> tuple[dict[str, float], list[dict]]:
        """Return accuracy in percent, and its rows by the number of candidates, with the accuracy
        of guessing."""
        groups: dict[str, list[dict[str, float]]] = {name: [] for _, name in _GROUPS}
        scores = []
        for answer, gold in zip(answers, golds, strict=True):
            scores.append(wikihop.score(gold, answer))
            guessing = {"guessing": 1 / gold["candidates"]}
            groups[_group(gold["candidates"])].append(scores[-1] | guessing)
        rows = [
            {"candidates": name, "questions": len(members), **mean(members)}
            for name, members in groups.items()
            if members
        ]
        return mean(scores), rows

    def baseline(self, trained: Sequence[Any], golds: Sequence[Any], config) -> Baselines:
        """Return the accuracy of guessing, in the mean over all guesses."""
        return wikihop.guessing(gold["candidates"] for gold in golds)

    def _answer(self, example: Example, data: "DataSection") -> str:
        return text(example, path_of(self, "answer", data))

    def _candidates(self, example: Example, data: "DataSection") -> list[str]:
        """Those of an example, each once, in the order of their first occurrence."""
        path = path_of(self, "candidates", data)
        candidates = list(dict.fromkeys(texts(example, path)))
        if not candidates:
            raise DataError(f"{example.where}: field {path!r} is an empty list")
        if not all(candidate.strip() for candidate in candidates):
            raise DataError(f"{example.where}: field {path!r}: a candidate is empty")
        return candidates


def joined(text: str) -> str:
    """Text with punctuation next to its word and single spaces, as the authors' normalize_string.

    "the Games ( 2004 ) , held" gives "the Games (2004), held".
    """
    for spaced, close in (*_SPACED, (" 's", "'s")):
        text = text.replace(spaced, close)
    return " ".join(text.split())


def offsets_in(text: str, tokenizer) -> np.ndarray:
    """[tokens, 2] int32, the characters of a text that its tokens stand for, though what is
    tokenized is `joined`, which differs from it in white space alone."""
    _, offsets = tokenize_with_offsets(tokenizer, f" {(short := joined(text))}")
    places = [place for place, sign in enumerate(text) if not sign.isspace()]
    before = np.cumsum([0] + [not sign.isspace() for sign in f" {short}"])  # signs, by character
    real = offsets[:, 1] > offsets[:, 0]
    found = np.zeros_like(offsets)
    ends = np.array(places, np.int32)
    found[real, 0] = ends[before[offsets[real, 0]]]
    found[real, 1] = ends[before[offsets[real, 1]] - 1] + 1
    return found


def _words(text: str) -> str:
    """The words in lower case, a space around each, to look for one text in another."""
    words = " ".join(re.findall(r"\w+", text.casefold()))
    return f" {words} "


def _ids(tokenizer, text: str) -> list[int]:
    return tokenize(tokenizer, f" {joined(text)}")


def _group(number: int) -> str:
    return next(name for most, name in _GROUPS if number <= most)


def _cut(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:39]}…")
