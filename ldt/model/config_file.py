"""Read config.json and other JSON files of a model folder, and validate their values."""

import dataclasses
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

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

from ldt.errors import ModelError, first_line, quote

MAX_BYTES = 64 << 20  # of a JSON file
# Keys that would have transformers look for code or for another arithmetic. ldt has its own.
_ELSEWHERE = {"auto_map", "attn_implementation", "experts_implementation", "quantization_config"}
_BESIDES = ("model_type", "num_labels", "output_attentions")  # known, and no fields
_AUTHORS_MODES = ("sliding_chunks", "tvm")  # the same attention in two implementations
FULL_ATTENTION = ("bert", "camembert", "roberta", "xlm-roberta")  # kinds of short encoders
FIELDS = (  # of the config, the same in all encoders
    "vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size hidden_act "
    "hidden_dropout_prob attention_probs_dropout_prob type_vocab_size initializer_range "
    "layer_norm_eps pad_token_id"
).split()
_PLAIN = {  # key of a config -> the value that a long model has a place for
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
}
_DTYPES = ("auto", "float16", "bfloat16", "float32", "float64")
_LAST = "rotation in layers that normalize last, with projections apart"
_REFUSED = {  # model_type -> what it has that nothing here computes
    **dict.fromkeys(("mbart", "blenderbot"), "layers that normalize first and last"),
    **dict.fromkeys(("m2m_100", "pegasus", "marian"), "positions that are sinusoids"),
    **dict.fromkeys(("t5", "mt5", "umt5", "longt5", "mpnet"), "relative positions"),
    "ultrabert": "RMSNorm with projections apart and a gate of three maps",
    "eurobert": "RMSNorm with grouped heads of keys and values",
    "neobert": "RMSNorm with SwiGLU",
    **dict.fromkeys(("gte", "new", "nomic_bert"), _LAST),  # "new" is GTE in its authors' files
}


def read_json(file: Path) -> Any:
    """Content of a JSON file; ModelError if it cannot be read, is not JSON, or has more
    than 64 MB."""
    try:
        if file.stat().st_size > MAX_BYTES:
            raise ModelError(f"{file}: more than {MAX_BYTES >> 20} MB, which no such file has")
        return json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{file}: not JSON: {first_line(error)}") from error
    except OSError as error:
        raise ModelError(f"{file}: cannot be read: {error.strerror}") from error


def read_values(folder: Path) -> dict[str, Any]:
    """Content of a folder's config.json.

    Raises:
        ModelError: it is missing, damaged, not an object, or has a value that transformers would
            silently accept although it is harmful.
    """
    file = folder / "config.json"
    if not file.is_file():
        raise ModelError(
            f"{folder}: no config.json; ldt convert SOURCE {folder} makes a model there"
        )
    values = read_table(file)
    check_common(values, file)
    return values


def read_table(file: Path) -> dict[str, Any]:
    """Object in a JSON file, as a dict; ModelError if it is anything else."""
    values = read_json(file)
    if not isinstance(values, dict):
        raise ModelError(f"{file}: not a table of keys and values")
    return values


def make_config(config_class: Any, values: dict[str, Any], folder: Path, **kwargs: Any):
    """Make a config of a class: (config, the ``kwargs`` that are no fields of it).

    Args:
        values: content of config.json; keys that would change how transformers works are ignored.
        folder: folder, for messages.
        kwargs: values that override config.json.

    Raises:
        ModelError: a value is invalid.
    """
    where, values = folder / "config.json", settable(config_class, values)
    try:
        config, unused = config_class.from_dict(values, return_unused_kwargs=True, **kwargs)
        check_values(config_class, vars(config))
        decoder = config_class.is_encoder_decoder
        if config.is_encoder_decoder != decoder:
            got = quote(config.is_encoder_decoder)
            raise ValueError(f"is_encoder_decoder must be {str(decoder).lower()}, got {got}")
        return config, unused
    except (StrictDataclassError, ValueError, TypeError, AttributeError, KeyError) as error:
        # Of a check of a field the last line says why.
        reason = (str(error).strip() or type(error).__name__).splitlines()[-1].strip()
        raise ModelError(f"{where}: {reason}") from error


def check_full_attention(values: dict[str, Any], folder: Path) -> None:
    """Raise a ModelError if a config.json of a BERT, RoBERTa or BART, with content ``values``,
    describes a decoder or relative positions, of which a long model has none."""
    for key, plain in _PLAIN.items():
        value = values.get(key)
        if value not in (None, plain):
            raise ModelError(f"{folder}: {key} must be {plain} for a conversion, got {value}")


def settable(config_class: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Content of a config.json without keys such as ``auto_map``, which change how transformers
    works."""
    names = {*_BESIDES, *(field.name for field in dataclasses.fields(config_class))}
    others = {key for key in values if key.startswith("_") or hasattr(config_class, key)}
    return {key: x for key, x in values.items() if key in names or key not in others | _ELSEWHERE}


def refuse(kind: str | None, source: Path | str) -> NoReturn:
    """Raise the ModelError for a folder ``source`` of an unsupported model_type ``kind`` (None: its
    config.json has none), with the command that converts the model where there is one."""
    refuse_others(kind, source)
    if kind and kind not in (*FULL_ATTENTION, "bart"):
        raise ModelError(f"{source}: is a {kind} model, which nothing here computes or converts")
    it, what = ("it", f"is a {kind} model") if kind else ("a BERT or RoBERTa", "has no model_type")
    raise ModelError(f"{source}: {what}; ldt convert {source} makes {it} long")


def refuse_others(kind: str | None, source: Path | str) -> None:
    """Raise a ModelError if the model_type ``kind`` is known to be neither run nor
    converted here."""
    if kind in _REFUSED:
        raise ModelError(
            f"{source}: a {kind} model cannot be used or converted: no model here has "
            f"{_REFUSED[kind]}; of rotary encoders modernbert can, of those that write bart and led"
        )


def authors_window(values, source):
    """Keys to put over ``values``, a config.json by the authors in a folder ``source``:
    ``attention_window`` doubled, for both sides, and ``attention_dilation`` as one number where all
    are 1.

    Raises:
        ModelError: it asks for an unsupported kind of attention.
    """
    mode, windows = values.get("attention_mode"), values.get("attention_window")
    if mode not in _AUTHORS_MODES:
        raise ModelError(
            f"{source}: attention_mode {mode!r} is not the sliding window of this encoder; "
            f"{' and '.join(_AUTHORS_MODES)} are"
        )
    numbers = windows if isinstance(windows, list) else [windows]
    if not all(isinstance(number, int) for number in numbers):
        raise ModelError(f"{source}: attention_window must be a number a layer, got {windows!r}")
    changes = {"attention_window": [2 * number for number in numbers]}
    if set(all_numbers(values.get("attention_dilation", 1))) == {1}:
        changes["attention_dilation"] = 1
    return changes


def all_numbers(value: Any) -> list[Any]:
    """Numbers in a value, itself one or a list of lists, as one flat list."""
    return [n for each in value for n in all_numbers(each)] if isinstance(value, list) else [value]


def check_common(values: dict[str, Any], where: Path | str) -> None:
    """Raise a ModelError, which begins with ``where``, for an invalid value of the keys that all
    models have, such as ``num_labels`` and ``dtype``, and that transformers does not check."""
    known = {key: values[key] for key in _Common.model_fields if key in values}
    try:
        _Common.model_validate(known, strict=True)
    except ValidationError as error:
        raise ModelError(f"{where}: {_fault(error)}") from None


def _even(number: int) -> int:
    if number % 2:
        raise ValueError("must be even")
    return number


def _numbered(names: dict[Any, Any] | None) -> dict[Any, Any] | None:
    if names and {str(number) for number in names} != set(map(str, range(len(names)))):
        raise ValueError("must name the labels 0, 1, 2 ...")
    return names


def _known_dtype(name: Any) -> Any:
    if name is not None and str(name).removeprefix("torch.") not in _DTYPES:
        raise ValueError(f"must be one of {', '.join(_DTYPES)}")
    return name


_Dtype = Annotated[Any, AfterValidator(_known_dtype)]


class _Common(BaseModel):
    model_type: str | None = None
    num_labels: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    id2label: Annotated[dict[str | int, str | int] | None, AfterValidator(_numbered)] = None
    architectures: list[str] | None = None
    dtype: _Dtype = None
    torch_dtype: _Dtype = None

    model_config = ConfigDict(protected_namespaces=())


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
_Activation: Any = Literal[tuple(ACT2FN)]

_OF_TYPE = (
    (_Rows, "vocab_size max_position_embeddings type_vocab_size"),
    (_Rows, "max_encoder_position_embeddings max_decoder_position_embeddings"),
    (_Width, "hidden_size d_model"),
    (_Layers, "num_hidden_layers encoder_layers decoder_layers"),
    (_Heads, "num_attention_heads encoder_attention_heads decoder_attention_heads"),
    (_Wide, "intermediate_size encoder_ffn_dim decoder_ffn_dim"),
    (_Tokens, "chunk_size_feed_forward memory_length"),
    (_Share, "hidden_dropout_prob attention_probs_dropout_prob"),
    (_Share, "dropout attention_dropout activation_dropout"),
    (_Weight, "layer_norm_eps initializer_range init_std focal_gamma"),
    (_Activation, "hidden_act activation_function hidden_activation classifier_activation"),
    (_Id | None, "pad_token_id bos_token_id sep_token_id"),
    (_Gap, "pooling_size pooling_stride"),
)
TYPES: dict[str, Any] = {name: kind for kind, names in _OF_TYPE for name in names.split()} | {
    "decoder_start_token_id": _Id,
    "eos_token_id": _Id | list[_Id] | None,
    "attention_window": _Window | list[_Window],
    "local_attention": Annotated[int, Field(ge=2, le=1 << 25)],
    "full_attention_window": _Window | None,
    "attention_dilation": _Gap | list[_Gap | list[_Gap]],
    "evidence_weights": dict[str, _Weight],
    "no_answer_threshold": float | None,
    "class_weights": list[_Weight] | None,
    "pooling_layers": list[Annotated[int, Field(le=1000)]],
    "pooling_window": Annotated[int, Field(le=1 << 25)],
}
_WORDS = {"greater than or equal to": "at least", "less than or equal to": "at most"}


@functools.cache
def fields_of(config_class: type) -> type[BaseModel]:
    """pydantic class of the config's fields that affect the computation, without those that all of
    transformers' configs have for outputs and files."""
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
    """Raise ValueError for the first invalid one of ``values``, by field of ``config_class``;
    unknown names are ignored."""
    model = fields_of(config_class)
    known = {name: values[name] for name in model.model_fields if name in values}
    try:
        model.model_validate(known, strict=True)
    except ValidationError as error:
        raise ValueError(_fault(error)) from None


def _fault(error):
    """First error found by pydantic: key, expected and actual value; of a union the
    closest branch."""
    worst = max(error.errors(include_url=False), key=lambda item: len(item["loc"]))
    what = worst["msg"].removeprefix("Value error, ").removeprefix("Input should ")
    if worst["type"] == "literal_error":
        what = f"be {worst['ctx']['expected']}".replace("'", "").replace(" or ", ", ")
    for theirs, ours in _WORDS.items():
        what = what.replace(theirs, ours)
    what = what if what.startswith("must ") else f"must {what}"
    return f"{worst['loc'][0]} {what}, got {quote(worst['input'])}"
