"""A padded batch -> packed tokens, and back."""

from dataclasses import dataclass, replace

import torch

from ldt.attention import Layout
from ldt.attention.ops import count_globals


@dataclass(frozen=True, eq=False)
class Packing:
    """The correspondence of padded positions [b, n] and packed tokens [total].

    The document of a row spans from its first to its last real token; padding inside is
    masked. A row without any real token is a document of one masked token. Where no row begins or
    ends with padding, packing is a reshape.

    Args:
        layout: of the packed tokens.
        shape: (b, n) of the padded batch.
        index: [total] int64, the position of each packed token in the flattened batch; None when
            that is every position.
        first_is_global: whether the first real token of every row is known to be global.
    """

    layout: Layout
    shape: tuple[int, int]
    index: torch.Tensor | None = None
    first_is_global: bool = False

    def to(self, device):
        """The packing with its tensors on a device, such as that of a layer's output."""
        if device == self.layout.cu_seqlens.device:
            return self
        index = self.index if self.index is None else self.index.to(device)
        return replace(self, layout=self.layout.to(device), index=index)

    def pack(self, x, out=None):
        """[b, n, ...] -> [total, ...], maybe written to ``out``."""
        return _packed(x, self.index, out)

    def unpack(self, x, fill=0):
        """[total, ...] -> [b, n, ...], ``fill`` at all padding."""
        if self.layout.key_padding_mask is not None:
            padding = ~self.layout.key_padding_mask
            x = x.masked_fill(padding.view(-1, *[1] * (x.dim() - 1)), fill)
        if self.index is not None:
            room = x.new_full((self.shape[0] * self.shape[1], *x.shape[1:]), fill)
            x = room.index_copy(0, self.index, x)
        return x.unflatten(0, self.shape)

    def real(self):
        """[b, n] bool, True at real tokens."""
        keep = self.layout.key_padding_mask
        if keep is None:
            keep = self.layout.cu_seqlens.new_ones(self.layout.total_tokens, dtype=torch.bool)
        return self.unpack(keep)

    def first(self, x):
        """[total, ...] -> [b, ...], the first real token of each row."""
        return x.index_select(0, self.first_index())

    def first_index(self):
        """[b] int64, the packed index of the first real token of each row."""
        begin = self.layout.cu_seqlens[:-1]
        if self.index is not None or self.layout.key_padding_mask is None:
            return begin
        return begin + self.layout.key_padding_mask.unflatten(0, self.shape).int().argmax(1)

    def reduce(self, x, reduction):
        """[total, d] -> [b, d], ``mean`` or ``max`` of the real tokens of each row; else zeros."""
        keep, rows = self.layout.key_padding_mask, self.layout.cu_seqlens.diff()
        dtype, count = x.dtype, rows
        x = x.to(torch.promote_types(dtype, torch.float32))  # long sums
        if keep is not None:
            x = x.masked_fill(~keep[:, None], 0 if reduction == "mean" else float("-inf"))
            count = torch.segment_reduce(keep.float(), "sum", lengths=rows, unsafe=True)
        if reduction == "mean":
            total = torch.segment_reduce(x, "sum", lengths=rows, unsafe=True)
            return (total / count.clamp(min=1)[:, None]).to(dtype)
        largest = torch.segment_reduce(x, reduction, lengths=rows, unsafe=True)
        return largest.masked_fill((count == 0)[:, None], 0).to(dtype)

    def unpack_global_probabilities(self, probs):
        """[globals, heads, longest document] -> [b, heads, n, x], x globals at most in a row.

        Zeros at padding and in the columns of rows that have fewer than x global tokens.
        """
        b, n = self.shape
        rows = self.layout.cu_globals_host
        borders = self.layout.cu_seqlens_host
        x = max(after - before for before, after in zip(rows, rows[1:], strict=False))
        out = probs.new_zeros(b, probs.shape[1], n, x)
        for row in range(b):
            length = borders[row + 1] - borders[row]
            start = 0 if self.index is None else int(self.index[borders[row]]) - row * n
            mine = probs[rows[row] : rows[row + 1], :, :length]
            out[row, :, start : start + length, : len(mine)] = mine.permute(1, 2, 0)
        return out


def real_tokens(shape, attention_mask, device):
    """[b, n] bool from an attention mask, True at real tokens; None means all of them are."""
    if attention_mask is None:
        return torch.ones(shape, dtype=torch.bool, device=device)
    return _checked("attention_mask", attention_mask, shape) != 0


def first_real(words, attention_mask):
    """[b, n] bool, True at the first real token of each row of ``words`` [b, n, …]."""
    real = real_tokens(tuple(words.shape[:2]), attention_mask, words.device)
    return torch.zeros_like(real).scatter(1, real.int().argmax(1, keepdim=True), True)


def check_positions(positions, length):
    """Check positions [...] of tokens in an input; a negative one stands for none.

    Raises:
        ValueError: one lies at or behind ``length``; looked for on the CPU only: a GPU would wait.
    """
    looked_at = positions.device.type == "cpu" and not torch.compiler.is_compiling()
    if looked_at and (positions >= length).any():
        last = int(positions.max())
        raise ValueError(f"positions must be below the input's length {length}, got {last}")


def pack(shape, attention_mask=None, global_attention_mask=None, device=None):
    """The `Packing` of a batch of ``shape`` (b, n).

    Reads from the device once, how many tokens there are of each kind; not at all without masks.
    In a graph of torch.compile all padding stays in, masked: its lengths cannot be known there.

    Args:
        attention_mask: [b, n] bool, int or float: 0 at padding, 1 at real tokens, 2 at real tokens
            with global attention (the authors' way to say it). None: all tokens are real.
        global_attention_mask: [b, n]: 1 or 2 at tokens with global attention, else 0. None: none.
            At padding it is ignored, whatever a tokenizer puts there.

    Raises:
        ValueError: a mask of another shape, or (looked at on the CPU only) with another value.
    """
    b, n = shape
    device = device if attention_mask is None else attention_mask.device
    cu_seqlens = torch.arange(0, b * n + 1, n, device=device)
    if attention_mask is None and global_attention_mask is None:
        return Packing(Layout(cu_seqlens, total_tokens=b * n, num_global=0), shape)
    keep = real_tokens(shape, attention_mask, device)
    is_global = _global_tokens(attention_mask, global_attention_mask, keep)
    if torch.compiler.is_compiling():
        # The number of tokens must not depend on the masks, so nothing is cut off.
        keep = None if attention_mask is None else keep.flatten()
        is_global = is_global.flatten()
        num_global = count_globals(is_global)
        return Packing(Layout(cu_seqlens, keep, is_global, b * n, num_global), shape)

    # A row is cut to the span from its first to its last real token. One without any keeps its
    # first position, since every document has a token.
    first = keep.view(torch.uint8).argmax(1)
    last = (keep * torch.arange(n, device=keep.device)).amax(1)
    leading = is_global.gather(1, first[:, None]).squeeze(1)
    # All numbers together, so that the host waits for the device once.
    rows = torch.stack([first, last, keep.sum(1), is_global.sum(1), leading]).tolist()
    begin, end, real, num_global, leading = map(sum, rows)
    total, index = end - begin + b, None
    if total < b * n:
        begin = cu_seqlens[:-1] + first  # of each document, in the flattened batch
        lengths = last - first + 1
        torch.cumsum(lengths, 0, out=cu_seqlens[1:])
        skipped = (begin - cu_seqlens[:-1]).repeat_interleave(lengths, output_size=total)
        index = torch.arange(total, device=keep.device) + skipped
    keep = _packed(keep, index) if real < total else None
    is_global = _packed(is_global, index) if num_global else None
    layout = Layout(cu_seqlens, keep, is_global, total, num_global)
    return Packing(layout, shape, index, first_is_global=leading == b)


def _packed(x, index, out=None):
    x = x.flatten(0, 1)
    if index is not None:
        return torch.index_select(x, 0, index, out=out)
    return x if out is None else out.copy_(x)


def _global_tokens(attention_mask, global_attention_mask, keep):
    """[b, n] bool, True at real tokens with global attention; arguments as of `pack`."""
    twos = attention_mask is not None and attention_mask.dtype != torch.bool
    if global_attention_mask is None:
        return attention_mask == 2 if twos else torch.zeros_like(keep)
    marked = _checked("global_attention_mask", global_attention_mask, keep.shape, keep) != 0
    return (marked | (attention_mask == 2) if twos else marked) & keep


def given_words(input_ids, inputs_embeds):
    """Ids [b, n] or embeddings [b, n, d], whichever of the two was given.

    Raises:
        ValueError: both or neither, or one that is empty or of another shape.
    """
    if (input_ids is None) == (inputs_embeds is None):
        raise ValueError("give either input_ids or inputs_embeds, and not both")
    words = input_ids if inputs_embeds is None else inputs_embeds
    if words.dim() != (2 if inputs_embeds is None else 3) or 0 in words.shape[:2]:
        raise ValueError(
            "the input must be [batch, length] ids or [batch, length, width] embeddings, with "
            f"at least one token, got {[*words.shape]}"
        )
    return words


def check_ids(name, ids, rows, shape):
    """Check ids [b, n], or [1, n], of the ``rows`` of an embedding.

    Raises:
        ValueError: they are of another shape or type, or (looked at on the CPU only) of no row:
            an embedding would raise an IndexError, or CUDA an assertion.
    """
    if ids.shape not in (shape, (1, shape[1])) or ids.is_floating_point():
        raise ValueError(f"{name} must be {list(shape)} integers, got {[*ids.shape]}")
    if ids.device.type == "cpu":
        low, high = (int(value) for value in ids.aminmax())
        if low < 0 or high >= rows:
            raise ValueError(f"{name} must be 0 to {rows - 1}, got {low if low < 0 else high}")


def _checked(name, mask, shape, where=None):
    if mask.shape != torch.Size(shape):
        raise ValueError(f"{name} must have the input's shape {list(shape)}, got {[*mask.shape]}")
    looked_at = mask.device.type == "cpu" and not torch.compiler.is_compiling()
    if looked_at and mask.dtype != torch.bool:
        wrong = (mask != 0) & (mask != 1) & (mask != 2)
        wrong = wrong if where is None else wrong & where
        if wrong.any():
            row, column = wrong.nonzero()[0].tolist()
            value = mask[row, column].item()
            raise ValueError(f"{name} must hold 0, 1 or 2, got {value} in row {row}")
    return mask


def pack_words(model, input_ids, inputs_embeds, masks, packing=None):
    """Ids [b, n] or embeddings [b, n, d], whichever was given, and the `Packing` of the batch.

    Args:
        model: that got them, which warns of padding without a mask.
        masks: attention_mask and global_attention_mask.
        packing: of these masks, where it is known.
    """
    words = given_words(input_ids, inputs_embeds)
    if packing is None:
        if input_ids is not None:
            model.warn_if_padding_and_no_attention_mask(input_ids, masks[0])
        packing = pack(tuple(words.shape[:2]), *masks, words.device)
    return words, packing
