"""LdtModernBertConfig: ModernBERT's config, read from files with old and with new names."""

from typing import ClassVar, Literal

from huggingface_hub.dataclasses import strict
from transformers import ModernBertConfig
from transformers.activations import ACT2FN

from ldt.attention import BACKENDS
from ldt.model.config import AnswerKeys, OwnConfig, check_pad_token
from ldt.model.encoders.rotation import TYPES
from ldt.model.fields import check_values
from ldt.model.stock import HEADS

_OURS = ("full_attention_window", "global_layers", "clip_global_distances")
_NAMES = {  # of heads that transformers has, there and here
    f"ModernBert{head}": f"Ldt{head}" if head != "Model" else "LdtModernBertModel" for head in HEADS
}


@strict
class LdtModernBertConfig(OwnConfig, AnswerKeys, ModernBertConfig):
    """transformers' ModernBertConfig with the keys of `AnswerKeys`, and where global tokens are.

    A model that transformers computes as well is written as one of theirs, ``modernbert``, which
    other programs load too; with `full_attention_window`, with `global_layers` all, and with the
    pooling ``max`` it is ldt's alone, ``ldt_modernbert``.

    Args:
        classifier_pooling: what sequence classification and multiple choice read: ``cls``, the
            first real token; or the ``mean`` or ``max`` of all real tokens, by feature.
        full_attention_window: tokens in reach on both sides together in the layers that are full in
            a ModernBERT, even; None: all tokens of the document.
        global_layers: where the global tokens of a task see all tokens and are seen by all: in the
            layers that are ``full`` in a ModernBERT, in ``all``, or in ``none``. Without
            `full_attention_window` all tokens are global in full layers anyway.
        clip_global_distances: whether in layers that are no full ones in a ModernBERT, where
            distances beyond `local_attention` were never trained, a global token and another that
            is farther away count as if it stood at the window's edge. With `global_layers` all;
            costs memory in proportion to the length times the number of global tokens.
    """

    model_type = "ldt_modernbert"
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
    def longest_input(self):
        """Longest input in tokens, special tokens included."""
        return self.max_position_embeddings

    @property
    def attention_window(self):
        """Tokens in reach in each layer, both sides together; as many as see all in full ones."""
        everything = self.full_attention_window or 2 * self.max_position_embeddings
        local = self.local_attention // 2 * 2
        return [everything if kind == "full_attention" else local for kind in self.layer_types]

    @property
    def global_tokens_count(self):
        """False where no layer treats global tokens apart from others."""
        windows = self.full_attention_window is not None
        return self.global_layers == "all" or (self.global_layers == "full" and windows)

    @property
    def hidden_dropout_prob(self):
        """Of the heads that transformers does not have."""
        return self.classifier_dropout

    @property
    def is_plain(self):
        """True where transformers computes the same."""
        ours = self.full_attention_window is not None or self.global_layers == "all"
        return not ours and self.classifier_pooling != "max"

    @staticmethod
    def plain(values, source="SOURCE"):
        """As `OwnConfig.plain`: of transformers' ModernBERT or of ldt's."""
        values = dict(values)
        if values.get("local_rope_theta", 0) is None:  # meant that of full layers
            values["local_rope_theta"] = values.get("global_rope_theta", 160_000.0)
        names = values.get("architectures") or []
        return values | {
            "model_type": LdtModernBertConfig.model_type,
            "architectures": [_NAMES.get(name, name) for name in names],
        }

    @staticmethod
    def of_new_model(chosen, pad, longest):
        """As `ldt.model.LdtConfig.of_new_model`; the published models' values."""
        return {
            "max_position_embeddings": longest,
            "classifier_pooling": "mean",
            "intermediate_size": chosen.get("hidden_size", 768) * 3 // 2,
        }

    def to_diff_dict(self):
        """As in transformers, what config.json gets; of a plain model that of transformers."""
        values = super().to_diff_dict()
        if self.is_plain:
            theirs = {ours: name for name, ours in _NAMES.items()}
            names = values.get("architectures") or []
            values["architectures"] = [theirs.get(name, name) for name in names]
            values["model_type"] = ModernBertConfig.model_type
            for key in _OURS:
                values.pop(key, None)
        return values


def check_modernbert(config):
    """Raise a ValueError for numbers that do not go together, or that are not computed here."""
    check_values(type(config), vars(config))
    check_pad_token(config)
    if config.attention_backend not in ("auto", *BACKENDS):
        raise ValueError(
            f"attention_backend must be auto, {', '.join(BACKENDS)}, "
            f"got {config.attention_backend!r}"
        )
    for key in ("hidden_activation", "classifier_activation"):
        if getattr(config, key) not in ACT2FN:
            raise ValueError(
                f"{key} must be one of {', '.join(ACT2FN)}, got {getattr(config, key)!r}"
            )
    dim, rest = divmod(config.hidden_size, config.num_attention_heads)
    if rest or dim % 2:
        raise ValueError(
            f"hidden_size {config.hidden_size} must give each of num_attention_heads an even "
            f"number, got {config.num_attention_heads} heads"
        )
    if getattr(config, "head_dim", None) not in (None, dim):
        raise ValueError(f"head_dim must be hidden_size by heads, {dim}, got {config.head_dim}")
    if config.local_attention < 2:
        raise ValueError(f"local_attention must be at least 2, got {config.local_attention}")
    window = config.full_attention_window
    if window is not None and (window < 2 or window % 2):
        raise ValueError(f"full_attention_window must be even and at least 2, got {window}")
    if config.clip_global_distances and config.global_layers != "all":
        raise ValueError(
            "clip_global_distances is for global_layers all: elsewhere no distance of a global "
            f"token is new to a layer, got {config.global_layers!r}"
        )
    if config.max_position_embeddings < 1:
        raise ValueError(
            f"max_position_embeddings must be at least 1, got {config.max_position_embeddings}"
        )
    _check_layers(config)


def _check_layers(config):
    """The part of `check_modernbert` about the kinds of layers."""
    kinds = ("full_attention", "sliding_attention")
    for kind in config.layer_types:
        if kind not in kinds:
            raise ValueError(f"layer_types must be {' or '.join(kinds)}, got {kind!r}")
        found = config.rope_parameters[kind]
        if found.get("rope_type") not in TYPES:
            raise ValueError(
                f"rope_parameters: rope_type must be {', '.join(TYPES)}, "
                f"got {found.get('rope_type')!r}"
            )
        if not found.get("rope_theta", 0) > 0:
            raise ValueError(f"rope_theta must be above 0, got {found.get('rope_theta')!r}")
