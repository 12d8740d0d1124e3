"""config.json and other JSON files of a model folder, whoever wrote them."""

import dataclasses
import json

from huggingface_hub.errors import StrictDataclassError

from ldt.errors import ModelError, first_line
from ldt.model.fields import check_values

MAX_BYTES = 64 << 20  # of a JSON file
MOST_LABELS = 1_000_000
# Keys that would have transformers look for code or for another arithmetic. ldt has its own.
_ELSEWHERE = ("auto_map", "attn_implementation", "experts_implementation", "quantization_config")
_BESIDES = ("model_type", "num_labels", "output_attentions")  # known, and no fields


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
        ModelError: it is missing, damaged, or no table of keys and values.
    """
    file = folder / "config.json"
    if not file.is_file():
        raise ModelError(
            f"{folder}: no config.json; ldt convert SOURCE {folder} makes a model there"
        )
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
    labels = known.get("num_labels", 0)
    if not isinstance(labels, int) or not 0 <= labels <= MOST_LABELS:
        raise ModelError(f"{where}: num_labels must be a number up to {MOST_LABELS:,}")
    architectures = known.get("architectures") or []
    if not isinstance(architectures, list) or not all(isinstance(n, str) for n in architectures):
        raise ModelError(f"{where}: architectures must be a list of names")
    try:
        config, unused = config_class.from_dict(known, return_unused_kwargs=True, **kwargs)
        check_values(config_class, vars(config))
        return config, unused
    except (StrictDataclassError, ValueError, TypeError, AttributeError, KeyError) as error:
        # Of a check of a field the last line says why.
        reason = (str(error).strip() or type(error).__name__).splitlines()[-1].strip()
        raise ModelError(f"{where}: {reason}") from error
