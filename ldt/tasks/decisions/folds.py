"""Parts of a set that decisions are fitted without, so that their figures are honest."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

import numpy as np


def folds(
    count: int, parts: int = 5, seed: int = 0, groups: Sequence[Hashable] | None = None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield for each part of a set the numbers of the others, to fit on, and its own.

    Args:
        count: documents of the set.
        parts: into which it is cut, at random, as equal as they can be.
        seed: of the cut.
        groups: of each document, what must stay together; None keeps nothing together.

    Yields:
        [others] and [own] int64, sorted. Of fewer groups than parts there are as many as groups; of
        one group none.
    """
    if groups is None:
        unit = np.arange(count)
    else:
        numbers: dict[Hashable, int] = {}
        unit = np.array([numbers.setdefault(group, len(numbers)) for group in groups], int)
    units = int(unit.max(initial=-1)) + 1
    parts = min(parts, units)
    if parts < 2:
        return
    part = np.empty(units, int)
    part[np.random.default_rng(seed).permutation(units)] = np.arange(units) % parts
    for number in range(parts):
        own = part[unit] == number
        yield np.flatnonzero(~own), np.flatnonzero(own)
