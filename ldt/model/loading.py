"""Load models and tokenizers from folders and hub ids: strictly, local before remote,
tensors only."""

import dataclasses
import logging
import os
import re
from collections.abc import Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, GenerationConfig, PreTrainedModel
from transformers.utils import cached_file
from transformers.utils import logging as transformers_logging

from ldt.errors import ModelError, first_line, listed
from ldt.io.sources import hub_fault
from ldt.model import adapters, sentence_transformers
from ldt.model.config import LdtConfig, LdtSeq2SeqConfig, usable_length
from ldt.model.config_file import make_config, read_json, read_table, read_values
from ldt.model.encoders import CAUSAL, ENCODERS, encoder_class
from ldt.model.weights import (
    WEIGHTS,
    check_finite,
    check_shapes,
    in_encoder,
    read_weights,
    rows_by_name,
    weight_files,
)

log = logging.getLogger("ldt")

TOKENIZERS = ("tokenizer.json", "vocab.json", "vocab.txt", "sentencepiece.bpe.model")
TOKENIZER_TABLES = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
GENERATION = "generation_config.json"  # of a model that writes
# Of transformers' `cached_file`.
HUB_OPTIONS = "cache_dir force_download local_files_only proxies revision subfolder token".split()
_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")  # ``roberta-base`` or ``owner/name``
_names = partial(listed, most=4, show=str)


def load(path, cls: Any, *, mapped: bool = False, **config_changes: Any) -> Any:
    """Load a model in evaluation mode and float32. Logs a warning of weights that the file lacks,
    such as a new head's, which are drawn at random.

    Args:
        path: folder, or hub id if there is no such folder.
        cls: one of ldt's model classes.
        mapped: True memory-maps the weights, see `ldt.model.weights.read_weights`.
        config_changes: values that override config.json. With other labels, the head keeps the rows
            of labels with equal names. ``dtype`` is the type of the weights.

    Raises:
        ModelError: the folder, its weights or its config cannot be used; the message says why.
    """
    dtype = config_changes.pop("dtype", torch.float32)
    folder = find_folder(path)
    config = read_config(folder, **config_changes)
    new = "head" if {"num_labels", "id2label"} & config_changes.keys() else "nothing"
    before = None
    if "id2label" in config_changes:
        names = adapters.values(folder).get("id2label") or {}
        before = [str(name) for _, name in sorted(names.items(), key=lambda item: int(item[0]))]
    return _load(cls, folder, config, (), {"dtype": dtype}, new, mapped, before)[0]


def from_pretrained(cls, path, *args, config=None, output_loading_info=False, **kwargs):
    """Load a model as `PreTrainedModel.from_pretrained`, but strictly, see `LdtPreTrainedModel`:
    the model, or (model, loading info) with ``output_loading_info``.

    Only tensors are read, never code: ``trust_remote_code`` and the like have no effect. Weights
    are never memory-mapped.

    Args:
        path: folder or hub id.
        config: config, or folder or hub id of one, in place of the folder's own.
    """
    if path is None:  # a config and a state_dict of the caller
        kwargs |= {"config": config, "output_loading_info": output_loading_info}
        return PreTrainedModel.from_pretrained.__func__(cls, None, *args, **kwargs)
    for key in ("trust_remote_code", "use_safetensors", "weights_only"):
        kwargs.pop(key, None)
    new = "anything" if kwargs.pop("ignore_mismatched_sizes", False) else "nothing"
    # Not the config's: it would keep "auto" as the name of a type.
    dtype = {key: kwargs.pop(key) for key in ("torch_dtype", "dtype") if key in kwargs}
    options = {key: kwargs.pop(key) for key in HUB_OPTIONS if key in kwargs}
    folder = find_folder(path, **options)
    if isinstance(config, str | os.PathLike):
        config = read_config(find_folder(config, **options))
    elif config is None:
        config, kwargs = _from_dict(adapters.values(folder), folder, **kwargs)
    elif not isinstance(config, cls.config_classes()):
        config = cls.config_class.from_dict(config.to_dict())
    model, info = _load(cls, folder, config, args, kwargs | dtype, new, mapped=False)
    return (model, info) if output_loading_info else model


def load_tokenizer(path: Path | str, config, *, adopt_padding: bool = False):
    """Fast tokenizer of a model, with its maximum length set to the model's.

    If it has no padding token or another one than the model, it gets the model's when that token
    exists: models with RoBERTa's positions find the beginning of a text by this id.

    Args:
        path: folder or hub id of the model.
        config: config of the model.
        adopt_padding: True changes the config's padding id to the tokenizer's, for models such as
            BERT where it does not matter.

    Raises:
        ModelError: there is no tokenizer, or it does not fit the model: more tokens than
            embeddings, a missing padding, start, end or mask token, or another padding id.
    """
    folder = _holds_tokenizer(find_folder(path))
    tokenizer = read_tokenizer(folder, config=config)
    if not tokenizer.is_fast:
        raise ModelError(f"{folder}: {type(tokenizer).__name__} is slow, without text offsets")
    size = max(tokenizer.get_vocab().values(), default=-1) + 1
    if size > config.vocab_size:
        raise ModelError(
            f"{folder}: the tokenizer has {size} tokens, the model's embedding {config.vocab_size} "
            "rows; they are of different models"
        )
    for name in tokenizer.SPECIAL_TOKENS_ATTRIBUTES:
        if getattr(tokenizer, name, None) == "":
            raise ModelError(f"{folder}: tokenizer_config.json: {name} is empty")
    _settle_padding(tokenizer, config, adopt_padding)
    for needed, names in (
        ("padding", ("pad_token",)),
        ("start", ("cls_token", "bos_token")),
        ("end", ("sep_token", "eos_token")),
        ("mask", ("mask_token",)),
    ):
        if all(getattr(tokenizer, name) is None for name in names):
            raise ModelError(
                f"{folder}: the tokenizer has no {needed} token ({' or '.join(names)}); "
                "tokenizer_config.json names it"
            )
    if tokenizer.pad_token_id != config.pad_token_id:
        raise ModelError(
            f"{folder}: the tokenizer pads with id {tokenizer.pad_token_id}, the model with "
            f"{config.pad_token_id}; they are of different models"
        )
    tokenizer.model_max_length = usable_length(config)
    return tokenizer


def _settle_padding(tokenizer, config, adopt):
    """Make tokenizer and config agree on the padding token if it is unambiguous."""
    pad, roles = tokenizer.pad_token_id, ("bos", "eos", "sep", "cls", "mask")
    if pad == config.pad_token_id:
        return
    if (
        adopt
        and pad is not None
        and pad not in {getattr(tokenizer, f"{r}_token_id") for r in roles}
    ):
        config.pad_token_id = pad
    elif config.pad_token_id is not None:
        token = tokenizer.convert_ids_to_tokens(config.pad_token_id)
        if token and re.fullmatch(r"\W*pad(ding)?\W*", token, re.IGNORECASE):
            tokenizer.pad_token = token


def read_tokenizer(folder: Path | str, **kwargs: Any):
    """Tokenizer of a folder or hub id, unchanged; its code is never run. ``kwargs`` are options of
    `AutoTokenizer.from_pretrained`.

    Raises:
        ModelError: it cannot be read.
    """
    folder = find_folder(folder)
    if "config" not in kwargs and (folder / "config.json").is_file():
        read_values(folder)  # transformers reads it, and takes any number of labels
    try:
        return AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False, **kwargs
        )
    except Exception as error:  # the tokenizers library raises plain Exceptions
        for file in ("tokenizer.json", *TOKENIZER_TABLES):
            if (folder / file).is_file():
                read_table(folder / file)
        why = first_line(error)
        raise ModelError(f"{folder}: the tokenizer cannot be read: {why}") from error


def check_folder(path: Path | str) -> Path:
    """Folder at ``path``, or of a hub id, that has a model's config, weights and tokenizer, which
    are not loaded.

    Raises:
        ModelError: something is missing or wrong, with a remedy.
    """
    folder = find_folder(path)
    read_config(folder)
    weight_files(adapters.base_of(folder) if adapters.is_adapter(folder) else folder)
    _holds_tokenizer(folder)
    return folder


def find_folder(path: Path | str, **options: Any) -> Path:
    """Folder at ``path``; or, if there is none, that of a hub model in the local cache, downloaded
    if necessary.

    Only names such as ``roberta-base`` or ``owner/name`` are looked up, and not if ``owner`` is a
    local folder.

    Args:
        path: folder or hub id.
        options: options of `transformers.utils.cached_file`.

    Raises:
        ModelError: there is neither folder nor model of this name.
    """
    folder = Path(path).expanduser()
    if folder.is_dir():
        return folder / options.get("subfolder", "")
    if os.path.lexists(folder):
        raise ModelError(
            f"{path} is no folder; a model is a folder with config.json, weights and tokenizer"
        )
    name = str(path)
    if not _ID.fullmatch(name) or ("/" in name and folder.parent.is_dir()):
        raise ModelError(f"{path}: no such folder; ldt convert SOURCE {path} makes a model there")
    return _download(name, options)


def read_config(folder: Path, **changes: Any):
    """Config of a folder's model, of the class that fits its model_type, with changed values.

    Raises:
        ModelError: config.json is missing, invalid, of another kind of model or contradictory, or a
            change belongs to other kinds of models.
        TypeError: a change is not a field of the config.
    """
    values = adapters.values(folder)
    config_class = _config_class(values)
    known = {field.name for field in dataclasses.fields(config_class)}
    unknown = changes.keys() - known - {"num_labels", "output_attentions"}
    for key in unknown & config_class.lacks.keys():
        raise ModelError(f"{folder}: {key}: {config_class.lacks[key]}")
    if unknown:
        raise TypeError(f"{config_class.__name__} has no field {sorted(unknown)[0]!r}")
    if "num_labels" in changes and "id2label" not in changes:
        for key in ("id2label", "label2id"):  # of another number of labels
            values.pop(key, None)
    config = _from_dict(values | changes, folder)[0]
    _check(config, folder)
    return config


def _load(cls, folder, config, args, kwargs, new, mapped, before=None):
    """Load a model; returns it with transformers' loading info, after checking that it is complete.

    Args:
        cls, folder, config, args, kwargs: as for `from_pretrained`.
        new: part that may differ in shape and is then initialised: ``nothing``, the ``head``, or
            ``anything``.
        mapped: as for `ldt.model.weights.read_weights`.
        before: labels of the head's rows in the file; None if unchanged.
    """
    model, info = _build(cls, folder, config, args, kwargs, mapped, new, before)
    model._weight_conversions = None  # save under today's names, whatever the file's were
    model.name_or_path = model.config.name_or_path = str(folder)
    if config.is_encoder_decoder and model.can_generate():
        model.generation_config = read_generation_config(folder, config)
    model.new_weights = tuple(
        sorted({*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])})
    )
    if model.new_weights:
        names = (name.removeprefix(f"{model.base_model_prefix}.") for name in model.new_weights)
        parts = _names(dict.fromkeys(name.partition(".")[0] for name in names))
        log.warning("%s: weights that start anew, drawn at random: %s", folder, parts)
    if config.tie_word_embeddings:
        for target, origin in (model._tied_weights_keys or {}).items():
            if model.get_parameter(target) is not model.get_parameter(origin):
                log.warning("%s: %s differs from %s and stays apart", folder, target, origin)
    unused = sorted(info["unexpected_keys"])
    if unused:
        log.info("%s: not used: %s", folder, _names(unused))
    return model, info


def _build(cls, folder, config, args, kwargs, mapped, new="head", before=None):
    """`_load` without logging initialised or unused weights."""
    _check(config, folder, cls)
    if adapters.is_adapter(folder):
        build = partial(_build, cls, args=args, kwargs=kwargs, mapped=mapped)
        model, info = adapters.load(folder, config, build)
        weights = dict(model.named_parameters())
        rows_by_name(weights, before, config, folder)
        for name, weight in model.named_parameters():
            weight.data = weights[name].data
        check_finite(folder, model)
        return model, info
    if new == "nothing" and _kind(cls.__name__) not in map(_kind, config.architectures or ()):
        new = "head"  # for another task than the file's
    weights = read_weights(folder, mapped=mapped)
    if config.model_type == LdtConfig.model_type and config.embedding:
        weights = sentence_transformers.as_longformers(weights, config, folder)
    state_dict = cls.fit_weights(weights, config)
    rows_by_name(state_dict, before, config, folder)
    if new != "anything":
        check_shapes(folder, cls, config, args, state_dict, new == "head")
    # transformers lets weights that are missing or misshapen pass; `_check_keys` does not.
    with quiet() if new != "anything" else nullcontext():
        model, info = PreTrainedModel.from_pretrained.__func__(
            cls,
            None,
            *args,
            config=config,
            state_dict=state_dict,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **kwargs,
        )
    _check_keys(folder, model, state_dict, info)
    check_finite(folder, model)
    return model, info


def _check(config, folder, cls=None):
    if cls is not None and not isinstance(config, cls.config_classes()):
        raise ModelError(
            f"{folder}: a model of kind {config.model_type}, {cls.__name__} is of "
            f"{' or '.join(kind.model_type for kind in cls.config_classes())}"
        )
    try:
        config.check()
    except ValueError as error:
        raise ModelError(f"{folder}: {error}") from error


def _check_keys(folder, model, state_dict, info):
    """Raise ModelError if encoder weights are missing or have no place in the model."""
    missing = sorted(key for key in info["missing_keys"] if in_encoder(model, key))
    if missing and all("_global." in key for key in missing):
        raise ModelError(
            f"{folder}: the projections for global attention are missing: config.json is of a long "
            "model, the weights of a short one; with its own config.json ldt convert makes it long"
        )
    if missing:
        raise ModelError(
            f"{folder}: encoder weights are missing: {_names(missing)}; "
            f"there are {_names(sorted(state_dict))}"
        )
    unexpected = sorted(key for key in info["unexpected_keys"] if in_encoder(model, key))
    if unexpected:
        raise ModelError(
            f"{folder}: encoder weights without a place in the model that config.json describes: "
            f"{_names(unexpected)}"
        )


def _kind(name):
    """Class name without prefix: LdtForMaskedLM and LongformerForMaskedLM -> ForMaskedLM."""
    return name.removeprefix("Ldt").removeprefix("Longformer").removeprefix("Roberta")


def _from_dict(values, folder, **kwargs):
    """Encoder config, and keyword arguments that do not belong to it; errors name the folder."""
    config_class = _config_class(values)
    return make_config(config_class, config_class.in_own_terms(values, folder), folder, **kwargs)


def _config_class(values):
    """Config class named by a config.json; LdtConfig by default."""
    if LdtSeq2SeqConfig.takes(values):
        return LdtSeq2SeqConfig
    kind = str(values.get("model_type"))
    return encoder_class(kind).config_class if kind in ENCODERS | CAUSAL else LdtConfig


def _holds_tokenizer(folder):
    folder = adapters.holder(folder, TOKENIZERS)
    if not any((folder / name).is_file() for name in TOKENIZERS):
        raise ModelError(
            f"{folder}: no tokenizer ({', '.join(TOKENIZERS)}); "
            f"ldt convert SOURCE {folder} makes a model with one"
        )
    return folder


@contextmanager
def quiet():
    """Context that silences transformers' loading report and progress bar; ldt logs new weights
    itself."""
    verbosity = transformers_logging.get_verbosity()
    bar = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bar:
            transformers_logging.enable_progress_bar()


def _download(name, options):
    """Folder in the local cache with a hub model's files, downloaded if necessary; if the hub does
    not answer, cached files are used. ModelError if there is no such model, or the hub cannot be
    reached."""
    fault = None if options.get("local_files_only") else hub_fault()
    if fault:
        options = options | {"local_files_only": True}

    def fetch(file, optional=True):
        try:
            return cached_file(
                name, file, _raise_exceptions_for_missing_entries=not optional, **options
            )
        except OSError as error:
            if fault:
                raise ModelError(f"{name}: no such folder, and {fault}") from error
            why = first_line(error)
            raise ModelError(f"{name}: no such folder, nor on the hub: {why}") from error

    config = fetch("config.json", optional=False)
    if config is None:
        raise ModelError(f"{name}: no such folder, and on the hub it has no config.json")
    for file in (*TOKENIZERS, *TOKENIZER_TABLES, "merges.txt", GENERATION):
        fetch(file)
    folder = Path(config).parent
    for file in WEIGHTS:
        if fetch(file):
            if file.endswith(".index.json"):
                for shard in set(read_json(folder / file).get("weight_map", {}).values()):
                    fetch(shard)
            break
    return folder


def read_generation_config(folder: Path, config) -> GenerationConfig:
    """GenerationConfig of a folder, from generation_config.json or in old folders config.json.

    Args:
        folder: folder of the model, or of an adapter, which may rely on its base.
        config: config of the model, for token ids.

    Raises:
        ModelError: the file is damaged or has an invalid value.
    """
    file = adapters.holder(folder, (GENERATION,)) / GENERATION
    try:
        if file.is_file():
            return GenerationConfig.from_dict(read_table(file))
        file = adapters.holder(folder, ("config.json",)) / "config.json"
        known = GenerationConfig().to_dict()
        old = {key: x for key, x in read_table(file).items() if key in known}
        return GenerationConfig.from_model_config(config.to_dict() | old)
    except (ValueError, TypeError) as error:
        raise ModelError(f"{file}: {first_line(error)}") from error


@torch.no_grad()
def draw_embeddings(model, ids: Sequence[int]) -> None:
    """Draw the embeddings of new tokens, in place, from a normal distribution with the mean and
    standard deviation of all others; so the authors do for WikiHop (allenai/longformer,
    scripts/wikihop.py).

    Args:
        model: model, whose vocabulary is enlarged if needed.
        ids: ids of the new tokens.
    """
    if not ids:
        return
    old = model.get_input_embeddings().weight
    mean, deviation = old.mean().item(), old.std().item()
    if max(ids) >= len(old):
        model.resize_token_embeddings(max(ids) + 1, mean_resizing=False)
    weight = model.get_input_embeddings().weight
    weight[torch.tensor(ids)] = torch.randn(len(ids), weight.shape[1]) * deviation + mean
