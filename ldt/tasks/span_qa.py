"""Extractive question answering: with positions as in SQuAD 1.1 and 2.0, or without as in
TriviaQA."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from ldt.benchmarks import squad, triviaqa
from ldt.data.features import Feature
from ldt.data.options import Count, DataSection, Length
from ldt.data.sentences import Span, bare, cuts_word, trimmed
from ldt.errors import DataError, RecipeError, listed
from ldt.io import text_files
from ldt.io.records import Example, field, kind, optional, text
from ldt.metrics import baseline
from ldt.metrics.baseline import Baselines
from ldt.metrics.decisions import Policy, Rules
from ldt.metrics.numbers import logistic
from ldt.metrics.result import mean
from ldt.tasks.base import (
    Fault,
    Outputs,
    PublishedLayout,
    Scores,
    SplitGroups,
    TaskAnswers,
    TaskInputs,
    TaskReads,
    best_constant,
    evaluation_set,
    grouped,
    not_empty,
    path_of,
    training_set,
)
from ldt.tasks.deciding import Calibrated, Decision, fit_calibration, logits_of
from ldt.tasks.explained import ByPlaces
from ldt.tasks.questions import CLS, EVIDENCE, RightAnswer, SpanTask, context_of, thinned
from ldt.tasks.text import mentions

NAMES = ("no answer",)  # what a question is calibrated for
UNSETTLED = 0.5  # "no answer" where it scores higher than every span


def _score(right: Any, answer: Mapping[str, Any] | None) -> dict[str, float]:
    """Scores of an answer by SQuAD 2.0's rules, ignoring edge characters that belong to no word."""
    words = answer and answer.get("answer")
    return squad.score2(right, {"answer": words and bare(words)})


class Squad(SpanTask, Calibrated, ByPlaces):
    """Span of a document of any length that answers a question, or "" for no answer.

    An example has ``question``, ``context`` and ``answers``: a list of {text, answer_start} with
    the position in characters (code points); or a list of texts, each taken at its first
    occurrence; or {text: [...], answer_start: [...]}. An empty list is a question without an
    answer.

    All answers in a chunk are correct; a chunk without one is trained to point to its first token.
    If the training set has questions without an answer, the answer is "" if that is more probable
    than ``no_answer_threshold``, which is stored in the model: the threshold with the best F1 on
    the evaluation set, or 0.5. The probability is 1 / (1 + exp(s - n)), where s is the logit of the
    best span over all chunks and n the lowest logit of a first token, so one chunk with an answer
    is enough.

    Args:
        null_chunks: chunks without an answer to train on: ``all``, or ``balanced``, a sample drawn
            once by the seed with as many in expectation as chunks with one, as CUAD's authors do.
            Evaluation and prediction read all.
        calibration: calibration of ``no_answer`` on the evaluation set: ``platt``, ``beta``, or
            ``auto`` for the best of these and none.

    Source: Rajpurkar et al. 2018 (arXiv:1806.03822) for the threshold; Devlin et al. 2019
    (arXiv:1810.04805), section 4.3, for the first token; Hendrycks et al. 2021 (arXiv:2103.06268)
    for balanced chunks.
    """

    reads: ClassVar[TaskReads] = replace(
        SpanTask.reads,
        fields=("question", "answers"),
        signs=(("question", "answers"),),
        placed=True,
    )
    answers: ClassVar[TaskAnswers] = replace(
        SpanTask.answers,
        kind="span",
        score=_score,
        keys=(*SpanTask.answers.keys, "best", "best_start", "best_end", "no_answer", "null"),
        settings={"no_answer_threshold": ("no_answer_threshold",)},
        layouts={
            "squad": PublishedLayout(squad.published),
            "cuad-nbest": PublishedLayout(squad.published_n_best, {"n_best": squad.N_BEST}),
        },
    )

    probability: ClassVar[str] = "no_answer"

    name: Literal["squad"] = "squad"
    null_chunks: Literal["all", "balanced"] = "all"
    calibration: Literal["none", "auto", "platt", "beta"] = "none"

    def learn(self, examples: Iterable[Example], data: DataSection) -> dict[str, Any]:
        """Return no_answer_threshold, None if every question has an answer, else 0.5, and an empty
        decision policy. DataError if an answer is not at its position or there are none;
        RecipeError if there is nothing to calibrate, or no held-out documents for it."""
        self.check_held_out(data)
        answered, without = self._count(examples, data, training_set(data))
        if not answered:
            raise DataError(
                f"{training_set(data)}: nothing to learn, none of {without:,} questions has an "
                "answer"
            )
        if self.decides and not without:
            raise RecipeError(
                f"task.calibration: {training_set(data)}: every question has an answer, there is "
                "no probability of none"
            )
        return {"no_answer_threshold": UNSETTLED if without else None, "decisions": {}}

    def groups(self, example: Example, data: DataSection) -> SplitGroups:
        """Keep questions about one document together; strata are answerable and unanswerable."""
        unit = super().groups(example, data).unit
        try:
            return SplitGroups(unit, [bool(self.placed_answers(example, data))])
        except DataError:
            return SplitGroups(unit)

    def check(self, examples: Iterable[Example], data: DataSection, config) -> None:
        """Read all answers; DataError for unanswerable questions if the model was not trained on
        any."""
        _, without = self._count(examples, data, evaluation_set(data))
        if without and config.no_answer_threshold is None:
            raise DataError(
                f"{evaluation_set(data)}: questions without an answer ({without:,}), the training "
                "set has none; train on such questions too, or leave them out"
            )

    def labelling(self, example: Example, data: DataSection, config, context: str) -> RightAnswer:
        """Return the places of all correct answers; a chunk without one points to its
        first token."""
        return RightAnswer([span for span, _ in self.placed_answers(example, data)])

    def faults(self, example: Example, data: DataSection) -> Iterator[Fault]:
        """Yield a fault for each answer that is no text, does not stand in the context or at its
        position, or begins or ends inside a word; DataError without a context or a list of
        answers."""
        context = text(example, path_of(self, "context", data))
        for answer in self._listed(example, data):
            try:
                (start, end), words = _placed(answer, context, example.where)
            except DataError as error:
                yield Fault("answer_not_in_context", str(error).removeprefix(f"{example.where}: "))
            else:
                if bare(words) and cuts_word(context, start, end):
                    yield Fault("span_cuts_word", f"the answer {words[:40]!r}")

    def subsample(
        self, features: Sequence[Feature], seed: int
    ) -> tuple[list[int] | None, list[str]]:
        """Return the indices of inputs with an answer and, if the recipe has ``null_chunks:
        balanced``, of as many of the others in expectation, with a line; (None, []) for all."""
        if self.null_chunks == "all":
            return None, []
        answered = list(map(_has_answer, features))
        share = sum(answered) / max(answered.count(False), 1)
        return thinned(answered, share, self.null_chunks, seed)

    def remarks(self, features: Iterable[Feature], left_out: int) -> list[str]:
        """Return a line with the number of inputs that have an answer."""
        answered = list(map(_has_answer, features))
        return [f"{sum(answered):,} of {len(answered):,} inputs have an answer"]

    def gold(self, example: Example, data: DataSection, config) -> dict[str, Any]:
        """Return {"answers": texts of all correct answers, [] for an unanswerable question}."""
        return {"answers": [answer for _, answer in self.placed_answers(example, data)]}

    def decode(self, outputs: Sequence[Outputs], config, example: Example, features) -> dict:
        """Return ``answer``, ``score`` (a logit), ``start`` and ``end`` (`SpanTask.answer_of`), and
        flags such as ``truncated``.

        With ``n_best`` also ``null``, the logits of no answer. For a model trained on unanswerable
        questions also its probability ``no_answer``; if the answer is "", start and end are None,
        and score belongs to the best span: ``best``, from ``best_start`` to ``best_end``.
        """
        spans = self.best_spans(outputs, features)
        answer = self.answer_of(spans, context_of(features[0]["context"]))
        # Of the chunk with the lowest sum: one chunk with an answer is enough.
        null = min(
            ([float(each[name][CLS]) for name in self.answers.outputs] for each in outputs), key=sum
        )
        if self.n_best > 1:
            answer["null"] = dict(zip(("start_logit", "end_logit"), null, strict=True))
        threshold = config.no_answer_threshold
        if threshold is not None:
            answer |= {"best": answer["answer"], "no_answer": 1.0}
            answer |= {f"best_{place}": answer[place] for place in ("start", "end")}
            if spans:
                logit, calibrator = sum(null) - spans[0].logit, self.policy(config).calibrator
                answer["no_answer"] = (
                    calibrator.apply(np.array([[logit]])).item() if calibrator else logistic(logit)
                )
            if answer["no_answer"] > threshold:
                answer |= {"answer": "", "start": None, "end": None}
        return answer | features[0]["flags"]

    def _policy_of(self, facts: dict[str, Any], config) -> Policy:
        return Policy.from_facts(facts, NAMES, several=True)

    def decide(self, answers: Sequence[dict], golds: Sequence[Any], config) -> Decision:
        """Calibrate the probability of no answer; the answers of the result have it out-of-fold.
        Documents without a word are left out."""
        known = [number for number, answer in enumerate(answers) if answer.get("best")]
        if self.calibration == "none" or not known:
            return Decision(answers, {"decisions": {}})
        logits = logits_of(np.array([[answers[n]["no_answer"]] for n in known]), several=True)
        right = np.array([[not golds[n]["answers"]] for n in known])
        rules = Rules(several=True, thresholds=np.array([0.5]), calibration=self.calibration)
        honest = list(answers)
        decision, decided = fit_calibration(honest, logits, right, rules, NAMES)
        for number, score in zip(known, decided.scores[:, 0].tolist(), strict=True):
            honest[number] = answers[number] | {"no_answer": score}
        return decision

    def measure(self, answers: Sequence[dict], golds: Sequence[Any], config) -> Scores:
        """Return exact_match and f1, 0 to 100, by the published rules.

        With unanswerable questions these are the metrics of SQuAD 2.0 at the threshold with the
        best F1 on these very questions; besides the threshold itself as no_answer_threshold, midway
        between two probabilities so that rounding does not matter, and a row each for answerable
        and unanswerable questions.
        """
        if config.no_answer_threshold is None:
            return mean([*map(squad.score, golds, answers)]), []

        # The threshold is searched with the best spans; those above it then count as "".
        pairs = [*zip(golds, answers, strict=True)]
        best = [squad.score2(gold, {"answer": answer["best"]}) for gold, answer in pairs]
        names = [*map(str, range(len(pairs)))]
        _, threshold = squad.best_threshold(
            {name: each["f1"] for name, each in zip(names, best, strict=True)},
            [name for name, answer in zip(names, answers, strict=True) if answer["best"]],
            {name: answer["no_answer"] for name, answer in zip(names, answers, strict=True)},
            [name for name, gold in zip(names, golds, strict=True) if gold["answers"]],
        )
        above = [a["no_answer"] for a in answers if a["no_answer"] > threshold]
        threshold = (threshold + min(above, default=1.0)) / 2
        kinds = ("with an answer", "without")
        scores = [
            (
                kinds[not gold["answers"]],
                each if answer["no_answer"] <= threshold else squad.score2(gold, {"answer": ""}),
            )
            for each, (gold, answer) in zip(best, pairs, strict=True)
        ]
        metrics, rows = grouped("questions", scores, kinds, "number")
        return metrics | {"no_answer_threshold": threshold}, rows

    def baseline(self, trained: Sequence[Any], golds: Sequence[Any], config) -> Baselines:
        """Return the scores of the answer that is most frequent in training or, if there are
        unanswerable questions and it is better, of no answer."""
        usual = baseline.commonest(gold["answers"] for gold in trained)
        answers = {baseline.quoted(usual): {"answer": usual, "best": usual, "no_answer": 0.0}}
        if config.no_answer_threshold is not None:
            answers["always no answer"] = {"answer": "", "best": "", "no_answer": 1.0}
        return best_constant(self, answers, golds, config)

    def placed_answers(self, example: Example, data: DataSection) -> list[tuple[Span, str]]:
        """Return (start, end exclusive) and text of each correct answer, without edge characters
        that belong to no word (`trimmed`), if a word is left; one without a position at its
        first occurrence. DataError if it is not there."""
        context = text(example, path_of(self, "context", data))
        placed = [_placed(answer, context, example.where) for answer in self._listed(example, data)]
        spans = [trimmed(context, *span) for span, _ in placed]
        return [((start, end), context[start:end]) for start, end in spans if start < end]

    def _count(
        self, examples: Iterable[Example], data: DataSection, source: str
    ) -> tuple[int, int]:
        """Number of answerable and of unanswerable questions."""
        read = not_empty(self, examples, source)
        answered = [bool(self.placed_answers(example, data)) for example in read]
        return answered.count(True), answered.count(False)

    def _listed(self, example: Example, data: DataSection) -> list[Any]:
        """Correct answers as a list, each a text or an object."""
        path = path_of(self, "answers", data)
        answers = field(example, path)
        if isinstance(answers, dict):
            quoted, starts = answers.get("text"), answers.get("answer_start")
            if isinstance(quoted, list) and isinstance(starts, list):
                pairs = zip_longest(quoted, starts)
                answers = [{"text": words, "answer_start": start} for words, start in pairs]
        answers = [answers] if isinstance(answers, str | dict) else answers
        if not isinstance(answers, list):
            raise DataError(f"{example.where}: {path!r} is {kind(answers)}, expected a list")
        return answers


def _has_answer(feature: Feature) -> bool:
    return feature["start_positions"] != [CLS]


def _placed(answer: Any, context: str, where: str) -> tuple[Span, str]:
    """Characters of an answer in its context, and its text; DataError if it is not there."""
    words, start = answer, None
    if isinstance(answer, dict):
        words, start = answer.get("text"), answer.get("answer_start")
    if not isinstance(words, str) or not (start is None or type(start) is int):
        raise DataError(
            f"{where}: an answer is {answer!r:.60}, expected its text and answer_start, a whole "
            "number"
        )
    place = context.find(words)
    if place < 0:
        raise DataError(
            f"{where}: the answer {words[:60]!r} does not stand in the context; the task triviaqa "
            "finds answers that are spelt differently"
        )
    start = place if start is None else start
    if start < 0 or not context.startswith(words, start):
        there = context[start : start + len(words)][:60] if start >= 0 else ""
        raise DataError(
            f"{where}: the answer {words[:60]!r} is said to stand at character {start:,}, where "
            f"{there!r} stands; it stands at {place:,} (answer_start counts code points from 0)"
        )
    return (start, start + len(words)), words


class TriviaQA(SpanTask, ByPlaces):
    """Answer to a question from one of its documents.

    An example is a question with one document: ``question``; ``context``, or ``context_file``, the
    path of a text file read on use (below ``data.evidence``, or beside the questions); ``answers``,
    all names of the answer, or one text; ``question_id`` for questions with several documents;
    ``verified`` (true or false) for metrics of these questions.

    Every mention of a name in the document is correct (`ldt.tasks.text.mentions`). All chunks of a
    document share one loss.

    Args:
        loss: ``or``, the probability of all correct starts together and of all correct ends (Clark
            & Gardner 2018); or ``first``, the first mention only.
        max_spans: number of mentions of a document to train on, from the first.
        without_answer: training documents in whose read part no answer is mentioned: ``skip``
            leaves them out, ``keep`` keeps them with loss 0, ``error`` ends the run.

    Source: Beltagy et al. 2020 (arXiv:2004.05150), section 6 and appendix C, and the authors'
    scripts/triviaqa.py for the numbers that the paper leaves out.
    """

    reads: ClassVar[TaskReads] = replace(
        SpanTask.reads,
        fields=("question", "context_file", "answers", "question_id", "verified"),
        files=True,
        signs=(("question", "answers"),),
        instead=("context_file",),
    )
    inputs: ClassVar[TaskInputs] = replace(
        SpanTask.inputs,
        extras=(*SpanTask.inputs.extras, "question_id", "where", "mentions"),
        loss_per_document=True,
    )
    answers: ClassVar[TaskAnswers] = replace(
        SpanTask.answers,
        kind="mention",
        score=triviaqa.score,
        keys=(*SpanTask.answers.keys, "question_id"),
        layouts={"triviaqa": PublishedLayout(triviaqa.published)},
    )

    name: Literal["triviaqa"] = "triviaqa"
    loss: Literal["or", "first"] = "or"
    max_spans: Count = 64
    without_answer: Literal["skip", "keep", "error"] = "skip"
    max_question: Length | None = 55

    def groups(self, example: Example, data: DataSection) -> SplitGroups:
        """Keep the documents of one question together; there are no strata."""
        return SplitGroups(self.gold(example, data, None)["question"])

    def answer_key(self, example: Example, data: DataSection) -> str:
        """Return the names of the answer as JSON, without the question's id."""
        return json.dumps(sorted(self._answers(example, data)))

    def faults(self, example: Example, data: DataSection) -> Iterator[Fault]:
        """Yield a fault if the document mentions no answer."""
        answers = self._answers(example, data)
        if not mentions(context_of(self.source(example, data)), answers):
            yield Fault("answer_not_mentioned", f"no mention of {listed(answers, 3)}")

    def labelling(self, example: Example, data: DataSection, config, context: str) -> RightAnswer:
        """Return the first ``task.max_spans`` mentions of the answer, or one if ``task.loss`` is
        first; the key ``mentions`` of a feature counts those of the document."""
        places = mentions(context, self._answers(example, data))
        learnt = places[: 1 if self.loss == "first" else self.max_spans]
        return RightAnswer(learnt, nowhere=None, shared_keys={"mentions": len(places)})

    def shared_keys(self, example: Example, data: DataSection) -> dict[str, Any]:
        """Return the place of the example as ``where``, and its ``question_id`` if it has one."""
        question = optional(example, path_of(self, "question_id", data))
        keys = {} if question is None else {"question_id": question}
        return {"where": example.where} | keys

    def training_features(self, features: Sequence[Feature]) -> Sequence[Feature]:
        """Return the features; if no chunk has a mention then, by ``task.without_answer``, these,
        [] or a DataError."""
        if self.without_answer == "keep" or any(f["start_positions"] for f in features):
            return features
        if self.without_answer == "error":
            raise DataError(
                f"{features[0]['where']}: no answer in what is read of the document; "
                "task.without_answer=skip leaves such documents out"
            )
        return []

    def remarks(self, features: Iterable[Feature], left_out: int) -> list[str]:
        """Return lines with the number of mentions, and of documents without one in the part that
        is read."""
        counts: dict[int, int] = {}
        learnt: set[int] = set()
        for feature in features:
            counts[feature["document"]] = feature["mentions"]
            learnt |= {feature["document"]} if feature["start_positions"] else set()
        lines = [f"answers: {sum(counts.values()):,} mentions in {len(counts):,} documents"]
        for count, what in (
            (left_out, "left out (task.without_answer)"),
            (len(counts) - len(learnt), "kept, with a loss of 0"),
        ):
            if count:
                lines.append(f"documents without an answer in what is read: {count:,}, {what}")
        return lines

    def gold(self, example: Example, data: DataSection, config) -> dict[str, Any]:
        """Return ``question`` (its id, else that of the example), ``answers`` (texts) and
        ``verified`` (bool)."""
        question = optional(example, path_of(self, "question_id", data))
        verified = optional(example, path_of(self, "verified", data))
        return {
            "question": example.id if question is None else question,
            "answers": self._answers(example, data),
            "verified": verified is True or str(verified).lower() == "true",
        }

    def decode(self, outputs: Sequence[Outputs], config, example: Example, features) -> dict:
        """Return ``answer``, ``score`` (a logit), ``start`` and ``end`` (`SpanTask.answer_of`),
        ``question_id`` if the example has one, and flags such as ``truncated``."""
        context = context_of(features[0]["context"])
        answer = self.answer_of(self.best_spans(outputs, features), context)
        if "question_id" in features[0]:
            answer["question_id"] = features[0]["question_id"]
        return answer | features[0]["flags"]

    def measure(self, answers: Sequence[dict], golds: Sequence[Any], config) -> Scores:
        """Return exact_match and f1, 0 to 100, over questions, by the published rules; with
        verified questions also verified_exact_match and verified_f1. No rows. Of the documents
        of a question the answer with the highest score counts."""
        chosen: dict[Any, tuple[dict, dict]] = {}
        for answer, gold in zip(answers, golds, strict=True):
            before = chosen.get(gold["question"])
            if before is None or triviaqa.better(answer, before[0]):
                chosen[gold["question"]] = answer, gold
        scores = [(triviaqa.score(gold, answer), gold) for answer, gold in chosen.values()]
        metrics = mean([each for each, _ in scores])
        verified = [each for each, gold in scores if gold["verified"]]
        if verified:
            metrics |= {f"verified_{name}": value for name, value in mean(verified).items()}
        return metrics, []

    def baseline(self, trained: Sequence[Any], golds: Sequence[Any], config) -> Baselines:
        """Return the scores of the answer that is right for most questions of the training set."""
        usual = baseline.commonest(gold["answers"] for gold in trained)
        answer = {"answer": usual, "score": 0.0}
        return best_constant(self, {baseline.quoted(usual): answer}, golds, config)

    def source(self, example: Example, data: DataSection) -> str | Path:
        """Return the text of the document, or the path of its file (``context_file``) below
        data.evidence or beside the questions; DataError if neither is there."""
        name = optional(example, path_of(self, "context_file", data))
        if name is None or optional(example, path_of(self, "context", data)) is not None:
            return super().source(example, data)
        if isinstance(name, Path):  # of a format that has looked where it is
            return name
        folder = data.evidence or example.folder
        if not isinstance(name, str) or folder is None:
            raise DataError(f"{example.where}: context_file {name!r} is not read{EVIDENCE}")
        try:
            return text_files.inside(text_files.real(Path(folder)), name, example.where)
        except DataError as error:
            raise DataError(f"{error}{EVIDENCE}") from None

    def _answers(self, example: Example, data: DataSection) -> list[str]:
        path = path_of(self, "answers", data)
        names = optional(example, path)
        names = [names] if isinstance(names, str) else names
        if isinstance(names, list) and names and all(isinstance(name, str) for name in names):
            return names
        raise DataError(
            f"{example.where}: {path!r} is {names!r:.60}, expected a list of the answer's names"
        )
