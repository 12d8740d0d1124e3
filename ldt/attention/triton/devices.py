"""Which tiles the Triton kernels take on a GPU: one table by what a program may have there.

The four ways to ask: `tile` for a launch, `find` for any device, known or not, `fits` for a tile of
a search, and `lacking` for why a device has no kernels. Nothing here imports triton before a device
is asked for.

The tiles were found by compiling ahead of time, not yet by timing: none is to spill a register or
to pass the shared memory of its class. `tests/attention/triton/test_compile.py` holds a part of
them to that at each run, and all of them for every GPU of `KNOWN` by ``make nightly``.
float32 is multiplied in parts, or by plain multiply-adds, both of which hold whole rows in
registers; dropout costs registers; and Hopper's matrix units read from shared memory what earlier
ones load.

float32 never goes to warpgroup units (wgmma): ptxas 12.8.93, of triton 3.5.1 to 3.7.1, reads their
factors from wrong addresses of shared memory. They take 64 rows at a time, so tiles of float32 have
fewer from `WARPGROUPS` on.
"""

from dataclasses import dataclass
from functools import cache

import torch

DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # that the kernels take
LARGEST = 128  # dims of a head
FOLDED = ("rows", "blocks")  # kernels of `TILES` whose columns are not dims of a head
KIB = 1024
REGISTERS = 65536  # 255 for each thread of eight warps: fewer than that no tile here was made for
WARP = 32
REGISTERS_OF_THREAD = 255  # at most
THREADS = 1024  # of a program, at most
WARPGROUPS = (9, 0), 64  # the compute capability with units of warpgroups, and their rows
BFLOAT16 = (8, 0)  # the compute capability from which on there are products of bfloat16, TF32
# Options of every launch. A product and a sum are one instruction; said, because Triton 3.9 warns
# where it is not, and 3.10 makes two of them then.
OPTIONS = {"enable_fp_fusion": True}


@dataclass(frozen=True, slots=True)
class Tile:
    """Work of a program: rows that it owns, columns at a time, warps, pipeline stages of loads, and
    registers that a thread may have, None where the compiler chooses."""

    rows: int
    columns: int
    warps: int
    stages: int
    maxnreg: int | None = None

    @property
    def launch(self):
        """Keyword arguments of a launch: the constants of the kernel and Triton's options."""
        return {
            "BLOCK_M": self.rows,
            "BLOCK_N": self.columns,
            "num_warps": self.warps,
            "num_stages": self.stages,
            **({} if self.maxnreg is None else {"maxnreg": self.maxnreg}),
            **OPTIONS,
        }


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a device: its compute capability, and of one program bytes of shared memory (at
    most, when it asks for them), registers of 32 bits, and threads of a warp."""

    capability: tuple[int, int]
    shared: int
    registers: int = REGISTERS
    warp: int = WARP

    @property
    def name(self):
        """Description for messages, such as "compute capability 9.0, 227 KiB of shared memory"."""
        major, minor = self.capability
        return f"compute capability {major}.{minor}, {self.shared // KIB} KiB of shared memory"


# As CUDA C++ Programming Guide, "Technical Specifications per Compute Capability", has them.
KNOWN = {
    "T4": Limits((7, 5), 64 * KIB),
    "A100": Limits((8, 0), 163 * KIB),
    "A10, RTX 30": Limits((8, 6), 99 * KIB),
    "L4, RTX 40": Limits((8, 9), 99 * KIB),
    "H100, H200": Limits((9, 0), 227 * KIB),
    "B200": Limits((10, 0), 227 * KIB),
    "RTX 50": Limits((12, 0), 99 * KIB),
}
LATEST = KNOWN["H100, H200"]  # stands for what is no CUDA device, where kernels are interpreted


def _both(*tile):
    return (Tile(*tile),) * 2


# kernel -> (bytes of a number, most dims of a head or columns of a row)
#        -> least KiB of shared memory -> tiles without and with dropout.
# A device takes the largest class that it has the memory for. An entry that is replaced, as by a
# sweep on the GPU at hand, holds from the next launch on.
TILES: dict[str, dict[tuple[int, int], dict[int, tuple[Tile, Tile]]]] = {
    "forward": {
        (2, 32): {
            227: (Tile(128, 64, 8, 3), Tile(128, 32, 8, 3)),
            163: (Tile(128, 64, 8, 3), Tile(128, 32, 8, 2)),
            99: (Tile(64, 64, 4, 2), Tile(64, 64, 4, 3)),
            64: _both(32, 32, 4, 1),
        },
        (2, 64): {
            227: (Tile(128, 64, 8, 3), Tile(128, 32, 8, 3)),
            99: (Tile(128, 64, 8, 3), Tile(128, 32, 8, 2)),
            64: _both(32, 32, 8, 1),
        },
        (2, 128): {
            227: (Tile(128, 64, 8, 3), Tile(128, 64, 8, 2)),
            163: (Tile(128, 32, 8, 3), Tile(64, 64, 8, 2)),
            99: _both(64, 64, 8, 2),
            64: _both(16, 16, 8, 1),
        },
        (4, 64): {
            227: _both(32, 32, 8, 2),
            99: (Tile(32, 32, 8, 2), Tile(32, 32, 4, 2)),
            64: _both(32, 16, 8, 1),
        },
        (4, 128): {99: (Tile(16, 64, 8, 2), Tile(16, 32, 8, 1)), 64: _both(16, 16, 4, 1)},
    },
    "dq": {
        (2, 64): {
            227: _both(64, 64, 4, 3),
            99: (Tile(64, 32, 4, 3), Tile(64, 32, 8, 2)),
            64: _both(16, 16, 8, 1),
        },
        (2, 128): {
            163: _both(64, 64, 8, 2),
            99: _both(64, 32, 8, 2),
            64: _both(16, 16, 8, 1),
        },
        (4, 64): {99: _both(32, 32, 8, 1), 64: _both(32, 16, 8, 1)},
        (4, 128): {64: _both(16, 16, 8, 1)},
    },
    "dkv": {
        (2, 64): {227: _both(64, 64, 4, 2), 99: _both(32, 64, 8, 2), 64: _both(32, 16, 8, 1)},
        (2, 128): {
            227: (Tile(64, 64, 8, 2), Tile(64, 32, 8, 2)),
            163: _both(32, 64, 8, 2),
            99: _both(32, 32, 8, 2),
            64: _both(16, 16, 8, 1),
        },
        (4, 64): {99: _both(32, 16, 4, 1), 64: _both(16, 16, 4, 1)},
        (4, 128): {99: _both(16, 16, 8, 1), 64: (Tile(32, 16, 8, 1), Tile(32, 16, 4, 1))},
    },
    # Of rows whose projections are folded: programs that own rows, and that own tokens. Columns are
    # the width of a layer; the smallest memory does not hold that.
    "rows": {
        (2, 768): {163: _both(16, 32, 8, 2), 99: _both(16, 16, 8, 2)},
        (2, 1024): {163: _both(16, 32, 8, 2)},
        (4, 768): {163: _both(16, 16, 8, 2)},
    },
    "blocks": {
        (2, 768): {163: _both(16, 32, 8, 2), 99: _both(16, 16, 8, 1)},
        (2, 1024): {163: _both(16, 32, 8, 1)},
        (4, 768): {163: _both(16, 16, 8, 1)},
    },
    # Of tokens or of cells; the columns are not used.
    "pool": {
        (2, 64): {64: _both(32, 0, 4, 3)},
        (2, 128): {99: _both(16, 0, 4, 3), 64: _both(16, 0, 8, 3)},
        (4, 64): {64: _both(32, 0, 8, 3)},
        (4, 128): {99: _both(16, 0, 4, 3), 64: _both(16, 0, 8, 3)},
    },
}


def tile(kernel: str, q: torch.Tensor, dropout: bool = False) -> Tile:
    """Look up the `Tile` of a kernel for tensors like q.

    Args:
        kernel: a name in `TILES`.
        q: [tokens, heads, dim], on the device of the launch.
        dropout: True if the kernel drops probabilities.

    Raises:
        ValueError: the kernel does not run on such tensors there; the message says what does.
    """
    device, dim = limits(q.device), q.shape[-1]
    best = find(kernel, q.dtype, dim, dropout, device)
    if best is None:
        why = lacking(q.dtype, min(dim, LARGEST), device)
        why = why or f"{kernel} has no tile so wide on {device.name}"
        raise refused(q.dtype, dim, why)
    return best


def precision(q: torch.Tensor) -> str:
    """Precision of a kernel's products for tensors like q, an ``input_precision`` of
    `triton.language.dot`.

    "ieee" for half precision, which knows no other, and for devices without TF32. Else torch's
    setting ``torch.backends.cuda.matmul.fp32_precision`` where that is "ieee" (no matrix units) or
    "tf32" (factors of 10 bits, as ``torch.set_float32_matmul_precision("high")`` sets it), and else
    "tf32x3", near float32 by three products of matrix units.
    """
    if q.dtype != torch.float32 or limits(q.device).capability < BFLOAT16:
        return "ieee"
    setting = torch.backends.cuda.matmul.fp32_precision
    return setting if setting in ("ieee", "tf32") else "tf32x3"


def refused(dtype: torch.dtype, dim: int, why: str) -> ValueError:
    """Make the ValueError, which the caller raises, of tensors that no kernel takes; ``why`` is the
    reason of `lacking`."""
    return ValueError(
        f"backend 'triton' does not take {_short(dtype)} of {dim} dims: {why}; "
        "backend 'blocked' takes any"
    )


def find(kernel: str, dtype, dim: int, dropout: bool, limits: Limits) -> Tile | None:
    """Look up the `Tile` of a kernel on a device with these limits; None where there is none.

    Args:
        kernel: a name in `TILES`.
        dtype: dtype of the tensors.
        dim: dims of a head or columns of a row.
        dropout: True if the kernel drops probabilities.
        limits: `Limits` of the device.
    """
    if not _multiplies(dtype, limits) or limits.registers < REGISTERS or limits.warp != WARP:
        return None
    tables = TILES[kernel]
    wide = [most for size, most in tables if size == dtype.itemsize and most >= dim]
    if not wide:
        return None
    table = tables[dtype.itemsize, min(wide)]
    fitting = [least for least in table if least * KIB <= limits.shared]
    return table[max(fitting)][bool(dropout)] if fitting else None


def fits(tile: Tile, kernel: str, size: int, dims: int, limits: Limits) -> bool:
    """True if a GPU with these `Limits` may have room for a `Tile` and multiplies no float32 by
    warpgroup units.

    Counted is the least that a program needs: sums and scores in registers (a B200 has tensor
    memory for them), and a block of loads for each stage.

    Args:
        kernel: "forward", "dq" or "dkv".
        size: bytes of a number of the tensors.
        dims: of a head, padded.
    """
    sides = tile.rows, tile.columns, tile.warps
    threads, sums = tile.warps * limits.warp, 2 if kernel == "dkv" else 1
    held = 0 if limits.capability[0] == 10 else tile.rows * (sums * dims + tile.columns)
    registers = min(tile.maxnreg or REGISTERS_OF_THREAD, REGISTERS_OF_THREAD)
    capability, rows = WARPGROUPS
    return (
        all(n > 0 and n & (n - 1) == 0 for n in sides)
        and min(tile.rows, tile.columns) >= 16
        and tile.stages >= 1
        and threads <= THREADS
        and held <= min(registers * threads, limits.registers)
        and max(tile.stages, 2) * tile.columns * dims * size <= limits.shared
        and (size < 4 or tile.rows < rows or limits.capability < capability)
    )


@cache
def lacking(dtype: torch.dtype, dim: int, limits: Limits) -> str | None:
    """Reason why a device with these limits has no kernels for heads of ``dim`` dims, for a
    message; None where it has."""
    if dtype not in DTYPES:
        return f"{_short(dtype)} has no kernel"
    if dim > LARGEST:
        return f"heads of more than {LARGEST} dims have no kernel"
    if not _multiplies(dtype, limits):
        return f"{_short(dtype)} has no kernel on {limits.name}"
    for kernel in TILES.keys() - set(FOLDED):
        if not all(find(kernel, dtype, dim, dropout, limits) for dropout in (False, True)):
            return f"no kernel fits {limits.name}"
    return None


def _multiplies(dtype, limits):
    return dtype in DTYPES and (dtype != torch.bfloat16 or limits.capability >= BFLOAT16)


def _short(dtype):
    return str(dtype).removeprefix("torch.")


def limits(device: torch.device | str) -> Limits:
    """`Limits` of a torch.device as triton's driver reports them; `LATEST` for other devices than
    CUDA.

    Raises:
        ValueError: triton cannot ask the device, as where it finds no C compiler.
    """
    device = torch.device(device)
    if device.type != "cuda":
        return LATEST
    facts = _ask(torch.cuda.current_device() if device.index is None else device.index)
    if isinstance(facts, str):
        raise ValueError(facts)
    return facts


@cache
def _ask(index):
    """`Limits` of a GPU, asked once; what went wrong, as a str, where there are none."""
    try:
        from triton.runtime import driver

        properties = driver.active.utils.get_device_properties(index)
    except Exception as error:  # of the compiler, of the linker, of the driver
        line = next(iter(str(error).splitlines()), "")
        return f"triton cannot ask the GPU ({type(error).__name__}: {line})"
    return Limits(
        torch.cuda.get_device_capability(index),
        properties["max_shared_mem"],
        properties["max_num_regs"],
        properties["warpSize"],
    )
