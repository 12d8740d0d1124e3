"""For the tests of the second encoder: random ModernBERTs of transformers, and of ldt."""

import torch
import transformers
from longformers import PAD, SEP, VOCABULARY, shaken
from torch.nn import functional as F
from transformers import ModernBertConfig

import ldt.model
from ldt.model.config import LdtModernBertConfig

BIASES = dict.fromkeys(
    ("attention_bias", "mlp_bias", "norm_bias", "classifier_bias", "decoder_bias"), True
)


def values(**changes):
    """Four layers of width 16, the first and the last one full; local windows of 6 tokens."""
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "local_attention": 7,  # as 6: 3 tokens on each side
        "max_position_embeddings": 64,
        "initializer_range": 0.3,  # peaked attention, outputs of order one
        "num_labels": 3,
        "pad_token_id": PAD,
        "bos_token_id": 0,
        "cls_token_id": 0,
        "eos_token_id": SEP,
        "sep_token_id": SEP,
    } | changes


def modernbert(head="Model", **changes):
    """A random model of transformers in evaluation mode; norms are random as well."""
    if head == "ForQuestionAnswering":
        changes["num_labels"] = 2
    config = ModernBertConfig(**values(**changes), attn_implementation="sdpa")
    return shaken(getattr(transformers, "ModernBert" + head)(config))


def ours(head="Model", **changes):
    """A random model of ldt in evaluation mode."""
    cls = getattr(ldt.model, "LdtModernBertModel" if head == "Model" else "Ldt" + head)
    return shaken(cls(LdtModernBertConfig.from_dict(values(**changes))))


def pair(head, folder, dtype=torch.float32, **changes):
    """A random model of transformers, and the same file loaded in ldt."""
    theirs = modernbert(head, **changes)
    theirs.save_pretrained(folder)
    cls = getattr(ldt.model, "LdtModernBertModel" if head == "Model" else "Ldt" + head)
    return theirs.to(dtype), ldt.model.load(folder, cls, dtype=dtype)


def exact(monkeypatch):
    """Keep transformers in float64 where it turns queries and keys to float32."""
    module = transformers.models.modernbert.modeling_modernbert

    def rotary(q, k, cos, sin, unsqueeze_dim=1):
        cos, sin = (x.unsqueeze(unsqueeze_dim) for x in (cos, sin))
        return tuple(x * cos + module.rotate_half(x) * sin for x in (q, k))

    monkeypatch.setattr(module, "apply_rotary_pos_emb", rotary)


def readout(x):
    """A loss in which each element has a target of its own."""
    return F.mse_loss(x, torch.linspace(-1, 1, x.numel(), dtype=x.dtype).view_as(x))


def dense(model, ids, mask, is_global):
    """Hidden states [b, n, d] of a model of ldt by full matrices of scores, in its own dtype.

    Positions count from the first real token. Global tokens see all and are seen by all, in the
    layers that the config names; full layers may have a window. Clipped distances are taken one
    by one, each by angles of its own.

    Args:
        ids, mask, is_global: [b, n].
    """
    config = model.config
    b, n = ids.shape
    heads, dim = config.num_attention_heads, config.hidden_size // config.num_attention_heads
    place = torch.arange(n) - mask.int().argmax(1, keepdim=True)
    column = torch.arange(n)
    x = model.embeddings.norm(model.embeddings.tok_embeddings(ids))
    for layer, kind in zip(model.layers, config.layer_types, strict=True):
        full = kind == "full_attention"
        theta = config.rope_parameters[kind]["rope_theta"]
        growth = 1 / theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
        angle = (place.float()[..., None] * growth).repeat(1, 1, 2)[:, None]
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        qkv = layer.attn.Wqkv(layer.attn_norm(x)).view(b, n, 3, heads, dim)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)

        def turn(x, cos=cos, sin=sin):
            first, second = x.chunk(2, -1)
            return x * cos + torch.cat([-second, first], -1) * sin

        window = config.full_attention_window if full else config.local_attention // 2 * 2
        near = torch.ones(n, n, dtype=torch.bool)
        if window is not None:
            near = (column[:, None] - column).abs() <= window // 2
        seen = near.expand(b, n, n)
        if config.global_layers == "all" or (full and config.global_layers == "full"):
            marked = (is_global & mask).bool()
            seen = seen | marked[:, None] | marked[:, :, None]
        seen = seen & mask.bool()[:, None]
        scores = turn(q) @ turn(k).mT / dim**0.5
        if config.clip_global_distances and not full:
            # A key turned by its distance from the query, at most the reach.
            step = column - column[:, None]
            beyond = step.abs() > window // 2  # nearer ones are turned as all others are
            step = step.clamp(-(window // 2), window // 2)
            angle = (step.float()[..., None] * growth).repeat(1, 1, 2)
            first, second = k.chunk(2, -1)
            away = k[:, :, None] * angle.cos() + torch.cat([-second, first], -1)[:, :, None] * (
                angle.sin()
            )
            clipped = (q[:, :, :, None] * away.to(q.dtype)).sum(-1) / dim**0.5
            pairs = ((marked[:, None] | marked[:, :, None]) & beyond)[:, None]
            scores = torch.where(pairs, clipped, scores)
        probs = scores.masked_fill(~seen[:, None], -1e30).softmax(-1)
        x = x + layer.attn.Wo((probs @ v).transpose(1, 2).flatten(2))
        hot, gate = layer.mlp.Wi(layer.mlp_norm(x)).chunk(2, -1)
        x = x + layer.mlp.Wo(F.gelu(hot) * gate)
    return model.final_norm(x) * mask[..., None]
