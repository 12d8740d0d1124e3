"""The config of a character model."""

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from ldt.attention import RELATIVE
from ldt.errors import ModelError
from ldt.model import adapters
from ldt.model.config import OwnConfig, check_layers, layer_dilations, layer_windows
from ldt.model.loading import find_folder, read_config


@strict
class LdtCausalConfig(OwnConfig, PreTrainedConfig):
    """Config of a character model; the defaults are those of the paper's small model.

    There is no position table, so inputs may have any length.

    Args:
        attention_window: tokens in reach on both sides together, as everywhere in ldt, even; a
            causal token sees the half of them that stands before it. One number or one a layer.
        attention_dilation: gap between the tokens of a window, 1 = contiguous; a number for all
            layers, or one a layer, in whose place a list of one number a head may stand.
        hidden_dropout_prob: after the embeddings, both parts of a layer, the activation and the
            last normalisation.
        attention_probs_dropout_prob: of the attention probabilities.
        memory_length: 0; or as in Transformer-XL: inputs are cut into parts of so many tokens, no
            gradient flows from a part into the hidden states of the one before. It changes
            gradients, never outputs: windows must not reach farther than the memory.
        attention_backend: a name in `ldt.attention.BACKENDS` that has relative positions
            (reference, blocked), or ``auto``, which takes blocked on every device.
        tie_word_embeddings: True: the output projection is the embedding, as in Transformer-XL's
            character models.
    """

    model_type = "ldt_causal"

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


def check_causal(config):
    """Raise a ValueError for numbers that do not go together."""
    check_layers(config, RELATIVE)
    if config.hidden_size % 2:
        raise ValueError(
            f"hidden_size must be even, half sines and half cosines, got {config.hidden_size}"
        )
    longest = max(reaches(config))
    if config.memory_length < 0 or 0 < config.memory_length < longest:
        raise ValueError(
            f"memory_length must be 0 or at least {longest}, which the windows reach, got "
            f"{config.memory_length}"
        )


def read_causal_config(path, **changes):
    """The LdtCausalConfig of a folder or hub id, with ``changes``.

    Raises:
        ModelError: there is none, or it is of another kind of model.
    """
    folder = find_folder(path)
    kind = adapters.values(folder).get("model_type")
    if kind != LdtCausalConfig.model_type:
        raise ModelError(f"{folder} is a {kind} model, no character model")
    return read_config(folder, **changes)


def reaches(config):
    """Reach of each layer's windows before a token, in tokens."""
    pairs = zip(layer_windows(config), layer_dilations(config), strict=True)
    return [window // 2 * max(dilations) for window, dilations in pairs]
