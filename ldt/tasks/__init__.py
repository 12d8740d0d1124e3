"""Tasks by their ``task.name`` in a recipe; each is imported on first use."""

from collections import UserDict
from pkgutil import resolve_name
from typing import Any


class _Tasks(UserDict[str, Any]):
    """Task classes by name, imported one at a time."""

    def __getitem__(self, name: str) -> Any:
        return resolve_name(f"{__name__}.{self.data[name]}")


TASKS = _Tasks(
    {
        "charlm": "language_models:CharacterLM",
        "classification": "classification:Classification",
        "coreference": "coreference:Coreference",
        "embedding": "embedding:Embedding",
        "evidence_classification": "evidence_classification:EvidenceClassification",
        "hotpotqa": "hotpotqa:HotpotQA",
        "mlm": "language_models:MaskedLM",
        "multiple_choice": "choosing:MultipleChoice",
        "passage_qa": "passage_qa:PassageQA",
        "qasper": "papers:Qasper",
        "qasper_generation": "papers:QasperGeneration",
        "reranking": "reranking:Reranking",
        "squad": "span_qa:Squad",
        "summarization": "summarization:Summarization",
        "token_classification": "token_classification:TokenClassification",
        "triviaqa": "span_qa:TriviaQA",
        "wikihop": "choosing:WikiHop",
    }
)

# Keys of the task of answers in ldt's own layout, by the names of `ldt evaluate --format`.
OWN: dict[str, dict[str, str]] = {
    "classification": {"name": "classification"},
    "token_classification": {"name": "token_classification"},
    "regression": {"name": "classification", "problem": "regression"},
    "multiple_choice": {"name": "multiple_choice"},
}


def __getattr__(name: str) -> Any:
    """Task class by attribute, such as ``ldt.tasks.Squad``."""
    for task, place in TASKS.data.items():
        if place.endswith(f":{name}"):
            return TASKS[task]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
