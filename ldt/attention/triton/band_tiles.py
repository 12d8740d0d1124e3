"""The tiles of the band's kernels, for an A100 and a Hopper GPU.

Found by compiling ahead of time, not yet by timing: none spills a register in the calls that
`tests/kernels/test_compile.py` compiles, where it prints what they take. float32 is summed by plain
multiply-adds, which hold whole rows in registers; dropout costs registers; and Hopper's matrix
units read from shared memory what earlier ones load. An entry that is replaced, as by a sweep on
the GPU at hand, holds from the next launch on.
"""

import torch

from ldt.attention.triton.tiles import Tile

GLOBALS = 16  # global keys at a time: the fewest that matrix units take

# (generation: 9 is Hopper; bytes of a number; most dims of a head): tiles without and with dropout
FORWARD = {
    (9, 2, 64): (Tile(128, 64, 4, 3), Tile(128, 32, 4, 3)),
    (9, 2, 128): (Tile(128, 64, 8, 3), Tile(128, 64, 8, 2)),
    (8, 2, 64): (Tile(128, 64, 4, 3), Tile(128, 32, 4, 3)),
    (8, 2, 128): (Tile(128, 64, 8, 3), Tile(64, 64, 8, 2)),
}
QUERIES = {
    (9, 2, 64): (Tile(64, 64, 4, 3), Tile(64, 64, 4, 3)),
    (9, 2, 128): (Tile(64, 64, 4, 2), Tile(64, 64, 8, 2)),
    (8, 2, 64): (Tile(64, 32, 4, 3), Tile(64, 32, 4, 3)),
    (8, 2, 128): (Tile(64, 64, 8, 2), Tile(64, 64, 8, 2)),
}
KEYS = {
    (9, 2, 64): (Tile(64, 64, 4, 2), Tile(64, 64, 4, 2)),
    (9, 2, 128): (Tile(64, 64, 8, 2), Tile(64, 32, 8, 2)),
    (8, 2, 64): (Tile(32, 64, 4, 2), Tile(32, 64, 4, 2)),
    (8, 2, 128): (Tile(32, 64, 8, 2), Tile(32, 64, 8, 2)),
}
GLOBAL_KEYS = {
    (generation, 2, dims): (Tile(GLOBALS, 64, 4, 2),) * 2
    for generation in (8, 9)
    for dims in (64, 128)
}
for generation in (8, 9):
    FORWARD[generation, 4, 64] = (Tile(64, 32, 4, 2), Tile(64, 32, 8, 2))
    FORWARD[generation, 4, 128] = (Tile(64, 32, 8, 2),) * 2
    QUERIES[generation, 4, 64] = (Tile(32, 32, 8, 1),) * 2
    QUERIES[generation, 4, 128] = (Tile(16, 16, 8, 1),) * 2
    KEYS[generation, 4, 64] = (Tile(32, 32, 8, 1),) * 2
    KEYS[generation, 4, 128] = (Tile(32, 16, 4, 1),) * 2
    GLOBAL_KEYS[generation, 4, 64] = (Tile(GLOBALS, 32, 4, 2),) * 2
    GLOBAL_KEYS[generation, 4, 128] = (Tile(GLOBALS, 32, 8, 1),) * 2


def key(q):
    """Key into a table of tiles for queries like q [total, heads, dim]."""
    return _generation(q.device), q.itemsize, 64 if q.shape[-1] <= 64 else 128


def _generation(device):
    if device.type != "cuda":
        return 9
    return 9 if torch.cuda.get_device_capability(device)[0] >= 9 else 8
