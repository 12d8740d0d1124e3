"""Tiles that a search on the GPU at hand found faster than those of the table.

``benchmarks/gpu.py --only tune`` writes them to `file`, as JSON: {"triton": its version, "tiles":
rows}. A row says what it is for: gpu (its name), kernel, bytes (of a number), dims (of a head,
`padded`), dropout (whether it is decided there); and the `Tile`: rows, columns, warps, stages.
"""

import json
import logging
import os
from functools import cache
from pathlib import Path

import torch
import triton

from ldt.attention.triton import devices
from ldt.attention.triton.devices import Tile
from ldt.attention.triton.tiles import padded

THREADS = 1024  # of a program, at most
log = logging.getLogger("ldt")


def file():
    """Where the tiles are: LDT_TILES, or ldt/tiles.json in the user's folder of caches."""
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(os.environ.get("LDT_TILES") or Path(caches, "ldt", "tiles.json"))


def tile(kernel, q, dropout):
    """`devices.tile`, or what `found` has in its place."""
    of_table = devices.tile(kernel, q, dropout)
    if q.device.type != "cuda":
        return of_table
    return found(q.device.index).get(
        (kernel, q.dtype.itemsize, padded(q.shape[-1]), dropout), of_table
    )


@cache
def found(index):
    """{(kernel, bytes, dims, dropout): `Tile`} of a GPU, read once, with a line in the log; empty
    where there is no file, and where it is damaged, of another triton or beyond the GPU."""
    gpu, limits = torch.cuda.get_device_name(index), devices.limits(torch.device("cuda", index))
    try:
        made, tiles = json.loads(file().read_text("utf-8")), {}
        if made["triton"] != triton.__version__:
            raise ValueError(f"made with triton {made['triton']}, this is {triton.__version__}")
        for row in made["tiles"]:
            if row["gpu"] == gpu:
                size = Tile(row["rows"], row["columns"], row["warps"], row["stages"])
                key = row["kernel"], row["bytes"], row["dims"], row["dropout"]
                if not fits(size, *key[:3], limits):
                    raise ValueError(f"{key[0]} has no room for {size} on {limits.name}")
                tiles[key] = size
    except FileNotFoundError:
        return {}
    except (OSError, LookupError, TypeError, ValueError) as error:
        why = f"{type(error).__name__}: {error}"
        log.warning("tiles of %s are not taken (%s); gpu.py --only tune finds others", file(), why)
        return {}
    if tiles:
        log.info("the kernels take %d tiles of %s", len(tiles), file())
    return tiles


def fits(tile, kernel, size, dims, limits):
    """Whether a GPU of these `Limits` may have room for a `Tile`: what no program does without,
    sums and scores in registers (a B200 has tensor memory for them) and two blocks of loads in
    shared memory, is there.

    Args:
        kernel: "forward", "dq" or "dkv".
        size: bytes of a number of the tensors.
        dims: of a head, padded.
    """
    sides = tile.rows, tile.columns, tile.warps
    threads, sums = tile.warps * limits.warp, 2 if kernel == "dkv" else 1
    held = 0 if limits.capability[0] == 10 else tile.rows * (sums * dims + tile.columns)
    return (
        all(n > 0 and n & (n - 1) == 0 for n in sides)
        and min(tile.rows, tile.columns) >= 16
        and tile.stages >= 1
        and threads <= THREADS
        and held <= min(255 * threads, limits.registers)
        and 2 * max(tile.stages - 1, 1) * tile.columns * dims * size <= limits.shared
    )
