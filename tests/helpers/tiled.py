"""Kernels with tiles of other sizes than those of their table."""

from contextlib import contextmanager
from dataclasses import replace

from ldt.attention.triton.devices import TILES

KERNELS = "forward", "dq", "dkv"


@contextmanager
def tiled(rows, columns):
    """Context in which the kernels that attend by a pattern take tiles of these sizes, of float32
    at most 32 x 64: of more rows Hopper takes units that ptxas 12.8 is wrong for, and of more
    columns heads of 128 dims have no room."""
    own = {name: TILES[name] for name in KERNELS}
    TILES.update({name: _sized(table, rows, columns) for name, table in own.items()})
    try:
        yield
    finally:
        TILES.update(own)


def _sized(table, rows, columns):
    return {
        (size, dims): {
            least: tuple(replace(tile, **_side(size, rows, columns)) for tile in both)
            for least, both in classes.items()
        }
        for (size, dims), classes in table.items()
    }


def _side(size, rows, columns):
    limits = {2: (128, 128), 4: (32, 64)}[size]
    return {"rows": min(rows, limits[0]), "columns": min(columns, limits[1])}
