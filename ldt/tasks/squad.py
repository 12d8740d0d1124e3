"""Questions on documents whose answers have a place, or none; as in SQuAD 1.1 and 2.0."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from ldt.benchmarks import squad
from ldt.data.features import Feature
from ldt.data.sentences import Span, bare, trimmed
from ldt.errors import DataError, RecipeError
from ldt.io.records import Example, field, kind, text
from ldt.metrics import baseline
from ldt.metrics.baseline import Baselines
from ldt.metrics.numbers import logistic
from ldt.metrics.result import mean
from ldt.tasks.base import (
    Fault,
    Outputs,
    PublishedLayout,
    SplitGroups,
    TaskAnswers,
    TaskReads,
    best_constant,
    evaluation_set,
    not_empty,
    path_of,
    training_set,
)
from ldt.tasks.deciding import Calibrated, Decision, calibration, logits_of
from ldt.tasks.decisions.policy import Policy, Rules, decide
from ldt.tasks.explained import ByPlaces
from ldt.tasks.questions import CLS, RightAnswer, SpanTask, context_of, thinned
from ldt.tasks.text import cuts_word

if TYPE_CHECKING:
    from ldt.data.options import DataSection

NAMES = ("no answer",)  # what a question is calibrated for
UNSETTLED = 0.5  # "no answer" where it scores higher than every span


def _score(right: Any, answer: Mapping[str, Any] | None) -> dict[str, float]:
    """The scores of an answer, without the marks around it, by the rules of SQuAD 2.0."""
    words = answer and answer.get("answer")
    return squad.score2(right, {"answer": words and bare(words)})


class Squad(SpanTask, Calibrated, ByPlaces):
    """A piece of a document of any length that answers a question, or "" for no answer.

    An example has ``question``, ``context`` and ``answers``: a list of {text, answer_start}, the
    place counted in characters (code points); or of texts, the first place of each counts; or
    {text: [...], answer_start: [...]}. An empty list is a question without an answer.

    All answers that a chunk has are right together; a chunk that has none is taught to point to
    its first token. Where training has questions without an answer, the answer is "" if that is
    more probable than ``no_answer_threshold``, which is stored in the model: the one with the best
    F1 on the evaluation set, 0.5 without such a set. The probability is 1 / (1 + exp(s - n)), where
    s is the logit of the best span of all chunks and n the lowest logit of a first token, so that
    one chunk with an answer is enough.

    Args:
        null_windows: which chunks without an answer are trained on: ``all`` of them, or as many,
            drawn once by the seed, as there are chunks with one in expectation (``balanced``), as
            CUAD's authors do. Evaluation and prediction read all.
        calibration: what makes ``no_answer`` as often right as it says, fitted to the evaluation
            set: ``platt``, ``beta``, or ``auto`` for the best of them, which may be neither.

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
    null_windows: Literal["all", "balanced"] = "all"
    calibration: Literal["none", "auto", "platt", "beta"] = "none"

    def learn(self, examples: Iterable[Example], data: "DataSection") -> dict[str, Any]:
        """Return no_answer_threshold, None where every question has an answer; and that nothing
        is decided yet.

        Raises:
            DataError: there are no examples, or an answer that is not where it is said to be.
            RecipeError: there is nothing to calibrate, or nothing to do it by.
        """
        self.check_held_out(data)
        source = training_set(data)
        answered = [
            bool(self.placed_answers(each, data)) for each in not_empty(self, examples, source)
        ]
        without = answered.count(False)
        if without == len(answered):
            raise DataError(
                f"{source}: nothing to learn, none of {without:,} questions has an answer"
            )
        if self.decides and not without:
            raise RecipeError(
                f"task.calibration: {source}: every question has an answer, there is no "
                "probability of none"
            )
        return {"no_answer_threshold": UNSETTLED if without else None, "decisions": {}}

    def groups(self, example: Example, data: "DataSection") -> SplitGroups:
        """The document, and whether the question has an answer."""
        unit = super().groups(example, data).unit
        try:
            return SplitGroups(unit, [bool(self.placed_answers(example, data))])
        except DataError:
            return SplitGroups(unit)

    def check(self, examples: Iterable[Example], data: "DataSection", config) -> None:
        """Look at the answers of all evaluation examples.

        Raises:
            DataError: there are none, an answer is not where it is said to be, or the model is not
                taught that there may be none.
        """
        source = evaluation_set(data)
        without = sum(
            not self.placed_answers(each, data) for each in not_empty(self, examples, source)
        )
        if without and config.no_answer_threshold is None:
            raise DataError(
                f"{source}: questions without an answer ({without:,}), the training set has none; "
                "train on such questions too, or leave them out"
            )

    def right(self, example: Example, data: "DataSection", config, context: str) -> RightAnswer:
        """The spans of all right answers."""
        return RightAnswer([span for span, _ in self.placed_answers(example, data)])

    def faults(self, example: Example, data: "DataSection") -> Iterator[Fault]:
        """Yield answers that are not where they are said to be, and those that cut a word."""
        context = text(example, path_of(self, "context", data))
        for answer in self._listed(example, data):
            try:
                (start, end), words = _placed(answer, context, example.where)
            except DataError as error:
                yield Fault("answer_not_in_context", str(error).removeprefix(f"{example.where}: "))
            else:
                if bare(words) and cuts_word(context, start, end):
                    yield Fault("span_cuts_word", f"the answer {words[:40]!r}")

    def thin(self, features: Sequence[Feature], seed: int) -> tuple[list[int] | None, list[str]]:
        """Return the inputs with an answer, and of the others those that ``null_windows`` keeps."""
        if self.null_windows == "all":
            return None, []
        answered = list(map(_has_answer, features))
        share = sum(answered) / max(answered.count(False), 1)
        return thinned(answered, share, self.null_windows, seed)

    def remarks(self, features: Iterable[Feature], left_out: int) -> list[str]:
        """Number of chunks with an answer."""
        answered = list(map(_has_answer, features))
        return [f"{sum(answered):,} of {len(answered):,} inputs have an answer"]

    def gold(self, example: Example, data: "DataSection", config) -> dict[str, Any]:
        """Return the texts of all right answers.

        Raises:
            DataError: the field is missing, or an answer is not where it is said to be.
        """
        return {"answers": [answer for _, answer in self.placed_answers(example, data)]}

    def decode(
        self, outputs: Sequence[Outputs], config, example: Example, features: Sequence[Feature]
    ) -> dict:
        """Return answer, score, start, end (`SpanTask.answer`) and the flags.

        With ``n_best`` also the logits of no answer, ``null``. Of a model that knows questions
        without an answer also the probability of that, ``no_answer``; where the answer is "",
        start and end are None, and score is of the span that it would be: ``best``, from
        ``best_start`` to ``best_end``.
        """
        spans = self.best(outputs, features)
        answer = self.answer(spans, context_of(features[0]["context"]))
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

    def policy_of(self, facts: dict[str, Any], config) -> Policy:
        return Policy.from_facts(facts, NAMES, several=True)

    def decide(
        self, answers: Sequence[dict], golds: Sequence[Any], config, lengths: Sequence[int]
    ) -> Decision:
        """Calibrate the probability that a question has no answer; documents without a word do not
        count."""
        known = [number for number, answer in enumerate(answers) if answer.get("best")]
        if self.calibration == "none" or not known:
            return Decision(answers, {"decisions": {}})
        logits = logits_of(np.array([[answers[n]["no_answer"]] for n in known]), several=True)
        right = np.array([[not golds[n]["answers"]] for n in known])
        rules = Rules(several=True, thresholds=np.array([0.5]), calibration=self.calibration)
        decided = decide(logits, right, rules)
        honest = list(answers)
        for number, score in zip(known, decided.scores[:, 0].tolist(), strict=True):
            honest[number] = answers[number] | {"no_answer": score}
        return calibration(honest, decided, logits, right, [lengths[n] for n in known], NAMES)

    def measure(
        self, answers: Sequence[dict], golds: Sequence[Any], config
    ) -> tuple[dict[str, float], list[dict]]:
        """Return exact_match and f1, 0 to 100, by the published rules.

        With questions without an answer, those of SQuAD 2.0, with the threshold that gives the best
        F1 on these very questions, which is the metric no_answer_threshold; it lies midway between
        two probabilities, so that their last digits decide nothing. And rows for questions with and
        without an answer.
        """
        if config.no_answer_threshold is None:
            pairs = zip(golds, answers, strict=True)
            return mean([squad.score(gold, answer) for gold, answer in pairs]), []

        # The threshold is searched with the best spans; those above it then count as "".
        scores = [
            squad.score2(gold, {"answer": answer["best"]})
            for gold, answer in zip(golds, answers, strict=True)
        ]
        names = [str(number) for number in range(len(answers))]
        _, threshold = squad.best_threshold(
            {name: each["f1"] for name, each in zip(names, scores, strict=True)},
            [name for name, answer in zip(names, answers, strict=True) if answer["best"]],
            {name: answer["no_answer"] for name, answer in zip(names, answers, strict=True)},
            [name for name, gold in zip(names, golds, strict=True) if gold["answers"]],
        )
        above = [a["no_answer"] for a in answers if a["no_answer"] > threshold]
        threshold = (threshold + min(above, default=1.0)) / 2
        scores = [
            each if answer["no_answer"] <= threshold else squad.score2(gold, {"answer": ""})
            for each, answer, gold in zip(scores, answers, golds, strict=True)
        ]

        rows = []
        for what, wanted in (("with an answer", True), ("without", False)):
            pairs = zip(scores, golds, strict=True)
            part = [each for each, gold in pairs if bool(gold["answers"]) == wanted]
            if part:
                rows.append({"questions": what, "number": len(part)} | mean(part))
        return mean(scores) | {"no_answer_threshold": threshold}, rows

    def baseline(self, trained: Sequence[Any], golds: Sequence[Any], config) -> Baselines:
        """Return what the most frequent answer has; where there may be none, no answer too."""
        usual = baseline.commonest(gold["answers"] for gold in trained)
        answers = {baseline.quoted(usual): {"answer": usual, "best": usual, "no_answer": 0.0}}
        if config.no_answer_threshold is not None:
            answers["always no answer"] = {"answer": "", "best": "", "no_answer": 1.0}
        return best_constant(self, answers, golds, config)

    def placed_answers(self, example: Example, data: "DataSection") -> list[tuple[Span, str]]:
        """The characters and the text of each right answer, as `trimmed`; none without a word."""
        context = text(example, path_of(self, "context", data))
        placed = [_placed(answer, context, example.where) for answer in self._listed(example, data)]
        spans = [trimmed(context, *span) for span, _ in placed]
        return [((start, end), context[start:end]) for start, end in spans if start < end]

    def _listed(self, example: Example, data: "DataSection") -> list[Any]:
        """The right answers one by one, each as text or as an object."""
        path = path_of(self, "answers", data)
        listed = field(example, path)
        if isinstance(listed, dict):
            quoted, starts = listed.get("text"), listed.get("answer_start")
            if isinstance(quoted, list) and isinstance(starts, list):
                pairs = zip_longest(quoted, starts)
                listed = [{"text": words, "answer_start": start} for words, start in pairs]
        listed = [listed] if isinstance(listed, str | dict) else listed
        if not isinstance(listed, list):
            raise DataError(f"{example.where}: {path!r} is {kind(listed)}, expected a list")
        return listed


def _has_answer(feature: Feature) -> bool:
    return feature["start_positions"] != [CLS]


def _placed(answer: Any, context: str, where: str) -> tuple[Span, str]:
    """The characters of an answer in its context, and its text.

    Raises:
        DataError: not where it is said to be, or nowhere.
    """
    words, start = answer, None
    if isinstance(answer, dict):
        words, start = answer.get("text"), answer.get("answer_start")
    if not isinstance(words, str):
        raise DataError(f"{where}: an answer is {kind(words)}, expected text and answer_start")
    place = context.find(words)
    if place < 0:
        raise DataError(
            f"{where}: the answer {words[:60]!r} does not stand in the context; the task triviaqa "
            "finds answers that are spelt differently"
        )
    if start is None:
        return (place, place + len(words)), words
    if isinstance(start, bool) or not isinstance(start, int):
        raise DataError(f"{where}: answer_start is {kind(start)}, expected a whole number")
    if start < 0 or not context.startswith(words, start):
        there = context[start : start + len(words)][:60] if start >= 0 else ""
        raise DataError(
            f"{where}: the answer {words[:60]!r} is said to stand at character {start:,}, where "
            f"{there!r} stands; it stands at {place:,} (answer_start counts code points from 0)"
        )
    return (start, start + len(words)), words
