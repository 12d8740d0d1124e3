"""The encoder and its heads as PreTrainedModels, known to transformers' Auto classes."""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    RobertaTokenizer,
)

from ldt.model.base import LdtPreTrainedModel
from ldt.model.char_lm.config import LdtCausalConfig
from ldt.model.char_lm.model import LdtForCausalLM
from ldt.model.config import LdtConfig, usable_length
from ldt.model.encoders import ENCODERS, encoder_class
from ldt.model.encoders.longformer import LdtModel
from ldt.model.heads.classification import LdtForSequenceClassification
from ldt.model.heads.evidence import LdtForEvidenceAnswering
from ldt.model.heads.masked_lm import LdtForMaskedLM
from ldt.model.heads.passages import LdtForEvidenceClassification, LdtForPassageAnswering
from ldt.model.heads.ranking import LdtForCandidateRanking, LdtForMultipleChoice
from ldt.model.heads.spans import LdtForQuestionAnswering
from ldt.model.heads.tokens import LdtForTokenClassification
from ldt.model.loading import check_folder, load, load_tokenizer

__all__ = [
    "LdtCausalConfig",
    "LdtConfig",
    "LdtForCandidateRanking",
    "LdtForCausalLM",
    "LdtForEvidenceAnswering",
    "LdtForEvidenceClassification",
    "LdtForMaskedLM",
    "LdtForMultipleChoice",
    "LdtForPassageAnswering",
    "LdtForQuestionAnswering",
    "LdtForSequenceClassification",
    "LdtForTokenClassification",
    "LdtModel",
    "LdtPreTrainedModel",
    "check_folder",
    "load",
    "load_tokenizer",
    "usable_length",
]

_HEADS = {
    AutoModelForMaskedLM: LdtForMaskedLM,
    AutoModelForMultipleChoice: LdtForMultipleChoice,
    AutoModelForQuestionAnswering: LdtForQuestionAnswering,
    AutoModelForSequenceClassification: LdtForSequenceClassification,
    AutoModelForTokenClassification: LdtForTokenClassification,
}
for _encoder in map(encoder_class, ENCODERS):
    AutoConfig.register(_encoder.config_class.model_type, _encoder.config_class)
    AutoModel.register(_encoder.config_class, _encoder)
    for _auto, _head in _HEADS.items():
        _auto.register(_encoder.config_class, _head.of(_encoder))
# Where tokenizer_config.json names none.
AutoTokenizer.register(LdtConfig, tokenizer_class=RobertaTokenizer)

AutoConfig.register("ldt_causal", LdtCausalConfig)
AutoTokenizer.register(LdtCausalConfig, tokenizer_class=PreTrainedTokenizerFast)
AutoModelForCausalLM.register(LdtCausalConfig, LdtForCausalLM)
