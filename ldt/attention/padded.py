"""The definition on padded batches, in operators that ONNX and OpenVINO have; for inference.

Memory grows linearly with the length. Sizes stay symbols under torch.export: tokens are fetched by
clamped positions, for padding to whole blocks would tie the length to the block.
"""

import torch
from torch.nn import functional as F

BLOCK = 16, 128  # least and most queries of a block


def global_tokens(is_global):
    """Where the global tokens of each row are.

    Args:
        is_global: [b, n] bool, at least one True in the batch.

    Returns:
        (positions [b, g] int64 in rising order, present [b, g] bool), g the most of a row.
    """
    length = is_global.shape[1]
    most = is_global.sum(1).amax(0).item()
    torch._check(most >= 1)
    torch._check(most <= length)
    place = torch.arange(length, device=is_global.device)
    # All values differ, so that topk has no ties to break.
    found, positions = torch.where(is_global, length - place, -place).topk(most, dim=1)
    return positions, found > 0


def sliding_window_attention(q, k, v, keep, is_global, positions, present, *, window):
    """`ldt.attention.reference.sliding_window_attention` of padded rows, each a document.

    Args:
        q, k, v: [b, n, heads, dim], the local projections.
        keep, is_global: [b, n] bool, real tokens, and those of them with global attention.
        positions, present: what `global_tokens` gives.
        window: tokens in reach on both sides together, even, >= 2.

    Returns:
        [b, n, heads, dim]; zeros at padding and at global tokens.
    """
    reach, length, device = window // 2, q.shape[1], q.device
    block = min(max(reach, BLOCK[0]), BLOCK[1])
    # One block or two more than needed: never a single one, a size that export treats apart.
    starts = torch.arange(length // block + 2, device=device)[:, None] * block
    rows = starts + torch.arange(block, device=device)
    keys = starts - reach + torch.arange(block + 2 * reach, device=device)
    inside = (keys >= 0) & (keys < length)

    def fetch(x, at):
        flat = at.clamp(0, length - 1).flatten()
        return x.index_select(1, flat).unflatten(1, (-1, at.shape[1]))

    offset = (
        torch.arange(keys.shape[1], device=device) - torch.arange(block, device=device)[:, None]
    )
    near = (offset >= 0) & (offset <= 2 * reach)
    seen = near & (fetch(keep & ~is_global, keys) & inside)[:, :, None, None]
    queries, far = fetch(q, rows) * q.shape[-1] ** -0.5, positions[:, :, None, None]
    far = far.expand(-1, -1, *q.shape[2:])
    band = torch.einsum("bcqhd,bckhd->bchqk", queries, fetch(k, keys))
    everywhere = torch.einsum("bcqhd,bghd->bchqg", queries, k.gather(1, far))
    # The least number, not -inf: a row that sees no key stays finite.
    least = torch.finfo(q.dtype).min
    scores = [
        torch.where(seen, band, least),
        torch.where(present[:, None, None, None], everywhere, least),
    ]
    probs = torch.cat(scores, -1).softmax(-1)
    near_probs, far_probs = probs[..., : keys.shape[1]], probs[..., keys.shape[1] :]
    out = torch.einsum("bchqk,bckhd->bcqhd", near_probs, fetch(v, keys))
    out = out + torch.einsum("bchqg,bghd->bcqhd", far_probs, v.gather(1, far))
    out = out.flatten(1, 2).index_select(1, torch.arange(length, device=device))
    return torch.where((keep & ~is_global)[:, :, None, None], out, 0.0)


def global_attention(q, x, key, value, keep):
    """`ldt.attention.reference.global_attention` of padded rows.

    Args:
        q: [b, g, heads, dim], query_global of the tokens at the positions of `global_tokens`.
        x: [b, n, width], the layer's input.
        key, value: (weight [heads * dim, width], bias [heads * dim]) of the global projections.
        keep: [b, n] bool, real tokens.

    Returns:
        [b, g, heads, dim]; of no meaning where a row has fewer global tokens.
    """
    k, v = (F.linear(x, *project).unflatten(2, (q.shape[2], -1)) for project in (key, value))
    scores = torch.einsum("bghd,bnhd->bhgn", q * q.shape[-1] ** -0.5, k)
    least = torch.finfo(q.dtype).min
    probs = torch.where(keep[:, None, None], scores, least).softmax(-1)
    return torch.einsum("bhgn,bnhd->bghd", probs, v)
