"""The jobs of the GPU suite: a function a step, which lists them, and what each of them measures.

A job yields rows, dictionaries that JSON holds; `gpu` writes each as soon as it is there. Jobs of
one step know nothing of each other: each runs in a process of its own.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import chdir, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import patch

import encoders
import gpu_calls
import gpu_correctness
import gpu_timing
import operations
import torch
from gpu_timing import device_time, host_us, in_turn
from setting import Setting

from ldt.attention import (
    BACKENDS,
    sliding_window_attention,
)
from ldt.attention.triton import devices
from ldt.attention.triton.devices import TILES, Tile
from ldt.model.base import pack
from ldt.model.graphs import Graphs

ROOT = Path(__file__).parents[1]
GAIN = 0.97  # of the time with the table's tile: what takes more is no faster
HEADS = 2, 64  # bytes of a number and dims of a head, the entry of `TILES` that the sweep is for
SWEEP = {
    "forward": (
        *(Tile(128, 64, 8, 2, 128), Tile(128, 64, 8, 2), Tile(128, 64, 8, 3), Tile(128, 32, 8, 3)),
        *(Tile(64, 64, 4, 2, 128), Tile(64, 64, 4, 2, 168), Tile(64, 64, 4, 3, 168)),
        *(Tile(64, 64, 4, 2), Tile(64, 32, 4, 2), Tile(64, 128, 4, 2), Tile(128, 64, 4, 2)),
        Tile(128, 128, 8, 2),
    ),
    "dq": (
        *(Tile(64, 64, 4, 2, 168), Tile(64, 64, 4, 2), Tile(64, 32, 4, 2, 128)),
        *(Tile(64, 32, 4, 2), Tile(64, 32, 4, 3), Tile(128, 64, 8, 2), Tile(64, 128, 4, 2)),
    ),
    "dkv": (
        *(Tile(64, 32, 4, 2), Tile(64, 32, 4, 2, 168), Tile(64, 32, 4, 3), Tile(64, 64, 4, 2)),
        *(Tile(64, 64, 4, 1), Tile(64, 64, 8, 2), Tile(32, 64, 4, 2), Tile(128, 32, 8, 2)),
    ),
}


@dataclass(frozen=True)
class Sizes:
    """How large the suite is."""

    device: str
    cases: tuple  # of `gpu_correctness`: windows and global rows
    pooled_cases: tuple
    dtypes: tuple
    dropouts: tuple
    batches: tuple  # lengths of the documents, of the kernels alone
    dense: int  # tokens up to which full attention is timed
    sweep: int  # tokens
    tiles: dict  # kernel -> tiles
    tuned: range  # dims of the heads that they are for
    encoders: tuple  # (lengths of the documents, pass)
    reach: tuple  # (tokens, pass) of ldt alone
    layers: int
    width: int
    rounds: int
    documents: int  # of the training
    workers: int  # of the tests

    @property
    def cuda(self):
        return self.device == "cuda"

    @property
    def setting(self):
        """Of the measurements, in bfloat16."""
        return Setting(self.device, "bf16", heads=self.width // 64, layers=self.layers)


# median 700, 95th percentile 4,096
MIXED = (4096, 2800, 1900, 1400, 1100, 900, 760, 700, 700, 620, 540, 470, 400, 330, 250, 160)
FULL = Sizes(
    device="cuda",
    cases=gpu_correctness.CASES,
    pooled_cases=gpu_correctness.POOLED_CASES,
    dtypes=(torch.float32, torch.bfloat16, torch.float16),
    dropouts=(0.0, 0.1),
    batches=((4096,), (16384,), (65536,), MIXED),
    dense=16384,
    sweep=16384,
    tiles=SWEEP,
    tuned=range(33, 65),
    encoders=(
        *(((4096,), "forward"), ((4096,) * 4, "training"), (MIXED, "training")),
        *(((16384,), "training"), (MIXED, "forward"), ((4096,) * 8, "training")),
        *(((512,) * 8, "forward"), ((4096,) * 16, "forward"), ((4096,) * 8, "forward")),
    ),
    reach=(
        *((n, "forward") for n in (16384, 65536, 262144, 1048576)),
        *((n, "training") for n in (16384, 65536, 262144)),
    ),
    layers=12,
    width=768,
    rounds=5,
    documents=400,
    workers=12,
)
TINY = Sizes(
    device="cpu",
    cases=(((24, 7), 16, 16, {"dropout": 0.2, "seed": 3}),),
    pooled_cases=(((24, 3), (5, 4), 16, 16, {}),),
    dtypes=(torch.float32, torch.bfloat16),
    dropouts=(0.1,),
    batches=((40,),),
    dense=40,
    sweep=40,
    tiles={kernel: (Tile(32, 16, 4, 1),) for kernel in SWEEP},
    tuned=range(16, 17),
    encoders=(((40,), "forward"), ((40, 9), "training")),
    reach=((600, "forward"),),
    layers=1,
    width=128,
    rounds=1,
    documents=8,
    workers=0,
)


@dataclass(frozen=True)
class Job:
    """A process of the suite.

    Args:
        name: unique in its step.
        run: a function without arguments that yields rows.
        seconds: after which it is killed.
        peer: True if it times other libraries alone; results of the same GPU and torch are then
            taken as they are.
    """

    name: str
    run: Callable
    seconds: int
    peer: bool = False


def facts(sizes, rows):
    """What the machine is; `gpu` adds the GPU and its clock to every row."""

    def run():
        yield {
            "smi": smi("driver_version", "clocks.max.sm", "clocks.max.mem", "power.limit"),
            "ptxas": _ptxas(),
            "cores": os.cpu_count(),
            "load": os.getloadavg(),
            "limits": str(devices.limits(sizes.device)),
            "python": sys.version.split()[0],
        }

    return [Job("machine", run, 60)]


def smi(*fields):
    """Figures of the first GPU as nvidia-smi gives them; empty where there is none."""
    command = ["nvidia-smi", "--format=csv,noheader", "--id=0", f"--query-gpu={','.join(fields)}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return done.stdout.strip().split(", ")


def _ptxas():
    found = find_spec("triton")
    tool = found and Path(found.origin).parent / "backends/nvidia/bin/ptxas"
    if not tool or not tool.exists():
        return None
    return subprocess.run([tool, "--version"], capture_output=True, text=True).stdout.split()[-1]


def compiled(sizes, rows):
    """All kernels of the steps that measure, compiled side by side into triton's cache."""

    def run(job):
        gpu_timing.compile_only()
        begin, made = time.perf_counter(), 0
        for _ in job.run():
            made += 1
        yield {"seconds": time.perf_counter() - begin, "rows": made}

    few = replace(sizes, layers=1)
    jobs = [*sweep(few, rows), *kernels(few, rows), *encoder(few, rows)]
    if not sizes.cuda:  # there is no compiler: kernels are interpreted
        jobs = jobs[:1]
    return [Job(job.name, partial(run, job), 120) for job in jobs if not job.peer]


def right(sizes, rows):
    """Triton's kernels beside the dense float64 definition, float32 first."""
    return list(_correctness(sizes, ["triton"])) + [
        Job("far", partial(gpu_correctness.far, sizes.device, ["triton"], _stride(sizes)), 60)
    ]


def others(sizes, rows):
    """The other backends, beside the same definition."""
    names = [name for name in BACKENDS if name not in ("triton", "reference")]
    return list(_correctness(sizes, names))


def _correctness(sizes, names):
    cases = [("windows", case) for case in sizes.cases]
    cases += [("cells", case) for case in sizes.pooled_cases]
    for dtype in sizes.dtypes:
        for place, (kind, case) in enumerate(cases):
            dtype_name = str(dtype).removeprefix("torch.")
            run = partial(gpu_correctness.check, kind, case, dtype, sizes.device, names)
            yield Job(f"{dtype_name} {kind} {place}", run, 90)


def _stride(sizes):
    return gpu_correctness.FAR if sizes.cuda else 2**16


def launch(sizes, rows):
    """What the host pays for a launch, and for the calls around it."""

    def run():
        q, k, v, _, layout = gpu_calls.tensors([4096 if sizes.cuda else 40], sizes, False)
        for name, call in _host_calls(q, k, v, layout, sizes):
            try:
                wall, thread = host_us(call, 200 if sizes.cuda else 2)
            except Exception as error:  # private names of another triton
                yield {"what": name, "failed": f"{type(error).__name__}: {error}"}
            else:
                yield {"what": name, "wall_us": wall, "thread_us": thread}

    return [Job("host", run, 60)]


def _host_calls(q, k, v, layout, sizes):
    """(name, call) of what a layer's forward pass is made of on the host."""
    place, x = torch.zeros(1, dtype=torch.long, device=q.device), q.flatten(1)
    weight = torch.zeros(sizes.width, sizes.width, device=q.device, dtype=q.dtype)
    yield "index_select", lambda: k.index_select(0, place)
    yield "clamp", lambda: place.clamp(max=5)
    yield "addmm", lambda: torch.addmm(weight[0], x, weight)
    yield "layer_norm", lambda: torch.nn.functional.layer_norm(x, (sizes.width,))
    yield "an empty Function", lambda: _Empty.apply(q)
    band = partial(sliding_window_attention, q, k, v, layout, window=512, backend="triton")
    yield "band", band
    if not sizes.cuda:
        return
    yield "torch.cuda.device", lambda: torch.cuda.device(0).__enter__()
    from triton.runtime.jit import JITFunction

    from ldt.attention.triton import forward, launch

    noted = []
    run = JITFunction.run
    by_triton = patch.object(launch, "HOLDS", False)
    with (
        by_triton,
        patch.object(JITFunction, "run", lambda *args, **how: noted.append((args, how))),
    ):
        band()
    (kernel, *args), how = noted[0]
    yield "kernel[grid]", lambda: run(kernel, *args, **how)
    grid = how["grid"]
    how = {name: value for name, value in how.items() if name not in ("grid", "warmup")}
    tensors, fixed = args[:6], args[6:]  # q, k, v, output, log-sum-exp and seed
    held = launch.Launch(forward._forward, grid, fixed, how)
    yield "held kernel", lambda: held(*tensors)


class _Empty(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, slope):
        return slope


def kernels(sizes, rows):
    """Milliseconds of the device for the attention's parts, and for those of its peers."""
    jobs = []
    for lengths in sizes.batches:
        name = _name(lengths)
        jobs.append(Job(f"{name}, ldt", partial(_own_kernels, lengths, sizes), 90))
        if len(lengths) == 1:
            jobs.append(Job(f"{name}, peers", partial(_peers, lengths[0], sizes), 90, peer=True))
    return jobs


def _own_kernels(lengths, sizes):
    total = sum(lengths)
    side = 8192 if sizes.cuda else 64
    matrix = torch.randn(side, side, device=sizes.device, dtype=torch.bfloat16)
    yield {"what": "matmul", "side": side, **device_time(lambda: matrix @ matrix, sizes.cuda)}
    for kind in ("forward", "training"):
        q, k, v, x, layout = gpu_calls.tensors(lengths, sizes, kind == "training")
        for dropout in sizes.dropouts:
            about = {"tokens": total, "pass": kind, "dropout": dropout}
            flops = band_flops(lengths, sizes.setting.window, sizes.width, kind)
            for name, call in gpu_calls.attention(q, k, v, x, layout, dropout).items():
                row = {"what": name, **about, **_timed(call, (q, k, v, x), kind, sizes)}
                timed = name == "band" and row.get("ms")
                yield row | ({"tflops": flops / row["ms"] / 1e9} if timed else {})
        for name, call in gpu_calls.pointwise(total, sizes, kind == "training").items():
            row = {"what": name, "tokens": total, "pass": kind}
            yield row | _timed(*call, kind, sizes)
        for dropout in sizes.dropouts:
            for name, call in gpu_calls.norms(total, dropout, sizes, kind == "training").items():
                row = {"what": name, "tokens": total, "pass": kind, "dropout": dropout}
                yield row | _timed(call, (), "forward", sizes)


def _timed(call, leaves, kind, sizes):
    """Figures of a call, or of its gradients; in words why there are none."""
    run = call
    try:
        if kind == "training":
            up = torch.randn_like(call())
            run = lambda: torch.autograd.grad(call(), leaves, up, allow_unused=True)  # noqa: E731
        return device_time(run, sizes.cuda)
    except Exception as error:  # the other rows are worth having
        return {"failed": f"{type(error).__name__}: {str(error)[:300]}"}


def _peers(tokens, sizes):
    """The same attention by other libraries, where they have it."""
    names = ["flex", "flex-flash", "varlen"] if sizes.cuda else []
    if tokens <= sizes.dense:
        names += ["sdpa", "cudnn"]
    for kind in ("forward", "training"):
        given = operations.Given(sizes.setting, tokens, kind == "training")
        for name in names:
            row = {"what": name, "tokens": tokens, "pass": kind, "dropout": 0.0}
            try:
                operation = operations.PEERS[name](given)
                row |= device_time(partial(operation.run, kind), sizes.cuda)
            except Exception as error:  # what a peer cannot do here is no fault of ours
                row["lacks"] = f"{type(error).__name__}: {str(error)[:200]}"
            yield row


def band_flops(lengths, window, width, kind):
    """FLOP of a band: two products forward; five more backward, which computes scores anew."""
    reach = window // 2
    keys = sum(min(n, i + reach + 1) - max(0, i - reach) for n in lengths for i in range(n))
    return 4 * width * keys * (3.5 if kind == "training" else 1)


def sweep(sizes, rows):
    """Milliseconds of each kernel of the band by tile, without and with dropout."""
    return [
        Job(_of_tiles(kernel, dropout), partial(_timed_tiles, kernel, dropout, sizes), 120)
        for dropout in sizes.dropouts
        for kernel in SWEEP
    ]


def _of_tiles(kernel, dropout):
    return f"{kernel}, dropout {dropout}"


def _timed_tiles(kernel, dropout, sizes):
    from ldt.attention.triton import backward, forward, pattern

    q, k, v, _, layout = gpu_calls.tensors([sizes.sweep], sizes, False)
    up, seed = torch.randn_like(q), None
    if dropout:
        seed = torch.zeros((), dtype=torch.int64, device=q.device)
    rest = pattern.windows(layout, 512, (1,) * q.shape[1]), dropout, seed
    out, lse = forward.forward(q, k, v, *rest)
    if kernel == "forward":
        call = partial(forward.forward, q, k, v, *rest)
    else:  # all of the backward pass, whose other kernel keeps its tile
        call = partial(backward.backward, up, q, k, v, out, lse, *rest)
    about = {"kernel": kernel, "dropout": dropout, "tokens": sizes.sweep}
    limits = devices.limits(sizes.device)
    of_table = devices.find(kernel, q.dtype, 64, dropout > 0, limits)
    yield {**about, "tile": asdict(of_table), "table": True, **device_time(call, sizes.cuda)}
    for tile in sizes.tiles[kernel]:
        if tile == of_table or not devices.fits(tile, kernel, *HEADS, limits):
            continue
        row = {**about, "tile": asdict(tile)}
        try:
            with alone(kernel, tile):
                row |= device_time(call, sizes.cuda)
        except Exception as error:  # too much shared memory, or registers
            row["lacks"] = f"{type(error).__name__}: {str(error)[:200]}"
        yield row


@contextmanager
def alone(kernel, tile):
    """Context in which a kernel has one tile for heads of 33 to 64 dims in half precision."""
    with patch.dict(TILES, {kernel: TILES[kernel] | {HEADS: {0: (tile, tile)}}}):
        yield


def chosen(sizes, rows):
    """The best two tiles of each kernel that are faster than the table's: are they right?

    Args:
        rows: of this run so far, those of `sweep` among them.
    """
    jobs = []
    for kernel in SWEEP:
        for dropout in sizes.dropouts:
            name = _of_tiles(kernel, dropout)
            timed = [x for x in rows if x["step"] == "sweep" and x["job"] == name and "ms" in x]
            table = next((x["ms"] for x in timed if x.get("table")), 0.0)
            faster = [x for x in timed if x["ms"] < GAIN * table] if sizes.cuda else timed[1:]
            for place, row in enumerate(sorted(faster, key=lambda x: x["ms"])[:2]):
                run = partial(_right_tile, row, table, sizes)
                jobs.append(Job(f"{name}, {place + 1}", run, 90))
    return jobs


def _right_tile(row, table, sizes):
    tile, wrong = Tile(**row["tile"]), []
    cases = [("windows", case) for case in sizes.cases if case[2] in sizes.tuned]
    cases += [("cells", case) for case in sizes.pooled_cases if case[3] in sizes.tuned]
    with alone(row["kernel"], tile):
        for kind, case in cases:
            found = gpu_correctness.check(kind, case, torch.bfloat16, sizes.device, ["triton"])
            wrong += [x for x in found if not x["ok"]]
    names = {key: row[key] for key in ("kernel", "dropout", "tile", "ms")}
    yield {**names, "table_ms": table, "cases": len(cases), "ok": not wrong, "wrong": wrong[:3]}


def encoder(sizes, rows):
    """Whole encoders: ldt as it runs in each way, RoBERTa with dense attention beside it."""
    return [
        Job(f"{kind}, {_name(lengths)}", partial(_encoder_rows, lengths, kind, sizes), 90)
        for lengths, kind in sizes.encoders
    ]


def _name(lengths):
    same = len(set(lengths)) == 1
    return f"{len(lengths)} x {lengths[0]}" if same else f"{len(lengths)} of {sum(lengths)}"


def _encoder_rows(lengths, kind, sizes):
    runs, lacks = {}, {}
    for name, make in _ways(list(lengths), kind, sizes).items():
        try:
            run = make()
            run()
        except torch.OutOfMemoryError as error:
            lacks[name] = str(error)[:200]
        else:
            runs[name] = run
    about = {"tokens": max(lengths), "documents": len(lengths), "pass": kind}
    for name, figures in in_turn(runs, sizes.rounds, sizes.cuda).items():
        yield {"what": name, **about, **figures}
    for name, why in lacks.items():
        yield {"what": name, **about, "lacks": why}


def _ways(lengths, kind, sizes):
    """{name: function that makes a call} of an encoder's passes over documents."""

    def plain(name, training=False):
        model = encoders.build(name, max(lengths), sizes.setting).train(training)
        return partial(encoders.step, model, encoders.inputs(name, lengths, sizes.setting), kind)

    def graph():
        step = plain("ldt")
        return step if gpu_timing.COMPILING else captured(*step.args[:2])

    def finetuned(name):
        setting = replace(sizes.setting, dtype="fp32")
        model = encoders.build(name, max(lengths), setting).train()
        batch = encoders.inputs(name, lengths, setting)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=sizes.cuda)

        def run():
            with torch.autocast(sizes.device, torch.bfloat16):
                loss = model(**batch).last_hidden_state.float().square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        return run

    ways = {"ldt": partial(plain, "ldt"), "roberta": partial(plain, "roberta")}
    if kind == "forward":
        if sizes.cuda:
            ways["ldt, CUDA graph"] = graph
        return ways
    for name in ("ldt", "roberta"):
        ways[f"{name}, dropout"] = partial(plain, name, True)
        ways[f"{name}, autocast, dropout, AdamW"] = partial(finetuned, name)
    return ways


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


def reach(sizes, rows):
    """ldt's encoder at lengths that no peer reaches; training recomputes each layer."""

    def run(tokens, kind):
        setting = replace(sizes.setting, vocabulary=1000)
        model = encoders.build("ldt", tokens, setting)
        if kind == "training":
            model.train().gradient_checkpointing_enable()
        batch = encoders.inputs("ldt", [tokens], setting)
        call = partial(encoders.step, model, batch, kind)
        figures = in_turn({"ldt": call}, min(2, sizes.rounds), sizes.cuda)["ldt"]
        yield {"what": "ldt", "tokens": tokens, "pass": kind, **figures}

    return [Job(f"{kind}, {n}", partial(run, n, kind), 90) for n, kind in sizes.reach]


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


def finetune(sizes, rows):
    """A small classifier learns contracts whose deciding clause stands far behind token 512."""

    def run():
        sys.path.append(str(ROOT / "examples" / "demo"))
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
            epochs = [f"training.num_train_epochs={4 if sizes.cuda else 1}"]
            begin = time.perf_counter()
            metrics = train(load("recipe.yaml", epochs, command="finetune")).metrics
            found = json.loads(Path("runs/gpu/metrics.json").read_text("utf-8"))
            yield {
                "documents": len(documents),
                "seconds": time.perf_counter() - begin,
                "tokens_per_second": found["tokens_per_second"],
                "device": found["versions"]["device"],
                "metrics": metrics,
            }

    return [Job("contracts", run, 120)]


def tests(sizes, rows):
    """The tests of attention, whose kernels run on the GPU; in a dry run those that need one, which
    are skipped. Failures stand in a file as they come, however the tests end."""

    def run():
        lacking = [name for name in ("pytest", "hypothesis") if find_spec(name) is None]
        if lacking:
            yield {"lacks": f"not installed: {', '.join(lacking)}"}
            return
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "tests/attention",
            "tests/model/test_fused.py",
        ]
        command += ["-m", "not nightly" if sizes.cuda else "gpu"]
        if sizes.cuda and find_spec("xdist"):
            command += ["-n", str(sizes.workers), "--dist", "worksteal"]
        command += ["--ignore", "tests/attention/triton/test_compile.py"]  # says nothing of a GPU
        with tempfile.TemporaryDirectory() as folder:
            failures = Path(folder, "failures.jsonl")
            environment = {"PYTHONPATH": str(ROOT), "LDT_TEST_FAILURES": str(failures)}
            if not sizes.cuda:
                environment["CUDA_VISIBLE_DEVICES"] = ""
            begin, limit = time.perf_counter(), 120
            with Path(folder, "out").open("w+", encoding="utf-8") as out:
                how = {"cwd": ROOT, "env": os.environ | environment, "stdout": out, "stderr": out}
                try:
                    code = subprocess.run(command, timeout=limit, **how).returncode
                except subprocess.TimeoutExpired:
                    code = f"cut off after {limit} s"
                out.seek(0)
                said = out.read().strip().splitlines()
            failed = failures.read_text("utf-8").splitlines() if failures.exists() else []
            yield from ({**json.loads(line), "ok": False} for line in failed)
            row = {"summary": said[-1] if said else "", "seconds": time.perf_counter() - begin}
            well = code in (0, 5)  # 5: none was there to run
            yield (
                row | {"code": code} | ({} if well or failed else {"ok": False, "out": said[-20:]})
            )

    return [Job("attention", run, 150)]
