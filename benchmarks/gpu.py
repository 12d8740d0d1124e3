"""The whole GPU suite in one call: is it right, is it fast, does it learn. Under 9 minutes.

    python benchmarks/gpu.py                    # on a CUDA GPU
    python benchmarks/gpu.py --only tune        # faster tiles for this GPU; not part of the above
    python benchmarks/gpu.py --dry-run          # the same on the CPU, tiny, to try the suite itself

Writes gpu-correctness.json, gpu-attention.json, gpu-encoder.json, gpu-pooling.json, gpu-reach.json,
gpu-finetune.json and gpu-tests.json to benchmarks/results (or --out), each as soon as it is there,
and prints short tables. A section that fails says so and the others go on; what would begin after
`LIMIT` seconds is left out. Exit code 1 when anything failed or a backend is wrong. Needs torch,
transformers, typer, rich, pyyaml and pydantic, for the last section pytest and hypothesis, and no
network. tune also writes what ldt takes from then on, see `ldt.attention.triton.tuned`.

A dry run writes nothing unless --out says where. Its figures mean nothing: Triton's kernels are
interpreted, and CUDA graphs are recorded calls.
"""

import argparse
import json
import os
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

import torch

if "--dry-run" in sys.argv:  # before anything imports Triton
    os.environ["TRITON_INTERPRET"] = "1"
elif (
    __name__ == "__main__"
    and not {"-h", "--help"} & set(sys.argv)
    and not torch.cuda.is_available()
):
    sys.exit("no CUDA device here; --dry-run tries the suite on the CPU")

import gpu_parts
from gpu_correctness import CASES, POOLED_CASES, correctness, far
from gpu_pooling import level_row
from gpu_tune import tune
from rich.console import Console
from rich.table import Table

from ldt.attention import BACKENDS, flash, sliding_window_attention
from ldt.bench import encoders, operations
from ldt.bench.measure import cuda_peak_mib, machine, medians
from ldt.bench.setting import Setting
from ldt.model.graphs import Graphs
from ldt.model.packing import pack

console = Console()
SLOW = ("reference", "loop")  # backends for tests and tiny devices, not timed
LIMIT = 500  # seconds, after which no section begins; the tests then have what is left of 530


@dataclass(frozen=True)
class Sizes:
    """How large the suite is."""

    device: str
    cases: tuple  # of correctness, windows and global rows
    pooled_cases: tuple
    dtypes: tuple
    attention: tuple  # tokens
    longest_dense: int  # tokens up to which full attention and transformers' chunks are run
    encoder: tuple  # (tokens, batch, pass)
    mixed: tuple  # lengths of the documents of one batch
    pooling: tuple  # tokens; a whole encoder of the first
    reach: tuple  # (tokens, pass) of ldt alone, for growth in time and memory
    tuned: tuple  # tokens
    layers: int
    width: int
    rounds: int
    documents: int
    epochs: int

    @property
    def cuda(self):
        return self.device == "cuda"

    def setting(self, **changes):
        return Setting(self.device, "bf16", heads=self.width // 64, **changes)


FULL = Sizes(
    device="cuda",
    cases=CASES,
    pooled_cases=POOLED_CASES,
    dtypes=(torch.float32, torch.bfloat16, torch.float16),
    attention=(4096, 16384, 65536),
    longest_dense=16384,
    encoder=(
        (512, 8, "forward"),
        (1024, 8, "forward"),
        (4096, 1, "forward"),
        (8192, 1, "forward"),
        (4096, 8, "training"),
        (16384, 1, "training"),
    ),
    # median 700, 95th percentile 4,096
    mixed=(4096, 2800, 1900, 1400, 1100, 900, 760, 700, 700, 620, 540, 470, 400, 330, 250, 160),
    pooling=(8192, 65536),
    reach=(
        *((n, "forward") for n in (16384, 65536, 262144, 1048576)),
        *((n, "training") for n in (16384, 65536, 262144)),
    ),
    tuned=(4096, 16384),
    layers=12,
    width=768,
    rounds=10,
    documents=400,
    epochs=4,
)
TINY = Sizes(
    device="cpu",
    cases=CASES[1:2],
    pooled_cases=POOLED_CASES[1:],
    dtypes=(torch.float32, torch.bfloat16),
    attention=(600,),
    longest_dense=600,
    encoder=((600, 1, "forward"), (600, 2, "training")),
    mixed=(300, 40, 7),
    pooling=(600,),
    reach=((600, "forward"), (600, "training")),
    tuned=(40,),
    layers=1,
    width=128,
    rounds=1,
    documents=12,
    epochs=1,
)


def attention(sizes):
    """Seconds of one attention operation (heads of 64, one global token), ldt and others.

    The band alone as well, with its share of the rate of a large bf16 matrix product.
    """
    rate = matmul_rate(sizes)
    rows = []
    for length in sizes.attention:
        for kind in ("forward", "training"):
            rows.append(attention_row(length, kind, rate, sizes))
            console.print(rows[-1])
    return rows


def attention_row(length, kind, rate, sizes):
    names = [name for name in running_backends(sizes) if name not in SLOW]
    fastest = names[-1]
    if sizes.cuda:  # on a CPU FlexAttention has no backward pass, and takes minutes to compile
        names += ["flex", "flex-flash", "varlen"]
    if length <= sizes.longest_dense:
        names += ["sdpa", "cudnn", "longformer"]
    given = operations.Given(sizes.setting(), length, kind == "training")
    runs, failed = {}, {}
    for name in names:
        try:
            operation = operations.operation(name, given)
            operation.run(kind)
            runs[name] = lambda f=operation: f.run(kind)
        except Exception as error:  # a peer that cannot run here; of ldt's own, `broken` tells
            failed[name] = f"{type(error).__name__}: {str(error)[:200]}"
    for gap in (1, 4):
        dilated = operations.Given(sizes.setting(dilation=gap), length, kind == "training")
        runs[f"band, dilation {gap}"] = band(dilated, fastest, kind)
    seconds = medians(runs, sizes.rounds, sizes.device)
    flops = band_flops(length, given.setting.window, sizes.width, kind)
    return {
        "tokens": length,
        "pass": kind,
        "seconds": seconds,
        "failed": failed,
        "share_of_matmul_rate": flops / seconds["band, dilation 1"] / rate,
        "matmul_tflops": rate / 1e12,
    }


def band_flops(length, window, width, kind):
    """FLOP of a band: two products forward; five more backward, which computes scores anew."""
    keys = sum(min(length, i + window // 2 + 1) - max(0, i - window // 2) for i in range(length))
    return 4 * width * keys * (3.5 if kind == "training" else 1)


def band(given, backend, kind):
    """A function that runs the sliding window alone, without the global row."""
    q, k, v = given.packed
    how = {"window": given.setting.window, "dilation": given.setting.dilation, "backend": backend}
    call = lambda: sliding_window_attention(q, k, v, given.layout, **how)  # noqa: E731
    return lambda: operations.Operation(call, (q, k, v), q.detach()).run(kind)


def matmul_rate(sizes):
    """FLOP a second of a large bf16 matrix product."""
    n = 8192 if sizes.cuda else 512
    a = torch.randn(n, n, device=sizes.device, dtype=torch.bfloat16)
    return 2 * n**3 / medians({"mm": lambda: a @ a}, sizes.rounds, sizes.device)["mm"]


def running_backends(sizes):
    """The backends that run on the device, the fastest last."""
    setting, lacking = sizes.setting(), set()
    if flash.unfit(setting.device, setting.torch_dtype, setting.dim):
        lacking.add("flash")
    if not sizes.cuda:
        lacking.add("triton")
    return [name for name in BACKENDS if name not in lacking]


def encoder(sizes):
    """Seconds and peak memory of whole encoders: ldt, also as a CUDA graph, and its peers."""
    rows = []
    cases = [([length] * batch, kind) for length, batch, kind in sizes.encoder]
    cases += [(sizes.mixed, kind) for kind in ("forward", "training")]
    for lengths, kind in cases:
        rows.append(encoder_row(list(lengths), kind, sizes))
        console.print(rows[-1])
    if not sizes.cuda:
        rows.append(gpu_parts.recorded_row(captured, sizes))
    return rows


def encoder_row(lengths, kind, sizes, names=("ldt", *encoders.PEERS)):
    setting = sizes.setting(layers=sizes.layers)
    runs, failed = {}, {}
    for name in names:
        model = encoders.build(name, max(lengths), setting)
        batch = encoders.inputs(name, lengths, setting)
        try:
            encoders.step(model, batch, kind)
        except torch.OutOfMemoryError as error:
            failed[name] = str(error)[:200]
            continue
        runs[name] = lambda m=model, b=batch: encoders.step(m, b, kind)
        if name in ("ldt", "poolingformer") and sizes.cuda and kind == "forward":
            runs[f"{name} as a CUDA graph"] = captured(model, batch)
    seconds = medians(runs, sizes.rounds, sizes.device)
    memory = {name: cuda_peak_mib(run) if sizes.cuda else None for name, run in runs.items()}
    return {
        "tokens": max(lengths),
        "batch": len(lengths),
        "lengths": lengths if len(set(lengths)) > 1 else None,
        "pass": kind,
        "seconds": seconds,
        "mib": memory,
        "failed": failed,
    }


@torch.inference_mode()
def captured(model, batch, graphs=None):
    """A function that runs the model on ``batch``, its layers by a CUDA graph.

    Args:
        graphs: of the model while the function runs; by default for inputs of any length.
    """
    masks = batch["attention_mask"], batch["global_attention_mask"]
    packing = pack(batch["input_ids"].shape, *masks, batch["input_ids"].device)
    graphs = graphs or Graphs(packing.layout.total_tokens * 2)

    @torch.inference_mode()
    def run():
        model.graphs = graphs
        try:
            return model(**batch, packing=packing).last_hidden_state
        finally:
            model.graphs = None

    expected = run()  # the first time without a graph
    error = (run() - expected).float().norm() / expected.float().norm()
    if not graphs.captured or error > 4 * torch.finfo(expected.dtype).eps:
        raise RuntimeError(f"the CUDA graph is off by {error:.2g}, {graphs.captured} captured")
    return run


def pooling(sizes):
    """Seconds and peak memory of two levels beside one window: attention alone, whole encoders."""
    rows = []
    for kind in ("forward", "training"):
        for length in sizes.pooling:
            rows.append(level_row(length, kind, sizes.setting(), sizes.rounds))
            console.print(rows[-1])
        names = "ldt", "poolingformer"
        rows.append(encoder_row([sizes.pooling[0]], kind, sizes, names) | {"layers": sizes.layers})
        console.print(rows[-1])
    return rows


def reach(sizes):
    """Seconds and MiB of ldt's encoder at lengths that no peer reaches; training checkpoints."""
    rows = []
    for length, kind in sizes.reach:
        setting = sizes.setting(layers=sizes.layers, vocabulary=1000)
        model = encoders.build("ldt", length, setting)
        if kind == "training":
            model.train().gradient_checkpointing_enable()
        batch = encoders.inputs("ldt", [length], setting)
        run = lambda m=model, b=batch, k=kind: encoders.step(m, b, k)  # noqa: E731
        run()
        row = {"tokens": length, "pass": kind, "batch": 1}
        row["mib"] = {"ldt": cuda_peak_mib(run) if sizes.cuda else None}
        row["seconds"] = medians({"ldt": run}, min(3, sizes.rounds), sizes.device)
        rows.append(row)
        console.print(row)
    return rows


def wrong(result):
    """Rows of what is not right, and of ldt's own backends that did not run."""
    rows = rows_of(result, "correctness")
    return [row for row in rows if not row["ok"]] + [
        {"backend": name, "tokens": row["tokens"], "pass": row["pass"], "error": why}
        for row in rows_of(result, "attention")
        for name, why in row["failed"].items()
        if name in BACKENDS
    ]


def failed(result):
    """Names of sections that broke off, and of tests that failed."""
    sections = [name for name, found in result.items() if "error" in found]
    return sections + list(result.get("tests", {}).get("failed", []))


def rows_of(result, name):
    """The rows of a section; none where it broke off or was left out."""
    found = result.get(name, [])
    return found if isinstance(found, list) else []


def show(result, dry=False):
    title = "milliseconds; in brackets: times those of ldt's fastest, or of the first"
    table = Table(title=f"{'DRY RUN, figures mean nothing: ' * dry}{title}")
    for title in ("what", "tokens", "batch", "pass", "milliseconds"):
        table.add_column(title)
    for what in ("attention", "encoder", "pooling", "reach"):
        for row in rows_of(result, what):
            seconds = row["seconds"]
            ours = [s for n, s in seconds.items() if n in BACKENDS or n.startswith("ldt")]
            own = min(ours or [next(iter(seconds.values()))])
            cells = [f"{n} {1000 * s:.2f} ({s / own:.2f})" for n, s in seconds.items()]
            where = str(row["tokens"]), str(row.get("batch", 1)), row["pass"]
            table.add_row(what, *where, ", ".join(cells))
    console.print(table)
    for row in rows_of(result, "attention"):
        share = f"{row['share_of_matmul_rate']:.0%} of {row['matmul_tflops']:.0f} TFLOP/s"
        console.print(f"band at {row['tokens']}, {row['pass']}: {share}")
    for name in ("finetune", "tests"):
        if name in result:
            console.print(name, result[name])
    bad, checked = wrong(result), rows_of(result, "correctness")
    right = sum(row["ok"] for row in checked)
    console.print(f"correctness: {right} of {len(checked)} within the allowed error")
    for row in bad[:20]:
        console.print("[bold red]wrong[/]", row)
    for name in failed(result):
        console.print("[bold red]failed[/]", name, markup=True)


def all_correct(sizes):
    """Rows of `correctness`, and of tensors that are `far` apart."""
    rows = correctness(sizes.device, sizes.dtypes, sizes.cases, sizes.pooled_cases)
    names = [name for name in running_backends(sizes) if name not in SLOW]
    return rows + far(sizes.device, names, **({} if sizes.cuda else {"stride": 2**16}))


SECTIONS = {
    "correctness": all_correct,
    "attention": attention,
    "encoder": encoder,
    "finetune": gpu_parts.finetune,
    "pooling": pooling,
    "reach": reach,
    "tests": gpu_parts.tests,
    "tune": tune,
}


def run(name, sizes, start):
    """What a section found; a dictionary with ``error`` or ``left_out`` where it found nothing."""
    if time.perf_counter() - start > LIMIT:
        return {"left_out": f"it would begin after {LIMIT} seconds"}
    try:
        return SECTIONS[name](sizes)
    except Exception:  # the others go on
        console.print_exception()
        return {"error": traceback.format_exc()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes on the CPU")
    parser.add_argument("--only", nargs="+", choices=SECTIONS)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    sizes = TINY if args.dry_run else FULL
    out = args.out or (None if args.dry_run else Path(__file__).parent / "results")
    if args.dry_run:
        gpu_parts.pretend()
    names = args.only or [name for name in SECTIONS if args.dry_run or name != "tune"]
    result, start = {}, time.perf_counter()
    for name in names:
        since = time.perf_counter()
        result[name] = run(name, sizes, start)
        console.print(f"{name}: {time.perf_counter() - since:.0f} s")
        if out:
            out.mkdir(parents=True, exist_ok=True)
            found = {"machine": machine(), "dry_run": args.dry_run, name: result[name]}
            (out / f"gpu-{name}.json").write_text(json.dumps(found, indent=2) + "\n")
    show(result, args.dry_run)
    sys.exit(1 if wrong(result) or failed(result) else 0)


if __name__ == "__main__":
    main()
