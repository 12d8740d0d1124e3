"""Sources with a position table: how they are read, made long, and compared with the result.

A ``longformer`` can also be loaded by transformers' LongformerModel. Its position table repeats the
source's in blocks of the source's length; its global projections start as copies of the local ones.
Sources that are already long are lengthened in the same way and keep their global projections.

A ``poolingformer`` adds a second level (`ldt.model.pooling.SecondLevel`) in the quarter of the
layers that the paper recommends. Its projections start as copies of the first level's, which gives
them the scale of trained ones and equals the ablation "weight sharing" before training; its pooling
starts as a mean. Its gate starts at zero, so the converted model equals its source, and training
decides how much of the second level is used.
"""

from __future__ import annotations

import copy
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
import transformers
from torch.nn import functional as F
from transformers import (
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from ldt.convert.kinds import KINDS
from ldt.errors import ModelError, first_line, listed
from ldt.inference.agreement import OutputCheck, largest_gap
from ldt.model import (
    LdtConfig,
    LdtForCoreference,
    LdtForMaskedLM,
    LdtForSequenceClassification,
    LdtModel,
    adapters,
    sentence_transformers,
    usable_length,
)
from ldt.model.config import layer_windows
from ldt.model.config_file import FIELDS
from ldt.model.loading import quiet
from ldt.model.pooling import SecondLevel
from ldt.model.weights import check_finite, meta_model, read_weights

PROVED_LENGTH = 512  # tokens; the source's memory grows with their square
_LOCAL = ("query", "key", "value")
_SPECIAL = ("bos_token_id", "eos_token_id", "sep_token_id", "cls_token_id")
_LISTED = 4  # names in a message
_WORDS = "embeddings.word_embeddings.weight"
_BERT_HEAD = "cls.predictions."
_HEAD_PARTS = {  # Longformer's name in the MLM head -> BERT's
    "dense.weight": "transform.dense.weight",
    "dense.bias": "transform.dense.bias",
    "layer_norm.weight": "transform.LayerNorm.weight",
    "layer_norm.bias": "transform.LayerNorm.bias",
    "bias": "bias",
}
_BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")  # in old files, not weights
_TIED = (".decoder.weight", ".decoder.bias")  # of the head, to the words and to its own bias
_COREFERENCE = re.compile("(start|end)_(mention|coref)_mlp|mention_|antecedent_|coref_")
_CLASSIFIER = [f"classifier.{x}.{y}" for x in ("dense", "out_proj") for y in ("weight", "bias")]
_DECODED = 64  # tokens whose logits are compared: vocabularies are large
Tensors = dict[str, torch.Tensor]  # by name


@dataclass
class Source(ABC):
    """Model to be made long; subclasses are families of models.

    Attributes:
        folder: folder of its files.
        kind: its model_type; `longformer` or `led` for the authors' files.
        config: transformers config of the kind, with the tokenizer's vocabulary size.
        model: transformers' model, with its head if that is kept, else the base model.
        base: {name: float32 tensor} of `model` without its head, named as in the long model.
        head: {name: tensor} of the head, likewise; empty if not kept.
        head_note: "kept", or the reason why the head is dropped.
        first: row of the position table for the first token of a text.
        left_out: parts of the file that the converted model has no place for.
        windows: windows of the layers in the file; empty for full attention.
        generation: settings of `generate` that are kept with the model.
        embedding: config entry of a source that is an embedding model.
        classifier: {name: tensor} of the head of a cross-encoder (one label); else empty.
        coreference: {name: tensor} of the head of a published model of coreference; else empty.
    """

    folder: Path
    kind: str
    config: PreTrainedConfig
    model: PreTrainedModel
    base: dict[str, torch.Tensor]
    head: dict[str, torch.Tensor]
    head_note: str
    first: int
    left_out: list[str]
    windows: list[int] = field(default_factory=list)
    generation: GenerationConfig | None = None
    embedding: dict[str, Any] = field(default_factory=dict)
    classifier: dict[str, torch.Tensor] = field(default_factory=dict)
    coreference: dict[str, torch.Tensor] = field(default_factory=dict)

    target_config: ClassVar[Any]  # class of the converted model's config
    fields: ClassVar[Sequence[str]]  # of the config, those that stay as they are
    prefix: ClassVar[str]  # of the base model's names in the converted file
    positions: ClassVar[str]  # name of the encoder's position table in both models
    attention: ClassVar[str]  # begins the names of a layer's self-attention, by its number
    longest: ClassVar[int]  # tokens of the converted model if no length is asked for
    default_windows: ClassVar[dict[str, int]]  # by architecture, if none is asked for
    leading: ClassVar[Any]  # rows of the converted table before that of the first token
    target_class: ClassVar[Any]  # class of ldt that the converted model is saved as

    @property
    def length(self) -> int:
        """Longest input of the source in tokens."""
        return len(self.base[self.positions]) - self.first

    @property
    def proof_length(self) -> int:
        """Longest input of the proof in tokens, which `model` attends to completely."""
        return min(self.length, PROVED_LENGTH)

    @property
    def facts(self) -> dict[str, str]:
        """Lines of the conversion's report by subject, besides those of all families; none here."""
        return {}

    def load(self, folder: Path) -> PreTrainedModel:
        """Load the converted model from a folder, in float32 and evaluation mode."""
        return self.target_class.from_pretrained(folder, dtype=torch.float32).eval()

    @abstractmethod
    def lengths(self, max_length: int) -> dict[str, int]:
        """Keys and values of the converted model's config for inputs of up to ``max_length``
        tokens."""

    @abstractmethod
    def inputs(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensors:
        """Random inputs of the proof by name, for encoder inputs of this ``shape`` [rows, tokens].
        Ids, attention mask and global attention of the encoder are not among them."""

    @abstractmethod
    def outputs(self, model: Any, inputs: Tensors, real: torch.Tensor) -> list[torch.Tensor]:
        """Run a model; returns the tensors in which source and converted model must agree. ``real``
        [rows, tokens] is True for tokens that are not padding; others are left out."""

    def further_checks(self, model: PreTrainedModel, length: int) -> list[OutputCheck]:
        """Compare parts that only this family has, on inputs of ``length`` tokens, which the
        windows cover. There are none here."""
        return []


class EncoderSource(Source):
    """BERT, RoBERTa or Longformer, with or without its masked-LM head or pooler."""

    target_config = LdtConfig
    fields = FIELDS
    prefix = "longformer."
    positions = "embeddings.position_embeddings.weight"
    attention = "encoder.layer.{}.attention.self."
    longest = 4096
    default_windows = {"longformer": 512, "poolingformer": 128}

    @classmethod
    def read(cls, folder: Path, kind: str, config: PreTrainedConfig) -> EncoderSource:
        """Read an encoder, of the kind and config that `source_config` gives for its folder.
        ModelError if its weights cannot be used."""
        windows: list[int] = []
        if KINDS[kind] == "Longformer":
            windows, config = with_full_windows(folder, config, usable_length(config))
        weights = {}
        for name, tensor in float_weights(folder).items():
            name = name.removeprefix("bert.")
            name = name.replace("LayerNorm.gamma", "LayerNorm.weight")  # before 2019's end
            name = name.replace("LayerNorm.beta", "LayerNorm.bias")
            if name not in _BUFFERS:
                weights[name] = tensor
        prefixes = ("embeddings.", "encoder.", sentence_transformers.PROJECTION)
        base = {n: w for n, w in weights.items() if n.startswith(prefixes)}
        coreference = {n: w for n, w in weights.items() if _COREFERENCE.match(n)}
        pooler = {n: w for n, w in weights.items() if n.startswith("pooler.") and not coreference}
        head, head_note = _mlm_head(kind, config, weights)
        own_head = {n: w for n, w in weights.items() if n.startswith(("lm_head.", _BERT_HEAD))}
        own_head |= coreference
        classifier = {} if head else _one_label(config, weights)
        if classifier:
            own_head = {n: w for n, w in weights.items() if n.startswith("classifier.")}
        if head or classifier:
            what = "ForMaskedLM" if head else "ForSequenceClassification"
            model_class, options = getattr(transformers, KINDS[kind] + what), {}
            prefix = model_class.base_model_prefix + "."
            inner = base if head else base | pooler
            state = {prefix + n: w for n, w in inner.items()} | own_head
        else:
            base |= pooler
            model_class = getattr(transformers, KINDS[kind] + "Model")
            options = {"add_pooling_layer": bool(pooler)}
            prefix, state = "", base
        inside = (prefix + "embeddings.", prefix + "encoder.")
        return cls(
            folder=folder,
            kind=kind,
            config=config,
            model=source_model(folder, model_class, config, state, inside, _TIED, **options),
            base=base,
            head=head,
            head_note=head_note,
            first=0 if kind == "bert" else config.pad_token_id + 1,
            left_out=sorted(
                {_part(n) for n in weights.keys() - base.keys() - own_head.keys()}
                - ({"pooler"} if classifier else set())
            ),
            windows=windows,
            embedding=adapters.values(folder).get("embedding") or {},
            classifier=classifier,
            coreference=coreference,
        )

    @property
    def facts(self) -> dict[str, str]:
        """Line of the report on the head of a cross-encoder or of coreference, if the source has
        one."""
        kinds = {"cross-encoder": self.classifier, "coreference": self.coreference}
        return {kind: "its head is kept" for kind, head in kinds.items() if head}

    @property
    def leading(self) -> int:
        """Rows of the converted position table before the first token's, as in RoBERTa: padding id
        plus one."""
        return self.config.pad_token_id + 1

    @property
    def target_class(self) -> type[PreTrainedModel]:
        """Class of the converted model: masked LM, cross-encoder, coreference, or bare encoder."""
        if self.coreference:
            return LdtForCoreference
        if self.classifier:
            return LdtForSequenceClassification
        return LdtForMaskedLM if self.head else LdtModel

    def load(self, folder: Path) -> PreTrainedModel:
        """Load the converted model in float32 and evaluation mode; a bare encoder has a pooler only
        if the source has one."""
        options: dict[str, Any] = {}
        if self.target_class is LdtModel:
            options = {"add_pooling_layer": self.model.pooler is not None}
        return self.target_class.from_pretrained(folder, dtype=torch.float32, **options).eval()

    def lengths(self, max_length: int) -> dict[str, int]:
        """Size of the position table for ``max_length`` tokens, with the rows before them."""
        return {"max_position_embeddings": self.leading + max_length}

    def inputs(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensors:
        """Random token types of this shape."""
        types = self.config.type_vocab_size
        return {"token_type_ids": torch.randint(types, shape, generator=generator)}

    def outputs(self, model: Any, inputs: Tensors, real: torch.Tensor) -> list[torch.Tensor]:
        """Hidden states [kept, width] of the real tokens, the pooled output, and some logits; for a
        cross-encoder its logits only."""
        if self.classifier:
            return [model(**inputs).logits]
        base = model.base_model
        states = base(**inputs)
        hidden = states.last_hidden_state[real]
        outputs = [hidden]
        if getattr(base, "pooler", None) is not None:
            outputs.append(states.pooler_output)
        head = getattr(model, "lm_head", getattr(model, "cls", None))
        if head is not None:
            outputs.append(head(hidden[:_DECODED]))
        return outputs


def _mlm_head(kind, config, weights):
    """Head under Longformer's names, or {}; and a note for the report."""
    prefix, parts = "lm_head.", {part: part for part in _HEAD_PARTS}
    if kind == "bert":
        prefix, parts = _BERT_HEAD, _HEAD_PARTS
    if not any(name.startswith(prefix) for name in weights):
        return {}, "none in the source"
    missing = [prefix + part for part in parts.values() if prefix + part not in weights]
    if missing:
        return {}, f"left out, {missing[0]} is missing"
    if kind == "bert" and config.hidden_act != "gelu":
        return {}, f"left out, its activation is {config.hidden_act} and not gelu"
    decoder = weights.get(prefix + "decoder.weight")
    words = weights.get(_WORDS)
    untied = decoder is None and not config.tie_word_embeddings
    if decoder is not None:
        untied = words is None or not torch.equal(decoder, words)
    if untied:
        return {}, "left out, its decoder is not tied to the word embeddings"
    bias = weights.get(prefix + "decoder.bias")
    if bias is not None and not torch.equal(bias, weights[prefix + "bias"]):
        return {}, "left out, it has two different biases"
    return {f"lm_head.{part}": weights[prefix + theirs] for part, theirs in parts.items()}, "kept"


def _one_label(config, weights):
    """Head of a cross-encoder under Longformer's names; {} for other models."""
    if config.num_labels != 1 or "classifier.bias" not in weights:
        return {n: w for n, w in weights.items() if config.num_labels == 1 and n in _CLASSIFIER}
    # BERT's pooler is the first layer, with the same tanh behind it.
    names = [name.replace("classifier.dense", "pooler.dense") for name in _CLASSIFIER]
    names = [name.replace(".out_proj", "") for name in names]
    return {ours: weights[name] for ours, name in zip(_CLASSIFIER, names, strict=True)}


def _part(name):
    """cls.seq_relationship.bias -> cls.seq_relationship, pooler.dense.bias -> pooler."""
    words = name.split(".")
    return ".".join(words[: 2 if words[0] == "cls" else 1])


# -- reading


def float_weights(folder: Path) -> Tensors:
    """Weights in a folder by name, without the encoder's prefix; floating-point ones in float32."""
    return {
        name: tensor.float() if tensor.is_floating_point() else tensor
        for name, tensor in read_weights(folder).items()
    }


def with_full_windows(
    folder: Path, config: PreTrainedConfig, length: int
) -> tuple[list[int], PreTrainedConfig]:
    """Windows of a source that has some, and a copy of its config with windows so large that each
    token sees all others in the proof. ModelError if the windows do not fit the layers.

    ``length`` is the longest input of the source in tokens.
    """
    try:
        windows = layer_windows(config)
    except ValueError as error:
        raise ModelError(f"{folder / 'config.json'}: {error}") from error
    config = copy.copy(config)
    config.attention_window = 2 * min(max(2, length), PROVED_LENGTH)
    return windows, config


def source_model(
    folder: Path,
    cls: type[PreTrainedModel],
    config: PreTrainedConfig,
    state: Tensors,
    inside: tuple[str, ...],
    tied: Sequence[str] = (),
    **options: Any,
) -> PreTrainedModel:
    """Make a model of transformers in float32 and evaluation mode from the weights of a file.

    Args:
        folder: folder of the source, for messages.
        cls: class of the model.
        config: its config.
        state: weights under the names of the class.
        inside: prefixes of names; each such tensor of the file must have a place in the model.
        tied: suffixes of names that may be missing because they are tied to others.
        options: further arguments of the class.

    Raises:
        ModelError: weights are missing, of wrong shape, without a place or not finite.
    """
    where = folder / "config.json"
    try:
        expected = meta_model(cls, config, **options).state_dict()
    except (ValueError, KeyError, RuntimeError, AssertionError) as error:
        raise ModelError(f"{where}: {first_line(error)}") from error
    needed = (name for name in expected if not name.endswith(tuple(tied)))
    missing = sorted(set(needed) - state.keys())
    if missing:
        raise ModelError(f"{folder}: weights are missing: {listed(missing, _LISTED, str)}")
    extra = sorted(name for name in state.keys() - expected.keys() if name.startswith(inside))
    if extra:
        raise ModelError(
            f"{folder}: weights without a place in the model that config.json describes: "
            f"{listed(extra, _LISTED, str)}"
        )
    for name in sorted(state.keys() & expected.keys()):
        if state[name].shape != expected[name].shape:
            raise ModelError(
                f"{folder}: {name} is {list(state[name].shape)}, by config.json "
                f"{list(expected[name].shape)}"
            )
    model = cls(config, **options).float()
    model.load_state_dict(state, strict=False)
    model.tie_weights()
    check_finite(folder, model)
    return model.eval()


# -- config and weights of the long model


def long_config(
    source: Source,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    windows: list[int],
    pooling: dict[str, Any],
) -> PreTrainedConfig:
    """Config of the converted model; special ids missing in the source are the tokenizer's.

    Args:
        source: source of the conversion.
        tokenizer: its tokenizer.
        max_length: longest input in tokens.
        windows: window of each layer in tokens.
        pooling: keys of the second level that differ from the defaults.

    Raises:
        ValueError: the keys contradict each other.
    """
    special = {}
    for name in _SPECIAL:
        value = getattr(source.config, name, None)
        special[name] = getattr(tokenizer, name, None) if value is None else value
    vectors = {"embedding": source.embedding} if source.embedding else {}
    label = {"id2label": {0: "relevance"}} if source.classifier else {}
    links = {"coref_head": source.config.coref_head} if source.coreference else {}
    config = source.target_config(
        **vectors,
        **label,
        **links,
        **{field: getattr(source.config, field) for field in source.fields},
        **special,
        **pooling,
        **source.lengths(max_length),
        attention_window=windows,
        architectures=[source.target_class.__name__],
        dtype="float32",
    )
    config.check()
    return config


def long_weights(source: Source, config: PreTrainedConfig, positions: str = "tile") -> Tensors:
    """Weights of the converted model, under the names of its class. ``positions`` is a name in
    `POSITION_TABLES`, ``config`` the converted model's."""
    head = source.head | source.classifier | source.coreference
    prefix = source.prefix if head else ""
    weights = head | {prefix + name: tensor for name, tensor in source.base.items()}
    table = source.base[source.positions]
    start = table.new_zeros(source.leading, table.shape[1])
    start[: source.first] = table[: min(source.first, source.leading)]
    rows = POSITION_TABLES[positions](table[source.first :], usable_length(config))
    weights[prefix + source.positions] = torch.cat([start, rows])
    for layer in range(config.num_hidden_layers):
        stem = source.attention.format(layer)
        for part in (f"{name}{{}}.{kind}" for name in _LOCAL for kind in ("weight", "bias")):
            twin = prefix + stem + part.format("_global")
            weights.setdefault(twin, source.base[stem + part.format("")].clone())
        if layer not in config.pooling_layers:
            continue
        for name, initial in SecondLevel(config).state_dict().items():
            weights[f"{prefix}{stem}pooled.{name}"] = source.base.get(stem + name, initial).clone()
    return weights


def _repeated(rows: torch.Tensor, length: int) -> torch.Tensor:
    return rows[torch.arange(length) % len(rows)]


def interpolated(rows: torch.Tensor, length: int) -> torch.Tensor:
    """Interpolate position embeddings [n, width] linearly to [length, width]; the ends are kept."""
    return F.interpolate(rows.T[None], size=length, mode="linear", align_corners=True)[0].T


def random_behind(rows: torch.Tensor, length: int) -> torch.Tensor:
    """Append random position embeddings to those of the source, [n, width] -> [length, width]. They
    have its mean and deviation and are always the same: the paper's baseline (table 5)."""
    generator = torch.Generator().manual_seed(0)
    new = torch.randn(length - len(rows), rows.shape[1], generator=generator)
    return torch.cat([rows, rows.mean() + rows.std() * new])


POSITION_TABLES = {"tile": _repeated, "interpolate": interpolated, "random": random_behind}


# -- the proof


@quiet()
@torch.no_grad()
def prove(
    source: Source, model: PreTrainedModel, max_length: int, window: int, tiled: bool = True
) -> list[OutputCheck]:
    """Compare a converted model with its source on random tokens.

    transformers runs the source, ldt the written folder: on short inputs covered by the window, on
    inputs with global attention everywhere, and at the last positions.

    Args:
        source: source of the conversion.
        model: converted model, of ldt's class with the source's head or pooler.
        max_length: its longest input.
        window: smallest window of a layer in tokens, both sides together.
        tiled: True if the position table repeats the source's; otherwise the source runs with the
            converted model's positions, which are then not proved.

    Raises:
        ModelError: the source's outputs are not finite.
    """
    short = min(window // 2 + 1, source.proof_length)
    cases = [
        ("window", short, 0, False),
        ("global attention", source.proof_length, 0, True),
        ("last positions", short, max_length - short, False),
    ]
    checks = []
    for name, length, offset, everywhere in cases:
        with _positions(source, model, length, offset, tiled):
            checks.append(_compare(name, source, model, length, everywhere))
    with _positions(source, model, short, 0, tiled):
        return checks + source.further_checks(model, short)


def compared(
    name: str,
    tokens: int,
    expected: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    folder: Path,
) -> OutputCheck:
    """Compare two lists of tensors, pair by pair: largest difference, and largest value expected.

    Args:
        name: name of the check.
        tokens: length of the inputs.
        expected: outputs of the source.
        outputs: outputs of the converted model.
        folder: folder of the source, for the ModelError if its outputs are not finite.
    """
    gap = largest_gap(expected, outputs, str(folder))
    return OutputCheck(name, tokens, gap, max(x.abs().max().item() for x in expected))


def random_rows(source: Any, length: int) -> tuple[Tensors, torch.Tensor, torch.Generator]:
    """Random ids and attention mask of rows of ``length`` tokens, a half and a third of it, and
    one.

    The rest is padding. With them come a mask [rows, length] bool of the real tokens, and the
    random generator, for further inputs. ``source`` is a `Source` or `RotarySource`.
    """
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor(sorted({length, -(-length // 2), -(-length // 3), 1}, reverse=True))
    real = torch.arange(length) < lengths[:, None]
    ids = random_ids(source, tuple(real.shape), generator)
    ids = ids.where(real, torch.tensor(source.config.pad_token_id))
    return {"input_ids": ids, "attention_mask": real.long()}, real, generator


def random_ids(source: Any, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Random ids [shape] of the source's vocabulary, without the padding id."""
    ids = torch.randint(source.model.config.vocab_size - 1, shape, generator=generator)
    return ids + (ids >= source.config.pad_token_id)


@contextmanager
def _positions(source, model, length, offset, tiled):
    """Have both models read rows from position ``offset`` on as if at the beginning; the source
    uses its own position embeddings unless the converted model has others."""
    theirs, ours = (x.base_model.get_parameter(source.positions) for x in (source.model, model))
    rows = ours[source.leading + offset :][:length].clone()
    tile = theirs[source.first + torch.arange(offset, offset + length) % source.length]
    places = theirs[source.first :][:length], ours[source.leading :][:length]
    originals = [place.clone() for place in places]
    places[0].copy_(tile if tiled else rows)
    places[1].copy_(rows)
    try:
        yield
    finally:
        for place, before in zip(places, originals, strict=True):
            place.copy_(before)


def _compare(name, source, model, length, everywhere):
    inputs, real, generator = random_rows(source, length)
    inputs |= source.inputs(tuple(real.shape), generator)
    ours = inputs | {"global_attention_mask": real.long() * everywhere}
    expected = source.outputs(source.model, ours if source.windows else inputs, real)
    return compared(name, length, expected, source.outputs(model, ours, real), source.folder)
