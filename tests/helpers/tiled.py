"""Kernels with tiles of other sizes than those of their table."""

from contextlib import contextmanager
from dataclasses import replace

from ldt.attention.triton.devices import TILES

KERNELS = "forward", "dq", "dkv"


@contextmanager
def tiled(rows, columns):
    """Context in which the kernels that attend by a pattern take tiles of these sizes."""
    own = {name: TILES[name] for name in KERNELS}
    TILES.update({name: _sized(table, rows, columns) for name, table in own.items()})
    try:
        yield
    finally:
        TILES.update(own)


def _sized(table, rows, columns):
    return {
        key: {
            least: tuple(replace(tile, rows=rows, columns=columns) for tile in both)
            for least, both in classes.items()
        }
        for key, classes in table.items()
    }
