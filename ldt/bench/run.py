"""The command ``ldt bench``: what is measured, in which order, and what is said."""

import json
import logging
import statistics
from contextlib import ExitStack
from dataclasses import asdict, dataclass

import torch

from ldt.attention import BACKENDS, choose
from ldt.bench import encoders, operations, plot, table
from ldt.bench.measure import cuda_peak_mib, in_turn, machine
from ldt.bench.memory import FreshProcesses
from ldt.bench.setting import PASSES, Setting
from ldt.cli.console import say, stdout
from ldt.errors import UserError
from ldt.files import write_whole

log = logging.getLogger("ldt")

LENGTHS = {"cpu": (512, 1024, 2048, 4096), "cuda": (1024, 4096, 16384, 65536)}
LAYERS = {"cpu": 2, "cuda": 12}  # of an encoder
DTYPE = {"cpu": "fp32", "cuda": "bf16"}


@dataclass
class Row:
    """One implementation at one length: seconds and MiB, or why there are none.

    ``seconds`` is the median of ``rounds``; ``fastest`` and ``slowest`` are the ends.
    """

    name: str
    kind: str
    tokens: int
    seconds: float | None = None
    fastest: float | None = None
    slowest: float | None = None
    rounds: int = 0
    mib: float | None = None
    why_no_time: str | None = None
    why_no_memory: str | None = None


def bench(
    *,
    lengths=(),
    backends=(),
    kind="both",
    device="auto",
    dtype=None,
    encoder=False,
    layers=None,
    rounds=5,
    limit=1.0,
    memory=True,
    json_file=None,
    plot_file=None,
    **shape,
):
    """Measure, print the table, write the files.

    Args:
        lengths: tokens of a document, each measured; none: those of `LENGTHS`.
        backends: names of implementations; none: all, and those that cannot run say why.
        kind: one of `PASSES`, or ``both``.
        device: ``cpu``, ``cuda`` or ``auto``.
        dtype: a name in `ldt.bench.setting.DTYPES`; None: that of `DTYPE`.
        encoder: whole encoders of ``layers`` layers instead of the attention operation.
        rounds: times that each is run.
        limit: seconds; what takes longer is not run more often, what would is not run at all.
        memory: whether peak memory is measured.
        json_file, plot_file: Path of a file to write, or None.
        shape: the other fields of `Setting`.

    Raises:
        UserError: a value that means nothing, a named implementation that cannot run, nothing that
            can run, a file that cannot be written.
    """
    device = _device(device)
    layers = (layers or LAYERS[device]) if encoder else 0
    dtype = dtype or DTYPE[device]
    setting = Setting(device=device, dtype=dtype, layers=layers, **shape)
    _check(setting, json_file, plot_file)
    if setting.threads:
        torch.set_num_threads(setting.threads)
    kinds = PASSES if kind == "both" else (kind,)
    lengths = sorted(set(lengths or LENGTHS[device]))
    names = _names(backends, kinds, lengths[0], setting)
    about = machine()
    chosen = choose(device, setting.torch_dtype)
    for line in table.heading(about, setting, chosen):
        say(line, console=stdout)
    with ExitStack() as stack:
        peak = _peak_measure(memory, device, stack)
        rows = []
        for kind in kinds:
            before = {}
            for tokens in lengths:
                found = compare(names, tokens, kind, setting, rounds, limit, before, peak)
                log.info("%s", table.progress(found))
                rows += found
    if not any(row.seconds for row in rows):
        raise UserError(f"nothing could run: {rows[0].why_no_time}")
    for title, part in table.tables(rows, table.base(rows, chosen[0])):
        say(title, console=stdout)
        stdout.print(part)
    for line in table.reasons(rows):
        say(line, console=stdout)
    if json_file:
        result = {
            "machine": about,
            "setting": asdict(setting),
            "auto": dict(zip(("backend", "why"), chosen, strict=True)),
            "rounds": rounds,
            "limit": limit,
            "rows": [asdict(row) for row in rows],
        }
        write_whole(json_file, json.dumps(result, indent=2) + "\n")
        log.info("%s: written", json_file)
    if plot_file:
        plot.write(plot_file, rows, about, setting)
        log.info("%s: written", plot_file)


def compare(names, tokens, kind, setting, rounds, limit, before, peak):
    """A `Row` for each name: the implementations at one length, timed in turn.

    Args:
        before: {name: (seconds, tokens)} at the length before, which this one replaces; what would
            take longer than ``limit`` if its time grew with the length alone is not run.
        peak: (name, tokens, kind, setting, run) -> MiB.
    """
    rows = {name: Row(name, kind, tokens) for name in names}
    given = operations.Given(setting, tokens, kind == "training")
    runs = {}
    for name, row in rows.items():
        seconds, length = before.get(name, (0, 1))
        if seconds * tokens / length > limit:
            took = f"{table.milliseconds(seconds)} ms at {length:,} tokens"
            row.why_no_time = f"took {took}, here it would be over --limit {limit:g} s"
        else:
            run, row.why_no_time = attempt(name, tokens, kind, setting, given)
            if run:
                runs[name] = _careful(run, row)
    for name, seconds in in_turn(runs, rounds, setting.device, limit).items():
        row = rows[name]
        if row.why_no_time:
            continue
        row.seconds, row.rounds = statistics.median(seconds), len(seconds)
        row.fastest, row.slowest = min(seconds), max(seconds)
        before[name] = row.seconds, tokens
        try:
            row.mib = peak(name, tokens, kind, setting, runs[name])
        except Exception as error:  # a row that says why, never the end of the others
            row.why_no_memory = reason(error)
    return list(rows.values())


def _careful(run, row):
    """``run`` until it fails once, which ``row`` then tells."""

    def call():
        if not row.why_no_time:
            try:
                run()
            except Exception as error:  # such as memory that was there for the first call
                row.why_no_time = reason(error)

    return call


def attempt(name, tokens, kind, setting, given):
    """(run, None) after a first call, or (None, why it cannot run)."""
    try:
        if setting.layers:
            run, _ = encoders.load(name, tokens, kind, setting)
        else:
            operation = operations.operation(name, given)

            def run():
                return operation.run(kind)

        run()
        return run, None
    except Exception as error:  # whatever a peer raises is a row, never the end of the others
        return None, reason(error)
    finally:
        if setting.device == "cuda":
            torch.cuda.empty_cache()


def reason(error):
    """The first line of what went wrong, for a table."""
    text = str(error).strip().split("\n")[0][:200]
    if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error):
        return "out of memory"
    if isinstance(error, ImportError):
        return f"not installed: {text}"
    plain = isinstance(error, ValueError | NotImplementedError | MemoryError) or " " in text
    return text if plain else f"{type(error).__name__}: {text or 'no message'}"


def _device(asked):
    if asked == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if asked == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch finds no CUDA device; --device cpu runs here")
    return asked


def _check(setting, json_file, plot_file):
    if setting.window < 2 or setting.window % 2:
        raise UserError(f"--window must be even and at least 2, got {setting.window}")
    for file in (json_file, plot_file):
        if file and file.is_dir():
            raise UserError(f"{file}: a folder; name a file")
        if file and not file.parent.is_dir():
            raise UserError(f"{file.parent}: no such folder; make it or name another")
    if plot_file:
        plot.check(plot_file)


def _names(asked, kinds, tokens, setting):
    """The implementations to measure, those asked for by name or the usual ones.

    Raises:
        UserError: one is unknown, or runs in none of the passes at so few tokens.
    """
    known = (encoders if setting.layers else operations).names(setting)
    for name in asked:
        if name not in known:
            raise UserError(f"--backend must be one of {', '.join(known)}, got {name!r}")
        why = None
        for kind in kinds:
            given = operations.Given(setting, tokens, kind == "training")
            run, why = attempt(name, tokens, kind, setting, given)
            if run:
                break
        else:
            raise UserError(f"--backend {name}: {why}")
    if asked:
        return tuple(dict.fromkeys(asked))
    return tuple(name for name in known if not setting.layers or name not in BACKENDS)


def _peak_measure(wanted, device, stack):
    """(name, tokens, kind, setting, run) -> MiB; None where it is not wanted."""
    if not wanted:
        return lambda *_: None
    if device == "cuda":
        return lambda *cell: cuda_peak_mib(cell[-1])
    try:
        processes = stack.enter_context(FreshProcesses())
    except OSError as error:
        log.warning("no memory: %s", error)
        return lambda *_: None
    return lambda *cell: processes.peak_mib(*cell[:-1])
