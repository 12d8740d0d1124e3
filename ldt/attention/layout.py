"""The layout of a packed batch: its documents' borders, padding inside of them, global tokens."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import cached_property, partial, wraps
from itertools import pairwise
from typing import Any, ClassVar, TypeVar

import torch

T = TypeVar("T")


def places(mask, count=None):
    """[count] int64, where a mask [n] is True; a known ``count`` saves waiting for the device.

    On CUDA ``count`` may be larger than the true one; n stands in the places beyond.
    """
    if count is None or mask.device.type == "cpu":
        return mask.nonzero().squeeze(1)
    return placed(mask, count)


def placed(mask, count):
    """`places` of a known count, which waits for no device."""
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


def per_head(dilation, heads):
    """Dilations as a tuple, one a head; ``dilation`` is an int for all of them, or such a tuple."""
    return (dilation,) * heads if isinstance(dilation, int) else tuple(dilation)


@dataclass(frozen=True, eq=False)
class Layout:
    """The places of documents laid end to end in packed tokens ``[total_tokens, ...]``.

    Args:
        cu_seqlens: [documents + 1] int64: document d is tokens
            ``cu_seqlens[d]:cu_seqlens[d + 1]``. Every document has at least one token.
        key_padding_mask: [total_tokens] bool, False where a token inside a document is padding,
            which is masked everywhere (True is kept, as in FlashAttention; PyTorch's modules mean
            the opposite by this name). None: no padding inside of documents.
        is_global: [total_tokens] bool, True where a token attends to its whole document and is
            attended to by all of it. Never True at padding. None: no such token.
        total: number of tokens. None: read from ``cu_seqlens``.
        num_global: number of global tokens. None: counted. A tensor [] on the host in graphs of
            torch.compile, which hand it to the operators.
        number: tensor [] on the host by which the operators of such a graph know the layout.

    What is given need not be read from the device, so a forward pass does not wait for it.
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
        """``cu_seqlens`` on the host."""
        return self.cu_seqlens.tolist()

    @_table
    def global_index(self) -> torch.Tensor:
        """[num_global] int64, packed indices of the global tokens, in order."""
        if self.is_global is None:
            return self.cu_seqlens.new_empty(0)
        return places(self.is_global, self.num_global)

    @property
    def global_count(self) -> int:
        """Length of ``global_index``."""
        return len(self.global_index) if self.num_global is None else int(self.num_global)

    @_table
    def cu_globals(self) -> torch.Tensor:
        """[documents + 1] int64: document d has global tokens ``cu_globals[d]:cu_globals[d + 1]``
        of ``global_index``."""
        return torch.searchsorted(self.global_index, self.cu_seqlens)

    @cached_property
    def cu_globals_host(self) -> list[int]:
        """``cu_globals`` on the host."""
        return self.cu_globals.tolist()

    @property
    def documents(self) -> list[tuple[int, int, slice]]:
        """(first token, end, slice of its tokens in ``global_index``) of each, on the host."""
        borders = zip(pairwise(self.cu_seqlens_host), pairwise(self.cu_globals_host), strict=True)
        return [(start, stop, slice(*globals_)) for (start, stop), globals_ in borders]

    @_table
    def document_of(self) -> torch.Tensor:
        """[total_tokens] int64, the document of each token."""
        place = torch.arange(self.total_tokens, device=self.cu_seqlens.device)
        return torch.searchsorted(self.cu_seqlens, place, right=True) - 1

    @_table
    def masked_queries(self) -> torch.Tensor | None:
        """[total_tokens] bool, tokens that the sliding window gives zeros: padding, and global
        tokens, which attend to the whole document instead. None: there are none."""
        if self.key_padding_mask is None:
            return self.is_global
        padding = ~self.key_padding_mask
        return padding if self.is_global is None else padding | self.is_global

    def to(self, device, non_blocking: bool = False) -> "Layout":
        """The layout with its tensors on a device, once for this batch; what the host knows goes
        along. The layers of a model that lies on several devices ask for it, by accelerate's hooks.
        """
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
        """The layout whose only global tokens are those at ``index`` [globals] int64, all
        different."""
        is_global = torch.zeros(self.total_tokens, dtype=torch.bool, device=index.device)
        is_global = is_global.index_fill(0, index, True)
        return replace(self, is_global=is_global, num_global=len(index), number=None)

    def none_global(self) -> "Layout":
        """The layout without any global token."""
        return replace(self, is_global=None, num_global=0, number=None)

    def all_global(self) -> "Layout":
        """The layout in which all tokens but padding are global."""
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
        """The result of ``make()``, computed once for this batch: all layers share it."""
        if key not in self._cache:
            self._cache[key] = _kept(make)
        return self._cache[key]
