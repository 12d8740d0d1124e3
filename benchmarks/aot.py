"""What the compiler says of the Triton kernels on each GPU, ahead of time and without one.

    python benchmarks/aot.py                     # all GPUs of `devices.KNOWN`, about half an hour
    python benchmarks/aot.py --gpu A100 --gpu T4

Registers and bytes spilled are of a thread, bytes of shared memory of a program, instructions of
its code; of several forms of a kernel that share a tile the largest, and the fewest programs that a
multiprocessor holds at a time. half is bfloat16, float16 on a T4. No time is measured:
which tiles are fast only a GPU can tell. Writes results/aot.json, each GPU as soon as it is there;
the others stay as they are. Exit code 1 where a kernel does not keep to its GPU.
"""

import argparse
import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
import triton
from rich.console import Console
from rich.table import Table

from ldt.attention.triton.devices import BFLOAT16, KIB, KNOWN, lacking

ROOT = Path(__file__).parents[1]
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
HEADS = (32, 64, 96, 128)
REGISTERS = 255  # of a thread
LARGEST = ("registers", "spilled", "shared", "instructions")
THREADS = {(7, 5): 1024, (8, 0): 2048, (9, 0): 2048, (10, 0): 2048}  # of a multiprocessor


def of_gpu(name):
    """A row for each kernel, dtype, head width and tile on a GPU, and what `auto` takes there."""
    from compiled import compile_launches

    rows = {}
    for found in compile_launches({name: None}):
        kind, dims = re.search(r"(half|fp32).*?(\d+)", found["call"]).groups()
        about = {"kernel": found["kernel"], "dtype": kind, "dims": int(dims)}
        about |= {key: found[key] for key in ("tile", "warps", "stages", "precision")}
        row = rows.setdefault(json.dumps(about), about | dict.fromkeys(LARGEST, 0))
        row |= {key: max(row[key], found[key]) for key in LARGEST}
        row["programs"] = min(row.get("programs", 32), programs(name, found))
    auto = {
        f"{dtype}, heads of {dim}": "blocked: " + why if why else "triton"
        for dtype, torch_dtype in DTYPES.items()
        for dim in (*HEADS, 256)
        for why in [lacking(torch_dtype, dim, KNOWN[name])]
    }
    return {"auto": auto, "kernels": sorted(rows.values(), key=json.dumps)}


def programs(name, row):
    """Programs of a kernel that a multiprocessor holds at a time."""
    limits, threads = KNOWN[name], row["warps"] * 32
    reserved = KIB if limits.capability >= BFLOAT16 else 0  # of a program, for the system
    registers = -(-row["registers"] // 8) * 8 * threads
    return min(
        limits.registers // registers,
        (limits.shared + reserved) // (row["shared"] + reserved),
        THREADS.get(limits.capability, 1536) // threads,
    )


def over(name, row):
    """Whether a kernel spills, or takes more than a program has on its GPU."""
    limits = KNOWN[name]
    registers = row["registers"] * row["warps"] * limits.warp
    fits = row["registers"] <= REGISTERS and registers <= limits.registers
    return bool(row["spilled"]) or row["shared"] > limits.shared or not fits


def show(gpus, console):
    """Print the largest figures of each GPU, and every kernel that does not keep to it."""
    table = Table("GPU", "kernels", *LARGEST, "over a limit", "auto takes blocked for")
    for name, found in gpus.items():
        rows = found["kernels"]
        most = (f"{max(row[key] for row in rows):,}" for key in LARGEST)
        left = [key for key, what in found["auto"].items() if what != "triton" and "256" not in key]
        beyond = sum(over(name, row) for row in rows)
        table.add_row(name, f"{len(rows):,}", *most, str(beyond), ", ".join(left))
    console.print(table)
    for name, found in gpus.items():
        for row in found["kernels"]:
            if over(name, row):
                console.print(name, row)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gpu", action="append", choices=KNOWN, help="by default all")
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks/results/aot.json")
    args = parser.parse_args(argv)
    sys.path.append(str(ROOT / "tests" / "helpers"))
    names, console = args.gpu or list(KNOWN), Console()
    before = json.loads(args.json.read_text("utf-8"))["gpus"] if args.json.exists() else {}
    made = {"triton": triton.__version__, "gpus": before}
    with ThreadPoolExecutor(2) as pool:  # each compiles in a process of its own
        for name, found in zip(names, pool.map(of_gpu, names), strict=True):
            made["gpus"][name] = found
            args.json.write_text(json.dumps(made, indent=1) + "\n", "utf-8")
    show({name: made["gpus"][name] for name in names}, console)
    sys.exit(any(over(n, row) for n in names for row in made["gpus"][n]["kernels"]))


if __name__ == "__main__":
    main()
