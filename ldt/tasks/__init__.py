"""Tasks, by what a recipe calls them in ``task.name``; each is imported when it is asked for."""

from collections.abc import Iterator, Mapping
from pkgutil import resolve_name
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ldt.tasks.base import AnyTask

_CLASSES = {
    "charlm": "char_lm:CharacterLM",
    "classification": "classification:Classification",
    "evidence_classification": "evidence_classification:EvidenceClassification",
    "hotpotqa": "hotpotqa:HotpotQA",
    "mlm": "masked_lm:MaskedLM",
    "multiple_choice": "multiple_choice:MultipleChoice",
    "passage_qa": "passage_qa:PassageQA",
    "qasper": "qasper:Qasper",
    "qasper_generation": "qasper_generation:QasperGeneration",
    "squad": "squad:Squad",
    "summarization": "summarization:Summarization",
    "token_classification": "token_classification:TokenClassification",
    "triviaqa": "triviaqa:TriviaQA",
    "wikihop": "wikihop:WikiHop",
}

# Keys of the task of answers in ldt's own layout, by the names of `ldt evaluate --format`.
OWN: dict[str, dict[str, str]] = {
    "classification": {"name": "classification"},
    "token_classification": {"name": "token_classification"},
    "regression": {"name": "classification", "problem": "regression"},
    "multiple_choice": {"name": "multiple_choice"},
}


class _Tasks(Mapping[str, "type[AnyTask]"]):
    """The classes of `_CLASSES`, so that a recipe of one task need not import all of them."""

    def __getitem__(self, name: str) -> "type[AnyTask]":
        return _found(_CLASSES[name])

    def __contains__(self, name: object) -> bool:
        return name in _CLASSES

    def __iter__(self) -> Iterator[str]:
        return iter(_CLASSES)

    def __len__(self) -> int:
        return len(_CLASSES)


TASKS = _Tasks()


def _found(place: str) -> "type[AnyTask]":
    task_class: type[AnyTask] = resolve_name(f"{__name__}.{place}")
    return task_class


def __getattr__(name: str) -> "type[AnyTask]":
    """The class of a task: ``ldt.tasks.Squad``."""
    for place in _CLASSES.values():
        if place.endswith(f":{name}"):
            return _found(place)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
