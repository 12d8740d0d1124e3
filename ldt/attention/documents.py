"""Where the documents lie in a packed batch, and which of their tokens are what."""

from dataclasses import dataclass
from functools import cached_property

import torch


def places(mask, count=None):
    """[count] int64, where a mask [n] is True; a known ``count`` saves waiting for the device.

    On CUDA ``count`` may be larger than the true one; n stands in the places beyond.
    """
    if count is None or mask.device.type == "cpu":
        return mask.nonzero().squeeze(1)
    place = torch.arange(len(mask), device=mask.device)
    slot = torch.where(mask, mask.cumsum(0) - 1, count)
    return place.new_full((count + 1,), len(mask)).scatter_(0, slot, place)[:-1]


@dataclass(frozen=True, eq=False)
class Documents:
    """Documents laid end to end in packed tokens ``[total, ...]``.

    Args:
        cu_seqlens: [documents + 1] int64, borders: document d is tokens
            ``cu_seqlens[d]:cu_seqlens[d + 1]``. Every document has at least one token.
        keep: [total] bool, False where a token inside a document is padding (a hole);
            None where there is no hole.
        is_global: [total] bool, True where a token attends to its whole document and is
            attended to by all of it; None where there is no such token. Never True at a hole.
        total: number of tokens; None reads it from ``cu_seqlens``.
        globals: number of global tokens; None counts them. A tensor [] on the host in graphs of
            torch.compile, which hand it to the operators.

    What is given need not be read from the device, so a forward pass does not wait for it.
    """

    cu_seqlens: torch.Tensor
    keep: torch.Tensor | None = None
    is_global: torch.Tensor | None = None
    total: int | None = None
    globals: int | torch.Tensor | None = None

    def __post_init__(self):
        if self.total is None:
            object.__setattr__(self, "total", self.borders[-1])

    @cached_property
    def borders(self) -> list[int]:
        """``cu_seqlens`` on the host."""
        return self.cu_seqlens.tolist()

    @cached_property
    def global_index(self) -> torch.Tensor:
        """[globals] int64, packed indices of the global tokens, in order."""
        if self.is_global is None:
            return self.cu_seqlens.new_empty(0)
        return places(self.is_global, self.globals)

    @cached_property
    def cu_globals(self) -> torch.Tensor:
        """[documents + 1] int64: document d owns globals ``cu_globals[d]:cu_globals[d + 1]``."""
        return torch.searchsorted(self.global_index, self.cu_seqlens)

    @cached_property
    def global_borders(self) -> list[int]:
        """``cu_globals`` on the host."""
        return self.cu_globals.tolist()

    @cached_property
    def document_of(self) -> torch.Tensor:
        """[total] int64, the document of each token."""
        place = torch.arange(self.total, device=self.cu_seqlens.device)
        return torch.searchsorted(self.cu_seqlens, place, right=True) - 1

    @cached_property
    def silent(self) -> torch.Tensor | None:
        """[total] bool, tokens whose row of the band is zero: holes and globals; None: none."""
        if self.keep is None:
            return self.is_global
        return ~self.keep if self.is_global is None else ~self.keep | self.is_global

    @cached_property
    def _cache(self) -> dict:
        return {}

    def cached(self, key, make):
        """What ``make()`` returns, computed once for this batch: all layers share it."""
        if key not in self._cache:
            self._cache[key] = make()
        return self._cache[key]
