"""Times of the kernels with other tiles than those of the table, on the GPU at hand.

The fastest are right too, or are not kept: for heads of 64 in half precision, without and with
dropout, `ldt.attention.triton.tuned` has them take the place of those of the table from then on.
"""

import json
import math
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from unittest.mock import patch

import torch
import triton
from gpu_correctness import correctness
from gpu_pooling import band, level
from rich.console import Console

from ldt.attention.triton import devices, tuned
from ldt.attention.triton.devices import TILES, Tile
from ldt.attention.triton.tiles import padded
from ldt.bench import operations
from ldt.bench.measure import medians
from ldt.files import write_whole

console = Console()
KERNELS = {"forward": "forward", "dq": "training", "dkv": "training"}  # and the pass it is part of
FULL = [
    Tile(rows, columns, warps, stages)
    for rows in (64, 128)
    for columns in (32, 64, 128)
    for warps in (4, 8)
    for stages in (2, 3, 4)
]
TINY = [Tile(32, 16, 4, 1)]
LONGEST = 16384  # tokens; beyond that a tile is as good as at this length
DROPOUTS = (0.0, 0.1)
TABLE = "table"  # the name of its tile among the others
GAIN = 0.97  # of the seconds with the tile of the table: what takes more is no faster


def tune(sizes):
    """Seconds of windows and of a second level by kernel and tile, sorted; on a GPU the best tiles
    are written to `tuned.file`."""
    rows, best = [], {}
    with patch.object(tuned, "found", lambda index: {}):  # what an earlier search found
        for kernel in KERNELS:
            for dropout in DROPOUTS:
                found = times(kernel, dropout, sizes)
                rows += found
                tile = choose(kernel, found, sizes)
                console.print(f"{kernel}, dropout {dropout}: {tile or 'that of the table'}")
                if tile:
                    best[kernel, dropout > 0] = tile
    if sizes.cuda:
        try:
            keep(best, sizes.setting())
        except OSError as error:  # the seconds are worth the search as well
            console.print(f"the tiles could not be written: {error}")
    return rows


def times(kernel, dropout, sizes):
    """A row for each tile, length and operation."""
    rows, setting = [], sizes.setting()
    limits = devices.limits(setting.device)
    dims, size = padded(setting.dim), setting.torch_dtype.itemsize
    candidates = [
        tile
        for tile in (FULL if sizes.cuda else TINY)
        if tuned.fits(tile, kernel, size, dims, limits)
    ]
    for length in (n for n in sizes.tuned if n <= LONGEST):
        kind = KERNELS[kernel]
        given = operations.Given(setting, length, kind == "training")
        runs = {
            "windows": partial(band(given, setting.window, "triton", dropout).run, kind),
            "level 2": partial(level(given, "mean", "triton", dropout).run, kind),
        }
        for what, run in runs.items():
            about = {"what": what, "tokens": length, "pass": kind, "dropout": dropout}
            found = [row | about for row in timed(kernel, run, candidates, sizes)]
            found.sort(key=lambda row: row["seconds"])
            for row in found[:5]:
                shown = f"{length} {what}, dropout {dropout}, {kernel} {row['tile']}"
                console.print(f"{shown}: {1e6 * row['seconds']:.0f} us")
            rows += found
    return rows


def timed(kernel, run, candidates, sizes):
    """Yield a row for each tile that the device can run, and first for those of the table."""
    rounds = min(5, sizes.rounds)
    yield {
        "kernel": kernel,
        "tile": TABLE,
        "seconds": medians({"run": run}, rounds, sizes.device)["run"],
    }
    for tile in candidates:
        try:
            with alone(kernel, tile):
                seconds = medians({"run": run}, rounds, sizes.device)["run"]
        except Exception as error:  # too much shared memory, or registers
            console.print(f"{kernel} {tile}: {type(error).__name__}")
            continue
        yield {"kernel": kernel, "tile": str(tile), "seconds": seconds}


@contextmanager
def alone(kernel, tile):
    """Context in which the table has one tile for a kernel."""
    with patch.dict(TILES, {kernel: {key: {0: (tile, tile)} for key in TILES[kernel]}}):
        yield


def choose(kernel, rows, sizes):
    """The tile with the least mean of seconds, as shares of those of the table's tile, that gives
    right results; None where that is the table's, or no other is faster by `GAIN`.

    Args:
        rows: of `times`, of one kernel and dropout.
    """
    cases = {}
    for row in rows:
        cases.setdefault((row["what"], row["tokens"]), {})[row["tile"]] = row["seconds"]
    shares = {
        tile: math.prod(seconds[tile] / seconds[TABLE] for seconds in cases.values())
        for tile in set.intersection(*(set(seconds) for seconds in cases.values()))
    }
    tiles = {str(tile): tile for tile in (*FULL, *TINY)}
    for name in sorted(shares, key=shares.get):
        if shares[name] ** (1 / len(cases)) > GAIN:
            return None
        if right(kernel, tiles[name], sizes):
            return tiles[name]
    return None


def right(kernel, tile, sizes):
    """Whether all kernels run, and agree with the definition, where one has this tile.

    The cases have what the timed ones have not: holes, dilations, many global tokens.
    """
    setting = sizes.setting()
    cases = [case for case in sizes.cases if case[2] <= setting.dim]
    pooled_cases = [case for case in sizes.pooled_cases if case[3] <= setting.dim]
    with alone(kernel, tile):
        rows = correctness(setting.device, (setting.torch_dtype,), cases, pooled_cases)
    wrong = [row for row in rows if row["backend"] == "triton" and not row["ok"]]
    for row in wrong[:1]:
        console.print(f"{kernel} {tile} is wrong: {row}")
    return not wrong


def keep(best, setting):
    """Write tiles to `tuned.file`, in place of those of this GPU, beside those of others.

    Args:
        best: (kernel, whether there is dropout) -> tile.
        setting: that they were timed with.
    """
    file, gpu = tuned.file(), torch.cuda.get_device_name()
    about = {"gpu": gpu, "bytes": setting.torch_dtype.itemsize, "dims": padded(setting.dim)}
    rows = of_others(file, gpu)
    rows += [
        {**about, "kernel": kernel, "dropout": dropout, **asdict(tile)}
        for (kernel, dropout), tile in best.items()
    ]
    file.parent.mkdir(parents=True, exist_ok=True)
    made = {"triton": triton.__version__, "tiles": rows}
    write_whole(file, json.dumps(made, indent=1) + "\n")
    console.print(f"{len(best)} tiles for {gpu}: {file}")


def of_others(file, gpu):
    """The rows of other GPUs in a file; none where it is damaged, or of another triton."""
    try:
        made = json.loads(file.read_text("utf-8"))
        same = made["triton"] == triton.__version__
        return [row for row in made["tiles"] if same and row["gpu"] != gpu]
    except (OSError, LookupError, TypeError, ValueError):
        return []
