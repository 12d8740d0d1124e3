"""Whole encoders of equal width and depth, with random weights: ldt and its peers."""

import statistics
from typing import TYPE_CHECKING, Any

import torch
from setting import Setting

from ldt.inference.measure import WARM_UP, fresh, peak_mib

if TYPE_CHECKING:
    from transformers import PreTrainedModel

OWN_MODERNBERT = ("ldt-modernbert", "ldt-modernbert-windows")  # the second: also in full layers


def build(name: str, tokens: int, setting: Setting) -> "PreTrainedModel":
    """A random encoder for inputs of ``tokens`` tokens, in evaluation mode.

    The feed-forward network is four times the width; ModernBERT's has a gate and one and a half
    times the width, as in its published sizes, and its own pattern of windows: 128 tokens, every
    third layer global. So has ldt's, of whose full layers the second has the setting's window.

    The Poolingformer has the setting's window in the second level, which a quarter of the layers
    have, at least one, and a quarter of that window in the first: the paper's 128 and 512 beside a
    Longformer of 512.

    Args:
        name: ldt, poolingformer, one of `OWN_MODERNBERT`, longformer, roberta, modernbert, or an
            attention backend, which is ldt with that backend.
    """
    from transformers import LongformerConfig, LongformerModel, RobertaConfig, RobertaModel

    from ldt.model import LdtConfig, LdtModel
    from ldt.model.config import upper_middle_layers

    common: dict[str, Any] = {
        "vocab_size": setting.vocabulary,
        "hidden_size": setting.width,
        "num_attention_heads": setting.heads,
        "num_hidden_layers": setting.layers,
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
    }
    like_roberta: dict[str, Any] = {
        "intermediate_size": 4 * setting.width,
        "max_position_embeddings": tokens + 2,
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
    }
    own: dict[str, Any]
    model: PreTrainedModel
    torch.manual_seed(0)
    if name in ("modernbert", *OWN_MODERNBERT):
        model = _modernbert(name, tokens, setting, common)
    elif name == "roberta":
        own = {"attn_implementation": "sdpa"}
        config = RobertaConfig(**common, **like_roberta, **own)
        model = RobertaModel(config, add_pooling_layer=False)
    elif name == "longformer":
        own = {"attention_window": setting.window}
        model = LongformerModel(
            LongformerConfig(**common, **like_roberta, **own), add_pooling_layer=False
        )
    else:
        own = {"attention_window": setting.window}
        if name == "poolingformer":
            own = {"attention_window": max(2, setting.window // 8 * 2)}
            own |= {"pooling_window": setting.window}
            own |= {"pooling_layers": upper_middle_layers(setting.layers)}
        elif name != "ldt":
            own |= {"attention_backend": name}
        model = LdtModel(LdtConfig(**common, **like_roberta, **own), add_pooling_layer=False)
    return model.eval().to(setting.device, setting.torch_dtype)


def _modernbert(
    name: str, tokens: int, setting: Setting, common: dict[str, Any]
) -> "PreTrainedModel":
    """`build` of a ModernBERT, ldt's or transformers'."""
    from transformers import ModernBertConfig, ModernBertModel

    from ldt.model import LdtModernBertConfig, LdtModernBertModel

    own: dict[str, Any] = {"intermediate_size": 3 * setting.width // 2}
    own |= {"max_position_embeddings": tokens, "cls_token_id": 0, "sep_token_id": 2}
    if name == "modernbert":
        own["attn_implementation"] = "sdpa"
        return ModernBertModel(ModernBertConfig(**common, **own))
    own["full_attention_window"] = setting.window if name == OWN_MODERNBERT[1] else None
    return LdtModernBertModel(LdtModernBertConfig(**common, **own))


def inputs(name, lengths, setting: Setting):
    """Random ids of documents of these lengths, padded on the right, token 0 global."""
    generator = torch.Generator().manual_seed(1)
    shape = len(lengths), max(lengths)
    batch = {"input_ids": torch.randint(5, setting.vocabulary, shape, generator=generator)}
    batch["attention_mask"] = (torch.arange(shape[1]) < torch.tensor(lengths)[:, None]).long()
    if name not in ("roberta", "modernbert"):
        batch["global_attention_mask"] = torch.zeros(shape, dtype=torch.long)
        batch["global_attention_mask"][:, 0] = 1
    return {key: value.to(setting.device) for key, value in batch.items()}


def step(model, batch, kind):
    """One forward pass (``kind`` forward), or forward and backward (training)."""
    if kind == "forward":
        with torch.inference_mode():
            return model(**batch)
    model(**batch).last_hidden_state.float().square().mean().backward()
    for parameter in model.parameters():
        parameter.grad = None
    return None


def load(name, tokens, kind, setting: Setting):
    """(run, warm_up): a call of ``kind`` at one document of ``tokens``, and one at few tokens."""
    model = build(name, tokens, setting)
    batch = inputs(name, [tokens], setting)
    few = inputs(name, [min(tokens, WARM_UP)], setting)
    return lambda: step(model, batch, kind), lambda: step(model, few, kind)


def peak(*what, runs=3):
    """MiB of `load`'s call over the loaded model, median of fresh processes: the allocator's holes
    differ by some per cent from process to process."""
    return statistics.median(fresh(_peak, *what) for _ in range(runs))


def _peak(*what):
    return peak_mib(*load(*what))
