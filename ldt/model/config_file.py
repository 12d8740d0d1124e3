"""config.json and other JSON files of a model folder, and the values that a config may have."""

import dataclasses
import functools
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from huggingface_hub.errors import StrictDataclassError
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

from ldt.errors import ModelError, first_line, shown

MAX_BYTES = 64 << 20  # of a JSON file
MOST_LABELS = 1_000_000
# Keys that would have transformers look for code or for another arithmetic. ldt has its own.
_ELSEWHERE = ("auto_map", "attn_implementation", "experts_implementation", "quantization_config")
_BESIDES = ("model_type", "num_labels", "output_attentions")  # known, and no fields
_DTYPES = ("auto", "float16", "bfloat16", "float32", "float64")


def read_json(file):
    """The value in a file.

    Raises:
        ModelError: it is no JSON, or too large for what it is.
    """
    try:
        if file.stat().st_size > MAX_BYTES:
            raise ModelError(f"{file}: more than {MAX_BYTES >> 20} MB, which no such file has")
        return json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{file}: not JSON: {first_line(error)}") from error
    except OSError as error:
        raise ModelError(f"{file}: cannot be read: {error.strerror}") from error


def read_values(folder):
    """The keys and values of a folder's config.json.

    Raises:
        ModelError: it is missing, damaged, no table of keys and values, or has a value that every
            class of transformers would take, to its harm.
    """
    file = folder / "config.json"
    if not file.is_file():
        raise ModelError(
            f"{folder}: no config.json; ldt convert SOURCE {folder} makes a model there"
        )
    values = read_table(file)
    check_common(values, file)
    return values


def read_table(file):
    """The keys and values in a file; ModelError if it is no table of them."""
    values = read_json(file)
    if not isinstance(values, dict):
        raise ModelError(f"{file}: not a table of keys and values")
    return values


def make_config(config_class, values, folder, **kwargs):
    """The config and the kwargs that are not its.

    Args:
        config_class: of the model.
        values: of config.json; what would change how transformers works is left out.
        folder: for messages.

    Raises:
        ModelError: a value has no meaning.
    """
    where = folder / "config.json"
    names = {field.name for field in dataclasses.fields(config_class)}
    known = {
        key: value
        for key, value in values.items()
        if key in names
        or key in _BESIDES
        or not (key.startswith("_") or key in _ELSEWHERE or hasattr(config_class, key))
    }
    try:
        config, unused = config_class.from_dict(known, return_unused_kwargs=True, **kwargs)
        check_values(config_class, vars(config))
        decoder = config_class.is_encoder_decoder
        if config.is_encoder_decoder != decoder:
            got = shown(config.is_encoder_decoder)
            raise ValueError(f"is_encoder_decoder must be {str(decoder).lower()}, got {got}")
        return config, unused
    except (StrictDataclassError, ValueError, TypeError, AttributeError, KeyError) as error:
        # Of a check of a field the last line says why.
        reason = (str(error).strip() or type(error).__name__).splitlines()[-1].strip()
        raise ModelError(f"{where}: {reason}") from error


def check_common(values, where):
    """Raise ModelError for keys of every config that transformers takes without a look."""
    kind = values.get("model_type")
    if not isinstance(kind, str | None):
        raise ModelError(
            f"{where}: model_type must be a name such as longformer, got {shown(kind)}"
        )
    labels = values.get("num_labels", 0)
    if not isinstance(labels, int) or not 0 <= labels <= MOST_LABELS:
        raise ModelError(f"{where}: num_labels must be a number up to {MOST_LABELS:,}")
    names = values.get("id2label")
    names = {} if names is None else names
    size = len(names) if isinstance(names, dict) else -1
    if size < 0 or {str(number) for number in names} != set(map(str, range(size))):
        raise ModelError(f"{where}: id2label must name the labels 0, 1, 2 ..., got {shown(names)}")
    if not all(isinstance(name, str | int) for name in names.values()):
        raise ModelError(f"{where}: id2label must have text as names")
    architectures = values.get("architectures") or []
    if not isinstance(architectures, list) or not all(isinstance(n, str) for n in architectures):
        raise ModelError(f"{where}: architectures must be a list of names")
    for key in ("dtype", "torch_dtype"):
        name = values.get(key)
        if name is not None and str(name).removeprefix("torch.") not in _DTYPES:
            raise ModelError(f"{where}: {key} must be one of {', '.join(_DTYPES)}, got {name!r}")


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
    "hidden_activation": Literal[tuple(ACT2FN)],
    "classifier_activation": Literal[tuple(ACT2FN)],
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
    "local_attention": Annotated[int, Field(ge=2, le=1 << 25)],
    "full_attention_window": _Window | None,
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
_WORDS = {"greater than or equal to": "at least", "less than or equal to": "at most"}


@functools.cache
def fields_of(config_class: type) -> type[BaseModel]:
    """A model whose fields are those of a config class that say what a model computes.

    The others, which transformers' every config has, are about outputs and files.
    """
    from ldt.attention import BACKENDS, POOLINGS  # here, or configs stand a floor higher

    backends = getattr(config_class, "backends", BACKENDS)
    tables = {"attention_backend": ("auto", *backends), "pooling": tuple(POOLINGS)}
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
    try:
        model.model_validate(known, strict=True)
    except ValidationError as error:
        # Of the branches of a union the one that came furthest.
        worst = max(error.errors(include_url=False), key=lambda item: len(item["loc"]))
        what = worst["msg"].removeprefix("Value error, ").removeprefix("Input should ")
        if worst["type"] == "literal_error":
            what = f"be {worst['ctx']['expected']}".replace("'", "").replace(" or ", ", ")
        for theirs, ours in _WORDS.items():
            what = what.replace(theirs, ours)
        what = what if what.startswith("must ") else f"must {what}"
        raise ValueError(f"{worst['loc'][0]} {what}, got {_cut(repr(worst['input']))}") from None


def _cut(text):
    return text if len(text) <= 80 else f"{text[:77]}..."
