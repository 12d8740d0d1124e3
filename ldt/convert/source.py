"""The source of a conversion, read under Longformer's names."""

import copy
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from transformers import LongformerConfig, PreTrainedConfig, PreTrainedModel

from ldt.errors import ModelError, first_line, listed
from ldt.model.config import layer_windows, usable_length
from ldt.model.config_file import make_config, read_values
from ldt.model.hub import TOKENIZERS, WEIGHTS
from ldt.model.loading import find_folder, read_config, read_weights
from ldt.model.skeleton import check_finite, skeleton

KINDS = {  # model_type -> how transformers' classes of it begin
    "bert": "Bert",
    "camembert": "Camembert",
    "ldt": "Longformer",
    "longformer": "Longformer",
    "roberta": "Roberta",
    "xlm-roberta": "XLMRoberta",
}
FIELDS = (  # of the config, the same in all kinds
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "type_vocab_size",
    "initializer_range",
    "layer_norm_eps",
    "pad_token_id",
)
_LONGFORMER_FIELDS = (
    "attention_window",
    "max_position_embeddings",
    "bos_token_id",
    "eos_token_id",
    "sep_token_id",
)
POSITIONS = "embeddings.position_embeddings.weight"
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
_LISTED = 4  # names in a message
PROVED_LENGTH = 512  # tokens; the source's memory grows with their square


@dataclass
class Source:
    """A model that is to become long.

    Attributes:
        folder: where its files are.
        kind: its model_type; `longformer` for the authors' files.
        config: transformers' config of the kind.
        model: transformers' own model in float32 and evaluation mode: the masked LM when the head
            is kept, else the base model, with a pooler when the file has one.
        encoder: {name: float32 tensor} of embeddings and layers, and of the pooler if `model` has
            one, under Longformer's names and without prefix.
        head: {name: tensor} of the MLM head under Longformer's names, ``lm_head.`` included; empty
            when it is not kept.
        head_note: "kept", or why the head is not.
        first: row of the position table that the first token of a text gets.
        left_out: parts of the file that the converted model has no place for.
        windows: of the layers, as the file has them; empty where attention is full.
    """

    folder: Path
    kind: str
    config: PreTrainedConfig
    model: PreTrainedModel
    encoder: dict[str, torch.Tensor]
    head: dict[str, torch.Tensor]
    head_note: str
    first: int
    left_out: list[str]
    windows: list[int]

    @property
    def length(self):
        """Longest input in tokens."""
        return len(self.encoder[POSITIONS]) - self.first


def find_source(name):
    """The folder of a source; a hub id is looked up when there is no folder of that name.

    Raises:
        ModelError: there is no such model, or a file of it is missing.
    """
    try:
        folder = find_folder(name)
    except ModelError as error:  # its advice is to convert something, as is being done
        raise ModelError(str(error).partition("; ldt convert")[0]) from error
    for what, names in (
        ("config", ("config.json",)),
        ("weights", WEIGHTS),
        ("tokenizer", TOKENIZERS),
    ):
        if not any((folder / name).is_file() for name in names):
            raise ModelError(
                f"{folder}: no {what} ({' or '.join(names)}); a source has config, weights and "
                "tokenizer in one folder"
            )
    return folder


def source_config(folder):
    """(kind, transformers' config) of the model in a folder.

    Raises:
        ModelError: config.json is broken or of a model that cannot be made long.
    """
    keys = read_values(folder)
    kind = keys.get("model_type")
    if keys.get("attention_mode") and kind in (None, "", "roberta"):
        kind = "longformer"  # the authors' own files
    if not isinstance(kind, str) or kind not in KINDS:
        raise ModelError(
            f"{folder}: a {kind or 'nameless'} model cannot be converted, only "
            f"{', '.join(KINDS)} can"
        )
    for key, plain in (
        ("position_embedding_type", "absolute"),
        ("is_decoder", False),
        ("add_cross_attention", False),
    ):
        value = keys.get(key)
        if value not in (None, plain):
            raise ModelError(f"{folder}: {key} must be {plain} for a conversion, got {value}")
    if KINDS[kind] == "Longformer":
        ours = read_config(folder)
        if ours.pooling_layers:
            raise ModelError(
                f"{folder}: a Poolingformer cannot be converted, only the model that it came from"
            )
        if ours.causal or ours.attention_dilation != 1:
            raise ModelError(
                f"{folder}: causal or dilated windows cannot be converted, only plain ones"
            )
        config = LongformerConfig(
            **{field: getattr(ours, field) for field in (*FIELDS, *_LONGFORMER_FIELDS)}
        )
    else:
        config_class = getattr(transformers, f"{KINDS[kind]}Config")
        config, _ = make_config(config_class, keys, folder)
    if config.pad_token_id is None or not 0 <= config.pad_token_id < config.vocab_size:
        raise ModelError(
            f"{folder / 'config.json'}: pad_token_id must be an id of the {config.vocab_size} in "
            f"the vocabulary, got {config.pad_token_id}"
        )
    return kind, config


def read_source(folder):
    """The `Source` in a folder.

    Raises:
        ModelError: weights are missing, damaged, not finite, of the wrong shape or without a place.
    """
    kind, config = source_config(folder)
    windows = []
    if KINDS[kind] == "Longformer":
        try:
            windows = layer_windows(config)
        except ValueError as error:
            raise ModelError(f"{folder / 'config.json'}: {error}") from error
        config = copy.copy(config)  # `model` sees all of a short input
        config.attention_window = 2 * min(max(2, usable_length(config)), PROVED_LENGTH)
    weights = {}
    for name, tensor in read_weights(folder).items():
        name = name.removeprefix("bert.")
        name = name.replace("LayerNorm.gamma", "LayerNorm.weight")  # before 2019's end
        name = name.replace("LayerNorm.beta", "LayerNorm.bias")
        if name not in _BUFFERS:
            weights[name] = tensor.float() if tensor.is_floating_point() else tensor
    encoder = {n: w for n, w in weights.items() if n.startswith(("embeddings.", "encoder."))}
    pooler = {n: w for n, w in weights.items() if n.startswith("pooler.")}
    head, head_note = _mlm_head(kind, config, weights)
    own_head = {n: w for n, w in weights.items() if n.startswith(("lm_head.", _BERT_HEAD))}
    if head:
        cls, options = getattr(transformers, KINDS[kind] + "ForMaskedLM"), {}
        prefix = cls.base_model_prefix + "."
        state = {prefix + n: w for n, w in encoder.items()} | own_head
    else:
        encoder |= pooler
        cls = getattr(transformers, KINDS[kind] + "Model")
        options = {"add_pooling_layer": bool(pooler)}
        prefix, state = "", encoder
    try:
        expected = skeleton(cls, config, **options).state_dict()
    except (ValueError, KeyError, RuntimeError, AssertionError) as error:
        raise ModelError(f"{folder / 'config.json'}: {first_line(error)}") from error
    _check_shapes(folder, state, expected, prefix)
    model = cls(config, **options).float()
    model.load_state_dict(state, strict=False)
    model.tie_weights()
    check_finite(folder, model)
    return Source(
        folder=folder,
        kind=kind,
        config=config,
        model=model.eval(),
        encoder=encoder,
        head=head,
        head_note=head_note,
        first=0 if kind == "bert" else config.pad_token_id + 1,
        left_out=sorted({_part(n) for n in weights.keys() - encoder.keys() - own_head.keys()}),
        windows=windows,
    )


def _mlm_head(kind, config, weights):
    """The head under Longformer's names, or {}; and a note on it for the report."""
    own, parts = "lm_head.", {part: part for part in _HEAD_PARTS}
    if kind == "bert":
        own, parts = _BERT_HEAD, _HEAD_PARTS
    if not any(name.startswith(own) for name in weights):
        return {}, "none in the source"
    missing = [own + part for part in parts.values() if own + part not in weights]
    if missing:
        return {}, f"left out, {missing[0]} is missing"
    if kind == "bert" and config.hidden_act != "gelu":
        return {}, f"left out, its activation is {config.hidden_act} and not gelu"
    decoder = weights.get(own + "decoder.weight")
    words = weights.get(WORDS)
    untied = decoder is None and not config.tie_word_embeddings
    if decoder is not None:
        untied = words is None or not torch.equal(decoder, words)
    if untied:
        return {}, "left out, its decoder is not tied to the word embeddings"
    bias = weights.get(own + "decoder.bias")
    if bias is not None and not torch.equal(bias, weights[own + "bias"]):
        return {}, "left out, it has two different biases"
    return {f"lm_head.{part}": weights[own + theirs] for part, theirs in parts.items()}, "kept"


def _check_shapes(folder, weights, expected, prefix):
    """Refuse weights that are missing, misshapen, or of the encoder without a place in it."""
    tied = {name for name in expected if ".decoder." in name}
    missing = sorted(expected.keys() - weights.keys() - tied)
    if missing:
        raise ModelError(f"{folder}: weights are missing: {listed(missing, _LISTED, str)}")
    inside = (prefix + "embeddings.", prefix + "encoder.")
    extra = sorted(name for name in weights.keys() - expected.keys() if name.startswith(inside))
    if extra:
        raise ModelError(
            f"{folder}: weights without a place in the model that config.json describes: "
            f"{listed(extra, _LISTED, str)}"
        )
    for name in sorted(weights.keys() & expected.keys()):
        if weights[name].shape != expected[name].shape:
            raise ModelError(
                f"{folder}: {name} is {list(weights[name].shape)}, by config.json "
                f"{list(expected[name].shape)}"
            )


def _part(name):
    """cls.seq_relationship.bias -> cls.seq_relationship, pooler.dense.bias -> pooler."""
    words = name.split(".")
    return ".".join(words[: 2 if words[0] == "cls" else 1])
