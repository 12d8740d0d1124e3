"""Tasks, by what a recipe calls them in ``task.name``."""

from ldt.tasks.base import AnyTask
from ldt.tasks.char_lm import CharacterLM
from ldt.tasks.classification import Classification
from ldt.tasks.evidence_classification import EvidenceClassification
from ldt.tasks.hotpotqa import HotpotQA
from ldt.tasks.masked_lm import MaskedLM
from ldt.tasks.multiple_choice import MultipleChoice
from ldt.tasks.passage_qa import PassageQA
from ldt.tasks.qasper import Qasper
from ldt.tasks.qasper_generation import QasperGeneration
from ldt.tasks.squad import Squad
from ldt.tasks.summarization import Summarization
from ldt.tasks.token_classification import TokenClassification
from ldt.tasks.triviaqa import TriviaQA
from ldt.tasks.wikihop import WikiHop

TASKS: dict[str, type[AnyTask]] = {
    "charlm": CharacterLM,
    "classification": Classification,
    "evidence_classification": EvidenceClassification,
    "hotpotqa": HotpotQA,
    "mlm": MaskedLM,
    "multiple_choice": MultipleChoice,
    "passage_qa": PassageQA,
    "qasper": Qasper,
    "qasper_generation": QasperGeneration,
    "squad": Squad,
    "summarization": Summarization,
    "token_classification": TokenClassification,
    "triviaqa": TriviaQA,
    "wikihop": WikiHop,
}
