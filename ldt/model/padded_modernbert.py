"""A ModernBERT on padded batches in plain operators, for `ldt.model.padded`."""

import torch
from torch.nn import functional as F

from ldt.attention import padded
from ldt.model.encoders.rotation import frequencies, tables, turned


def encoded(encoder, ids, keep, far, types=None, short=False):
    """(x [b, n, d], keep) of the last layer.

    Memory grows linearly with the length but in full layers without a window, whose scores are
    [b, heads, n, n].

    Args:
        encoder: `ldt.model.LdtModernBertModel`, without clipped distances.
        ids: [b, n] int64.
        keep: [b, n] bool, real tokens.
        far: `ldt.attention.padded.Globals`, None where no token is global.
        types, short: change nothing.
    """
    config = encoder.config
    x = encoder.embeddings.norm(encoder.embeddings.tok_embeddings(ids))
    first = keep.int().argmax(1, keepdim=True)
    place = torch.arange(ids.shape[1], device=ids.device) - first
    windows, angles = {}, {}
    for kind in set(config.layer_types):
        layer = encoder.layers[config.layer_types.index(kind)]
        seen = far if config.global_layers in ("all", kind.removesuffix("_attention")) else None
        size = layer.attn.window
        windows[kind] = None if size is None else padded.Window(keep, seen, size)
        angles[kind] = _angles(place, config, kind, x.dtype)
    for layer, kind in zip(encoder.layers, config.layer_types, strict=True):
        out = _attention(layer.attn, layer.attn_norm(x), keep, windows[kind], *angles[kind])
        x = x + plain_linear(layer.attn.Wo, out.transpose(1, 2).flatten(2))
        hot, gate = plain_linear(layer.mlp.Wi, layer.mlp_norm(x)).chunk(2, -1)
        x = x + plain_linear(layer.mlp.Wo, layer.mlp.act(hot) * gate)
    return encoder.final_norm(x), keep


def plain_linear(module, x):
    """A linear layer without the module itself, which chooses among libraries."""
    return F.linear(x, module.weight, module.bias)


def _angles(place, config, kind, dtype):
    """(cos, sin), [b, 1, n, dim / 2] each, of places [b, n]."""
    made = tables(place.flatten(), *frequencies(config, kind), dtype)
    return tuple(x.unflatten(0, (-1, place.shape[1])).transpose(1, 2) for x in made)


def _attention(level, x, keep, window, cos, sin):
    """[b, heads, n, dim]"""
    heads = level.config.num_attention_heads
    parts = plain_linear(level.Wqkv, x).unflatten(2, (3, heads, -1))
    q, k, v = (part.transpose(1, 2) for part in parts.unbind(2))
    q, k = turned(q, cos, sin), turned(k, cos, sin)
    if window is None:
        return padded.projected_global_attention(q, k, v, keep)
    out = window.attention(q, k, v)
    if window.far is None:
        return out
    at = window.far.positions[:, None, :, None].expand(-1, heads, -1, q.shape[3])
    rows = padded.projected_global_attention(q.gather(2, at), k, v, keep)
    return padded.fill_global_rows(out, rows, window.far)
