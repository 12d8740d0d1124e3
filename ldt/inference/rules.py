"""The scores of one answer to a question by the rules of its task, from 0 to 1."""

from collections.abc import Callable
from typing import Any

from ldt.data.sentences import bare
from ldt.errors import DataError
from ldt.io.records import Example
from ldt.metrics import hotpotqa, passage_qa, qasper, squad, summarization, triviaqa, wikihop
from ldt.tasks.base import Task


def of_answer(task: Task, right: Any, answer: Example | None, where: str) -> dict[str, float]:
    """Return the scores of an answer by the names of the metrics: by the rule of its kind, else
    `Task.measure` of this document alone, in percent there.

    Args:
        right: the right answer, as `Task.gold` has it.
        answer: None where there is none.
        where: it is, for messages.

    Raises:
        DataError: it is not as ``ldt predict`` writes it.
    """
    rule = _RULES.get(task.answers.kind)
    try:
        if rule is not None:
            return rule(right, answer)
        metrics, _ = ({}, []) if answer is None else task.measure([answer.fields], [right], None)
        return {name: value / 100 for name, value in metrics.items()}
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        what = f"{type(error).__name__}: {error}"
        raise DataError(f"{where}: not as ldt predict writes it ({what})") from None


def _span(right: Any, answer: Example | None) -> dict[str, float]:
    words = _value(answer, "answer")
    return squad.score2(right, {"answer": words and bare(words)})


def _mention(right: Any, answer: Example | None) -> dict[str, float]:
    return triviaqa.score(right, {"answer": _value(answer, "answer")})


def _candidate(right: Any, answer: Example | None) -> dict[str, float]:
    return wikihop.score(right, {"answer": _value(answer, "answer")})


def _facts(right: Any, answer: Example | None) -> dict[str, float]:
    return hotpotqa.score(right, answer.fields if answer else {})


def _passages(right: Any, answer: Example | None) -> dict[str, float]:
    """Scores of passage and answer by the published rules; where a question has none,
    whether the model is silent."""
    if answer is None:
        return {"passage": 0.0, "answer": 0.0}
    fields, found = answer.fields, {}
    given = {"passage": fields["passage"] is not None, "answer": bool(fields["answer"])}
    for each, (name, said) in zip(
        passage_qa.scored(right, passage_qa.prediction(fields)), given.items(), strict=True
    ):
        found[name] = each.right * said if each.has_gold else float(not said)
    return found


def _class(right: Any, answer: Example | None) -> dict[str, float]:
    return {"class.accuracy": float(_value(answer, "label") == right["label"])}


def _paper(right: Any, answer: Example | None) -> dict[str, float]:
    if answer is None:
        return dict.fromkeys(qasper.SHOWN, 0.0)
    (line,) = qasper.published([answer.fields | {"id": answer.id}])
    said = {"answer": line["predicted_answer"], "evidence": line["predicted_evidence"]}
    return qasper.score(right, said)


def _summary(right: Any, answer: Example | None) -> dict[str, float]:
    return summarization.score(right, {"summary": _value(answer, "summary") or ""})


def _value(answer: Example | None, key: str) -> Any:
    return None if answer is None else answer.fields.get(key)


_RULES: dict[str, Callable[[Any, Example | None], dict[str, float]]] = {  # by kind of answers
    "span": _span,
    "mention": _mention,
    "candidate": _candidate,
    "facts": _facts,
    "passage": _passages,
    "evidence": _class,
    "paper": _paper,
    "summary": _summary,
}
