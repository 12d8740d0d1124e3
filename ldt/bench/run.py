"""A comparison of implementations: its plan, its measurements in turn, its rows."""

import json
import logging
import statistics
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.table import Table

from ldt.attention import BACKENDS, choose
from ldt.bench import encoders, operations, plot, table
from ldt.bench.measure import cuda_peak_mib, in_turn, machine
from ldt.bench.memory import FreshProcesses
from ldt.bench.setting import PASSES, Setting
from ldt.errors import UserError

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


@dataclass
class Plan:
    """A comparison that is to be measured.

    Attributes:
        setting: shape and number format, the same for all.
        kinds: passes to measure, names in `PASSES`.
        lengths: tokens of a document, rising.
        names: implementations.
        rounds: timed runs of each.
        limit: seconds; a longer run is not repeated, an expected one not begun.
        memory: if true, peak memory is measured.
        machine: the machine, in words.
        auto: (name, reason) of the backend that ``auto`` takes.
    """

    setting: Setting
    kinds: tuple[str, ...]
    lengths: list[int]
    names: tuple[str, ...]
    rounds: int
    limit: float
    memory: bool
    machine: dict[str, Any]
    auto: tuple[str, str]

    def heading(self) -> Iterator[str]:
        """Lines on the machine and the setting."""
        return table.heading(self.machine, self.setting, self.auto)

    def measure(self) -> list[Row]:
        """Measure everything, one length after another.

        Raises:
            UserError: nothing could run.
        """
        rows: list[Row] = []
        with ExitStack() as stack:
            peak = _peak_measure(self.memory, self.setting.device, stack)
            for kind in self.kinds:
                before: dict[str, tuple[float, int]] = {}  # what each took at the last length
                for tokens in self.lengths:
                    options = self.rounds, self.limit, before, peak
                    measured = compare(self.names, tokens, kind, self.setting, *options)
                    log.info("%s", table.progress(measured))
                    rows += measured
        if not any(row.seconds for row in rows):
            raise UserError(f"nothing could run: {rows[0].why_no_time}")
        return rows

    def tables(self, rows: list[Row]) -> Iterator[tuple[str, Table]]:
        """(title, table) for each pass, of times and of memory."""
        return table.tables(rows, table.base(rows, self.auto[0]))

    def json(self, rows: list[Row]) -> str:
        """Machine, setting and rows."""
        values = {
            "machine": self.machine,
            "setting": asdict(self.setting),
            "auto": dict(zip(("backend", "why"), self.auto, strict=True)),
            "rounds": self.rounds,
            "limit": self.limit,
            "rows": [asdict(row) for row in rows],
        }
        return json.dumps(values, indent=2) + "\n"


def plan(
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
    **shape,
) -> Plan:
    """Check the options of a comparison and fill in the defaults.

    Args:
        lengths: tokens of a document, each measured; none: those of `LENGTHS`.
        backends: names of implementations; none: all, and those that cannot run say why.
        kind: one of `PASSES`, or ``both``.
        device: ``cpu``, ``cuda`` or ``auto``.
        dtype: a name in `ldt.bench.setting.DTYPES`; None: that of `DTYPE`.
        encoder: whole encoders of ``layers`` layers instead of the attention operation.
        shape: the other fields of `Setting`; the rest as in `Plan`.

    Raises:
        UserError: a value that means nothing, or a named implementation that cannot run.
    """
    device = _device(device)
    layers = (layers or LAYERS[device]) if encoder else 0
    setting = Setting(device=device, dtype=dtype or DTYPE[device], layers=layers, **shape)
    if setting.window < 2 or setting.window % 2:
        raise UserError(f"--window must be even and at least 2, got {setting.window}")
    if setting.threads:
        torch.set_num_threads(setting.threads)
    kinds = PASSES if kind == "both" else (kind,)
    lengths = sorted(set(lengths or LENGTHS[device]))
    return Plan(
        setting=setting,
        kinds=kinds,
        lengths=lengths,
        names=_names(backends, kinds, lengths[0], setting),
        rounds=rounds,
        limit=limit,
        memory=memory,
        machine=machine(),
        auto=choose(device, setting.torch_dtype),
    )


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


def check_files(json_file, plot_file):
    """Refuse files that could not be written, before anything is measured.

    Raises:
        UserError: a folder, one that is missing, or a picture that cannot be drawn.
    """
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
    """A function (name, tokens, kind, setting, run) -> MiB; None where it is not wanted."""
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
