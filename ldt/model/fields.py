"""Fields of a model's config one by one: their types and the values that have a meaning."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    create_model,
)
from transformers import PreTrainedConfig
from transformers.activations import ACT2FN


def _even(number: int) -> int:
    if number % 2:
        raise ValueError("must be even")
    return number


# What a number is at most is far from what any machine has the memory for; what is above it is no
# size but a mistake.
_Layers = Annotated[int, Field(ge=1, le=1000)]
_Heads = Annotated[int, Field(ge=1, le=1 << 14)]
_Width = Annotated[int, Field(ge=1, le=1 << 20)]
_Wide = Annotated[int, Field(ge=1, le=1 << 24)]
_Rows = Annotated[int, Field(ge=1, le=1 << 28)]
_Tokens = Annotated[int, Field(ge=0, le=1 << 24)]
_Window = Annotated[int, Field(ge=2, le=1 << 25), AfterValidator(_even)]
_Gap = Annotated[int, Field(ge=1, le=1 << 24)]
_Id = Annotated[int, Field(ge=0, le=2**31 - 1)]
_Share = Annotated[float, Field(ge=0, le=1)]
_Weight = Annotated[float, Field(ge=0, le=1e6)]

TYPES: dict[str, Any] = {
    "vocab_size": _Rows,
    "hidden_size": _Width,
    "num_hidden_layers": _Layers,
    "num_attention_heads": _Heads,
    "intermediate_size": _Wide,
    "max_position_embeddings": _Rows,
    "type_vocab_size": _Rows,
    "hidden_act": Literal[tuple(ACT2FN)],
    "hidden_dropout_prob": _Share,
    "attention_probs_dropout_prob": _Share,
    "layer_norm_eps": _Weight,
    "initializer_range": _Weight,
    "chunk_size_feed_forward": _Tokens,
    "d_model": _Width,
    "encoder_layers": _Layers,
    "decoder_layers": _Layers,
    "encoder_attention_heads": _Heads,
    "decoder_attention_heads": _Heads,
    "encoder_ffn_dim": _Wide,
    "decoder_ffn_dim": _Wide,
    "max_encoder_position_embeddings": _Rows,
    "max_decoder_position_embeddings": _Rows,
    "activation_function": Literal[tuple(ACT2FN)],
    "dropout": _Share,
    "attention_dropout": _Share,
    "activation_dropout": _Share,
    "init_std": _Weight,
    "decoder_start_token_id": _Id,
    "pad_token_id": _Id | None,
    "bos_token_id": _Id | None,
    "eos_token_id": _Id | list[_Id] | None,
    "sep_token_id": _Id | None,
    "memory_length": _Tokens,
    "attention_window": _Window | list[_Window],
    "attention_dilation": _Gap | list[_Gap | list[_Gap]],
    "evidence_weights": dict[str, _Weight],
    "no_answer_threshold": float | None,
    "class_weights": list[_Weight] | None,
    "focal_gamma": _Weight,
    "pooling_layers": list[Annotated[int, Field(le=1000)]],
    "pooling_window": Annotated[int, Field(le=1 << 25)],
    "pooling_size": _Gap,
    "pooling_stride": _Gap,
}
_NAMES = ("attention_backend", "hidden_act", "activation_function", "pooling")
_WORDS = {"greater than or equal to": "at least", "less than or equal to": "at most"}


@functools.cache
def fields_of(config_class: type) -> type[BaseModel]:
    """A model whose fields are those of a config class that say what a model computes.

    The others, which transformers' every config has, are about outputs and files.
    """
    from ldt.attention import BACKENDS, POOLINGS  # here, or configs stand a floor higher

    tables = {"attention_backend": ("auto", *BACKENDS), "pooling": tuple(POOLINGS)}
    types = TYPES | {name: Literal[names] for name, names in tables.items()}
    common = {field.name for field in dataclasses.fields(PreTrainedConfig)}
    fields: dict[str, Any] = {
        field.name: (types.get(field.name, field.type), None)
        for field in dataclasses.fields(config_class)
        if field.name in types or field.name not in common
    }
    config = ConfigDict(extra="forbid", allow_inf_nan=False, protected_namespaces=())
    return create_model(config_class.__name__, __config__=config, **fields)


def check_values(config_class: type, values: Mapping[str, Any]) -> None:
    """Raise a ValueError for the first value that has no meaning, whatever the others are.

    Args:
        values: by name of a field; other names are passed over.
    """
    model = fields_of(config_class)
    known = {name: values[name] for name in model.model_fields if name in values}
    for name in _NAMES:  # checked, in words of their own, where the tables are
        known.pop(name, None)
    try:
        model.model_validate(known, strict=True)
    except ValidationError as error:
        # Of the branches of a union the one that came furthest.
        worst = max(error.errors(include_url=False), key=lambda item: len(item["loc"]))
        what = worst["msg"].removeprefix("Value error, ").removeprefix("Input should ")
        for theirs, ours in _WORDS.items():
            what = what.replace(theirs, ours)
        what = what if what.startswith("must ") else f"must {what}"
        raise ValueError(f"{worst['loc'][0]} {what}, got {_cut(repr(worst['input']))}") from None


def _cut(text):
    return text if len(text) <= 80 else f"{text[:77]}..."
