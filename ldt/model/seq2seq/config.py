"""The config of an encoder-decoder: read from ldt's, transformers' and the authors' files."""

from dataclasses import field
from typing import ClassVar

from huggingface_hub.dataclasses import strict
from transformers import LEDConfig

from ldt.errors import ModelError
from ldt.model.config import (
    PooledConfig,
    authors_windows,
    check_layers,
    check_pad_token,
    check_pooling,
    layer_dilations,
    refuse_others,
)

OURS = ("ldt_seq2seq", "led")  # model_types
_AUTHORS = "LongformerEncoderDecoderForConditionalGeneration"
# Keys of BART's family, which the authors' class is of, with the value that LED has.
_FIXED = {
    "scale_embedding": False,
    "normalize_before": False,
    "add_final_layer_norm": False,
    "add_bias_logits": False,
    "static_position_embeddings": False,
    "normalize_embedding": True,
}
_UNUSED = ("extra_pos_embeddings", "max_position_embeddings", *_FIXED)


@strict
class LdtSeq2SeqConfig(PooledConfig, LEDConfig):
    """transformers' LEDConfig with what `LdtConfig` adds to a Longformer's: a choice of backends,
    dilated windows and the second level of a Poolingformer, all of the encoder alone.

    `attention_window` counts tokens in reach on both sides together. The longest input is
    `max_encoder_position_embeddings`, the longest output, with its start token,
    `max_decoder_position_embeddings`: no row of either table stands for padding.

    Without dilation and `pooling_layers` the model is a plain LED: its config.json is written as
    such, and transformers loads the folder. That of the authors (allenai/longformer) is read too.

    Args:
        attention_backend: see `LdtConfig`.
        evidence_weights: of the losses that `LdtForEvidenceGeneration` sums up; 1 where one is not
            named.
        global_attention: see `LdtConfig`.
    """

    model_type = "ldt_seq2seq"
    keys_to_ignore_at_inference = ["past_key_values", "encoder_last_hidden_state"]
    attribute_map = LEDConfig.attribute_map | {
        "hidden_act": "activation_function",
        "hidden_dropout_prob": "dropout",
    }
    theirs = LEDConfig.model_type
    names: ClassVar[dict[str, str]] = {
        _AUTHORS: "LdtForConditionalGeneration",  # of two names the last is written
        "LEDForConditionalGeneration": "LdtForConditionalGeneration",
        "LEDModel": "LdtSeq2SeqModel",
    }
    causal = False  # of the encoder

    attention_backend: str = "auto"
    evidence_weights: dict[str, float] = field(default_factory=dict)
    global_attention: list[str] | None = None

    @property
    def is_plain(self):
        """True where transformers computes the same."""
        gaps = {gap for layer in layer_dilations(self) for gap in layer}
        return gaps == {1} and not self.pooling_layers

    @classmethod
    def plain(cls, values, source="SOURCE"):
        """Values of an LED or of the authors' model by ldt's names; see `OwnConfig.plain`."""
        kind = values.get("model_type")
        if not is_seq2seq(values):
            refuse_others(kind, source)
            more = f"; ldt convert {source} makes it a long one" if kind == "bart" else ""
            raise ModelError(
                f"{source}: a model of kind {kind}, not an encoder-decoder (led){more}"
            )
        for key, fixed in _FIXED.items():
            if values.get(key, fixed) != fixed:
                raise ModelError(f"{source}: {key} {values[key]} is not part of an LED")
        values = authors_windows(values, source, authors=kind not in OURS)
        aliases = {old for old, new in cls.attribute_map.items() if new in values}
        unused = aliases.union(_UNUSED)
        values = {key: x for key, x in values.items() if key not in unused}
        return super().plain(values, source)


def is_seq2seq(values):
    """True for the keys of a config.json that `LdtSeq2SeqConfig` reads."""
    return values.get("model_type") in OURS or _AUTHORS in (values.get("architectures") or ())


def check_seq2seq(config):
    """Raise a ValueError for numbers that do not go together."""
    check_layers(config)
    check_pooling(config)
    check_pad_token(config)
    heads = config.decoder_attention_heads
    if config.d_model % heads:
        raise ValueError(
            f"d_model {config.d_model} must be a multiple of decoder_attention_heads, got {heads}"
        )
    for name in ("encoder_layerdrop", "decoder_layerdrop"):
        if getattr(config, name):
            raise ValueError(
                f"{name} must be 0: layers are not dropped, got {getattr(config, name)}"
            )


def fit_weights(weights, config):
    """Tensors of a file by the names and in the shapes of `LdtSeq2SeqModel`; changes the dict.

    BART's files, and with them the authors', have two rows in front of both position tables that no
    position reads. Where embeddings are tied, a file may have them under one of four names.

    Args:
        weights: {name: tensor}, without the prefix of the base model.
        config: says how many rows there are.
    """
    for part in ("encoder", "decoder"):
        name = f"{part}.embed_positions.weight"
        rows = getattr(config, f"max_{part}_position_embeddings")
        if name in weights and len(weights[name]) == rows + 2:
            weights[name] = weights[name][2:].clone()
    tied = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
    if config.tie_word_embeddings and "shared.weight" not in weights:
        for name in filter(weights.__contains__, tied):
            weights["shared.weight"] = weights[name]
            break
    return weights
