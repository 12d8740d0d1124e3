"""The whole GPU suite in one call: is it right, is it fast, does it learn. Under 9 minutes.

    python benchmarks/gpu.py                    # on a CUDA GPU
    python benchmarks/gpu.py --only tune        # other tiles for the kernels; not part of the above
    python benchmarks/gpu.py --dry-run          # the same on the CPU, tiny, to try the suite itself

Writes gpu-correctness.json, gpu-attention.json, gpu-encoder.json, gpu-pooling.json, gpu-reach.json
and gpu-finetune.json to benchmarks/results (or --out), each as soon as it is there, and prints
short tables. Exit code 1 when a backend is wrong. Needs torch, transformers, typer, rich, pyyaml
and pydantic, and no network.
"""

import argparse
import json
import sys
import tempfile
import time
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path

import torch
from gpu_correctness import CASES, POOLED_CASES, correctness
from gpu_pooling import level_row
from rich.console import Console
from rich.table import Table

from ldt.attention import BACKENDS, sliding_window_attention
from ldt.bench import encoders, operations
from ldt.bench.measure import cuda_peak_mib, machine, medians
from ldt.bench.setting import Setting
from ldt.model.packing import pack

RECIPE = """
task: {name: classification}
model: {path: ./long}
data: {train: train.jsonl, eval: eval.jsonl}
training:
  output_dir: runs/gpu
  learning_rate: 1.0e-3
  per_device_train_batch_size: 8
  gradient_accumulation_steps: 1
  seed: 0
"""

console = Console()
SLOW = ("reference", "loop")  # backends for tests and tiny devices, not timed


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
    names = [name for name in running_backends(sizes.device) if name not in SLOW]
    fastest = names[-1]
    if sizes.cuda:  # on a CPU it has no backward pass, and takes minutes to compile
        names.append("flex")
    if length <= sizes.longest_dense:
        names += ["sdpa", "cudnn", "longformer"]
    given = operations.Given(sizes.setting(), length, kind == "training")
    runs, failed = {}, {}
    for name in names:
        try:
            operation = operations.operation(name, given)
            operation.run(kind)
            runs[name] = lambda f=operation: f.run(kind)
        except Exception as error:  # a peer that cannot run here
            failed[name] = f"{type(error).__name__}: {str(error)[:200]}"
            if name in BACKENDS:
                raise
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


def running_backends(device):
    """The backends that run on the device."""
    return [name for name in BACKENDS if name != "triton" or device == "cuda"]


def encoder(sizes):
    """Seconds and peak memory of whole encoders: ldt, also as a CUDA graph, and its peers."""
    rows = []
    cases = [([length] * batch, kind) for length, batch, kind in sizes.encoder]
    cases += [(sizes.mixed, kind) for kind in ("forward", "training")]
    for lengths, kind in cases:
        rows.append(encoder_row(list(lengths), kind, sizes))
        console.print(rows[-1])
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
def captured(model, batch):
    """A function that replays the model's forward pass on ``batch`` as a CUDA graph."""
    masks = batch["attention_mask"], batch["global_attention_mask"]
    packing = pack(batch["input_ids"].shape, *masks, batch["input_ids"].device)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            expected = model(**batch, packing=packing).last_hidden_state
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = model(**batch, packing=packing).last_hidden_state
    graph.replay()
    if not torch.equal(found, expected):
        raise RuntimeError("the CUDA graph gives another output")
    return graph.replay


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


def tune(sizes):
    """Seconds of sliding windows for other tiles of their kernels, sorted."""
    from ldt.attention.triton.devices import TILES, Tile

    candidates = [
        Tile(rows, columns, warps, stages)
        for rows in (64, 128)
        for columns in (32, 64, 128)
        for warps in (4, 8)
        for stages in (2, 3, 4)
    ]
    kernels = {"forward": "forward", "dq": "training", "dkv": "training"}
    rows = []
    for length in (n for n in sizes.attention if n <= 16384):
        for name, kind in kernels.items():
            given = operations.Given(sizes.setting(), length, kind == "training")
            run = band(given, "triton", kind)
            before, found = TILES[name], []
            for tile in candidates:
                TILES[name] = {key: {0: (tile, tile)} for key in before}
                try:
                    seconds = medians({name: run}, 5, sizes.device)[name]
                except Exception as error:  # too much shared memory
                    console.print(f"{name} {tile}: {type(error).__name__}")
                    continue
                row = {"tokens": length, "table": name, "pass": kind, "tile": str(tile)}
                found.append(row | {"seconds": seconds})
            TILES[name] = before
            found.sort(key=lambda row: row["seconds"])
            for row in found[:5]:
                time = f"{1e6 * row['seconds']:.0f} us"
                console.print(f"{length} {name} {row['tile']}: {time}")
            rows += found
    return rows


def finetune(sizes):
    """Train a small classifier on contracts whose deciding clause stands far behind token 512."""
    sys.path.append(str(Path(__file__).parents[1] / "examples" / "demo"))
    from contracts import contracts
    from demo import make_small, write

    from ldt.convert import convert
    from ldt.recipe.recipe import load
    from ldt.training import train

    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        documents = contracts(range(sizes.documents), 0)
        write(Path("train.jsonl"), documents)
        write(Path("eval.jsonl"), contracts(range(10_000, 10_000 + sizes.documents // 4), 0))
        make_small(Path("small"), [document["text"] for document in documents], 0)
        convert("small", Path("long"), max_length=2048, window=128)
        Path("recipe.yaml").write_text(RECIPE, "utf-8")
        overrides = [f"training.num_train_epochs={sizes.epochs}"]
        start = time.perf_counter()
        metrics = train(load("recipe.yaml", overrides, command="finetune")).metrics
        found = json.loads(Path("runs/gpu/metrics.json").read_text("utf-8"))
        return {
            "documents": len(documents),
            "seconds": time.perf_counter() - start,
            "tokens_per_second": found["tokens_per_second"],
            "device": found["versions"]["device"],
            **metrics,
        }


def wrong(result):
    return [row for row in result.get("correctness", []) if not row["ok"]]


def show(result):
    table = Table(title="milliseconds; in brackets: times those of ldt's fastest, or of the first")
    for title in ("what", "tokens", "batch", "pass", "milliseconds"):
        table.add_column(title)
    for what in ("attention", "encoder", "pooling", "reach"):
        for row in result.get(what, []):
            seconds = row["seconds"]
            ours = [s for n, s in seconds.items() if n in BACKENDS or n.startswith("ldt")]
            own = min(ours or [next(iter(seconds.values()))])
            cells = [f"{n} {1000 * s:.2f} ({s / own:.2f})" for n, s in seconds.items()]
            where = str(row["tokens"]), str(row.get("batch", 1)), row["pass"]
            table.add_row(what, *where, ", ".join(cells))
    console.print(table)
    for row in result.get("attention", []):
        share = f"{row['share_of_matmul_rate']:.0%} of {row['matmul_tflops']:.0f} TFLOP/s"
        console.print(f"band at {row['tokens']}, {row['pass']}: {share}")
    if "finetune" in result:
        console.print("finetune", result["finetune"])
    bad = wrong(result)
    checked = len(result.get("correctness", []))
    console.print(f"correctness: {checked - len(bad)} of {checked} within the allowed error")
    for row in bad[:20]:
        console.print("[bold red]wrong[/]", row)


SECTIONS = {
    "correctness": lambda sizes: correctness(
        sizes.device, sizes.dtypes, sizes.cases, sizes.pooled_cases
    ),
    "attention": attention,
    "encoder": encoder,
    "pooling": pooling,
    "reach": reach,
    "finetune": finetune,
    "tune": tune,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes on the CPU")
    usual = [name for name in SECTIONS if name != "tune"]
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=usual)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    args = parser.parse_args()
    if not args.dry_run and not torch.cuda.is_available():
        sys.exit("no CUDA device here; --dry-run tries the suite on the CPU")
    sizes = TINY if args.dry_run else FULL
    args.out.mkdir(parents=True, exist_ok=True)
    result = {}
    for name in args.only:
        start = time.perf_counter()
        result[name] = SECTIONS[name](sizes)
        console.print(f"{name}: {time.perf_counter() - start:.0f} s")
        text = json.dumps({"machine": machine(), name: result[name]}, indent=2)
        (args.out / f"gpu-{name}.json").write_text(text + "\n")
    show(result)
    sys.exit(1 if wrong(result) else 0)


if __name__ == "__main__":
    main()
