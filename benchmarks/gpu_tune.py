"""Times of the kernels with other tiles than those of the table, on the GPU at hand."""

from functools import partial
from unittest.mock import patch

from gpu_pooling import band, level
from rich.console import Console

from ldt.attention.triton.devices import TILES, Tile
from ldt.bench import operations
from ldt.bench.measure import medians

console = Console()
KERNELS = {"forward": "forward", "dq": "training", "dkv": "training"}  # and the pass it is part of
FULL = [
    Tile(rows, columns, warps, stages)
    for rows in (64, 128)
    for columns in (32, 64, 128)
    for warps in (4, 8)
    for stages in (2, 3, 4)
]
TINY = [Tile(16, 16, 4, 1), Tile(32, 16, 4, 1)]
LONGEST = 16384  # tokens; beyond that a tile is as good as at this length


def tune(sizes):
    """Seconds of windows and of a second level by kernel and tile, sorted."""
    rows = []
    for length in (n for n in sizes.tuned if n <= LONGEST):
        for kernel, kind in KERNELS.items():
            given = operations.Given(sizes.setting(), length, kind == "training")
            runs = {
                "windows": partial(band(given, given.setting.window, "triton").run, kind),
                "level 2": partial(level(given, "mean", "triton").run, kind),
            }
            for what, run in runs.items():
                found = [
                    row | {"what": what, "tokens": length, "pass": kind}
                    for row in tiles(kernel, run, FULL if sizes.cuda else TINY, sizes)
                ]
                found.sort(key=lambda row: row["seconds"])
                for row in found[:5]:
                    shown = f"{length} {what}, {kernel} {row['tile']}"
                    console.print(f"{shown}: {1e6 * row['seconds']:.0f} us")
                rows += found
    return rows


def tiles(kernel, run, candidates, sizes):
    """Yield a row for each tile that the device can run, and first for those of the table."""
    yield {"kernel": kernel, "tile": "table", "seconds": timed(run, sizes)}
    for tile in candidates:
        table = {key: {0: (tile, tile)} for key in TILES[kernel]}
        try:
            with patch.dict(TILES, {kernel: table}):
                seconds = timed(run, sizes)
        except Exception as error:  # too much shared memory, or registers
            console.print(f"{kernel} {tile}: {type(error).__name__}")
            continue
        yield {"kernel": kernel, "tile": str(tile), "seconds": seconds}


def timed(run, sizes):
    return medians({"run": run}, min(5, sizes.rounds), sizes.device)["run"]
