"""ldt's encoder side by side with those of transformers on this CPU: time and memory.

    python benchmarks/encoder_cpu.py               # all cases, about half an hour on 2 cores
    python benchmarks/encoder_cpu.py --only mix    # those cases anew; the others' results stay

Base width (768, 12 heads, window 512), random weights, batch 1, token 0 global, huge pages for all.
Few layers where the whole would take minutes a step; ``layers`` in the result says how many. Times:
all run in turn in one process, and a ratio is that of the medians. Memory: the peak resident memory
over that of the loaded model, median of three fresh processes. The floors were set on a CPU where
oneDNN multiplies 1.8 times faster than MKL; ``onednn_gain`` in the result says how much faster it
is here.
"""

import argparse
import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path

os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # read by torch at its first allocation

import encoders
import torch
from measure import medians
from rich.console import Console
from rich.table import Table
from setting import PASSES, Setting

from ldt.attention import matmul
from ldt.inference.measure import machine
from ldt.model.precision import lower

RESULT = Path(__file__).parent / "results" / "cpu-encoder.json"
PEERS = ("longformer", "roberta", "modernbert")
SHAPE = {"heads": 12, "vocabulary": 50265}
MIX = (1, 0.62, 0.41, 0.33, 0.22, 0.16, 0.11, 0.06)  # lengths of 8 documents, 36 % of the batch
GROWTH = (4096, 8192, 16384)
COMPILED = (1024, 4096, 8192)


@dataclass(frozen=True)
class Case:
    """What is run, and the least ratios to the first of its peers: seconds, then memory."""

    kind: str
    tokens: int
    layers: int
    seconds: tuple = ()
    memory: tuple = ()
    dtype: str = "fp32"
    precision: str = "fp32"  # of ldt, as ldt predict has it; int8 meets the peers' dtype
    lengths: tuple = ()  # of the documents; default: one of ``tokens``
    ours: str = "ldt"
    peers: tuple = PEERS

    @property
    def setting(self):
        return Setting(layers=self.layers, dtype=self.dtype, **SHAPE)


MODERN = {"ours": "ldt-modernbert", "peers": ("modernbert",)}
WINDOWS = MODERN | {"ours": "ldt-modernbert-windows"}  # of 512 in full layers
CASES = {
    "forward-512": Case("forward", 512, 12, (2.8, 1.7)),
    "forward-1024": Case("forward", 1024, 12, (3.0, 1.9)),
    "forward-4096": Case("forward", 4096, 4, (2.9, 2.6), (3.0, 0.75)),
    "forward-8192": Case("forward", 8192, 2, (4.0, 4.2), (3.7, 0.75)),
    "training-1024": Case("training", 1024, 4, (2.1, 1.5), (1.05, 0.9)),
    "training-4096": Case("training", 4096, 3, (3.3, 3.0), (2.3, 0.9)),
    "training-8192": Case("training", 8192, 2, (3.5, 4.2), (2.7, 0.9)),
    "forward-4096-bf16": Case("forward", 4096, 4, (2.7, 3.8), dtype="bf16"),
    "forward-8192-bf16": Case("forward", 8192, 2, (4.0, 6.5), dtype="bf16"),
    "training-4096-bf16": Case("training", 4096, 3, (3.0, 2.8), dtype="bf16"),
    "forward-4096-int8": Case("forward", 4096, 4, (5,), precision="int8"),
    "mix": Case("forward", 2048, 2, (10, 5), lengths=tuple(int(2048 * part) for part in MIX)),
    "modernbert-1024": Case("forward", 1024, 6, (1.0,), **MODERN),
    "modernbert-4096": Case("forward", 4096, 6, (1.6,), **MODERN),
    "modernbert-8192": Case("forward", 8192, 6, (2.0,), (1.5,), **MODERN),
    "modernbert-training-4096": Case("training", 4096, 6, (1.2,), **MODERN),
    "modernbert-windows-8192": Case("forward", 8192, 6, (4.0,), (1.5,), **WINDOWS),
    "modernbert-windows-16384": Case("forward", 16384, 6, (), **WINDOWS),
    "modernbert-mix": Case(
        "forward", 2048, 6, (), lengths=tuple(int(2048 * part) for part in MIX), **MODERN
    ),
}


def compare(case, rounds):
    """Seconds and MiB of ldt and its peers, and how many times those of ldt the peers take."""
    names = (case.ours, *case.peers)
    runs = {}
    for name in names:
        model = encoders.build(name, case.tokens, case.setting)
        if name == case.ours:
            lower(model, case.precision)
        batch = encoders.inputs(name, case.lengths or [case.tokens], case.setting)
        runs[name] = lambda m=model, b=batch: encoders.step(m, b, case.kind)
    seconds = medians(runs, rounds)
    row = {
        "pass": case.kind,
        "dtype": case.dtype,
        "precision": case.precision,
        "tokens": case.lengths or case.tokens,
        "layers": case.layers,
        "rounds": rounds,
        "seconds": seconds,
        "times_faster": {name: seconds[name] / seconds[case.ours] for name in case.peers},
    }
    if not case.lengths and case.precision == "fp32":
        mib = {name: encoders.peak(name, case.tokens, case.kind, case.setting) for name in names}
        row["mib"] = mib
        row["times_leaner"] = {name: mib[name] / mib[case.ours] for name in case.peers}
    return row


def growth(tokens):
    """ldt's MiB over the loaded model of 2 layers at each of the lengths."""
    setting = Setting(layers=2, **SHAPE)
    return [
        {"tokens": n} | {kind: encoders.peak("ldt", n, kind, setting) for kind in PASSES}
        for n in tokens
    ]


def compiled(tokens, rounds):
    """Seconds of ldt's encoder of 2 layers at each of the lengths, as it is and by torch.compile,
    and those of the second as parts of the first's.

    They take turns in two processes: in one, each would find its memory in the other's pieces.
    """
    with ExitStack() as stack:
        spawn = partial(ProcessPoolExecutor, 1, get_context("spawn"))
        pools = {name: stack.enter_context(spawn()) for name in ("eager", "compiled")}
        rows = [{"tokens": n} for n in tokens]
        for row, kind in product(rows, PASSES):
            runs = {
                name: partial(_in_process, pool, name, row["tokens"], kind)
                for name, pool in pools.items()
            }
            seconds = medians(runs, rounds)
            row[kind] = seconds | {"compiled_to_eager": seconds["compiled"] / seconds["eager"]}
    return rows


def _in_process(pool, name, tokens, kind):
    pool.submit(_step, name, tokens, kind).result()


def _step(name, tokens, kind):
    model, batch = _loaded(name, tokens, kind)
    encoders.step(model, batch, kind)


@lru_cache(2)
def _loaded(name, tokens, kind):
    setting = Setting(layers=2, **SHAPE)
    torch.compiler.reset()
    model = encoders.build("ldt", tokens, setting)
    if name == "compiled":
        model = torch.compile(model, fullgraph=True)
    return model, encoders.inputs("ldt", [tokens], setting)


def onednn_gain():
    """How many times faster oneDNN multiplies float32 matrices here than torch's default."""
    x, weight = torch.randn(4096, 768), torch.randn(768, 768)

    def onednn():
        with matmul.onednn():
            torch.nn.functional.linear(x, weight)

    runs = {"default": lambda: torch.nn.functional.linear(x, weight), "onednn": onednn}
    seconds = medians(runs, 15)
    return seconds["default"] / seconds["onednn"]


def show(result, console):
    table = Table(title="times slower, and times more memory, than ldt (floor)")
    for title in ("case", "ldt s", *PEERS, "ldt MiB", *PEERS):
        table.add_column(title, justify="left" if title == "case" else "right")
    for name, row in result["cases"].items():
        case = CASES[name]
        cells = [f"{row['seconds'][case.ours]:.2f}", *ratios(row["times_faster"], case, "seconds")]
        if "mib" in row:
            ours = f"{row['mib'][case.ours]:.0f}"
            cells += [ours, *ratios(row["times_leaner"], case, "memory")]
        table.add_row(name, *cells)
    console.print(table)
    table = Table(title="ldt's peak memory over the loaded model of 2 layers, MiB")
    for title in ("tokens", "forward", "training"):
        table.add_column(title, justify="right")
    for row in result["growth"]:
        table.add_row(*(f"{value:.0f}" for value in row.values()))
    console.print(table)
    table = Table(title="compiled by torch.compile: seconds of 2 layers, and parts of eager's")
    for title in ("tokens", *PASSES):
        table.add_column(title, justify="right")
    for row in result.get("compiled", ()):
        cells = (f"{row[k]['compiled']:.2f} ({row[k]['compiled_to_eager']:.2f})" for k in PASSES)
        table.add_row(str(row["tokens"]), *cells)
    console.print(table)


def ratios(found, case, what):
    floors = dict(zip(case.peers, getattr(case, what), strict=False))
    for name in PEERS:
        floor = f" ({floors[name]})" if name in floors else ""
        yield f"{found[name]:.2f}{floor}" if name in found else ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    what = (*CASES, "growth", "compiled")
    parser.add_argument("--only", nargs="+", choices=what, default=what, metavar="CASE")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, default=RESULT)
    args = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 120)
    result = {"cases": {}, "growth": []}
    if args.json.exists():
        result = json.loads(args.json.read_text())
    result["machine"] = machine() | {"onednn_gain": round(onednn_gain(), 2)}
    args.json.parent.mkdir(exist_ok=True)
    for name in args.only:
        if name == "growth":
            result["growth"] = growth(GROWTH)
        elif name == "compiled":
            result["compiled"] = compiled(COMPILED, args.rounds)
        else:
            result["cases"][name] = compare(CASES[name], args.rounds)
            console.print(name, result["cases"][name]["times_faster"])
        args.json.write_text(json.dumps(result, indent=2) + "\n")
    show(result, console)
    console.print(f"written to {args.json}")


if __name__ == "__main__":
    main()
