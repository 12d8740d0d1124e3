"""Transformer-XL's recurrence: parts of a document with the tokens before them as memory."""

from itertools import pairwise

import torch

from ldt.attention import Layout


class Recurrence:
    """Packed documents cut into parts, each with the tokens before it in front, as memory through
    which no gradient flows.

    Where x [total, …] are the hidden states of a layer, each part is a document of its own in
    ``torch.cat([x.detach(), x])``: its memory taken from the first half, its tokens from the
    second. All parts are computed at once: unlike in Transformer-XL's code (Dai et al. 2019,
    arXiv:1901.02860) the memory is not carried from batch to batch, an input begins without.

    Args:
        layout: where the documents lie; without global tokens.
        length: tokens of a part, and of the memory before it.
    """

    def __init__(self, layout, length):
        total, device = layout.total_tokens, layout.cu_seqlens.device
        sources, sizes = [], []
        for start, stop in pairwise(layout.cu_seqlens_host):
            for first in range(start, stop, length):
                end = min(first + length, stop)
                sources.append(torch.arange(max(start, first - length), first))
                sources.append(torch.arange(first, end) + total)
                sizes.append(len(sources[-2]) + len(sources[-1]))
        self.source = torch.cat(sources).to(device)
        # Places of the tokens that are no memory, in the order of the text.
        self.places = (self.source >= total).nonzero().squeeze(1)
        keep = layout.key_padding_mask
        self.layout = Layout(
            torch.tensor([0, *sizes], device=device).cumsum(0),
            None if keep is None else keep[self.source % total],
            total_tokens=len(self.source),
            num_global=0,
        )

    def gather(self, x):
        """[2 * total, …], without and with gradient -> [tokens and memories, …]."""
        return x.index_select(0, self.source)

    def with_memories(self, q):
        """[total, …] -> [tokens and memories, …], with zeros at the memories."""
        return q.new_zeros(len(self.source), *q.shape[1:]).index_copy(0, self.places, q)

    def without_memories(self, out):
        """[tokens and memories, …] -> [total, …]."""
        return out.index_select(0, self.places)
