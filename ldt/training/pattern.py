"""The attention pattern of an input as a small picture: which token sees which."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from ldt.data.features import Feature

CELLS = 64  # of a side; a longer input has several tokens in each
SIDE = 5  # of a cell, in pixels
# Behind everything, and by what is seen through: nothing, the window, the pooled window, a global
# token. Grey has the same contrast on white and on black.
COLOURS = ("#8884", "#7986cb", "#4db6ac", "#3949ab")
NOTHING, WINDOW, POOLED, GLOBAL = range(4)


def of_input(feature: Feature, config: Any) -> tuple[list[list[int]], dict[str, int]] | None:
    """The `cells` of an input, and its facts for metrics.json; None of a model without windows.

    Args:
        feature: of a model that reads it.
        config: of the model.
    """
    windows = getattr(config, "attention_window", None)
    windows = windows if isinstance(windows, list) else [windows]
    marked = [bool(flag) for flag in feature["global_attention_mask"]]
    if not all(isinstance(window, int) for window in windows) or not windows or not marked:
        return None
    pooled = config.pooling_window if getattr(config, "pooling_layers", None) else 0
    facts = {"tokens": len(marked), "window": max(windows), "global": sum(marked)}
    facts |= {"pooling_window": pooled} if pooled else {}
    return cells(marked, max(windows), pooled), facts


def cells(
    is_global: Sequence[bool], window: int, pooled: int = 0, most: int = CELLS
) -> list[list[int]]:
    """Attention of the tokens of each cell (row) to those of each other (column): the first of
    `GLOBAL`, `WINDOW` and `POOLED` that any pair of them has, else `NOTHING`.

    Args:
        is_global: of each token of the input.
        window: tokens in reach, both sides together.
        pooled: tokens in reach of a second, pooled level; 0 without one.
        most: cells of a side.
    """
    count = min(len(is_global), most)
    edges = [number * len(is_global) // count for number in range(count + 1)]
    marked = [any(is_global[a:b]) for a, b in zip(edges, edges[1:], strict=False)]

    def seen(row: int, column: int) -> int:
        if marked[row] or marked[column]:
            return GLOBAL
        first, second = sorted((row, column))
        apart = max(0, edges[second] - edges[first + 1] + 1) if first != second else 0
        if apart <= window // 2:
            return WINDOW
        return POOLED if apart <= pooled // 2 else NOTHING

    return [[seen(row, column) for column in range(count)] for row in range(count)]


def picture(rows: Sequence[Sequence[int]], says: str) -> str:
    """Cells as SVG without scripts, styles or fonts.

    Args:
        rows: as `cells` gives them.
        says: the picture in words, without markup.
    """
    side = SIDE * len(rows)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {side} {side}" width="{side}" '
        f'height="{side}" role="img"><title>{says}</title>',
        f'<rect width="{side}" height="{side}" fill="{COLOURS[NOTHING]}"/>',
    ]
    for number, row in enumerate(rows):
        place = 0
        for kind, same in groupby(row):
            size = len(list(same))
            if kind != NOTHING:
                box = f'x="{SIDE * place}" y="{SIDE * number}" width="{SIDE * size}"'
                lines.append(f'<rect {box} height="{SIDE}" fill="{COLOURS[kind]}"/>')
            place += size
    return "\n".join([*lines, "</svg>"]) + "\n"
