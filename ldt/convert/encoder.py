"""Encoders as the source of a conversion, read under Longformer's names."""

import torch
import transformers

from ldt.convert.kinds import FIELDS, KINDS
from ldt.convert.source import Source, float_weights, seeing_all, source_model
from ldt.model import LdtConfig, LdtForMaskedLM, LdtModel, usable_length

WORDS = "embeddings.word_embeddings.weight"

_BERT_HEAD = "cls.predictions."
_HEAD_PARTS = {  # Longformer's name in the MLM head -> BERT's
    "dense.weight": "transform.dense.weight",
    "dense.bias": "transform.dense.bias",
    "layer_norm.weight": "transform.LayerNorm.weight",
    "layer_norm.bias": "transform.LayerNorm.bias",
    "bias": "bias",
}
_BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")  # in old files, not weights
_TIED = (".decoder.weight", ".decoder.bias")  # of the head, to the words and to its own bias
_DECODED = 64  # tokens whose logits are compared: vocabularies are large


class EncoderSource(Source):
    """A BERT, RoBERTa or Longformer, with or without its masked-LM head or pooler."""

    target_config = LdtConfig
    fields = FIELDS
    prefix = "longformer."
    positions = "embeddings.position_embeddings.weight"
    attention = "encoder.layer.{}.attention.self."
    longest = 4096
    default_windows = {"longformer": 512, "poolingformer": 128}

    @classmethod
    def read(cls, folder, kind, config):
        """Read the source; see `Source.read`."""
        windows = []
        if KINDS[kind] == "Longformer":
            windows, config = seeing_all(folder, config, usable_length(config))
        weights = {}
        for name, tensor in float_weights(folder).items():
            name = name.removeprefix("bert.")
            name = name.replace("LayerNorm.gamma", "LayerNorm.weight")  # before 2019's end
            name = name.replace("LayerNorm.beta", "LayerNorm.bias")
            if name not in _BUFFERS:
                weights[name] = tensor
        base = {n: w for n, w in weights.items() if n.startswith(("embeddings.", "encoder."))}
        pooler = {n: w for n, w in weights.items() if n.startswith("pooler.")}
        head, head_note = _mlm_head(kind, config, weights)
        own_head = {n: w for n, w in weights.items() if n.startswith(("lm_head.", _BERT_HEAD))}
        if head:
            model_class, options = getattr(transformers, KINDS[kind] + "ForMaskedLM"), {}
            prefix = model_class.base_model_prefix + "."
            state = {prefix + n: w for n, w in base.items()} | own_head
        else:
            base |= pooler
            model_class = getattr(transformers, KINDS[kind] + "Model")
            options = {"add_pooling_layer": bool(pooler)}
            prefix, state = "", base
        inside = (prefix + "embeddings.", prefix + "encoder.")
        return cls(
            folder=folder,
            kind=kind,
            config=config,
            model=source_model(folder, model_class, config, state, inside, _TIED, **options),
            base=base,
            head=head,
            head_note=head_note,
            first=0 if kind == "bert" else config.pad_token_id + 1,
            left_out=sorted({_part(n) for n in weights.keys() - base.keys() - own_head.keys()}),
            windows=windows,
        )

    @property
    def leading(self):
        """Position embeddings in front of the first token's: RoBERTa's, up to the padding id."""
        return self.config.pad_token_id + 1

    @property
    def target_class(self):
        """The masked LM, or the encoder alone."""
        return LdtForMaskedLM if self.head else LdtModel

    def load(self, folder):
        """The masked LM, or the encoder with a pooler only where the source has one."""
        options = {} if self.head else {"add_pooling_layer": self.model.pooler is not None}
        return self.target_class.from_pretrained(folder, dtype=torch.float32, **options).eval()

    def lengths(self, max_length):
        """The rows of the position table."""
        return {"max_position_embeddings": self.leading + max_length}

    def inputs(self, shape, generator):
        """Random token types."""
        types = self.config.type_vocab_size
        return {"token_type_ids": torch.randint(types, shape, generator=generator)}

    def outputs(self, model, inputs, real):
        """Hidden states [kept, width] of the real tokens, the pooled ones, and some logits."""
        base = model.base_model
        states = base(**inputs)
        hidden = states.last_hidden_state[real]
        outputs = [hidden]
        if getattr(base, "pooler", None) is not None:
            outputs.append(states.pooler_output)
        head = getattr(model, "lm_head", getattr(model, "cls", None))
        if head is not None:
            outputs.append(head(hidden[:_DECODED]))
        return outputs


def _mlm_head(kind, config, weights):
    """The head under Longformer's names, or {}; and a note on it for the report."""
    prefix, parts = "lm_head.", {part: part for part in _HEAD_PARTS}
    if kind == "bert":
        prefix, parts = _BERT_HEAD, _HEAD_PARTS
    if not any(name.startswith(prefix) for name in weights):
        return {}, "none in the source"
    missing = [prefix + part for part in parts.values() if prefix + part not in weights]
    if missing:
        return {}, f"left out, {missing[0]} is missing"
    if kind == "bert" and config.hidden_act != "gelu":
        return {}, f"left out, its activation is {config.hidden_act} and not gelu"
    decoder = weights.get(prefix + "decoder.weight")
    words = weights.get(WORDS)
    untied = decoder is None and not config.tie_word_embeddings
    if decoder is not None:
        untied = words is None or not torch.equal(decoder, words)
    if untied:
        return {}, "left out, its decoder is not tied to the word embeddings"
    bias = weights.get(prefix + "decoder.bias")
    if bias is not None and not torch.equal(bias, weights[prefix + "bias"]):
        return {}, "left out, it has two different biases"
    return {f"lm_head.{part}": weights[prefix + theirs] for part, theirs in parts.items()}, "kept"


def _part(name):
    """cls.seq_relationship.bias -> cls.seq_relationship, pooler.dense.bias -> pooler."""
    words = name.split(".")
    return ".".join(words[: 2 if words[0] == "cls" else 1])
