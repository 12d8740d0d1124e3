"""LoRA adapters: what peft adapts by default, and folders of an adapter, which a base completes."""

import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ldt.errors import ModelError, first_line, listed
from ldt.model import sentence_transformers
from ldt.model.config_file import read_table, read_values

CONFIG = "adapter_config.json"
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
PROJECTIONS = ("query", "key", "value", "query_global", "key_global", "value_global")
OF_DECODERS = ("q_proj", "v_proj")  # as peft does in a BART
_WHOLE = ("model*.safetensors*", "pytorch_model*.bin*")
_PREFIX = "base_model.model."  # of every tensor in an adapter's file


def offer_targets(config):
    """Tell peft, if it is imported, which modules of a model of this config to adapt by default.

    ``peft.get_peft_model`` looks them up by ``model_type`` in a table, to which a row is added; it
    is the only way to say it, and peft need not be imported for those who do not use it.
    """
    constants = sys.modules.get("peft.utils.constants")
    if constants is not None:
        table = constants.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
        table.setdefault(config.model_type, usual_targets(config))


def usual_targets(config) -> list[str]:
    """Names of the layers, such as ``query``, that LoRA adapts by default in a model of this
    config."""
    return [*config.projections, *(OF_DECODERS if config.is_encoder_decoder else ())]


def is_adapter(folder: Path) -> bool:
    """True for a folder with an adapter and no weights that it might be merged into already.

    It may lack the config and the tokenizer, which are those of its base then.
    """
    whole = any(any(folder.glob(pattern)) for pattern in _WHOLE)
    return (folder / CONFIG).is_file() and not whole


def base_of(folder: Path) -> Path:
    """Folder of the model that the adapter in a folder was trained on, downloaded if it is a hub
    id.

    Raises:
        ModelError: adapter_config.json does not name it, or it is not there.
    """
    from ldt.model.loading import find_folder

    file = folder / CONFIG
    name = read_table(file).get("base_model_name_or_path")
    if not isinstance(name, str) or not name:
        raise ModelError(f"{file}: no base_model_name_or_path, which names the adapter's base")
    try:
        return find_folder(name)
    except ModelError as error:
        raise ModelError(f"{file}: the adapter's base is not there: {error}") from error


def holder(folder: Path, names: Iterable[str]) -> Path:
    """This folder; or, where it holds an adapter and none of the files ``names``, that of
    its base."""
    if is_adapter(folder) and not any((folder / name).is_file() for name in names):
        return holder(base_of(folder), names)
    return folder


def values(folder: Path) -> dict[str, Any]:
    """Content of config.json of a folder, or of the base of the adapter in it.

    Where it has no ``embedding``, how texts become vectors, the modules of sentence-transformers in
    the folder give it.
    """
    folder = holder(folder, ("config.json",))
    values = read_values(folder)
    if not values.get("embedding") and (embedding := sentence_transformers.read_settings(folder)):
        values = sentence_transformers.as_longformer(values, folder) | {"embedding": embedding}
    return values


def load(folder, config, build):
    """Load the base of an adapter and merge the adapter into it: (model, transformers' loading
    info).

    Args:
        folder: folder of the adapter.
        config: config of the model; of the base but for the size of the vocabulary. Changed in
            place.
        build: function that gives the base and its loading info for keywords ``folder``,
            ``config``.

    Raises:
        ModelError: the base or the adapter cannot be used.
    """
    from ldt.model.loading import read_config

    base, size = base_of(folder), config.vocab_size
    config.vocab_size = read_config(base).vocab_size
    model, info = build(folder=base, config=config)
    if size != model.config.vocab_size:  # by tokens of the task, whose rows the adapter has
        model.resize_token_embeddings(size, mean_resizing=False)
    model, whole = _merge(model, folder)
    info["unexpected_keys"] = set()  # the base's, such as an older head's
    info["missing_keys"] = set(info["missing_keys"]) - whole
    info["mismatched_keys"] = {key for key in info["mismatched_keys"] if key[0] not in whole}
    return model, info


def _merge(model, folder):
    """Merge an adapter into the weights of its base ``model``, all of them to be trained again.

    Returns:
        (model, names of the tensors that the adapter brought whole, such as those of a head).

    Raises:
        ModelError: peft is not installed, or the adapter is damaged or of another model.
    """
    try:
        import peft
    except ImportError as error:
        raise ModelError(
            f"{folder}: is an adapter, which takes peft: pip install 'ldt-toolkit[lora]'"
        ) from error
    theirs = {name.removeprefix(_PREFIX) for name in model.state_dict()}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of missing tensors, which are an error below
            there = set(peft.load_peft_weights(str(folder), device="cpu"))
            adapted = peft.PeftModel.from_pretrained(
                model, str(folder), torch_device=str(model.device)
            )
            needed = set(peft.get_peft_model_state_dict(adapted, save_embedding_layers=False))
            merged = adapted.merge_and_unload(safe_merge=True)
    except Exception as error:  # of a damaged file any
        raise ModelError(f"{folder}: the adapter cannot be read: {first_line(error)}") from error
    whole = {name.removeprefix(_PREFIX) for name in there} & theirs
    for what, names in (
        ("lacks weights", needed - there),
        ("has weights without a place", there - needed - {_PREFIX + name for name in whole}),
    ):
        if names:
            raise ModelError(f"{folder}: the adapter {what}: {listed(sorted(names), 4, show=str)}")
    return merged.requires_grad_(True), whole
