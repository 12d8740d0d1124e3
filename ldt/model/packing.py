"""A padded batch -> packed tokens, and back."""

from dataclasses import dataclass

import torch
from torch.nn import functional as F

from ldt.attention import Documents


@dataclass(frozen=True, eq=False)
class Packing:
    """How the padded positions [b, n] and the packed tokens [total] correspond.

    The document of a row spans from its first to its last real token; padding inside is a hole. A
    row without any real token is a document of one hole. Where no row begins or ends with padding,
    packing is a reshape.

    Args:
        documents: where the documents lie in the packed tokens.
        shape: (b, n) of the padded batch.
        index: [total] int64, the position of each packed token in the flattened batch; None when
            that is every position.
    """

    documents: Documents
    shape: tuple[int, int]
    index: torch.Tensor | None = None

    def pack(self, x):
        """[b, n, ...] -> [total, ...]."""
        x = x.flatten(0, 1)
        return x if self.index is None else x.index_select(0, self.index)

    def unpack(self, x, fill=0):
        """[total, ...] -> [b, n, ...], ``fill`` at padding, holes included."""
        if self.documents.keep is not None:
            hole = ~self.documents.keep
            x = x.masked_fill(hole.view(-1, *[1] * (x.dim() - 1)), fill)
        if self.index is not None:
            room = x.new_full((self.shape[0] * self.shape[1], *x.shape[1:]), fill)
            x = room.index_copy(0, self.index, x)
        return x.unflatten(0, self.shape)

    def real(self):
        """[b, n] bool, True at real tokens."""
        keep = self.documents.keep
        if keep is None:
            keep = self.documents.cu_seqlens.new_ones(self.documents.total, dtype=torch.bool)
        return self.unpack(keep)

    def first(self, x):
        """[total, ...] -> [b, ...], the first real token of each row."""
        return x.index_select(0, self.documents.cu_seqlens[:-1])

    def reduce(self, x, how):
        """[total, d] -> [b, d], ``mean`` or ``max`` of the real tokens of each row; else zeros."""
        keep, rows = self.documents.keep, self.documents.cu_seqlens.diff()
        if keep is not None:
            x = x[keep]
            rows = torch.segment_reduce(keep.double(), "sum", lengths=rows).long()
        reduced = torch.segment_reduce(x, how, lengths=rows)
        return reduced.masked_fill((rows == 0)[:, None], 0)

    def unpack_global_probabilities(self, probs):
        """[globals, heads, longest document] -> [b, heads, n, x], x globals at most in a row.

        Zeros at padding and in the columns of rows that have fewer than x global tokens.
        """
        b, n = self.shape
        rows = self.documents.global_borders
        borders = self.documents.borders
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


def pack(shape, attention_mask=None, global_attention_mask=None, device=None):
    """The `Packing` of a batch of ``shape`` (b, n).

    Args:
        attention_mask: [b, n] bool, int or float: 0 at padding, 1 at real tokens, 2 at real tokens
            with global attention (the authors' way to say it). None: all tokens are real.
        global_attention_mask: [b, n]: 1 or 2 at tokens with global attention, else 0. None: none.
            At padding it is ignored.

    Raises:
        ValueError: a mask of another shape, or (looked at on the CPU only) with another value.
    """
    b, n = shape
    keep = real_tokens(shape, attention_mask, device)
    is_global = torch.zeros_like(keep)
    if attention_mask is not None and attention_mask.dtype != torch.bool:
        is_global |= attention_mask == 2
    if global_attention_mask is not None:
        is_global |= _checked("global_attention_mask", global_attention_mask, shape) != 0
    is_global &= keep

    if bool(keep.all()):
        cu_seqlens = torch.arange(0, b * n + 1, n, device=keep.device)
        return Packing(_documents(cu_seqlens, None, is_global.flatten()), shape)
    some = keep.any(1)
    first = keep.int().argmax(1)
    last = torch.where(some, n - 1 - keep.flip(1).int().argmax(1), first)
    position = torch.arange(n, device=keep.device)
    inside = (position >= first[:, None]) & (position <= last[:, None])
    index = inside.flatten().nonzero().squeeze(1)
    cu_seqlens = F.pad((last - first + 1).cumsum(0), (1, 0))
    keep, is_global = keep.flatten()[index], is_global.flatten()[index]
    documents = _documents(cu_seqlens, None if bool(keep.all()) else keep, is_global)
    return Packing(documents, shape, index if len(index) < b * n else None)


def _documents(cu_seqlens, keep, is_global):
    return Documents(cu_seqlens, keep, is_global if bool(is_global.any()) else None)


def _checked(name, mask, shape):
    if mask.shape != torch.Size(shape):
        raise ValueError(f"{name} must have the input's shape {list(shape)}, got {[*mask.shape]}")
    if mask.device.type == "cpu" and mask.dtype != torch.bool:
        wrong = (mask != 0) & (mask != 1) & (mask != 2)
        if wrong.any():
            row, column = wrong.nonzero()[0].tolist()
            value = mask[row, column].item()
            raise ValueError(f"{name} must hold 0, 1 or 2, got {value} in row {row}")
    return mask
