"""Segments of documents, each with a memory in front of it through which no gradient flows."""

from itertools import pairwise

import torch

from ldt.attention import Layout


class Segments:
    """Cuts packed documents into segments; in front of each stand the tokens before it.

    Where x [total, …] are the hidden states of a layer, each segment is a document of its own in
    ``torch.cat([x.detach(), x])``: its memory taken from the first half, its tokens from the
    second. All segments are computed at once: unlike in Transformer-XL's code (Dai et al. 2019,
    arXiv:1901.02860) the memory is not carried from batch to batch, an input begins without.

    Args:
        layout: where the documents lie; without global tokens.
        length: tokens of a segment, and of the memory before it.
    """

    def __init__(self, layout, length):
        total, device = layout.total_tokens, layout.cu_seqlens.device
        parts, sizes = [], []
        for start, stop in pairwise(layout.cu_seqlens_host):
            for first in range(start, stop, length):
                behind = min(first + length, stop)
                parts.append(torch.arange(max(start, first - length), first))
                parts.append(torch.arange(first, behind) + total)
                sizes.append(len(parts[-2]) + len(parts[-1]))
        self.source = torch.cat(parts).to(device)
        self.rows = (self.source >= total).nonzero().squeeze(1)  # of the tokens, in their order
        keep = layout.key_padding_mask
        self.layout = Layout(
            torch.tensor([0, *sizes], device=device).cumsum(0),
            None if keep is None else keep[self.source % total],
            total_tokens=len(self.source),
            num_global=0,
        )

    def gather(self, x):
        """[2 * total, …], without and with gradient, to the tokens of the segments."""
        return x.index_select(0, self.source)

    def queries(self, q):
        """[total, …] to their places in the segments; zeros in the memories."""
        return q.new_zeros(len(self.source), *q.shape[1:]).index_copy(0, self.rows, q)

    def own(self, out):
        """[tokens of the segments, …] -> [total, …], without the memories."""
        return out.index_select(0, self.rows)
