"""Encoders and heads as PreTrainedModels; importing registers them with transformers' Auto
classes."""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    RobertaTokenizer,
)

from ldt.model.base import LdtPreTrainedModel
from ldt.model.char_lm.model import LdtForCausalLM
from ldt.model.config import (
    LdtCausalConfig,
    LdtConfig,
    LdtModernBertConfig,
    LdtSeq2SeqConfig,
    usable_length,
)
from ldt.model.encoders import encoder_classes
from ldt.model.encoders.modernbert import LdtModernBertModel
from ldt.model.heads.classification import (
    LdtForMaskedLM,
    LdtForSequenceClassification,
    LdtForTokenClassification,
)
from ldt.model.heads.coreference import LdtForCoreference
from ldt.model.heads.embedding import LdtForEmbedding
from ldt.model.heads.questions import (
    LdtForEvidenceAnswering,
    LdtForEvidenceClassification,
    LdtForPassageAnswering,
    LdtForQuestionAnswering,
)
from ldt.model.heads.ranking import LdtForCandidateRanking, LdtForMultipleChoice
from ldt.model.layers import LdtModel
from ldt.model.loading import check_folder, load, load_tokenizer
from ldt.model.seq2seq.model import (
    LdtForConditionalGeneration,
    LdtForEvidenceGeneration,
    LdtSeq2SeqModel,
)

__all__ = [
    "LdtCausalConfig",
    "LdtConfig",
    "LdtForCandidateRanking",
    "LdtForCausalLM",
    "LdtForConditionalGeneration",
    "LdtForCoreference",
    "LdtForEmbedding",
    "LdtForEvidenceAnswering",
    "LdtForEvidenceClassification",
    "LdtForEvidenceGeneration",
    "LdtForMaskedLM",
    "LdtForMultipleChoice",
    "LdtForPassageAnswering",
    "LdtForQuestionAnswering",
    "LdtForSequenceClassification",
    "LdtForTokenClassification",
    "LdtModel",
    "LdtModernBertConfig",
    "LdtModernBertModel",
    "LdtPreTrainedModel",
    "LdtSeq2SeqConfig",
    "LdtSeq2SeqModel",
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
for _encoder in encoder_classes():
    AutoConfig.register(_encoder.config_class.model_type, _encoder.config_class)
    AutoModel.register(_encoder.config_class, _encoder)
    for _auto, _head in _HEADS.items():
        _auto.register(_encoder.config_class, _head.of(_encoder))
# Where tokenizer_config.json names none.
AutoTokenizer.register(LdtConfig, tokenizer_class=RobertaTokenizer)
AutoTokenizer.register(LdtModernBertConfig, tokenizer_class=PreTrainedTokenizerFast)

AutoConfig.register("ldt_causal", LdtCausalConfig)
AutoTokenizer.register(LdtCausalConfig, tokenizer_class=PreTrainedTokenizerFast)
AutoModelForCausalLM.register(LdtCausalConfig, LdtForCausalLM)

AutoConfig.register("ldt_seq2seq", LdtSeq2SeqConfig)
AutoTokenizer.register(LdtSeq2SeqConfig, tokenizer_class=RobertaTokenizer)
AutoModel.register(LdtSeq2SeqConfig, LdtSeq2SeqModel)
AutoModelForSeq2SeqLM.register(LdtSeq2SeqConfig, LdtForConditionalGeneration)
