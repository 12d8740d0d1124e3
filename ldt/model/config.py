"""Configs of ldt's models, read from config.json files of ldt, transformers and the papers'
authors."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from huggingface_hub.dataclasses import strict
from transformers import LEDConfig, LongformerConfig, ModernBertConfig, PreTrainedConfig

from ldt.attention import BACKENDS, PLAIN, check_pooling, per_head
from ldt.errors import ModelError
from ldt.model.adapters import PROJECTIONS, offer_targets
from ldt.model.config_file import (
    all_numbers,
    authors_window,
    check_common,
    check_values,
    refuse,
    settable,
)

_AUTHORS_LED = "LongformerEncoderDecoderForConditionalGeneration"
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
for _head in ("ForCoreference", "ForEmbedding"):  # of ldt alone, on an encoder that both have
    _GLOBALS[_head] = (None, [])
ROTATIONS = ("default", "linear", "yarn", "llama3")  # others depend on the length of an input


class OwnConfig:
    """Mixin of ldt's configs, which also read those of other classes.

    Attributes:
        projections: suffixes of layer names that LoRA adapts by default.
        lacks: keys of other kinds of models, with the end of the message that refuses them.
        theirs: model_type of an equivalent transformers model.
        reads: model_types of the files it reads; empty for any.
        names: class names of transformers and of the authors, with the corresponding ones here.
        fixed: keys of other files, with the only supported value.
        unused: keys of other files that have no effect here.
        own_keys: prefixes of keys that transformers' config lacks.
        backends: attention backends that support the model.
    """

    projections: ClassVar[tuple[str, ...]] = PROJECTIONS
    lacks: ClassVar[dict[str, str]] = {}
    theirs: ClassVar[str] = ""
    reads: ClassVar[tuple[str, ...]] = ()
    names: ClassVar[dict[str, str]] = {}
    fixed: ClassVar[dict[str, Any]] = {}
    unused: ClassVar[tuple[str, ...]] = ()
    own_keys: ClassVar[tuple[str, ...]] = ()
    backends: ClassVar[Collection[str]] = BACKENDS
    global_tokens_matter = True  # False where it makes no difference which tokens are global
    is_plain = False  # True where transformers computes the same

    def check(self):
        """Raise ValueError for invalid or contradictory values."""
        check_values(type(self), vars(self))

    @classmethod
    def _is_authors(cls, values):
        """True for a config.json by Longformer's authors, whose windows count one side only."""
        return False

    @classmethod
    def takes(cls, values: dict[str, Any]) -> bool:
        """True for the content of a config.json of this kind of model, in any format."""
        return values.get("model_type") in cls.reads or cls._is_authors(values)

    @classmethod
    def in_own_terms(cls, values, source="SOURCE"):
        """Copy of ``values`` converted to ldt's keys, without keys that have no effect here.

        Args:
            values: content of a config.json.
            source: its folder, for the message.

        Raises:
            ModelError: the values describe something that this model does not compute.
        """
        authors = cls._is_authors(values)
        if cls.reads and not cls.takes(values):
            refuse(values.get("model_type"), source)
        values = values | {"model_type": cls.model_type}
        for key, value in cls.fixed.items():
            if values.get(key) not in (None, value):
                raise ModelError(f"{source}: {key} {values[key]} is not part of {cls.title}")
        if authors:
            values |= authors_window(values, source)
        if isinstance(names := values.get("architectures"), list):
            values["architectures"] = [cls.names.get(name, name) for name in names]
        aliases = {old for old, new in cls.attribute_map.items() if new in values}
        unused = {*cls.fixed, *cls.unused, *aliases}
        return {key: value for key, value in values.items() if key not in unused}

    def to_diff_dict(self):
        """Values for config.json; for a model that transformers supports (`is_plain`), those it
        would write."""
        values = super().to_diff_dict()
        if self.is_plain:
            values = {key: x for key, x in values.items() if not key.startswith(self.own_keys)}
            names = {ours: theirs for theirs, ours in self.names.items()}
            heads = values.get("architectures") or []
            values["architectures"] = [names.get(name, name) for name in heads]
            values["model_type"] = self.theirs
        return values

    def to_dict(self):
        """All values by key. Registers the default targets of LoRA with peft, which calls this
        first."""
        offer_targets(self)
        return super().to_dict()

    @classmethod
    def from_dict(cls, config_dict, **kwargs):
        """Config from a dict, of any format that `in_own_terms` reads; ``kwargs`` as in
        transformers."""
        return super().from_dict(cls.in_own_terms(config_dict), **kwargs)

    @classmethod
    def get_config_dict(cls, pretrained_model_name_or_path, **kwargs):
        """Return (content of config.json in ldt's keys, the ``kwargs`` left over), as in
        transformers.

        Raises:
            ModelError: a value that transformers would silently accept although it is harmful.
        """
        values, kwargs = super().get_config_dict(pretrained_model_name_or_path, **kwargs)
        check_common(values, f"{pretrained_model_name_or_path}: config.json")
        return cls.in_own_terms(settable(cls, values)), kwargs


@dataclass
class PooledConfig(OwnConfig):
    """Keys of an encoder with attention windows and optionally a second level.

    Args:
        attention_dilation: gap between the tokens of a window, 1 = contiguous; a number for all
            layers, or one per layer, each of which may be a list with one number per head.
        pooling_layers: numbers of the layers with a second level, from 0; default none.
            `upper_middle_layers` gives those of the paper.
        pooling_window: window of the second level in tokens, both sides together; 512 in the paper.
            The first level's 128 is `attention_window`.
        pooling: how keys and values are pooled: a name in `ldt.attention.POOLINGS`. ``ldconv``
            pools keys with the weights computed from values; ``ldconv_separate`` computes the
            weights of keys from keys.
        pooling_size: tokens of a pooled cell, the paper's kernel.
        pooling_stride: distance between the starts of two cells, in tokens.
        pooling_input: input of the second level: ``first_level``, the output of the first; or
            ``embeddings``, the layer's input, the paper's "Mix".
        pooling_share_weights: True uses the first level's projections for the second, the paper's
            "Weight sharing".
        pooling_gate: True multiplies the second level by a gate per head that starts at zero; False
            adds the levels, as in the paper.
    """

    own_keys: ClassVar[tuple[str, ...]] = ("attention_dilation", "pooling")
    fixed: ClassVar[dict[str, Any]] = {"autoregressive": False}
    unused: ClassVar[tuple[str, ...]] = ("attention_mode", "ignore_attention_mask")

    attention_dilation: int | list[int | list[int]] = 1
    pooling_layers: list[int] = field(default_factory=list)
    pooling_window: int = 512
    pooling: str = "ldconv"
    pooling_size: int = 5
    pooling_stride: int = 4
    pooling_input: Literal["first_level", "embeddings"] = "first_level"
    pooling_share_weights: bool = False
    pooling_gate: bool = False

    def check(self):
        super().check()
        _check_layers(self)
        layers = self.pooling_layers
        check_pooling(self.pooling, self.pooling_size, self.pooling_stride, self.pooling_window)
        if len(set(layers)) < len(layers) or not set(layers) <= set(range(self.num_hidden_layers)):
            raise ValueError(
                f"pooling_layers must be different numbers of layers, 0 to "
                f"{self.num_hidden_layers - 1}, got {layers}"
            )
        if layers and self.causal:
            raise ValueError(
                "causal attention has no pooling_layers: a cell holds tokens before and after each "
                "other, so a token would see the future in its own cell"
            )
        _check_pad_token(self)


@dataclass
class AnswerKeys:
    """Keys of every encoder's config: the attention backend, and settings of heads and decisions.

    Args:
        attention_backend: a name in `ldt.attention.BACKENDS`, or ``auto``.
        no_answer_threshold: probability above which a question has no answer in the document; None
            if the model was trained on answerable questions only.
        answer_thresholds: least score of a ``passage`` and of a ``span`` answer; every score is
            enough if not given.
        class_weights: weights of the classes in the loss, in the order of the outputs; in
            multi-label classification the weight of a positive label. None: all 1.
        focal_gamma: exponent of 1 - p in the focal loss.
        decisions: decision policy of a classifier: thresholds, calibration, abstention
            (`ldt.metrics.decisions.Policy.facts`).
        window_merge: how a candidate's scores in several chunks are combined.
        evidence_weights: weights of the losses summed by a head of `ldt.model.heads.questions`; 1
            if not given.
        passage_loss: ``each`` classifies every passage, ``one`` selects one passage or none; see
            `ldt.model.heads.questions`.
        embedding: how texts become vectors; see `ldt.model.heads.embedding.DEFAULTS`.
        coref_head: settings of coreference, under the key that fastcoref uses; see
            `ldt.model.heads.coreference.DEFAULTS`.
        ranking: training of a reranker: its ``loss``, listwise or pointwise, ``teacher``, and the
            number of ``best_chunks`` that count.
        sentence_transformers: entry for sentence-transformers in a reranker's config,
            ``activation_fn``.
        global_attention: segments with global attention during training, `task.global_attention` of
            the recipe; None if the model was not trained by a recipe.
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
    embedding: dict[str, Any] = field(default_factory=dict)
    coref_head: dict[str, Any] = field(default_factory=dict)
    ranking: dict[str, Any] = field(default_factory=dict)
    sentence_transformers: dict[str, Any] = field(default_factory=dict)
    global_attention: list[str] | None = None


@strict
class LdtConfig(PooledConfig, AnswerKeys, LongformerConfig):
    """transformers' LongformerConfig with the keys of `AnswerKeys`.

    `attention_window` is in tokens, both sides together: an int for all layers or one per layer,
    any even number >= 2. `max_position_embeddings` is the size of the position table: the longest
    input (`usable_length`) plus ``pad_token_id + 1`` rows, as in RoBERTa.

    With `attention_dilation`, `causal` or `pooling_layers`, which transformers lacks, the model is
    saved as ``ldt``; otherwise as ``longformer``, which other programs load too (`is_plain`). The
    keys that begin with ``pooling_`` describe the second level of a Poolingformer, see
    `ldt.model.pooling.SecondLevel`, and have no effect without `pooling_layers`.

    Configs of the authors' downloads (allenai/longformer) are read too: their one-sided windows are
    doubled; attention modes that this encoder lacks are refused by name.

    Args:
        causal: True lets a token attend only to itself and the ``attention_window / 2`` tokens
            before it, for left-to-right language modelling; there are no global tokens then.
        classifier_pooling: input of the classification head: ``cls``, the first real token, as in
            transformers' Longformer; or the elementwise ``mean`` or ``max`` of all real tokens.
    """

    model_type = "ldt"
    theirs, title = LongformerConfig.model_type, "this encoder"
    reads = (model_type, theirs)
    names: ClassVar[dict[str, str]] = {f"Longformer{head}": f"Ldt{head}" for head in HEADS}
    own_keys = ("attention_dilation", "causal", "pooling", "classifier_pooling")

    causal: bool = False
    classifier_pooling: Literal["cls", "mean", "max"] = "cls"

    @property
    def is_plain(self):
        """True if transformers' Longformer gives the same outputs for inputs without global
        attention mask and with right padding; without ``architectures`` the config is that of a
        bare encoder."""
        windows = set(all_numbers(self.attention_window))
        heads = [name.removeprefix("Ldt") for name in self.architectures or ["LdtModel"]]
        return (
            set(all_numbers(self.attention_dilation)) == {1}
            and not self.causal
            and not self.pooling_layers
            and self.classifier_pooling == "cls"
            # transformers pads an input to the largest window, and parts it by each layer's.
            and min(windows) > 2
            and all(max(windows) % window == 0 for window in windows)
            and all(self.global_attention in _GLOBALS.get(head, ()) for head in heads)
        )

    @classmethod
    def _is_authors(cls, values):
        kinds = *cls.reads, None, "", "roberta"
        is_mode = values.get("attention_mode") not in (None, "longformer")
        return is_mode and values.get("model_type") in kinds

    def check(self):
        super().check()
        if usable_length(self) < 1:
            raise ValueError(
                f"max_position_embeddings must be more than pad_token_id + 1, which is "
                f"{self.pad_token_id + 1}, got {self.max_position_embeddings}"
            )

    @staticmethod
    def of_new_model(chosen: dict[str, Any], pad: int, longest: int) -> dict[str, Any]:
        """Values of config keys of a model to be trained from scratch, as in RoBERTa.

        Args:
            chosen: keys set by the recipe, which the caller puts over these.
            pad: id of the padding token.
            longest: longest input in tokens, with special tokens.
        """
        return {
            "max_position_embeddings": pad + 1 + longest,
            "type_vocab_size": 1,
            "layer_norm_eps": 1e-5,
            "attention_window": 512,
            "intermediate_size": 4 * chosen.get("hidden_size", 768),
        }


@strict
class LdtModernBertConfig(OwnConfig, AnswerKeys, ModernBertConfig):
    """transformers' ModernBertConfig with the keys of `AnswerKeys` and settings of global tokens.

    A model that transformers computes equally is saved as ``modernbert``, which other programs load
    too; with `full_attention_window`, `global_layers` all, or the pooling ``max`` as
    ``ldt_modernbert``.

    Args:
        classifier_pooling: input of classification and multiple choice heads: ``cls``, the first
            real token; or the elementwise ``mean`` or ``max`` of all real tokens.
        full_attention_window: window of ModernBERT's full-attention layers in tokens, both sides
            together, even; None keeps them full.
        global_layers: layers in which global tokens attend to all tokens and are attended to by
            all: ModernBERT's ``full`` layers, ``all``, or ``none``. Without `full_attention_window`
            all tokens are global in full layers anyway.
        clip_global_distances: True, with `global_layers` all, treats tokens beyond the window as if
            at its edge when they attend to or are attended to by global tokens in local layers,
            where distances beyond `local_attention` were never trained; takes memory in proportion
            to length times global tokens.
    """

    model_type = "ldt_modernbert"
    theirs = ModernBertConfig.model_type
    names: ClassVar[dict[str, str]] = {
        **{f"ModernBert{head}": f"Ldt{head}" for head in HEADS},
        "ModernBertModel": "LdtModernBertModel",
    }
    own_keys = ("full_attention_window", "global_layers", "clip_global_distances")
    projections: ClassVar[tuple[str, ...]] = ("Wqkv",)
    lacks: ClassVar[dict[str, str]] = {
        "attention_window": "a ModernBERT has windows of its own (local_attention) and full "
        "layers, to which ldt convert SOURCE TARGET --window TOKENS gives windows",
        "position_embeddings": "a ModernBERT has no table of positions to train",
    }

    classifier_pooling: Literal["cls", "mean", "max"] = "cls"  # type: ignore[assignment]
    full_attention_window: int | None = None
    global_layers: Literal["full", "all", "none"] = "full"
    clip_global_distances: bool = False

    @property
    def longest_input(self) -> int:
        """Longest input in tokens, with special tokens."""
        return self.max_position_embeddings

    @property
    def attention_window(self):
        """List of the window of each layer in tokens, both sides together; full layers get one that
        covers every input."""
        everything = self.full_attention_window or 2 * self.max_position_embeddings
        local = self.local_attention // 2 * 2
        return [everything if kind == "full_attention" else local for kind in self.layer_types]

    @property
    def global_tokens_matter(self):
        """False if no layer treats global tokens differently."""
        windows = self.full_attention_window is not None
        return self.global_layers == "all" or (self.global_layers == "full" and windows)

    @property
    def hidden_dropout_prob(self):
        """Dropout of heads that transformers lacks."""
        return self.classifier_dropout

    @property
    def is_plain(self):
        """True if transformers' ModernBERT computes the same."""
        ours = self.full_attention_window is not None or self.global_layers == "all"
        return not ours and self.classifier_pooling != "max"

    @classmethod
    def in_own_terms(cls, values, source="SOURCE"):
        """Values of a ModernBERT in ldt's keys; see `OwnConfig.in_own_terms`."""
        values = super().in_own_terms(values, source)
        if values.get("local_rope_theta", 0) is None:  # meant that of full layers
            values["local_rope_theta"] = values.get("global_rope_theta", 160_000.0)
        return values

    def check(self):
        super().check()
        _check_pad_token(self)
        dim, remainder = divmod(self.hidden_size, self.num_attention_heads)
        if remainder or dim % 2:
            raise ValueError(
                f"hidden_size {self.hidden_size} must give each of num_attention_heads an even "
                f"number, got {self.num_attention_heads} heads"
            )
        if getattr(self, "head_dim", None) not in (None, dim):
            raise ValueError(f"head_dim must be hidden_size by heads, {dim}, got {self.head_dim}")
        if self.clip_global_distances and self.global_layers != "all":
            raise ValueError(
                "clip_global_distances is for global_layers all: elsewhere no distance of a global "
                f"token is new to a layer, got {self.global_layers!r}"
            )
        kinds = ("full_attention", "sliding_attention")
        for kind in self.layer_types:
            if kind not in kinds:
                raise ValueError(f"layer_types must be {' or '.join(kinds)}, got {kind!r}")
            parameters = self.rope_parameters[kind]
            if parameters.get("rope_type") not in ROTATIONS:
                raise ValueError(
                    f"rope_parameters: rope_type must be {', '.join(ROTATIONS)}, "
                    f"got {parameters.get('rope_type')!r}"
                )
            if not parameters.get("rope_theta", 0) > 0:
                raise ValueError(
                    f"rope_theta must be above 0, got {parameters.get('rope_theta')!r}"
                )

    @staticmethod
    def of_new_model(chosen: dict[str, Any], pad: int, longest: int) -> dict[str, Any]:
        """Values of config keys of a model to be trained from scratch, as in the published ones;
        see `LdtConfig.of_new_model`. ``pad`` is not read."""
        return {
            "max_position_embeddings": longest,
            "classifier_pooling": "mean",
            "intermediate_size": chosen.get("hidden_size", 768) * 3 // 2,
        }


@strict
class LdtSeq2SeqConfig(PooledConfig, LEDConfig):
    """transformers' LEDConfig with ldt's additions to the encoder: attention backends, dilated
    windows and the second level of a Poolingformer.

    `attention_window` is in tokens, both sides together. The longest input is
    `max_encoder_position_embeddings`, the longest output with its start token
    `max_decoder_position_embeddings`: no row of either table is for padding.

    Without dilation and `pooling_layers` the model is saved as a LED, which transformers loads. The
    authors' config (allenai/longformer) is read too.

    Args:
        attention_backend: see `LdtConfig`.
        evidence_weights: weights of the losses summed by `LdtForEvidenceGeneration`; 1 if not
            given.
        global_attention: see `LdtConfig`.
    """

    model_type = "ldt_seq2seq"
    keys_to_ignore_at_inference = ["past_key_values", "encoder_last_hidden_state"]
    attribute_map = LEDConfig.attribute_map | {
        "hidden_act": "activation_function",
        "hidden_dropout_prob": "dropout",
    }
    theirs, title = LEDConfig.model_type, "an LED"
    reads = (model_type, theirs)
    names: ClassVar[dict[str, str]] = {
        _AUTHORS_LED: "LdtForConditionalGeneration",  # of two names the last is written
        "LEDForConditionalGeneration": "LdtForConditionalGeneration",
        "LEDModel": "LdtSeq2SeqModel",
    }
    # Of BART's family, which the authors' class is of, with the value that LED has.
    fixed: ClassVar[dict[str, Any]] = PooledConfig.fixed | {
        "scale_embedding": False,
        "normalize_before": False,
        "add_final_layer_norm": False,
        "add_bias_logits": False,
        "static_position_embeddings": False,
        "normalize_embedding": True,
    }
    unused: ClassVar[tuple[str, ...]] = (
        *PooledConfig.unused,
        "extra_pos_embeddings",
        "max_position_embeddings",
    )
    causal = False  # of the encoder

    attention_backend: str = "auto"
    evidence_weights: dict[str, float] = field(default_factory=dict)
    global_attention: list[str] | None = None

    @property
    def is_plain(self):
        """True if transformers' LED computes the same."""
        gaps = {gap for layer in layer_dilations(self) for gap in layer}
        return gaps == {1} and not self.pooling_layers

    @classmethod
    def _is_authors(cls, values):
        named = _AUTHORS_LED in (values.get("architectures") or ())
        return named and values.get("model_type") not in cls.reads

    def check(self):
        super().check()
        heads = self.decoder_attention_heads
        if self.d_model % heads:
            raise ValueError(
                f"d_model {self.d_model} must be a multiple of decoder_attention_heads, got {heads}"
            )
        for name in ("encoder_layerdrop", "decoder_layerdrop"):
            if getattr(self, name):
                raise ValueError(
                    f"{name} must be 0: layers are not dropped, got {getattr(self, name)}"
                )


@strict
class LdtCausalConfig(OwnConfig, PreTrainedConfig):
    """Config of a character model; the defaults are those of the paper's small model.

    There is no position table, so inputs may have any length.

    Args:
        attention_window: window in tokens, both sides together as everywhere in ldt, even; a causal
            token attends to the half before it. One number, or one per layer.
        attention_dilation: gap between the tokens of a window, 1 = contiguous; a number for all
            layers, or one per layer, each of which may be a list with one number per head.
        hidden_dropout_prob: dropout after the embeddings, both halves of a layer, the activation
            and the last normalisation.
        attention_probs_dropout_prob: dropout of attention probabilities.
        memory_length: 0; or as in Transformer-XL the length of the parts that an input is cut into,
            with no gradient from a part into the states of the previous one. It changes gradients,
            never outputs, so windows may not reach further than it.
        attention_backend: a name in `ldt.attention.BACKENDS` with relative positions (reference,
            blocked), or ``auto``, which is blocked on every device.
        tie_word_embeddings: True uses the embedding as the output projection, as in
            Transformer-XL's character models.
    """

    model_type = "ldt_causal"
    backends = PLAIN

    vocab_size: int = 256
    hidden_size: int = 512
    num_hidden_layers: int = 12
    num_attention_heads: int = 8
    intermediate_size: int = 2048
    hidden_act: str = "gelu"
    attention_window: int | list[int] = 512
    attention_dilation: int | list[int | list[int]] = 1
    hidden_dropout_prob: float | int = 0.2
    attention_probs_dropout_prob: float | int = 0.0
    memory_length: int = 0
    attention_backend: str = "auto"
    layer_norm_eps: float = 1e-5
    initializer_range: float = 0.02
    tie_word_embeddings: bool = True
    use_cache: bool = False
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None

    def check(self):
        super().check()
        _check_layers(self)
        if self.hidden_size % 2:
            raise ValueError(
                f"hidden_size must be even, half sines and half cosines, got {self.hidden_size}"
            )
        longest = max(reaches(self))
        if self.memory_length < 0 or 0 < self.memory_length < longest:
            raise ValueError(
                f"memory_length must be 0 or at least {longest}, which the windows reach, got "
                f"{self.memory_length}"
            )


def usable_length(config) -> int:
    """Longest input in tokens, with special tokens; for an encoder-decoder that of the encoder."""
    if config.is_encoder_decoder:
        return config.max_encoder_position_embeddings
    if hasattr(config, "longest_input"):
        return config.longest_input
    return config.max_position_embeddings - config.pad_token_id - 1


def _each_layer(config, name):
    """List of a key's value for each layer; ValueError if there are not as many as layers."""
    value, layers = getattr(config, name), config.num_hidden_layers
    entries = [value] * layers if isinstance(value, int) else list(value)
    if len(entries) != layers:
        raise ValueError(
            f"{name} must be one number or one entry for each of the {layers} layers, "
            f"got {len(entries)}"
        )
    return entries


def layer_windows(config):
    """List of the window of each layer in tokens, both sides together; ValueError if there are not
    as many as layers."""
    return _each_layer(config, "attention_window")


def layer_dilations(config) -> list[tuple[int, ...]]:
    """Gap between the tokens of a window, 1 = contiguous: of each layer a tuple with a number per
    head; ValueError if there are not as many."""
    heads = config.num_attention_heads
    dilations = [per_head(entry, heads) for entry in _each_layer(config, "attention_dilation")]
    for layer in dilations:
        if len(layer) != heads:
            raise ValueError(
                f"attention_dilation of a layer must be one number or one for each of the {heads} "
                f"heads, got {len(layer)} numbers"
            )
    return dilations


def upper_middle_layers(layers: int) -> list[int]:
    """Numbers, from 0, of the quarter of ``layers`` layers to which Poolingformer gives a second
    level: the 15th to 20th of 24, the 8th to 10th of 12."""
    count, end = max(1, layers // 4), max(1, layers * 5 // 6)
    return list(range(max(0, end - count), end))


def reaches(config) -> list[int]:
    """Distance in tokens from a token to the farthest one before it in each layer's window."""
    pairs = zip(layer_windows(config), layer_dilations(config), strict=True)
    return [window // 2 * max(dilations) for window, dilations in pairs]


def _check_layers(config):
    """Raise ValueError if per-layer values contradict each other."""
    layer_windows(config)
    layer_dilations(config)
    if config.hidden_size % config.num_attention_heads:
        raise ValueError(
            f"hidden_size {config.hidden_size} must be a multiple of num_attention_heads, "
            f"got {config.num_attention_heads}"
        )


def _check_pad_token(config):
    if config.pad_token_id is None or not 0 <= config.pad_token_id < config.vocab_size:
        raise ValueError(
            f"pad_token_id must be an id of the {config.vocab_size} in the vocabulary, "
            f"got {config.pad_token_id}"
        )
