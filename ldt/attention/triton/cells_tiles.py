"""The tiles of the kernels that attend to cells: the band's, but where those spill registers here.

As there found by compiling ahead of time, not yet by timing, and an entry that is replaced holds
from the next launch on.
"""

from ldt.attention.triton import band_tiles
from ldt.attention.triton.tiles import Tile

FORWARD, QUERIES, KEYS = dict(band_tiles.FORWARD), dict(band_tiles.QUERIES), dict(band_tiles.KEYS)
for generation in (8, 9):
    FORWARD[generation, 4, 64] = (Tile(64, 32, 8, 2),) * 2
    FORWARD[generation, 4, 128] = (Tile(64, 16, 8, 2),) * 2
    KEYS[generation, 4, 64] = (Tile(32, 16, 4, 2),) * 2
KEYS[8, 2, 64] = (Tile(32, 64, 4, 2), Tile(32, 64, 4, 3))
