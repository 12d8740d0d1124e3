"""Answers of ``ldt predict`` in the shapes of TEI, InferenceClient and Open Inference Protocol."""

from collections.abc import Callable, Mapping
from typing import Any

from ldt.data.strict_json import json_line
from ldt.inference.group import Answer
from ldt.serve.bodies import Parameters

SPANS = ("squad", "triviaqa")  # tasks of a question on a text, answered by a span of it


def scores(answer: Answer, given: Parameters) -> list[dict[str, Any]]:
    best = sorted(answer["scores"].items(), key=lambda item: -item[1])
    return [{"score": score, "label": label} for label, score in best[: given.top_k]]


def entities(answer: Answer, given: Parameters) -> list[dict[str, Any]]:
    return [
        {
            "entity_group": each["label"],
            "score": each["score"],
            "word": each["text"],
            "start": each["start"],
            "end": each["end"],
        }
        for each in answer["entities"]
        if each["label"] not in (given.ignore_labels or ())
    ]


def spans(answer: Answer, given: Parameters) -> Any:
    """One span, or several of them where more than one is asked for."""
    nothing = {"answer": "", "score": answer.get("no_answer", 0.0), "start": 0, "end": 0}
    best = {name: answer.get(f"best_{name}", answer[name]) for name in ("start", "end")}
    best |= {"answer": answer.get("best", answer["answer"])}
    found = [
        {name: each[name] for name in nothing}
        for each in answer.get("n_best", [answer | best])
        if each["start"] is not None
    ]
    if not answer["answer"] and given.handle_impossible_answer is not False:
        found = [nothing, *found]
    found = (found or [nothing])[: given.top_k or 1]
    return found if (given.top_k or 1) > 1 else found[0]


def summary(answer: Answer, given: Parameters) -> dict[str, Any]:
    return {"summary_text": answer["summary"]}


# Task -> a document's answer as TEI and InferenceClient have it; others have ldt's.
SHAPES: dict[str, Callable[[Answer, Parameters], Any]] = {
    "classification": scores,
    "token_classification": entities,
    "summarization": summary,
    **dict.fromkeys(SPANS, spans),
}


def ranked(answer: Answer, document: Mapping[str, Any], most: int | None) -> Answer:
    """An answer with all choices, or the ``most`` best, as TEI ranks texts."""
    answer = dict(answer)
    if "scores" in answer:
        pairs = enumerate(zip(document["choices"], answer["scores"], strict=True))
        scored = [{"index": n, "text": text, "score": score} for n, (text, score) in pairs]
        scored.sort(key=lambda each: -each["score"])
    else:
        best = answer.pop("n_best", None) or [{k: answer.get(k) for k in ("answer", "score")}]
        places = {text: n for n, text in reversed([*enumerate(document["candidates"])])}
        scored = [
            {"index": places[each["answer"]], "text": each["answer"], "score": each["score"]}
            for each in best
            if each["answer"] in places
        ]
    return answer | {"ranking": scored[:most]}


def outputs(answers: list[Answer]) -> list[dict[str, Any]]:
    """Tensors: whole answers as JSON and, of classes, label and scores."""
    size = [len(answers)]

    def tensor(name: str, shape: list[int], datatype: str, data: list[Any]) -> dict[str, Any]:
        return {"name": name, "shape": shape, "datatype": datatype, "data": data}

    text = [json_line(answer).decode().rstrip() for answer in answers]
    found = [tensor("answer", size, "BYTES", text)]
    if all(isinstance(answer.get("label"), str) for answer in answers):
        found.append(tensor("label", size, "BYTES", [answer["label"] for answer in answers]))
    if all(isinstance(answer.get("scores"), dict) for answer in answers):
        scores = [score for answer in answers for score in answer["scores"].values()]
        found.append(tensor("scores", [*size, len(scores) // len(answers)], "FP64", scores))
    return found
