"""Base of an encoder-decoder and its parts."""

from ldt.model.base import LdtPreTrainedModel
from ldt.model.seq2seq.config import LdtSeq2SeqConfig, check_seq2seq, fit_weights


class LdtSeq2SeqPreTrainedModel(LdtPreTrainedModel):
    """Base of both classes and of encoder and decoder; parameters are named as in an LED."""

    config: LdtSeq2SeqConfig  # type: ignore[assignment]
    base_model_prefix = "led"
    fit_weights = staticmethod(fit_weights)
    check = staticmethod(check_seq2seq)
    _no_split_modules = ["LedEncoderLayer", "LedDecoderLayer"]
