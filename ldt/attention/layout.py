"""Layout of a packed batch: borders of its documents, padding inside of them, global tokens."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import cached_property, partial, wraps
from itertools import pairwise
from typing import Any, ClassVar, TypeVar

import torch

T = TypeVar("T")


def places(mask: torch.Tensor, count=None) -> torch.Tensor:
    """Indices where a mask [n] is True, [count] int64, in order; giving ``count`` avoids waiting
    for the device. On CUDA it may be larger than the true number; the places beyond hold n."""
    if count is None or mask.device.type == "cpu":
        return mask.nonzero().squeeze(1)
    return placed(mask, count)


def placed(mask: torch.Tensor, count: int) -> torch.Tensor:
    """Indices where a mask [n] is True, [count] int64, without waiting for the device; n in places
    beyond the true number, which may be smaller than ``count``."""
    place = torch.arange(len(mask), device=mask.device)
    slot = torch.where(mask, mask.cumsum(0) - 1, count)
    return place.new_full((count + 1,), len(mask)).scatter_(0, slot, place)[:-1]


def _kept(make):
    """``make()``, of tensors that a backward pass may keep though inference mode asks first."""
    if not torch.is_inference_mode_enabled():
        return make()
    with torch.inference_mode(False), torch.no_grad():
        return make()


def _table(make: Callable[[Any], T]) -> "cached_property[T]":
    """A property that is computed once for a layout, for inference and training alike."""
    return cached_property(wraps(make)(lambda layout: _kept(partial(make, layout))))


def per_head(dilation: int | tuple[int, ...], heads: int) -> tuple[int, ...]:
    """Dilation of each head as a tuple; ``dilation`` is an int for all heads, or such a tuple."""
    return (dilation,) * heads if isinstance(dilation, int) else tuple(dilation)


@dataclass(frozen=True, eq=False)
class Layout:
    """Positions of documents in packed tokens ``[total_tokens, ...]``, one behind the other.

    Args:
        cu_seqlens: [documents + 1] int64: document d is tokens ``cu_seqlens[d]:cu_seqlens[d + 1]``.
            Every document has at least one token.
        key_padding_mask: [total_tokens] bool, False where a token inside a document is padding,
            which is masked everywhere (True is kept, as in FlashAttention; PyTorch's modules mean
            the opposite by this name). None: no padding inside of documents.
        is_global: [total_tokens] bool, True where a token attends to its whole document and is
            attended to by all of it. Never True at padding. None: no such token.
        total: number of tokens. None: read from ``cu_seqlens``.
        num_global: number of global tokens. None: counted. A tensor [] on the host in graphs of
            torch.compile, which hand it to the operators.
        number: tensor [] on the host that identifies the layout to the operators of such a graph.

    A forward pass does not wait for the device to read numbers that are given here.
    """

    rows: ClassVar[tuple[int, int] | None] = None  # of `ldt.attention.padded.PaddedLayout` alone

    cu_seqlens: torch.Tensor
    key_padding_mask: torch.Tensor | None = None
    is_global: torch.Tensor | None = None
    total: int | None = None
    num_global: int | torch.Tensor | None = None
    number: torch.Tensor | None = None

    @property
    def total_tokens(self) -> int:
        """Number of tokens."""
        return self.cu_seqlens_host[-1] if self.total is None else self.total

    @cached_property
    def cu_seqlens_host(self) -> list[int]:
        """``cu_seqlens`` as a list on the host."""
        return self.cu_seqlens.tolist()

    @_table
    def global_index(self) -> torch.Tensor:
        """Packed indices of the global tokens, [num_global] int64, in order."""
        if self.is_global is None:
            return self.cu_seqlens.new_empty(0)
        return places(self.is_global, self.num_global)

    @property
    def global_count(self) -> int:
        """Number of global tokens, the length of ``global_index``."""
        return len(self.global_index) if self.num_global is None else int(self.num_global)

    @_table
    def cu_globals(self) -> torch.Tensor:
        """Borders of the documents in ``global_index``, [documents + 1] int64: document d has
        global tokens ``cu_globals[d]:cu_globals[d + 1]``."""
        return torch.searchsorted(self.global_index, self.cu_seqlens)

    @cached_property
    def cu_globals_host(self) -> list[int]:
        """``cu_globals`` as a list on the host."""
        return self.cu_globals.tolist()

    @property
    def documents(self) -> list[tuple[int, int, slice]]:
        """(first token, end, slice of its tokens in ``global_index``) of each document, on the
        host."""
        borders = zip(pairwise(self.cu_seqlens_host), pairwise(self.cu_globals_host), strict=True)
        return [(start, stop, slice(*globals_)) for (start, stop), globals_ in borders]

    @_table
    def document_of(self) -> torch.Tensor:
        """Document of each token, [total_tokens] int64."""
        place = torch.arange(self.total_tokens, device=self.cu_seqlens.device)
        return torch.searchsorted(self.cu_seqlens, place, right=True) - 1

    @_table
    def masked_queries(self) -> torch.Tensor | None:
        """True for tokens whose sliding-window output is zero, [total_tokens] bool: padding, and
        global tokens, which attend to the whole document instead. None: neither mask is given."""
        if self.key_padding_mask is None:
            return self.is_global
        padding = ~self.key_padding_mask
        return padding if self.is_global is None else padding | self.is_global

    def to(self, device, non_blocking: bool = False) -> "Layout":
        """Copy of the layout on a device, made once for this batch, with what the host knows of it;
        the layout itself if it is there. The layers of a model that lies on several devices ask
        for it, through accelerate's hooks."""
        device = torch.device(device)
        if device == self.cu_seqlens.device:
            return self
        return self.cached(("to", device), lambda: self._moved(device, non_blocking))

    def _moved(self, device, non_blocking):
        masks = self.cu_seqlens, self.key_padding_mask, self.is_global
        there = (x if x is None else x.to(device, non_blocking=non_blocking) for x in masks)
        moved = Layout(*there, self.total_tokens, self.num_global)
        known = "cu_seqlens_host", "cu_globals_host"
        moved.__dict__.update({name: vars(self)[name] for name in known if name in vars(self)})
        return moved

    def global_at(self, index: torch.Tensor) -> "Layout":
        """Copy of the layout whose only global tokens are those at ``index`` [globals] int64, all
        different."""
        is_global = torch.zeros(self.total_tokens, dtype=torch.bool, device=index.device)
        is_global = is_global.index_fill(0, index, True)
        return replace(self, is_global=is_global, num_global=len(index), number=None)

    def none_global(self) -> "Layout":
        """Copy of the layout without any global token."""
        return replace(self, is_global=None, num_global=0, number=None)

    def all_global(self) -> "Layout":
        """Copy of the layout in which all tokens but padding are global."""
        keep, count = self.key_padding_mask, self.total_tokens
        if keep is None:
            keep = torch.ones(count, dtype=torch.bool, device=self.cu_seqlens.device)
        elif torch.compiler.is_compiling():
            count = torch.ops.ldt.count_globals(keep)
        else:
            count = int(keep.sum())
        return replace(self, is_global=keep, num_global=count, number=None)

    @cached_property
    def _cache(self) -> dict[Hashable, Any]:
        return {}

    def cached(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Result of ``make()`` at the first call with this ``key``, kept as long as the layout: all
        layers share it."""
        if key not in self._cache:
            self._cache[key] = _kept(make)
        return self._cache[key]
