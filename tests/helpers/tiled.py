"""Kernels with tiles of other sizes than those of their table."""

from contextlib import contextmanager
from dataclasses import replace

from ldt.attention.triton.devices import TILES


@contextmanager
def tiled(family, rows, columns):
    """Context in which the kernels of a family ("band", "cells") take tiles of these sizes."""
    own = {name: table for name, table in TILES.items() if name.startswith(f"{family} ")}
    changed = {
        name: {key: _sized(name, c, rows, columns) for key, c in table.items()}
        for name, table in own.items()
    }
    TILES.update(changed)
    try:
        yield
    finally:
        TILES.update(own)


def _sized(name, classes, rows, columns):
    sizes = {"columns": columns} | ({} if name.endswith(" globals") else {"rows": rows})
    return {k: tuple(replace(tile, **sizes) for tile in both) for k, both in classes.items()}
