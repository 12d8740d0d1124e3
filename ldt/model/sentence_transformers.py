"""Folders of sentence-transformers: read and write the modules that turn states into vectors.

A folder of theirs is one of transformers with modules.json, which lists these modules: pooling,
maybe a projection and a normalisation. They are read as the dict ``embedding`` of a config. Files
are written in the old form, which all versions and other servers read.
"""

import json
import logging
import re
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import CONFIG_MAPPING

from ldt.errors import ModelError
from ldt.model.config_file import (
    FIELDS,
    FULL_ATTENTION,
    check_full_attention,
    make_config,
    read_json,
    read_table,
    read_values,
)

log = logging.getLogger("ldt")

MODULES = "modules.json"
PROJECTION = "project.weight"  # of the head: the projection of vectors
_PROMPTS = "config_sentence_transformers.json"
_POOLINGS = {  # pooling here -> its name there, and the key of folders of older versions
    "cls": ("cls", "pooling_mode_cls_token"),
    "mean": ("mean", "pooling_mode_mean_tokens"),
    "max": ("max", "pooling_mode_max_tokens"),
    "last": ("lasttoken", "pooling_mode_lasttoken"),
}
_KINDS = ("Pooling", "Dense", "MultiVectorMask", "Normalize")
_OTHERS = ("pooling_mode_mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens")
_DOCUMENT = ("document", "passage", "corpus")  # names of a document's prompt, the first counts
_IDENTITY = "torch.nn.modules.linear.Identity"
_THEIRS = "sentence_transformers.models"
_MULTI = {  # modules that only their versions with several vectors a text have
    "Dense": "sentence_transformers.base.modules.dense.Dense",
    "MultiVectorMask": "sentence_transformers.multi_vector_encoder.modules.MultiVectorMask",
    "Normalize": "sentence_transformers.base.modules.normalize.Normalize",
}
_POSITIONS = "embeddings.position_embeddings.weight"
_LOCAL = re.compile(r"(attention\.self\.(query|key|value))\.")
_STATES = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}


def read_settings(folder: Path) -> dict[str, Any] | None:
    """Read ``config.embedding``, with the keys of `ldt.model.heads.embedding.DEFAULTS`, from the
    modules of a folder; None where it has none.

    Raises:
        ModelError: a module that is not computed here.
    """
    modules = _modules(folder)
    kinds = [kind for kind, _ in modules[1:]]
    if not kinds:  # also a CrossEncoder
        return None
    if modules[0] != ("Transformer", ""):
        raise ModelError(f"{folder / MODULES}: the first module is no model of this folder itself")
    if kinds != [kind for kind in _KINDS if kind in kinds]:
        raise ModelError(
            f"{folder / MODULES}: {', '.join(kinds)}: not computed here, some of "
            f"{', '.join(_KINDS)} in this order are"
        )
    settings = {kind: _settings(folder / path) for kind, path in modules[1:]}
    texts = _settings(folder, _PROMPTS)
    tokens, prompts = "Pooling" not in kinds, _prompts(texts)
    pooling = "mean" if tokens else _pooling(folder, settings["Pooling"], prompts)
    words = settings.get("MultiVectorMask", {}).get("skiplist_words")
    cut = texts.get("truncate_dim")
    return {
        "pooling": pooling,
        "normalize": "Normalize" in kinds,
        "vectors": "tokens" if tokens else "document",
        "size": _size(folder, settings["Dense"]) if "Dense" in kinds else None,
        "dimensions": [cut] if cut else [],
        "prompts": prompts,
        "skip": _ids(folder, words) if words else [],
    }


def as_longformer(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Turn the keys of a BERT's or RoBERTa's config.json into those of a Longformer that computes
    the same, with every token in the window of every other; other configs stay as they are."""
    kind = values.get("model_type")
    if kind not in FULL_ATTENTION:
        return values
    check_full_attention(values, folder)
    config, _ = make_config(CONFIG_MAPPING[kind], values, folder)
    rows = config.max_position_embeddings + (kind == "bert") * ((config.pad_token_id or 0) + 1)
    size = {"max_position_embeddings": rows, "attention_window": 2 * rows}
    return {"model_type": "longformer"} | size | {name: getattr(config, name) for name in FIELDS}


def as_longformers(weights: dict[str, Any], config: Any, folder: Path) -> dict[str, Any]:
    """Rename the weights, {name: tensor}, of a BERT or RoBERTa to those of the Longformer of
    `as_longformer`, with copies for global tokens; others stay as they are."""
    if read_values(folder).get("model_type") not in FULL_ATTENTION:
        return weights
    weights = {name.removeprefix("bert."): tensor for name, tensor in weights.items()}
    table = weights[_POSITIONS]
    padding = table.new_zeros(config.max_position_embeddings - len(table), table.shape[1])
    weights[_POSITIONS] = torch.cat([padding, table])
    names = {_LOCAL.sub(r"\1_global.", name): name for name in weights if _LOCAL.search(name)}
    return weights | {twin: weights[name].clone() for twin, name in names.items()}


def projection(folder: Path) -> dict[str, Any]:
    """Read the folder's projection of vectors: {`PROJECTION`: weight [size, width]}; {} without
    one. ModelError if its file cannot be read."""
    for kind, path in _modules(folder):
        if kind == "Dense":
            file = folder / path / "model.safetensors"
            try:
                return {PROJECTION: load_file(file)["linear.weight"]}
            except (OSError, KeyError, SafetensorError) as error:
                raise ModelError(f"{file}: no weight of a projection: {error}") from error
    return {}


def _inexact(config: Any) -> str | None:
    """Reason why sentence-transformers does not compute a model's vectors; None where it does."""
    roles = config.global_attention
    if roles and config.global_tokens_matter:
        return f"tokens with global attention ({', '.join(roles)}), which no module of theirs marks"
    return None


class GlobalTokens:
    """Module in the list of a model that sentence-transformers cannot compute: refuses to load, for
    without a list it would take the mean of states without global attention."""

    @classmethod
    def load(cls, folder: str, *args: Any, **kwargs: Any) -> None:
        """Raise a ModelError with the reason; called by sentence-transformers."""
        raise ModelError(
            f"{folder}: has tokens with global attention, which no module of "
            f"sentence-transformers marks; ldt.load({folder!r}) gives its vectors"
        )


def write(folder: Path, config: Any, tokenizer: Any) -> None:
    """Write modules beside a model with which sentence-transformers gives the same vectors; or one
    that refuses to load and says why, as does the log.

    Args:
        folder: folder of the model, saved.
        config: config of the model, with all keys of ``embedding``.
        tokenizer: tokenizer of the model, with the length of its inputs.
    """
    from ldt.model.weights import read_weights

    if why := _inexact(config):
        log.info("sentence-transformers does not load this model: it has %s", why)
        refusal = f"{__name__}.{GlobalTokens.__name__}"
        _write(folder / MODULES, [{"idx": 0, "name": "0", "path": "", "type": refusal}])
        return
    weight = read_weights(folder, mapped=True).get(PROJECTION)
    facts, width = config.embedding, config.hidden_size
    tokens = facts["vectors"] == "tokens"
    modules: list[tuple[str, dict[str, Any]]] = []
    if not tokens:
        modes = {key: name == facts["pooling"] for name, (_, key) in _POOLINGS.items()}
        pooling = modes | dict.fromkeys(_OTHERS, False)
        modules.append(("Pooling", {"word_embedding_dimension": width} | pooling))
    states = _STATES if tokens else {}
    if weight is not None:
        sizes = {"in_features": width, "out_features": len(weight)}
        more = {"bias": False, "activation_function": _IDENTITY}
        modules.append(("Dense", sizes | more | states))
    if tokens:
        words = tokenizer.convert_ids_to_tokens(facts["skip"])
        modules.append(("MultiVectorMask", {"skiplist_words": words}))
    if facts["normalize"]:
        modules.append(("Normalize", states))
    entries = [{"idx": 0, "name": "0", "path": "", "type": f"{_THEIRS}.Transformer"}]
    for number, (kind, settings) in enumerate(modules, 1):
        path = f"{number}_{kind}"
        name = _MULTI[kind] if tokens else f"{_THEIRS}.{kind}"
        entries.append({"idx": number, "name": str(number), "path": path, "type": name})
        (folder / path).mkdir()
        _write(folder / path / "config.json", settings)
        if kind == "Dense":
            weights = {"linear.weight": weight.detach().cpu().float().contiguous()}
            save_file(weights, folder / path / "model.safetensors", metadata={"format": "pt"})
    _write(folder / MODULES, entries)
    length = {"max_seq_length": tokenizer.model_max_length, "do_lower_case": False}
    _write(folder / "sentence_bert_config.json", length)
    kind = "MultiVectorEncoder" if tokens else "SentenceTransformer"
    prompts = {"prompts": facts["prompts"], "default_prompt_name": None, "model_type": kind}
    _write(folder / _PROMPTS, prompts)


def _write(file: Path, value: Any) -> None:
    file.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _modules(folder: Path) -> list[tuple[str, str]]:
    """(class, folder) of each module; none where there is no list of them."""
    file = folder / MODULES
    if not file.is_file():
        return []
    try:
        entries = [(str(x["type"]).rpartition(".")[2], str(x["path"])) for x in read_json(file)]
    except (TypeError, KeyError):
        raise ModelError(f"{file}: no list of modules") from None
    for _, path in entries:
        if Path(path).is_absolute() or ".." in Path(path).parts:
            raise ModelError(f"{file}: {path!r} is no folder inside of this one")
    return entries


def _settings(folder: Path, name: str = "config.json") -> dict[str, Any]:
    return read_table(folder / name) if (folder / name).is_file() else {}


def _ids(folder: Path, words: list[str]) -> list[int]:
    """The ids of words that are one token each; others are none of the text's."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = map(tokenizer.token_to_id, words)
    return sorted({each for each in ids if each is not None})


def _prompts(texts: dict[str, Any]) -> dict[str, str]:
    """Prompts of a query and of a document; where there are none, the default one."""
    prompts = texts.get("prompts") or {}
    usual = prompts.get(texts.get("default_prompt_name"), "")
    document = next((prompts[name] for name in _DOCUMENT if name in prompts), usual)
    return {"query": prompts.get("query", usual), "document": document}


def _pooling(folder: Path, settings: dict[str, Any], prompts: dict[str, str]) -> str:
    mode = settings.get("pooling_mode")
    asked = [mode] if isinstance(mode, str) else [*(mode or ())]
    if mode is None:
        keys = {key: name for name, key in _POOLINGS.values()} | {key: key for key in _OTHERS}
        asked = [name for key, name in keys.items() if settings.get(key)] or ["mean"]
    names = [ours for ours, (theirs, _) in _POOLINGS.items() if asked == [theirs]]
    if not names:
        what = f"pooling {' and '.join(map(str, asked))}, one of {', '.join(_POOLINGS)} is"
        raise ModelError(f"{folder}: {what} computed here")
    if not settings.get("include_prompt", True) and any(prompts.values()):
        raise ModelError(f"{folder}: its pooling leaves out the prompt, which is pooled here")
    return names[0]


def _size(folder: Path, settings: dict[str, Any]) -> int:
    plain = str(settings.get("activation_function")).endswith(".Identity")
    if not plain or settings.get("bias", True) or settings.get("use_residual"):
        raise ModelError(f"{folder}: its Dense is not a plain product, the only one computed here")
    return int(settings["out_features"])
