"""Questions on long documents, learnt from answers without a place; as in TriviaQA."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ldt.benchmarks import triviaqa
from ldt.data.features import Feature
from ldt.data.options import Count, Length
from ldt.errors import DataError, listed
from ldt.io import text_files
from ldt.io.records import Example, field, kind
from ldt.metrics import baseline
from ldt.metrics.baseline import Baselines
from ldt.metrics.result import mean
from ldt.tasks.base import (
    Fault,
    Outputs,
    PublishedLayout,
    SplitGroups,
    TaskAnswers,
    TaskInputs,
    TaskReads,
    best_constant,
    path_of,
)
from ldt.tasks.explained import ByPlaces
from ldt.tasks.questions import EVIDENCE, RightAnswer, SpanTask, context_of
from ldt.tasks.text import mentions

if TYPE_CHECKING:
    from ldt.data.options import DataSection


class TriviaQA(SpanTask, ByPlaces):
    """The answer to a question, from one of its documents.

    An example is a question and one document: ``question``; ``context``, or ``context_file``, the
    path of a text file that is read when it is needed (below ``data.evidence``, or the folder of
    the questions where that is not set); ``answers``, all names of the answer, or one as text;
    where a question has several documents ``question_id``; ``verified`` (true or false) for metrics
    of these questions alone.

    Every mention of a name in the document is a right answer (`ldt.tasks.text.mentions`). All
    chunks of a document share one loss.

    Args:
        loss: ``or``, how probable all right starts together are, and all right ends (Clark &
            Gardner 2018); or ``first``, the first mention alone.
        max_spans: mentions of a document that are learnt from, the first ones.
        without_answer: what is done with training documents that do not mention the answer in what
            is read of them: they are left out (``skip``), stay with a loss of 0 (``keep``), or end
            the run (``error``).

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
        together=True,
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

    def groups(self, example: Example, data: "DataSection") -> SplitGroups:
        """The question: its documents are not parted."""
        return SplitGroups(self.gold(example, data, None)["question"])

    def answer_key(self, example: Example, data: "DataSection") -> str:
        """Return the names of the answer; the id of the question is no part of it."""
        return json.dumps(sorted(self._answers(example, data)))

    def faults(self, example: Example, data: "DataSection") -> Iterator[Fault]:
        """Yield a document in which no answer is mentioned."""
        answers = self._answers(example, data)
        if not mentions(context_of(self.source(example, data)), answers):
            yield Fault("answer_not_mentioned", f"no mention of {listed(answers, 3)}")

    def right(self, example: Example, data: "DataSection", config, context: str) -> RightAnswer:
        """The first mentions; ``mentions`` of a feature is how many the whole document has."""
        places = mentions(context, self._answers(example, data))
        learnt = places[: 1 if self.loss == "first" else self.max_spans]
        return RightAnswer(learnt, nowhere=None, about={"mentions": len(places)})

    def about(self, example: Example, data: "DataSection") -> dict[str, Any]:
        """Return the place of the example, and its question_id where it has one."""
        question = _optional(example, path_of(self, "question_id", data))
        keys = {} if question is None else {"question_id": question}
        return {"where": example.where} | keys

    def instances(self, features: Sequence[Feature]) -> Sequence[Feature]:
        """Return them where a chunk has a mention, or documents without one are kept.

        Raises:
            DataError: none has, and that is an error.
        """
        if self.without_answer == "keep" or any(f["start_positions"] for f in features):
            return features
        if self.without_answer == "error":
            raise DataError(
                f"{features[0]['where']}: no answer in what is read of the document; "
                "task.without_answer=skip leaves such documents out"
            )
        return []

    def remarks(self, features: Iterable[Feature], left_out: int) -> list[str]:
        """Numbers of mentions found, and of documents without one."""
        counts: dict[int, int] = {}
        spans: dict[int, set[tuple[int, int]]] = {}
        cut: set[int] = set()
        for feature in features:
            document, offsets, first = feature["document"], feature["offsets"], feature["first"]
            counts[document] = feature["mentions"]
            places = zip(feature["start_positions"], feature["end_positions"], strict=True)
            spans.setdefault(document, set()).update(
                (offsets[a - first, 0].item(), offsets[b - first, 1].item()) for a, b in places
            )
            cut |= {document} if feature["flags"].get("question_cut") else set()
        lines = [
            f"answers found: {sum(counts.values()):,} mentions in {len(counts):,} documents, "
            f"{sum(map(len, spans.values())):,} of them to learn from"
        ]
        for count, what in (
            (left_out, "left out (task.without_answer)"),
            (sum(not places for places in spans.values()), "kept, with a loss of 0"),
        ):
            if count:
                lines.append(f"documents without an answer in what is read: {count:,}, {what}")
        if cut:
            lines.append(
                f"questions cut to {self.max_question} tokens (task.max_question): {len(cut):,}"
            )
        return lines

    def gold(self, example: Example, data: "DataSection", config) -> dict[str, Any]:
        """Return the id of the question, its answers, and whether it is verified.

        Raises:
            DataError: there is no answer.
        """
        question = _optional(example, path_of(self, "question_id", data))
        verified = _optional(example, path_of(self, "verified", data))
        return {
            "question": example.id if question is None else question,
            "answers": self._answers(example, data),
            "verified": verified is True or str(verified).lower() == "true",
        }

    def decode(
        self, outputs: Sequence[Outputs], config, example: Example, features: Sequence[Feature]
    ) -> dict:
        """Return answer, score, start, end (`SpanTask.answer`), question_id where the example has
        one, and the flags."""
        context = context_of(features[0]["context"])
        answer = self.answer(self.best(outputs, features), context)
        if "question_id" in features[0]:
            answer["question_id"] = features[0]["question_id"]
        return answer | features[0]["flags"]

    def measure(
        self, answers: Sequence[dict], golds: Sequence[Any], config
    ) -> tuple[dict[str, float], list[dict]]:
        """Return exact_match and f1, 0 to 100, over questions, by the published rules; and, where
        some are verified, verified_exact_match and verified_f1. No rows.

        Of the documents of a question that with the highest score answers.
        """
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
        """Return what the most frequent answer has."""
        usual = baseline.commonest(gold["answers"] for gold in trained)
        return best_constant(
            self, {baseline.quoted(usual): {"answer": usual, "score": 0.0}}, golds, config
        )

    def _answers(self, example: Example, data: "DataSection") -> list[str]:
        path = path_of(self, "answers", data)
        names = _optional(example, path)
        names = [names] if isinstance(names, str) else names
        if not isinstance(names, list) or not names:
            what = "empty" if names == [] else "missing" if names is None else kind(names)
            raise DataError(
                f"{example.where}: {path!r} is {what}, expected a list of all names of the answer"
            )
        for name in names:
            if not isinstance(name, str):
                raise DataError(f"{example.where}: {kind(name)} in {path!r}, expected text")
        return names

    def source(self, example: Example, data: "DataSection") -> str | Path:
        """The document's text, or the path of its file."""
        name = _optional(example, path_of(self, "context_file", data))
        if name is None or _optional(example, path_of(self, "context", data)) is not None:
            return super().source(example, data)
        if isinstance(name, Path):  # of a format that has looked where it is
            return name
        if not isinstance(name, str):
            raise DataError(f"{example.where}: context_file is {kind(name)}, expected a path")
        folder = data.evidence or example.folder
        if folder is None:
            raise DataError(f"{example.where}: context_file {name!r} is not read{EVIDENCE}")
        try:
            return text_files.inside(text_files.real(Path(folder)), name, example.where)
        except DataError as error:
            raise DataError(f"{error}{EVIDENCE}") from None


def _optional(example: Example, path: str) -> Any:
    """The value at a dotted path, None where there is none."""
    try:
        return field(example, path)
    except DataError:
        return None
