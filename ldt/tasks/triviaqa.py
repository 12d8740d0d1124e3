"""Questions on long documents, learnt from answers without a place; as in TriviaQA."""

from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from ldt.data import evidence
from ldt.data.features import Feature
from ldt.data.records import Example, kind, text
from ldt.errors import DataError
from ldt.metrics.rules import triviaqa as rules
from ldt.tasks.base import Outputs
from ldt.tasks.span_task import SpanTask, context_of, given, means
from ldt.tasks.text.mentions import mentions

if TYPE_CHECKING:
    from ldt.data.options import DataSection


class TriviaQA(SpanTask):
    """The answer to a question, from one of its documents.

    An example is a question and one document: ``question``; ``context``, or ``context_file``, the
    path of a text file that is read when it is needed (inside of ``data.evidence`` where that is
    set); ``answers``, all names of the answer, or one as text; where a question has several
    documents ``question_id``; ``verified`` (true or false) for figures of these questions alone.

    Every mention of a name in the document is a right answer (`ldt.tasks.text.mentions`). All
    windows of
    a document share one loss.

    Args:
        loss: ``or``, how probable all right starts together are, and all right ends (Clark &
            Gardner 2018); or ``first``, the first mention alone.
        max_spans: mentions of a document that are learnt from, the first ones.
        without_answer: what is done with training documents that do not mention the answer in what
            is read of them: they are left out (``skip``), stay with a loss of 0 (``keep``), or end
            the run (``error``).
        max_question, max_answer, top, n_best: see `SpanTask`.

    Source: Beltagy et al. 2020 (arXiv:2004.05150), section 6 and appendix C, and the authors'
    scripts/triviaqa.py for the numbers that the paper leaves out.
    """

    fields: ClassVar[tuple[str, ...]] = (
        "question",
        "context_file",
        "answers",
        "question_id",
        "verified",
    )
    together: ClassVar[bool] = True

    name: Literal["triviaqa"] = "triviaqa"
    loss: Literal["or", "first"] = "or"
    max_spans: int = Field(64, ge=1)
    without_answer: Literal["skip", "keep", "error"] = "skip"
    max_question: int | None = Field(55, ge=1)

    def learn(self, examples: Iterable[Example], data: "DataSection") -> dict[str, Any]:
        """Return nothing, having looked at every answer.

        Raises:
            DataError: there are no examples, or one without an answer.
        """
        self._look(examples, data, data.train or "the training set")
        return {}

    def check(self, examples: Iterable[Example], data: "DataSection", config) -> None:
        """Look at the answers of all evaluation examples.

        Raises:
            DataError: there are no examples, or one without an answer.
        """
        self._look(examples, data, data.eval or "the evaluation set")

    def unit(self, example: Example, data: "DataSection") -> Hashable:
        """The question: its documents are not parted."""
        return self.gold(example, data, None)["question"]

    def encode(
        self, example: Example, tokenizer, *, data: "DataSection", max_length: int, config=None
    ) -> list[Feature]:
        """Return a feature per window (`SpanTask.windows`), with the number of ``mentions`` that
        the whole document has if there is a config.

        Raises:
            DataError: a field or file is missing, the question is empty or leaves no room.
        """
        source = self._source(example, data)
        try:
            context = context_of(source)
        except DataError as error:
            raise DataError(
                f"{example.where}: {error}; data.evidence, or --evidence of ldt predict, names the "
                "folder of the documents"
            ) from None
        spans = None
        if config is not None:
            found = mentions(context, self._answers(example, data))
            spans = found[: 1 if self.loss == "first" else self.max_spans]
        features = self.windows(
            example, context, tokenizer, data=data, max_length=max_length, spans=spans
        )
        asked = {"question_id": given(example, self.path("question_id", data))}
        own = {"context": source, "where": example.where}
        own |= {key: value for key, value in asked.items() if value is not None}
        own |= {"mentions": len(found)} if spans is not None else {}
        return [feature | own for feature in features]

    def keeps(self, features: Sequence[Feature]) -> bool:
        """Whether a window has a mention, or documents without one are kept.

        Raises:
            DataError: none has, and that is an error.
        """
        if self.without_answer == "keep" or any(f["start_positions"] for f in features):
            return True
        if self.without_answer == "error":
            raise DataError(
                f"{features[0]['where']}: no answer in what is read of the document; "
                "task.without_answer=skip leaves such documents out"
            )
        return False

    def remarks(self, features: Iterable[Feature], left_out: int) -> list[str]:
        """How many mentions were found, and how many documents have none."""
        counts, spans, cut = {}, {}, set()
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
            (sum(not found for found in spans.values()), "kept, with a loss of 0"),
        ):
            if count:
                lines.append(f"documents without an answer in what is read: {count:,}, {what}")
        if cut:
            lines.append(
                f"questions cut to {self.max_question} tokens (task.max_question): {len(cut):,}"
            )
        return lines

    def gold(self, example: Example, data: "DataSection", config) -> dict[str, Any]:
        """Return what the question is known by, its answers, and whether it is verified.

        Raises:
            DataError: there is no answer.
        """
        question = given(example, self.path("question_id", data))
        verified = given(example, self.path("verified", data))
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
        found = self.answer(self.best(outputs, features), context)
        if "question_id" in features[0]:
            found["question_id"] = features[0]["question_id"]
        return found | features[0]["flags"]

    def score(
        self, answers: Sequence[dict], golds: Sequence[Any], config
    ) -> tuple[dict[str, float], list[dict]]:
        """Return exact_match and f1, 0 to 100, over questions, by the published rules; and, where
        some are verified, verified_exact_match and verified_f1. No rows.

        Of the documents of a question that with the highest score answers.

        Raises:
            DataError: there are no answers.
        """
        if not answers:
            raise DataError("no questions to score")
        chosen: dict[Any, tuple[dict, dict]] = {}
        for answer, gold in zip(answers, golds, strict=True):
            before = chosen.get(gold["question"])
            if before is None or _better(answer, before[0]):
                chosen[gold["question"]] = answer, gold
        scores = [
            (*rules.score(answer["answer"], gold["answers"]), gold["verified"])
            for answer, gold in chosen.values()
        ]
        metrics = means(scores)
        verified = [score for score in scores if score[-1]]
        return metrics | (means(verified, "verified_") if verified else {}), []

    def published(self, answers: Iterable[dict]) -> dict[str, str]:
        """{question: answer}, of each question from the document with the highest score."""
        chosen: dict[str, dict] = {}
        for answer in answers:
            key = str(answer.get("question_id", answer["id"]))
            if key not in chosen or _better(answer, chosen[key]):
                chosen[key] = {name: answer[name] for name in ("answer", "score")}
        return {key: answer["answer"] for key, answer in chosen.items()}

    def _look(self, examples: Iterable[Example], data: "DataSection", what: str) -> None:
        if not sum(bool(self._answers(example, data)) for example in examples):
            raise DataError(f"{what}: no questions")

    def _answers(self, example: Example, data: "DataSection") -> list[str]:
        path = self.path("answers", data)
        found = given(example, path)
        found = [found] if isinstance(found, str) else found
        if not isinstance(found, list) or not found:
            what = "empty" if found == [] else "missing" if found is None else kind(found)
            raise DataError(
                f"{example.where}: {path!r} is {what}, expected a list of all names of the answer"
            )
        for name in found:
            if not isinstance(name, str):
                raise DataError(f"{example.where}: {kind(name)} in {path!r}, expected text")
        return found

    def _source(self, example: Example, data: "DataSection") -> str | Path:
        """The document's text, or the path of its file."""
        name = given(example, self.path("context_file", data))
        if name is None or given(example, self.path("context", data)) is not None:
            return text(example, self.path("context", data))
        if not isinstance(name, str):
            raise DataError(f"{example.where}: context_file is {kind(name)}, expected a path")
        if data.evidence is None:
            return Path(name)
        return evidence.inside(Path(data.evidence).resolve(), name, example.where)


def _better(answer: dict, other: dict) -> bool:
    return answer["score"] is not None and (
        other["score"] is None or answer["score"] > other["score"]
    )
