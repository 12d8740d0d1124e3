"""The whole GPU suite in one call: is it right, is it fast, does it learn. Under 9 minutes.

    python benchmarks/gpu.py                    # on a CUDA GPU
    python benchmarks/gpu.py --dry-run          # the same on the CPU, tiny, to try the suite itself

Writes gpu-correctness.json, gpu-attention.json, gpu-encoder.json and gpu-finetune.json to
benchmarks/results (or --out) and prints a short table. Exit code 1 when a backend is wrong. Needs
torch, transformers, typer, rich, pyyaml and pydantic, and no network.
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
from rich.console import Console
from rich.table import Table

from ldt.attention import BACKENDS, Documents, reference
from ldt.bench import encoders, operations
from ldt.bench.measure import cuda_peak_mib, machine, medians
from ldt.bench.setting import Setting

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
NAMES = ("out", "dq", "dk", "dv")
SLOW = ("reference", "loop")  # backends for tests and tiny devices, not timed


@dataclass(frozen=True)
class Sizes:
    """How large the suite is."""

    device: str
    dtypes: tuple
    attention: tuple  # tokens
    longest_dense: int  # tokens up to which full attention and transformers' chunks are run
    encoder: tuple  # (tokens, batch, pass)
    layers: int
    width: int
    rounds: int
    documents: int
    epochs: int


ALL_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
FULL = Sizes(
    "cuda",
    ALL_DTYPES,
    (4096, 16384, 65536),
    16384,
    ((4096, 1, "forward"), (4096, 8, "training"), (16384, 1, "training")),
    12,
    768,
    10,
    400,
    4,
)
TINY = Sizes(
    "cpu",
    (torch.float32, torch.bfloat16),
    (1024,),
    1024,
    ((600, 1, "forward"), (600, 2, "training")),
    2,
    128,
    2,
    12,
    1,
)


def correctness(sizes):
    """Largest error of every backend against the dense float64 definition, and what is allowed.

    Allowed is twice the error of the dense definition in the tested dtype, as in the tests.
    """
    rows = []
    for lengths, window, dim in (((700, 1, 333), 128, 64), ((257,), 512, 32), ((1000,), 64, 128)):
        documents = some_documents(lengths, sizes.device)
        for dtype in sizes.dtypes:
            leaves, up = random_leaves(documents, dim, sizes.device)
            exact = with_gradients(reference, leaves, up, documents, window, torch.float64)
            dense = with_gradients(reference, leaves, up, documents, window, dtype)
            for name in running_backends(sizes.device):
                ours = with_gradients(BACKENDS[name], leaves, up, documents, window, dtype)
                for what, true, a, b in zip(NAMES, exact, ours, dense, strict=True):
                    error, allowed = largest(a - true), 2 * largest(b - true)
                    allowed += torch.finfo(dtype).eps * largest(true)
                    rows.append(
                        {
                            "backend": name,
                            "dtype": str(dtype).removeprefix("torch."),
                            "lengths": lengths,
                            "window": window,
                            "dim": dim,
                            "tensor": what,
                            "error": error,
                            "allowed": allowed,
                            "ok": error <= allowed,
                        }
                    )
    return rows


def some_documents(lengths, device):
    generator = torch.Generator().manual_seed(0)
    total = sum(lengths)
    keep = torch.rand(total, generator=generator) < 0.97
    is_global = (torch.rand(total, generator=generator) < 0.01) & keep
    borders = torch.tensor([0, *lengths]).cumsum(0)
    return Documents(borders.to(device), keep.to(device), is_global.to(device))


def random_leaves(documents, dim, device, heads=3):
    generator = torch.Generator().manual_seed(1)
    shape = documents.total, heads, dim
    *leaves, up = (torch.randn(shape, generator=generator).to(device) for _ in range(4))
    return leaves, up


def with_gradients(module, leaves, up, documents, window, dtype):
    """Output, dq, dk, dv in float64 of a band computed in ``dtype``."""
    leaves = [leaf.to(dtype).requires_grad_() for leaf in leaves]
    out = module.band_attention(*leaves, documents, window=window)
    return [x.double() for x in (out, *torch.autograd.grad(out, leaves, up.to(dtype)))]


def largest(x):
    return x.abs().max().item()


def attention(sizes):
    """Seconds of one attention operation (heads of 64, one global token), ldt and others."""
    rows = []
    for length in sizes.attention:
        for kind in ("forward", "training"):
            rows.append(attention_row(length, kind, sizes))
            console.print(rows[-1])
    return rows


def attention_row(length, kind, sizes):
    setting = Setting(sizes.device, "bf16", heads=sizes.width // 64)
    given = operations.Given(setting, length, kind == "training")
    names = [name for name in running_backends(sizes.device) if name not in SLOW]
    if sizes.device == "cuda":  # on a CPU it has no backward pass, and takes minutes to compile
        names.append("flex")
    if length <= sizes.longest_dense:
        names += ["sdpa", "longformer"]
    found = {name: operations.operation(name, given) for name in names}
    runs = {name: lambda f=operation: f.run(kind) for name, operation in found.items()}
    return {"tokens": length, "pass": kind, "seconds": medians(runs, sizes.rounds, sizes.device)}


def running_backends(device):
    """The backends that run on the device."""
    return [name for name in BACKENDS if name != "triton" or device == "cuda"]


def encoder(sizes):
    """Seconds and peak memory of whole encoders, ldt, transformers' Longformer, RoBERTa."""
    rows = []
    for length, batch, kind in sizes.encoder:
        rows.append(encoder_row(length, batch, kind, sizes))
        console.print(rows[-1])
    return rows


def encoder_row(length, batch, kind, sizes):
    setting = Setting(
        sizes.device, "bf16", batch=batch, heads=sizes.width // 64, layers=sizes.layers
    )
    names = ("ldt", "longformer", "roberta")
    runs = {name: encoders.load(name, length, kind, setting)[0] for name in names}
    seconds = medians(runs, sizes.rounds, sizes.device)
    cuda = sizes.device == "cuda"
    memory = {name: cuda_peak_mib(run) if cuda else None for name, run in runs.items()}
    return {"tokens": length, "batch": batch, "pass": kind, "seconds": seconds, "mib": memory}


def finetune(sizes):
    """Train a small classifier on contracts whose deciding clause stands far behind token 512."""
    from ldt.convert import convert
    from ldt.demo.__main__ import make_small, write
    from ldt.demo.contracts import contracts
    from ldt.recipe import load
    from ldt.train import finetune

    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        documents = contracts(range(sizes.documents), 0)
        write(Path("train.jsonl"), documents)
        write(Path("eval.jsonl"), contracts(range(10_000, 10_000 + sizes.documents // 4), 0))
        make_small(Path("small"), [document["text"] for document in documents], 0)
        convert("small", Path("long"), max_length=2048, window=128)
        Path("recipe.yaml").write_text(RECIPE, "utf-8")
        overrides = [f"training.num_train_epochs={sizes.epochs}"]
        start = time.perf_counter()
        metrics = finetune(load("recipe.yaml", overrides, command="finetune"))
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
    table = Table(title="milliseconds; in brackets: times those of ldt's fastest backend")
    for title in ("what", "tokens", "pass", "milliseconds"):
        table.add_column(title)
    for what in ("attention", "encoder"):
        for row in result.get(what, []):
            seconds = row["seconds"]
            own = min(s for n, s in seconds.items() if n in BACKENDS or n == "ldt")
            cells = [f"{n} {1000 * s:.2f} ({s / own:.2f})" for n, s in seconds.items()]
            table.add_row(what, str(row["tokens"]), row["pass"], ", ".join(cells))
    console.print(table)
    if "finetune" in result:
        console.print("finetune", result["finetune"])
    bad = wrong(result)
    checked = len(result.get("correctness", []))
    console.print(f"correctness: {checked - len(bad)} of {checked} within the allowed error")
    for row in bad[:20]:
        console.print("[bold red]wrong[/]", row)


SECTIONS = {
    "correctness": correctness,
    "attention": attention,
    "encoder": encoder,
    "finetune": finetune,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes on the CPU")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
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
