"""config.json and other JSON files of a model folder, whoever wrote them."""

import dataclasses
import json

from huggingface_hub.errors import StrictDataclassError

from ldt.errors import ModelError, first_line, shown
from ldt.model.fields import check_values

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
