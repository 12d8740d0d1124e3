"""LdtConfig: the encoder's config, read from ldt's, transformers' and the authors' files."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from huggingface_hub.dataclasses import strict
from transformers import LongformerConfig

from ldt.attention import BACKENDS, per_head, pooled
from ldt.errors import ModelError
from ldt.model.adapters import PROJECTIONS, offer_targets
from ldt.model.config_file import check_common, check_values

# Keys of the authors' files that mean nothing once their values are known to be the plain ones.
_AUTHORS_KEYS = ("attention_mode", "autoregressive", "ignore_attention_mask")
_AUTHORS_MODES = ("sliding_chunks", "tvm")  # the same attention in two implementations
_PRE_NORM = "its layers normalize first and last, its embeddings are scaled"
_SINUSOIDS = "its positions are sinusoids, its embeddings are scaled"
_RELATIVE = "its positions are relative"
_NO_LED = {  # model_type -> why no LED can be made of it
    "mbart": _PRE_NORM,
    "blenderbot": _PRE_NORM,
    "m2m_100": f"{_SINUSOIDS}, its layers normalize first",
    "pegasus": f"{_SINUSOIDS}, its layers normalize first",
    "marian": _SINUSOIDS,
    "t5": _RELATIVE,
    "mt5": _RELATIVE,
    "umt5": _RELATIVE,
    "longt5": _RELATIVE,
}
_RMS_NORM = "RMSNorm"
_POST_NORM = "rotation in layers that normalize last, with projections apart,"
_NO_BODY = {  # model_type of a rotary encoder -> what it takes that no encoder here has
    "ultrabert": f"{_RMS_NORM} with projections apart and a gate of three maps",
    "eurobert": f"{_RMS_NORM} with grouped heads of keys and values",
    "neobert": f"{_RMS_NORM} with SwiGLU",
    "gte": _POST_NORM,
    "new": _POST_NORM,  # GTE in its authors' own files
    "nomic_bert": _POST_NORM,
}


# Heads that transformers has, and the segments that get global attention there without a mask, as
# `config.global_attention` names them. In a question's input transformers wants three separators,
# and where a choice's text comes first makes the choice global: no input of a task of ldt.
_GLOBALS: dict[str, tuple[list[str] | None, ...]] = {
    "Model": (None, []),
    "ForMaskedLM": (None, []),
    "ForMultipleChoice": (None,),
    "ForQuestionAnswering": (None,),
    "ForSequenceClassification": (None, ["cls"]),
    "ForTokenClassification": (None, []),
}
HEADS = tuple(_GLOBALS)


def is_stock(config):
    """True where transformers' Longformer gives the same answers to an input without a mask of
    global tokens, with padding on the right, if any.

    Args:
        config: LdtConfig; without ``architectures`` it is of an encoder alone.
    """
    windows = set(_all_numbers(config.attention_window))
    heads = [name.removeprefix("Ldt") for name in config.architectures or ["LdtModel"]]
    return (
        set(_all_numbers(config.attention_dilation)) == {1}
        and not config.causal
        and not config.pooling_layers
        and config.classifier_pooling == "cls"
        # transformers pads an input to the largest window, and parts it by each layer's.
        and min(windows) > 2
        and all(max(windows) % window == 0 for window in windows)
        and all(config.global_attention in _GLOBALS.get(head, ()) for head in heads)
    )


def _all_numbers(value):
    return [n for each in value for n in _all_numbers(each)] if isinstance(value, list) else [value]


class OwnConfig:
    """Mixin of ldt's configs, which read those of other classes; see transformers' own.

    Attributes:
        projections: ends of the names of the layers that LoRA adapts by default.
        lacks: key that models of other kinds have -> the end of a sentence that says why these
            have not, and what would do.
        theirs: model_type of a model that transformers computes as well.
        names: transformers' classes of such models -> those here.
        own_keys: beginnings of the keys that transformers' config has not.
        backends: that compute the model.
    """

    projections: ClassVar[tuple[str, ...]] = PROJECTIONS
    lacks: ClassVar[dict[str, str]] = {}
    theirs: ClassVar[str] = ""
    names: ClassVar[dict[str, str]] = {}
    own_keys: ClassVar[tuple[str, ...]] = ()
    backends: ClassVar[Collection[str]] = BACKENDS
    global_tokens_count = True  # False where it makes no difference which tokens are global
    is_plain = False  # True where transformers computes the same

    @classmethod
    def plain(cls, values, source="SOURCE"):
        """A copy of the dict ``values``, maybe of another class, in ldt's terms.

        Args:
            values: the keys of a config.json.
            source: the folder it is from, for the message.

        Raises:
            ModelError: ``values`` describes something that this model does not compute.
        """
        values = values | {"model_type": cls.model_type}
        if isinstance(names := values.get("architectures"), list):
            values["architectures"] = [cls.names.get(name, name) for name in names]
        return values

    def to_diff_dict(self):
        """Values for config.json; of a plain model those that transformers writes."""
        values = super().to_diff_dict()
        if self.is_plain:
            values = {key: x for key, x in values.items() if not key.startswith(self.own_keys)}
            names = {ours: theirs for theirs, ours in self.names.items()}
            heads = values.get("architectures") or []
            values["architectures"] = [names.get(name, name) for name in heads]
            values["model_type"] = self.theirs
        return values

    def to_dict(self):
        """All values; peft, which asks for them first, learns what to adapt by default."""
        offer_targets(self)
        return super().to_dict()

    @classmethod
    def from_dict(cls, config_dict, **kwargs):
        """Make a config of values; also of those that `plain` takes."""
        return super().from_dict(cls.plain(config_dict), **kwargs)

    @classmethod
    def get_config_dict(cls, pretrained_model_name_or_path, **kwargs):
        """Return transformers' config dictionary, with the windows and names of ldt.

        Raises:
            ModelError: a value that every class of transformers would take, to its harm.
        """
        values, kwargs = super().get_config_dict(pretrained_model_name_or_path, **kwargs)
        check_common(values, f"{pretrained_model_name_or_path}: config.json")
        # Properties that no file can set, such as use_return_dict.
        fixed = {key for key in values if getattr(getattr(cls, key, 0), "fset", 0) is None}
        values = {key: value for key, value in values.items() if key not in fixed}
        return cls.plain(values), kwargs


@dataclass
class PooledConfig(OwnConfig):
    """Keys of an encoder whose layers have windows, and maybe a second level.

    Args:
        attention_dilation: gap between the tokens of a window, 1 = contiguous; a number for all
            layers, or one a layer, in whose place a list of one number a head may stand.
        pooling_layers: numbers of the layers, from 0 on, that have a second level; by default none.
            `upper_middle_layers` are those of the paper.
        pooling_window: tokens in reach of the second level on both sides together, the paper's 512.
            The paper's 128 of the first level is `attention_window`.
        pooling: what makes a cell's key and value of those of its tokens: a name in
            `ldt.attention.POOLINGS`. ``ldconv`` weighs keys as it does values, by weights made of
            values; ``ldconv_separate`` makes those of keys of keys.
        pooling_size: tokens in a cell, the paper's kernel.
        pooling_stride: tokens from the start of a cell to that of the next.
        pooling_input: what the second level reads: ``first_level``, the output of the first; or
            ``embeddings``, the input of the layer, the paper's "Mix".
        pooling_share_weights: whether the second level uses the projections of the first, the
            paper's "Weight sharing", in place of its own.
        pooling_gate: whether the second level is multiplied by a gate for each head that starts
            at zero; without, the levels are added as in the paper.
    """

    own_keys: ClassVar[tuple[str, ...]] = ("attention_dilation", "pooling")

    attention_dilation: int | list[int | list[int]] = 1
    pooling_layers: list[int] = field(default_factory=list)
    pooling_window: int = 512
    pooling: str = "ldconv"
    pooling_size: int = 5
    pooling_stride: int = 4
    pooling_input: Literal["first_level", "embeddings"] = "first_level"
    pooling_share_weights: bool = False
    pooling_gate: bool = False


@dataclass
class AnswerKeys:
    """Keys of every encoder's config: the backend, and what its heads learn and decide by.

    Args:
        attention_backend: a name in `ldt.attention.BACKENDS`, or ``auto``.
        no_answer_threshold: probability above which a question has no answer in its document; None
            where the model was taught an answer to every question.
        answer_thresholds: least score of a ``passage`` and of a ``span`` that is an answer; without
            one every score is enough.
        class_weights: what a class counts in the loss, in the order of the outputs; of several
            classes a row, what it counts where it is there. None: all the same.
        focal_gamma: power of 1 - p by which the loss of a label of probability p is multiplied.
        decisions: what the answers of a classification are decided by, beside its weights:
            thresholds, calibration, confidence (`ldt.tasks.decisions.policy.Policy.facts`).
        window_merge: how the scores of a candidate in the inputs of one document become one.
        evidence_weights: of the losses that the heads of `ldt.model.heads.evidence` and
            `ldt.model.heads.passages` sum up; 1 where one is not named.
        passage_loss: whether ``each`` passage is right or not by itself, or ``one`` is right, or
            none; see `ldt.model.heads.passages`.
        global_attention: segments of the inputs that had global attention while the model was
            trained, `task.global_attention` of a recipe; None where no recipe trained it.
    """

    attention_backend: str = "auto"
    no_answer_threshold: float | None = None
    answer_thresholds: dict[str, float] = field(default_factory=dict)
    class_weights: list[float] | None = None
    focal_gamma: float = 0.0
    decisions: dict[str, Any] = field(default_factory=dict)
    window_merge: Literal["mean", "sum"] = "mean"
    evidence_weights: dict[str, float] = field(default_factory=dict)
    passage_loss: Literal["each", "one"] = "each"
    global_attention: list[str] | None = None


@strict
class LdtConfig(PooledConfig, AnswerKeys, LongformerConfig):
    """transformers' LongformerConfig with the keys of `AnswerKeys`.

    `attention_window` counts tokens in reach on both sides together, an int for all layers or one
    number a layer, any even number >= 2. `max_position_embeddings` is the size of the position
    table: the longest input (`usable_length`) plus ``pad_token_id + 1`` rows, as in RoBERTa.

    With `attention_dilation`, `causal` or `pooling_layers` the encoder is no plain Longformer any
    more: transformers has none of them. The keys that begin with ``pooling_`` describe the second
    level of a Poolingformer, see `ldt.model.pooling.SecondLevel`; without `pooling_layers` they
    mean nothing. A model that answers alike there is written as one of theirs, ``longformer``,
    which other programs load too (`is_stock`); any other is ldt's alone, ``ldt``.

    Configurations of the authors' own downloads (allenai/longformer) are read too: their windows
    count one side and are doubled; modes that this encoder does not have are refused by name.

    Args:
        causal: whether a token sees only itself and the ``attention_window / 2`` before it, for
            language modelling from left to right; there are no global tokens then.
        classifier_pooling: what sequence classification reads: ``cls``, the first real token, as
            transformers' Longformer; or the ``mean`` or ``max`` of all real tokens, by feature.
    """

    model_type = "ldt"
    theirs = LongformerConfig.model_type
    names: ClassVar[dict[str, str]] = {f"Longformer{head}": f"Ldt{head}" for head in HEADS}
    own_keys = ("attention_dilation", "causal", "pooling", "classifier_pooling")

    causal: bool = False
    classifier_pooling: Literal["cls", "mean", "max"] = "cls"

    @property
    def is_plain(self):
        """True where transformers computes the same."""
        return is_stock(self)

    @classmethod
    def plain(cls, values, source="SOURCE"):
        """Values of a Longformer or of the authors' model by ldt's names; see `OwnConfig.plain`."""
        kind = values.get("model_type")
        authors = values.get("attention_mode") not in (None, "longformer")
        if kind in ("ldt", "longformer") or (authors and kind in (None, "", "roberta")):
            return super().plain(authors_windows(values, source, authors), source)
        if not kind:
            raise ModelError(
                f"{source}: config.json names no model_type, a Longformer's does; ldt convert "
                f"{source} makes a BERT or RoBERTa long"
            )
        refuse_others(kind, source)
        raise ModelError(f"{source} is a {kind} model; ldt convert {source} makes it long")

    @staticmethod
    def of_new_model(chosen, pad, longest):
        """Values of a model from scratch where its recipe does not say; RoBERTa's.

        Args:
            chosen: keys that the recipe says.
            pad: id of padding.
            longest: input in tokens, special tokens included.
        """
        return {
            "max_position_embeddings": pad + 1 + longest,
            "type_vocab_size": 1,
            "layer_norm_eps": 1e-5,
            "attention_window": 512,
            "intermediate_size": 4 * chosen.get("hidden_size", 768),
        }


def refuse_others(kind, source):
    """Raise a ModelError for a model_type that is known and neither computed nor converted.

    Args:
        source: the folder it is from, for the message.
    """
    if kind in _NO_LED:
        raise ModelError(
            f"{source}: a {kind} model cannot be converted: {_NO_LED[kind]}; of models with a "
            "decoder bart and led can"
        )
    if kind in _NO_BODY:
        raise ModelError(
            f"{source}: a {kind} model cannot be used: {_NO_BODY[kind]} is not there; of rotary "
            "encoders modernbert can"
        )


def authors_windows(values, source, authors):
    """A copy of the dict ``values`` without the keys of the authors' files alone.

    Args:
        values: the keys of a config.json.
        source: the folder it is from, for the message.
        authors: whether it is one of theirs, whose windows count one side and are doubled.

    Raises:
        ModelError: ``values`` asks for attention that is not computed here.
    """
    values = dict(values)
    if authors:
        mode = values.get("attention_mode")
        if mode not in _AUTHORS_MODES:
            raise ModelError(
                f"{source}: attention_mode {mode!r} is not the sliding window of this encoder; "
                f"{' and '.join(_AUTHORS_MODES)} are"
            )
        values["attention_window"] = _doubled(values.get("attention_window"), source)
    if values.get("autoregressive"):
        raise ModelError(f"{source}: autoregressive attention is not part of this encoder")
    if authors and set(_listed(values.get("attention_dilation", 1))) == {1}:
        values.pop("attention_dilation", None)
    for key in _AUTHORS_KEYS:
        values.pop(key, None)
    return values


def usable_length(config):
    """Longest input in tokens, special tokens included; of an encoder-decoder the encoder's."""
    if config.is_encoder_decoder:
        return config.max_encoder_position_embeddings
    if hasattr(config, "longest_input"):
        return config.longest_input
    return config.max_position_embeddings - config.pad_token_id - 1


def layer_windows(config):
    """The window of each layer; the config itself stays as it is.

    Raises:
        ValueError: their number is not that of the layers.
    """
    windows = config.attention_window
    if isinstance(windows, int):
        windows = [windows] * config.num_hidden_layers
    if len(windows) != config.num_hidden_layers:
        raise ValueError(
            f"attention_window must be one number or one for each of the "
            f"{config.num_hidden_layers} layers, got {len(windows)} numbers"
        )
    return list(windows)


def layer_dilations(config):
    """The dilations of each layer, a tuple of one number a head.

    Raises:
        ValueError: their number is not that of the layers or heads.
    """
    layers, heads = config.num_hidden_layers, config.num_attention_heads
    entries = config.attention_dilation
    entries = [entries] * layers if isinstance(entries, int) else entries
    if len(entries) != layers:
        raise ValueError(
            f"attention_dilation must be one number or one entry for each of the {layers} layers, "
            f"got {len(entries)} entries"
        )
    dilations = [per_head(e if isinstance(e, int) else tuple(e), heads) for e in entries]
    for layer in dilations:
        if len(layer) != heads:
            raise ValueError(
                f"attention_dilation of a layer must be one number or one for each of the {heads} "
                f"heads, got {len(layer)} numbers"
            )
    return dilations


def upper_middle_layers(layers):
    """The quarter of so many layers that Poolingformer gives a second level: of 24 the 15th to the
    20th, of 12 the 8th to the 10th, numbered from 0 on."""
    count, end = max(1, layers // 4), max(1, layers * 5 // 6)
    return list(range(max(0, end - count), end))


def check_pooling(config):
    """Raise a ValueError for a second level that cannot be."""
    layers = config.pooling_layers
    pooled.check(config.pooling, config.pooling_size, config.pooling_stride, config.pooling_window)
    if len(set(layers)) < len(layers) or not set(layers) <= set(range(config.num_hidden_layers)):
        raise ValueError(
            f"pooling_layers must be different numbers of layers, 0 to "
            f"{config.num_hidden_layers - 1}, got {layers}"
        )
    if layers and config.causal:
        raise ValueError(
            "causal attention has no pooling_layers: a cell holds tokens before and after each "
            "other, so a token would see the future in its own cell"
        )


def check_layers(config):
    """Raise a ValueError for numbers of the layers that do not go together."""
    check_values(type(config), vars(config))
    layer_windows(config)
    layer_dilations(config)
    if config.hidden_size % config.num_attention_heads:
        raise ValueError(
            f"hidden_size {config.hidden_size} must be a multiple of num_attention_heads, "
            f"got {config.num_attention_heads}"
        )


def check_config(config):
    """Raise a ValueError for numbers that do not go together."""
    check_layers(config)
    check_pooling(config)
    check_pad_token(config)
    if usable_length(config) < 1:
        raise ValueError(
            f"max_position_embeddings must be more than pad_token_id + 1, which is "
            f"{config.pad_token_id + 1}, got {config.max_position_embeddings}"
        )


def check_pad_token(config):
    """Raise a ValueError for an id of padding outside of the vocabulary."""
    if config.pad_token_id is None or not 0 <= config.pad_token_id < config.vocab_size:
        raise ValueError(
            f"pad_token_id must be an id of the {config.vocab_size} in the vocabulary, "
            f"got {config.pad_token_id}"
        )


def _listed(value):
    return value if isinstance(value, list) else [value]


def _doubled(windows, source):
    if not all(isinstance(window, int) for window in _listed(windows)):
        raise ModelError(f"{source}: attention_window must be a number a layer, got {windows!r}")
    return [2 * window for window in _listed(windows)]
