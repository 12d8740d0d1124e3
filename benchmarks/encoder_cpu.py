"""ldt's encoder side by side with transformers' Longformer and RoBERTa (SDPA) on this CPU.

    python benchmarks/encoder_cpu.py          # all cases, about half an hour on 2 cores
    python benchmarks/encoder_cpu.py --lengths 1024 --growth --rounds 2 --json quick.json

Base width (768, 12 heads, window 512), random weights, batch 1, token 0 global, float32, huge pages
for all. Times: the three run in turn in one process, and a ratio is that of the medians. Memory:
each in a fresh process, the peak resident memory over that of the loaded model. The floors were set
on a CPU where oneDNN multiplies 1.8 times faster than MKL; ``onednn_gain`` in the result says how
much faster it is here.
"""

import argparse
import json
import os
from pathlib import Path

os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # read by torch at its first allocation

import torch
from rich.console import Console
from rich.table import Table

from ldt.bench import encoders
from ldt.bench.measure import machine, medians
from ldt.bench.memory import FreshProcesses
from ldt.bench.setting import Setting
from ldt.kernels import cpu

RESULTS = Path(__file__).parent / "results"
PEERS = ("longformer", "roberta")
NAMES = ("ldt", *PEERS)
# pass, tokens -> the least ratio of seconds and of memory, for each of PEERS
FLOORS = {
    ("forward", 512): ((2.8, 1.7), (None, None)),
    ("forward", 1024): ((3.0, 1.9), (None, None)),
    ("forward", 4096): ((2.9, 2.6), (3.0, 0.75)),
    ("forward", 8192): ((4.0, 4.2), (3.7, 0.75)),
    ("training", 1024): ((2.1, 1.5), (1.05, 0.9)),
    ("training", 4096): ((3.3, 3.0), (2.3, 0.9)),
    ("training", 8192): ((3.5, 4.2), (2.7, 0.9)),
}
NO_FLOOR = ((None, None), (None, None))


def compare(length, kind, setting, rounds, processes):
    """Seconds and MiB of the three, and how many times those of ldt the peers take."""
    runs = {name: encoders.load(name, length, kind, setting)[0] for name in NAMES}
    seconds = medians(runs, rounds)
    memory = {name: processes.peak_mib(name, length, kind, setting) for name in NAMES}
    return {
        "pass": kind,
        "tokens": length,
        "seconds": seconds,
        "mib": memory,
        "times_faster": {name: seconds[name] / seconds["ldt"] for name in PEERS},
        "times_leaner": {name: memory[name] / memory["ldt"] for name in PEERS},
    }


def onednn_gain():
    """How many times faster oneDNN multiplies float32 matrices here than torch's default."""
    x, weight = torch.randn(4096, 768), torch.randn(768, 768)

    def onednn():
        with cpu.onednn():
            torch.nn.functional.linear(x, weight)

    runs = {"default": lambda: torch.nn.functional.linear(x, weight), "onednn": onednn}
    seconds = medians(runs, 15)
    return seconds["default"] / seconds["onednn"]


def show(result, console):
    table = Table(title="times slower, and times more memory, than ldt (floor)")
    titles = [
        "pass",
        "tokens",
        "ldt s",
        "Longformer",
        "RoBERTa",
        "ldt MiB",
        "Longformer",
        "RoBERTa",
    ]
    for title in titles:
        table.add_column(title, justify="right")
    for row in result["compare"]:
        floors = FLOORS.get((row["pass"], row["tokens"]), NO_FLOOR)
        faster = ratios(row["times_faster"], floors[0])
        leaner = ratios(row["times_leaner"], floors[1])
        seconds, mib = f"{row['seconds']['ldt']:.2f}", f"{row['mib']['ldt']:.0f}"
        table.add_row(row["pass"], str(row["tokens"]), seconds, *faster, mib, *leaner)
    console.print(table)
    table = Table(title="ldt's peak memory over the loaded model, MiB")
    for title in result["growth"][0] if result["growth"] else ():
        table.add_column(title, justify="right")
    for row in result["growth"]:
        table.add_row(*(f"{value:.0f}" for value in row.values()))
    console.print(table)


def ratios(found, floors):
    for name, floor in zip(PEERS, floors, strict=True):
        yield f"{found[name]:.2f}" + ("" if floor is None else f" ({floor})")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lengths", type=int, nargs="*", default=[512, 1024, 4096, 8192])
    parser.add_argument("--growth", type=int, nargs="*", default=[4096, 8192, 16384])
    parser.add_argument("--passes", nargs="+", default=["forward", "training"])
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, default=RESULTS / "cpu-encoder.json")
    args = parser.parse_args()
    console = Console()
    about = machine() | {"onednn_gain": round(onednn_gain(), 2)}
    result = {"machine": about, "layers": args.layers, "rounds": args.rounds, "compare": []}
    setting = Setting(layers=args.layers)
    with FreshProcesses() as processes:
        for kind in args.passes:
            for length in args.lengths:
                row = compare(length, kind, setting, args.rounds, processes)
                result["compare"].append(row)
                console.print(row)
        result["growth"] = [
            {"tokens": n}
            | {kind: processes.peak_mib("ldt", n, kind, setting) for kind in args.passes}
            for n in args.growth
        ]
    show(result, console)
    args.json.parent.mkdir(exist_ok=True)
    args.json.write_text(json.dumps(result, indent=2) + "\n")
    console.print(f"written to {args.json}")


if __name__ == "__main__":
    main()
