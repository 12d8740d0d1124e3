"""Encoders by the ``model_type`` of their config. Adding one is a file here and a row.

An encoder is an `ldt.model.base.PackedEncoder` with

- ``config``, annotated with the class of its config, an `ldt.model.config.OwnConfig`, and
  ``base_model_prefix``, the name that heads hold it by and that its weights have in front;
- ``has_global_attention``, False where `global_attention_mask` changes nothing;
- where its heads have other layers than a Longformer's, ``answers``, as
  `ldt.model.base.answers`;
- ``_encode``, which runs it on a batch that is packed.
"""

from importlib import import_module
from typing import Any

# By name, so that what reads a config.json need not import every encoder.
_MODERNBERT = "ldt.model.encoders.modernbert:LdtModernBertModel"
ENCODERS = {
    "ldt": "ldt.model.layers:LdtModel",
    "modernbert": _MODERNBERT,  # as transformers reads it
    "ldt_modernbert": _MODERNBERT,  # with what only ldt computes
}
# Models that are no bodies of heads: they write.
SEQ2SEQ = {"ldt_seq2seq": "ldt.model.seq2seq.model:LdtSeq2SeqModel"}
CAUSAL = {"ldt_causal": "ldt.model.char_lm.model:LdtForCausalLM"}


def encoder_classes() -> list[Any]:
    """Classes of all rows of `ENCODERS`, each once."""
    return list(dict.fromkeys(map(encoder_class, ENCODERS)))


def encoder_class(model_type: str) -> Any:
    """Class of the row of `ENCODERS`, `SEQ2SEQ` or `CAUSAL` for a model_type, imported now."""
    module, _, name = (ENCODERS | SEQ2SEQ | CAUSAL)[model_type].partition(":")
    return getattr(import_module(module), name)
