"""Where the documents lie in a packed batch, and which of their tokens are what."""

from dataclasses import dataclass
from functools import cached_property

import torch


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
    """

    cu_seqlens: torch.Tensor
    keep: torch.Tensor | None = None
    is_global: torch.Tensor | None = None

    @cached_property
    def borders(self) -> list[int]:
        """``cu_seqlens`` on the host."""
        return self.cu_seqlens.tolist()

    @cached_property
    def global_index(self) -> torch.Tensor:
        """[globals] int64, packed indices of the global tokens, in order."""
        if self.is_global is None:
            return self.cu_seqlens.new_empty(0)
        return self.is_global.nonzero().squeeze(1)

    @cached_property
    def global_borders(self) -> list[int]:
        """Document d owns globals ``global_borders[d]:global_borders[d + 1]``, on the host."""
        return torch.searchsorted(self.global_index, self.cu_seqlens).tolist()

    @cached_property
    def document_of(self) -> torch.Tensor:
        """[total] int64, the document of each token."""
        lengths = self.cu_seqlens.diff()
        numbers = torch.arange(len(lengths), device=lengths.device)
        return torch.repeat_interleave(numbers, lengths)

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

    @property
    def total(self) -> int:
        """Tokens in the batch."""
        return self.borders[-1]
