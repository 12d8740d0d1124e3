"""The decoder's attention: to the tokens before, and to documents kept once each."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from ldt.attention.matmul import Linear, project_each
from ldt.model.packing import Packing
from ldt.model.recompute import cast_once


class Projections(nn.Module):
    """Query, key, value and output of an attention, under BART's names."""

    def __init__(self, config):
        super().__init__()
        width = config.d_model
        self.heads = config.decoder_attention_heads
        self.dropout = config.attention_dropout
        self.q_proj = Linear(width, width)
        self.k_proj = Linear(width, width)
        self.v_proj = Linear(width, width)
        self.out_proj = Linear(width, width)

    def attend(self, q, k, v, mask=None, causal=False):
        """[b, heads, t, dim] of queries of that shape, and keys and values [b, heads, n, dim]."""
        dropout = self.dropout if self.training else 0.0
        return F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal=causal)

    def project(self, x, *modules):
        """[..., heads, dim] of x [..., width], one after the other, for each of the modules."""
        for projected in project_each(modules, cast_once(x, *modules)):
            yield projected.unflatten(-1, (self.heads, -1))


class CausalAttention(Projections):
    """Attention of each token to itself and to the tokens before it."""

    def forward(self, x, mask, cache=None, index=None):
        """[rows, t, width] -> the same.

        Args:
            mask: [rows or 1, 1, t, cached + t] bool, True where a query sees a key. None: all that
                is before it, or at its place.
            cache: transformers' Cache, which has the tokens before and gets these.
            index: number of the layer, for the cache.
        """
        projected = self.project(x, self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (heads.transpose(1, 2) for heads in projected)
        if cache is not None:
            k, v = cache.update(k, v, index)
        out = self.attend(q, k, v, mask, causal=mask is None and q.shape[2] > 1)
        return self.out_proj(out.transpose(1, 2).flatten(2))


@dataclass
class Group:
    """Documents of one length that stand beside each other in a packed batch.

    Args:
        documents: how many.
        length: tokens of each.
        mask: [documents, 1, 1, length] bool, False at padding; None: there is none.
    """

    documents: int
    length: int
    mask: torch.Tensor | None


def groups_of(packing: Packing) -> list[Group]:
    """The groups of a packed batch, in order. A document of padding alone sees its one token."""
    layout, (rows, length) = packing.layout, packing.shape
    keep = layout.key_padding_mask
    if keep is not None:
        keep = keep.index_fill(0, packing.first_index(), True)
    if packing.index is None:
        sizes = [(rows, length)]
    else:
        borders, sizes = layout.cu_seqlens_host, []
        for start, end in zip(borders, borders[1:], strict=False):
            if sizes and sizes[-1][1] == end - start:
                sizes[-1] = (sizes[-1][0] + 1, end - start)
            else:
                sizes.append((1, end - start))
    masks: Any = [None] * len(sizes)
    if keep is not None:
        parts = keep.split([count * n for count, n in sizes])
        masks = [part.view(-1, 1, 1, n) for part, (_, n) in zip(parts, sizes, strict=True)]
    return [Group(*size, mask) for size, mask in zip(sizes, masks, strict=True)]


class CrossAttention(Projections):
    """Attention to the documents, which has no order: all rows of a document, its beams and their
    tokens, are queries of one block, and its keys and values are there once."""

    def forward(self, x, memory):
        """[rows, t, width] -> the same.

        Args:
            x: the rows of the first document, then those of the second, as many of each.
            memory: `keys_and_values` of the documents.
        """
        (q,) = self.project(x, self.q_proj)
        documents = sum(group.documents for group, _, _ in memory)
        q = q.reshape(documents, -1, *q.shape[2:]).transpose(1, 2)
        blocks = q.split([group.documents for group, _, _ in memory])
        out = [
            self.attend(block, k, v, group.mask)
            for block, (group, k, v) in zip(blocks, memory, strict=True)
        ]
        out = out[0] if len(out) == 1 else torch.cat(out)
        return self.out_proj(out.transpose(1, 2).reshape(x.shape))

    def keys_and_values(self, states, groups, contiguous=False):
        """Keys and values [documents, heads, length, dim] of each group, with the group in front.

        Args:
            states: [total, width], the encoder's.
            groups: of `groups_of`.
            contiguous: lay them out for many reads.
        """
        sizes = [group.documents * group.length for group in groups]
        sides = []
        for projected in self.project(states, self.k_proj, self.v_proj):
            parts = zip(projected.split(sizes), groups, strict=True)
            heads = [x.unflatten(0, (-1, group.length)).transpose(1, 2) for x, group in parts]
            sides.append([x.contiguous() for x in heads] if contiguous else heads)
        return list(zip(groups, *sides, strict=True))
