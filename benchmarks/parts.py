"""Where the time of one encoder layer goes on this CPU, by part and length.

    python benchmarks/parts.py                      # all lengths, passes, dtypes: some ten minutes
    python benchmarks/parts.py --lengths 4096 --passes forward --dtypes fp32 --profile --threads
    python benchmarks/parts.py --only band --lengths 4096   # one part alone; prints, keeps nothing
    python benchmarks/parts.py --plot               # the picture anew, from the result

Base shape (768 wide, 12 heads, feed-forward 3,072, window 512), random weights, one document, token
0 global, huge pages for all. The parts are run by the functions and modules of ldt that the layer
itself calls, forward in inference mode, or forward and backward, all in turn in one process; times
are medians. The layer is what a whole `LdtModel` takes, less what it takes without layers, by
layer. ``rest`` is the layer without the parts: copies, sums of gradients, Python. Where a layer
runs several parts together it can be below zero.

The limit is the linear maps alone, each of their products by the library that is fastest here, as
long as it is as exact as torch's default: on a CPU with AMX oneDNN rounds float32 factors to
bfloat16, which does not count.

``--profile`` tells torch's operators by their share of the time of a pass, and calls a layer: those
in the thread that calls are about as many as parallel regions. ``--threads`` compares one thread
with all of torch's, and says what runs in one thread, and by Amdahl's law what more threads would
bring: by wall time, which needs a quiet machine, and by CPU time, which does not. Threads then
sleep when they wait, or their CPU time would count the wait.

Writes results/parts-CPU.json and, with matplotlib, a picture beside it. Other rows there stay.
"""

import argparse
import copy
import json
import os
import re
import statistics
import sys
import threading
import time
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # read by torch at its first allocation
os.environ.setdefault("KINETO_LOG_LEVEL", "9")  # the profiler says nothing on stderr
if "--threads" in sys.argv:
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read by OpenMP when it is loaded

import encoders
import torch
import torch.nn.functional as F
from measure import medians
from parts_operators import is_work, operators, shares_of_band
from parts_shown import DTYPES, MANY, OTHERS, draw, show
from rich.console import Console
from setting import PASSES, Setting

from ldt.attention import fill_global_rows, matmul, sliding_window_attention
from ldt.inference.measure import machine, seconds_of
from ldt.model import layers as layers
from ldt.model.base import pack

RESULTS = Path(__file__).parent / "results"
LENGTHS = (512, 1024, 2048, 4096, 8192)
LAYERS = {512: 6, 1024: 4, 2048: 3}  # of the model at a length, else 2
WIDTH, HEADS, WIDE = 768, 12, 3072
MAPS = {  # name -> (in, out)
    "query": (WIDTH, WIDTH),
    "key": (WIDTH, WIDTH),
    "value": (WIDTH, WIDTH),
    "attention output": (WIDTH, WIDTH),
    "feed-forward in": (WIDTH, WIDE),
    "feed-forward out": (WIDE, WIDTH),
}
PARTS = (*MAPS, *OTHERS)


@dataclass(frozen=True)
class Case:
    """One pass, ``forward`` or ``training``, over a document of so many tokens."""

    kind: str
    tokens: int
    dtype: str

    def __str__(self):
        return f"{self.kind}-{self.tokens}-{self.dtype}"

    @property
    def setting(self):
        return Setting(layers=LAYERS.get(self.tokens, 2), dtype=self.dtype, heads=HEADS)

    @property
    def chunk(self):
        """Tokens that go through the feed-forward network together."""
        return getattr(layers, "CHUNK", 0) or self.tokens if self.kind == "forward" else self.tokens

    def random(self, *shape):
        return torch.randn(self.tokens, *shape, dtype=self.setting.torch_dtype)


def cpu_name(text):
    """A short name of a CPU, fit for a file: ``xeon-amx``, ``zen4``.

    Args:
        text: of /proc/cpuinfo; "" where there is none.
    """
    said = dict(re.findall(r"^([^\t:]+?)\s*:\s*(.*)$", text, re.M))
    flags, name = said.get("flags", "").split(), said.get("model name", "cpu")
    if said.get("vendor_id") == "AuthenticAMD":
        family = int(said.get("cpu family", 0))
        zen4 = "zen4" if "avx512f" in flags else "zen3"
        known = {23: "zen2", 25: zen4, 26: "zen5"}
        if family in known:
            return known[family]
    if said.get("vendor_id") == "GenuineIntel":
        line = "xeon" if "xeon" in name.lower() else "core"
        sets = {"amx_tile": "amx", "avx512f": "avx512", "avx2": "avx2"}
        return "-".join([line, *[word for flag, word in sets.items() if flag in flags][:1]])
    return "-".join(re.findall(r"[a-z0-9]+", re.sub(r"\(\w+\)", "", name).lower()))


# -- what is run


def runs_of(case):
    """{name: function} of the whole model, its embeddings, and the parts of one layer."""
    model = encoders.build("ldt", case.tokens, case.setting)
    batch = encoders.inputs("ldt", [case.tokens], case.setting)
    layer = model.encoder.layer[0]
    own = layer.attention.self
    layout = pack((1, case.tokens), None, batch["global_attention_mask"], "cpu").layout
    x, wide = partial(case.random, WIDTH), partial(case.random, WIDE)
    heads = partial(case.random, HEADS, WIDTH // HEADS)
    projections = own.query_global, own.key_global, own.value_global
    folded = [matmul.foldable(module) for module in projections]
    norms = [without_map(part) for part in (layer.attention.output, layer.output)]

    def band(q, k, v):
        return sliding_window_attention(q, k, v, layout, **own.pattern, backend=own.backend)

    def rows(out, x):
        return fill_global_rows(out, x, *folded, layout, backend=own.backend)

    run = partial(run_of, case)
    chunked = partial(run_of, case, chunk=case.chunk)
    activation = layer.intermediate.activation
    in_turn = {
        "model": partial(encoders.step, model, batch, case.kind),
        "embeddings": partial(without_layers, model, batch, case.kind),
        "query": run(own.query, x()),
        "key": run(own.key, x()),
        "value": run(own.value, x()),
        "attention output": run(layer.attention.output.dense, x()),
        "feed-forward in": chunked(layer.intermediate.dense, x()),
        "feed-forward out": chunked(layer.output.dense, wide()),
        "band": run(band, heads(), heads(), heads()),
        "global rows": run(rows, heads(), x(), modules=projections),
        "GELU": chunked(activation, wide()),
        "norms": each(run(norms[0], x(), x()), chunked(norms[1], x(), x())),
    }
    if case.kind == "training":
        norm, given, large = layer.output.LayerNorm, x(), wide()
        again = lambda: (norm(given), norm(given), activation(large))  # noqa: E731
        in_turn["computed again"] = torch.no_grad()(again)
    return in_turn


def run_of(case, call, *inputs, modules=(), chunk=0):
    """Function that runs ``call(*inputs)`` as a pass does: forward, or forward and backward.

    Args:
        call: a module, or a function that uses the parameters of ``modules``.
        chunk: rows at a time, in a forward pass; 0: all.
    """
    if case.kind == "forward":

        def forward():
            with torch.inference_mode():
                for rows in zip(*(x.split(chunk or case.tokens) for x in inputs), strict=True):
                    call(*rows)

        return forward
    modules = modules or [call] * isinstance(call, torch.nn.Module)
    wanted = [x.requires_grad_() for x in inputs]
    wanted += [parameter for module in modules for parameter in module.parameters()]
    with torch.no_grad():
        grad = torch.randn_like(call(*inputs))

    def training():
        torch.autograd.grad(call(*inputs), wanted, grad, allow_unused=True)

    return training


def each(*runs):
    return lambda: [run() for run in runs]


def without_map(residual):
    """A copy of a `layers.Residual` that adds and normalises alone."""
    residual = copy.deepcopy(residual)
    residual.dense = torch.nn.Identity()
    return residual


def without_layers(model, batch, kind):
    """A pass through the model with no layers: packing, embeddings, unpacking."""
    every = model.encoder.layer
    model.encoder.layer = torch.nn.ModuleList()
    try:
        encoders.step(model, batch, kind)
    finally:
        model.encoder.layer = every


def limit_runs(case):
    """{(in, out, number): function} of the products of each shape of map, the fastest exact way."""
    found = {}
    for wide_in, wide_out in dict.fromkeys(MAPS.values()):
        weight = torch.randn(wide_out, wide_in, dtype=case.setting.torch_dtype)
        bias, x, grad = weight[:, 0].clone(), case.random(wide_in), case.random(wide_out)
        products = [partial(F.linear, x, weight, bias)]
        if case.kind == "training":
            products += [partial(torch.mm, grad, weight), partial(torch.mm, grad.T, x)]
        for number, run in enumerate(products):
            found[wide_in, wide_out, number] = fastest(torch.inference_mode()(run))
    return found


def fastest(run):
    """``run``, or ``run`` by oneDNN where that is faster and no less exact."""

    def other():
        with matmul.onednn():
            run()

    if not onednn_is_exact():
        return run
    run(), other()
    times = {way: min(seconds_of(way) for _ in range(3)) for way in (run, other)}
    return min(times, key=times.__getitem__)


@cache
def onednn_is_exact():
    """Whether oneDNN multiplies float32 matrices as exactly as torch's default."""
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(512, WIDTH, generator=generator) for _ in range(2))
    exact = x.double() @ weight.double().T
    default = (F.linear(x, weight) - exact).abs().max()
    with matmul.onednn():
        return bool((F.linear(x, weight) - exact).abs().max() <= matmul.EXACT * default)


# -- what comes of it


def measure(case, rounds, only=()):
    """The row of a case; with ``only`` milliseconds of these parts alone."""
    runs = runs_of(case)
    if only:
        chosen = {name: run for name, run in runs.items() if name in only}
        return {name: 1000 * value for name, value in medians(chosen, rounds).items()}
    limits = limit_runs(case)
    seconds = medians(runs | limits, rounds)
    limit = sum(seconds[shape] for pair in MAPS.values() for shape in limits if shape[:2] == pair)
    seconds = with_rest({name: seconds[name] for name in runs}, case.setting.layers)
    passes = 3 if case.kind == "training" else 1
    return {
        "pass": case.kind,
        "tokens": case.tokens,
        "dtype": case.dtype,
        "layers": case.setting.layers,
        "rounds": rounds,
        "ms": {name: 1000 * value for name, value in seconds.items()},
        "band": shares_of_band(operators(runs["band"])),
        "gflops": {
            name: 2e-9 * passes * case.tokens * pair[0] * pair[1] / seconds[name]
            for name, pair in MAPS.items()
        },
        "limit_ms": 1000 * limit,
        "layer_to_limit": seconds["layer"] / limit,
        "model_to_limit": seconds["model"] / case.setting.layers / limit,
    }


def with_rest(values, count):
    """``values`` of runs, and of them those of ``maps``, one ``layer`` of ``count`` and its
    ``rest``."""
    layer = (values["model"] - values["embeddings"]) / count
    parts = sum(values[name] for name in PARTS if name in values)
    maps = sum(values[name] for name in MAPS)
    return values | {"maps": maps, "layer": layer, "rest": layer - parts}


def profile(case):
    """The operators of a pass, those that take longest first; and calls that compute or copy."""
    model = encoders.build("ldt", case.tokens, case.setting)
    batch = encoders.inputs("ldt", [case.tokens], case.setting)
    found = operators(partial(encoders.step, model, batch, case.kind))
    door = operators(partial(without_layers, model, batch, case.kind))
    whole = sum(own for own, *_ in found.values())
    rows = {}
    for name, (own, *calls) in sorted(found.items(), key=lambda item: -item[1][0]):
        less = door.get(name, (0, 0, 0))[1:]
        calls = [(a - b) / case.setting.layers for a, b in zip(calls, less, strict=True)]
        rows[name] = {"share": own / whole, "calls_a_layer": calls[0], "by_caller": calls[1]}
    working = [row for name, row in rows.items() if is_work(name)]
    sums = {key: sum(row[key] for row in working) for key in ("calls_a_layer", "by_caller")}
    return {"operators": rows, "working": sums}


# -- threads


def compare_threads(case, rounds):
    """By part: seconds in one thread and in all of torch's; and in the latter the two CPU times of
    `clocks_of`."""
    most = torch.get_num_threads()
    runs = runs_of(case)
    found = {what: {name: [] for name in runs} for what in ("one", "all", "cpu", "path")}
    try:
        for turn in range(rounds + 1):
            for count in (1, most):
                torch.set_num_threads(count)
                for name, run in runs.items():
                    seconds, cpu, path = clocks_of(run)
                    taken = {"one": seconds} if count == 1 else {}
                    taken |= {"all": seconds, "cpu": cpu, "path": path} if count == most else {}
                    for what, value in taken.items() if turn else ():  # turn 0 warms up
                        found[what][name].append(value)
    finally:
        torch.set_num_threads(most)
    middle = {}
    for what, part in found.items():
        values = {name: statistics.median(every) for name, every in part.items()}
        middle[what] = with_rest(values, case.setting.layers)
    rows = {name: {what: part[name] for what, part in middle.items()} for name in middle["one"]}
    return {"threads": most, "rows": {name: row | alone(row, most) for name, row in rows.items()}}


def clocks_of(run):
    """Seconds of one call: of wall time; of CPU in all threads; and of CPU along the thread that
    calls, whose work torch's own threads share, with an even share of what Python's others do."""
    count = torch.get_num_threads()

    def others():
        ids = [thread.ident for thread in threading.enumerate()]
        ids.remove(threading.get_ident())
        return sum(time.clock_gettime(time.pthread_getcpuclockid(number)) for number in ids)

    def path():
        return time.thread_time() + others() / count

    clocks = time.perf_counter, time.process_time, path
    before = [clock() for clock in clocks]
    seconds = seconds_of(run)
    wall, *cpu = (clock() - start for clock, start in zip(clocks, before, strict=True))
    return seconds, *(seconds * part / wall for part in cpu)


def alone(row, count):
    """What of a row of `compare_threads` runs in one thread, by wall time and by CPU time; and by
    Amdahl's law the seconds that more threads take, and the share of these in one thread.

    With s seconds in one thread, and the rest of T in ``count``, it takes s + (T - s) / count. This
    holds for wall time, and for the CPU times of `clocks_of`. To these a neighbour on the same
    cores does nothing, but they have no waits, as of threads for Python's lock.
    """
    found = {}
    for name, whole, taken in (("by_wall", "one", "all"), ("by_cpu", "cpu", "path")):
        whole = max(row[whole], 0.0)
        serial = min(max((count * row[taken] - whole) / (count - 1), 0.0), whole)
        later = {str(n): serial + (whole - serial) / n for n in MANY}
        shares = {n: serial / seconds if seconds else 0.0 for n, seconds in later.items()}
        found[name] = {"serial": serial, "share": serial / whole if whole else 0.0}
        found[name] |= {"seconds": later, "serial_share": shares}
    return found


# -- run


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    names = ("model", "embeddings", *PARTS)
    parser.add_argument("--only", nargs="+", choices=names, default=(), metavar="PART")
    parser.add_argument("--lengths", nargs="+", type=int, default=LENGTHS, metavar="TOKENS")
    parser.add_argument("--passes", nargs="+", choices=PASSES, default=PASSES)
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--name", help="CPU in the name of the result; default: by /proc/cpuinfo")
    parser.add_argument("--json", type=Path, help="the result; default: by --name")
    parser.add_argument("--profile", action="store_true", help="operators in place of parts")
    parser.add_argument("--threads", action="store_true", help="threads in place of parts")
    parser.add_argument("--plot", action="store_true", help="draw the result, measure nothing")
    args = parser.parse_args()
    cpuinfo = Path("/proc/cpuinfo")
    name = args.name or cpu_name(cpuinfo.read_text() if cpuinfo.exists() else "")
    args.json = args.json or RESULTS / f"parts-{name}.json"
    if args.plot and not args.json.exists():
        parser.error(f"--plot: no result {args.json}; without --plot it is measured")
    if args.threads and torch.get_num_threads() < 2:
        parser.error("--threads: torch has one thread here, two or more can be compared")
    return args


def main():
    args = arguments()
    console = Console(width=None if sys.stdout.isatty() else 150)
    cases = [Case(*what) for what in product(args.passes, args.lengths, args.dtypes)]
    if args.only:
        for case in cases:
            found = measure(case, args.rounds, args.only)
            console.print(str(case), {name: f"{ms:.2f} ms" for name, ms in found.items()})
        return
    result = {"cases": {}, "profile": {}, "threads": {}}
    if args.json.exists():
        result |= json.loads(args.json.read_text())
    found = result
    if not args.plot:
        kinds = {"profile": profile, "threads": partial(compare_threads, rounds=args.rounds)}
        kinds = {kind: run for kind, run in kinds.items() if getattr(args, kind)}
        kinds = kinds or {"cases": partial(measure, rounds=args.rounds)}
        found = {kind: {} for kind in result if kind != "machine"}
        result["machine"] = machine()
        for case, (kind, run) in product(cases, kinds.items()):
            result[kind][str(case)] = found[kind][str(case)] = run(case)
            args.json.write_text(json.dumps(result, indent=2) + "\n")
            console.print(f"{case}: measured")
    show(found, console)
    if result["cases"] and find_spec("matplotlib"):
        draw(result, args.json.with_suffix(".png"))
    console.print(f"written to {args.json}")


if __name__ == "__main__":
    main()
