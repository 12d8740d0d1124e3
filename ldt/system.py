"""Processors, threads, memory limits and signals of this process."""

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from math import ceil
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from ldt.errors import Stopped, Terminated, UserError

ROOT = Path("/")  # of the files that describe the machine and its control groups
VARIABLES = "LDT_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"  # by which users choose threads
_NO_LIMIT = 1 << 60  # bytes; version 1 writes a number near 2 ** 63 where there is none
_PDEATHSIG = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>
ENDING = (signal.SIGINT, signal.SIGTERM)
APART = 1.0  # seconds within which a second signal is the same wish, sent to a group and to us
Handler = Callable[[int, Any], Any] | signal.Handlers  # of a number and a frame
AGAIN = 0.2  # seconds after which a signal is raised again that some library has swallowed


class Threads(NamedTuple):
    """Number of compute threads of a command, and the reason.

    Args:
        number: number of threads; None leaves torch's choice: the user's variables, else one per
            available core.
        why: variable, quota or affinity that decides; empty for the machine's default.
    """

    number: int | None
    why: str


def threads() -> Threads:
    """Threads of a command: LDT_THREADS, or at most as many as the CPU quota keeps busy.

    A fractional quota is rounded up: with 1.5 processors, one thread would waste a third. None if
    OMP_NUM_THREADS or MKL_NUM_THREADS is set, or nothing limits them. UserError if LDT_THREADS is
    not a positive integer.
    """
    asked = os.environ.get("LDT_THREADS")
    if asked is not None:
        if not re.fullmatch("0*[1-9][0-9]{0,5}", asked):
            raise UserError(f"LDT_THREADS={asked}: expected a whole number of threads, at least 1")
        return Threads(int(asked), "LDT_THREADS")
    for name in VARIABLES[1:]:
        if os.environ.get(name):
            return Threads(None, name)
    quota, there, usable = cpu_quota(), os.cpu_count() or 1, len(processors())
    if quota is not None and ceil(quota) < len(_cores()):  # torch takes a thread a core
        return Threads(ceil(quota), f"a CPU quota of {quota:.3g} of {there} processors")
    affinity = f"an affinity to {usable} of {there} processors"
    return Threads(None, affinity if usable < there else "")


def thread_count() -> int:
    """Number of compute threads of a command: that of `threads`, or where it is None the user's or
    one a core. UserError if LDT_THREADS is not a positive integer."""
    number, why = threads()
    if number is None and re.fullmatch("[1-9][0-9]{0,5}(,.*)?", text := os.environ.get(why, "")):
        number = int(text.partition(",")[0])  # one a level of nested loops, of which there is one
    return number or len(_cores())


def shares(count: int) -> tuple[int, list[frozenset[int]]]:
    """Divide the command's `thread_count` among ``count`` processes.

    Each core goes to one process as a whole, neighbouring cores together; with fewer cores than
    processes, every process may use all. UserError as for `threads`.

    Returns:
        Number of threads of each process, at least 1; and the processors of each by number, empty
            sets for all processors.
    """
    cores = _cores()
    first = [i * len(cores) // count for i in range(count + 1)]
    parts = [frozenset().union(*cores[a:b]) for a, b in pairwise(first)]
    if len(cores) < count:
        parts = [frozenset()] * count
    return max(1, thread_count() // count), parts


def _thread_variables(number: int) -> dict[str, str]:
    counts = dict.fromkeys(VARIABLES[1:], str(number))
    return counts | {"MKL_DYNAMIC": "FALSE"}  # else MKL takes fewer, as set_num_threads knows


def use_threads(number: int) -> None:
    """Set the number of compute threads of this process: the environment variables that torch and
    numpy read on import, and torch's own if it is imported."""
    os.environ.update(_thread_variables(number))
    if torch := sys.modules.get("torch"):  # it has read them already
        torch.set_num_threads(number)


def can_fork() -> bool:
    """True if forking is safe: not after torch may have started threads. Threads do not exist in a
    forked process, and OpenMP would wait for them forever."""
    return sys.platform == "linux" and os.path.isdir("/proc/self/fd") and "torch" not in sys.modules


def end_with_parent(*ignored: int) -> None:
    """Have the kernel kill this process when the thread that started it ends (Linux only). It
    ignores the given signals from now on, because the parent handles them."""
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        import ctypes

        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)


def handle(handler: Handler, numbers: Sequence[int] = ENDING) -> dict[int, Any]:
    """Install a handler of `signal.signal`, by default for SIGINT and SIGTERM, except for signals
    that the process ignores. Works in the main thread only.

    Returns:
        The previous handlers by signal number; {} in another thread, where nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}
    heard = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    return {number: signal.signal(number, handler) for number in heard}


@contextmanager
def handled(handler: Handler, numbers: Sequence[int] = ENDING) -> Iterator[None]:
    """Context manager that installs a handler by `handle` and restores the previous ones."""
    before = handle(handler, numbers)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, signal.SIG_DFL if old is None else old)


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Context manager that blocks SIGINT and SIGTERM; a process started in the block
    inherits this."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def raise_stopped(number: int, frame: Any = None) -> None:
    """Raise `Terminated` for SIGTERM, else `Stopped`; a handler of `signal.signal`."""
    raise Terminated if number == signal.SIGTERM else Stopped


def exit_at_once(number: int) -> None:
    """Exit immediately, without cleaning up, with the exit code 128 + ``number``."""
    os._exit(128 + number)


class Signals:
    """Handling of the first SIGINT or SIGTERM, and of a second one.

    In a forked process SIGTERM has its default effect and SIGINT none, since a terminal sends it to
    both.

    Args:
        first: called with the number of the first signal.
        second: called with the number of a later one.
        apart: seconds after the first signal within which others are ignored.

    Attributes:
        number: number of the first signal; 0 before it.
        came: `time.monotonic` of the first signal.
    """

    def __init__(
        self,
        first: Callable[[int], None],
        second: Callable[[int], None] = exit_at_once,
        apart: float = APART,
    ):
        self.first, self.second, self.apart = first, second, apart
        self.number, self.came = 0, 0.0
        self._process = os.getpid()

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Context manager that handles SIGINT and SIGTERM by `come`, unless the process ignores
        them."""
        with handled(self.come):
            yield

    def come(self, number: int, frame: Any) -> None:
        """Call ``first`` for the first signal, and ``second`` for one that comes ``apart`` seconds
        later or after; a handler of `signal.signal`. In a forked process SIGTERM ends it and
        SIGINT does nothing."""
        if os.getpid() != self._process:
            if number != signal.SIGINT:
                signal.signal(number, signal.SIG_DFL)
                signal.raise_signal(number)
        elif not self.number:
            self.number, self.came = number, time.monotonic()
            self.first(number)
        elif time.monotonic() - self.came >= self.apart:
            self.second(number)


class RaisedSignals(Signals):
    """Raise the first signal as an exception, so that a command releases what it holds:
    `raise_stopped`.

    An exception raised during an import or a callback may be swallowed or replaced. So it is raised
    again until the block is left, except while it is being handled, and ``number`` names the signal
    whatever exception arrives.
    """

    def __init__(self) -> None:
        super().__init__(self._raise)
        self._over = False

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Context manager that raises the first signal as `Stopped` or `Terminated`; a second one
        ends the process."""
        with super().handled():
            hook, sys.unraisablehook = sys.unraisablehook, self._unraisable
            try:
                yield
            finally:
                self._over = True
                self._repeat(0)
                sys.unraisablehook = hook

    def _raise(self, number: int) -> None:
        self._repeat(AGAIN)
        raise_stopped(number)

    def _again(self, number: int, frame: Any) -> None:
        if self._over:
            return
        handled = sys.exception()
        while handled is not None:
            if isinstance(handled, KeyboardInterrupt | SystemExit | GeneratorExit):
                return
            handled = handled.__context__
        raise_stopped(self.number)

    def _repeat(self, seconds: float) -> None:
        if self.number and hasattr(signal, "setitimer"):  # not on Windows
            if seconds:
                signal.signal(signal.SIGALRM, self._again)
            signal.setitimer(signal.ITIMER_REAL, seconds, seconds)

    def _unraisable(self, unraisable: Any) -> None:
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            sys.__unraisablehook__(unraisable)


def load() -> float:
    """Load average of the machine over the last minute; 0 if unknown."""
    with suppress(OSError, AttributeError):
        return os.getloadavg()[0]
    return 0.0


def processors() -> set[int]:
    """Numbers of the processors that this process may use, by its affinity."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def cpu_quota() -> float | None:
    """CPU quota of the control groups in processors, such as 1.5; None without a quota."""
    quotas = []
    for folder in _groups("cpu"):
        words = _words(folder / "cpu.max")
        words = words or _words(folder / "cpu.cfs_quota_us") + _words(folder / "cpu.cfs_period_us")
        quota, period = words or ("max", "0")
        if quota.isdecimal() and int(quota) and int(period):
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def memory_limit() -> int | None:
    """Memory limit of the control groups in bytes; None without a limit."""
    limits = []
    for folder in _groups("memory"):
        (limit,) = _words(folder / "memory.max") or _words(folder / "memory.limit_in_bytes") or "-"
        if limit.isdecimal() and int(limit) < _NO_LIMIT:
            limits.append(int(limit))
    return min(limits, default=None)


def address_space() -> int | None:
    """Limit of this process's address space (``ulimit -v``) in bytes; None without a limit."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def available_memory() -> int:
    """Memory this process can use in total, in bytes: what it has plus what is free,
    within limits."""
    import psutil

    used = psutil.Process().memory_info()
    limits = [used.rss + psutil.virtual_memory().available]
    if (group := memory_limit()) is not None:
        limits.append(group)
    if (space := address_space()) is not None:
        limits.append(used.rss + space - used.vms)
    return min(limits)


def _cores() -> list[frozenset[int]]:
    """Usable processors of each core, in order."""
    topology = ROOT / "sys/devices/system/cpu"
    cores: dict[tuple[str, ...], set[int]] = {}
    for number in sorted(processors()):
        file = topology / f"cpu{number}/topology/thread_siblings_list"
        cores.setdefault(_words(file) or (str(number),), set()).add(number)
    return [frozenset(core) for core in cores.values()]


def _groups(controller: str) -> Iterator[Path]:
    """Folders of the process's control group and its parents, in versions 1 and 2. A group that is
    not mounted, as in a container, is replaced by its parents."""
    groups = {}  # by version, the path of the process's group
    for line in _lines(ROOT / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            groups["cgroup" if controllers else "cgroup2"] = PurePosixPath(path)
    for line in _lines(ROOT / "proc/self/mountinfo"):
        mount, _, facts = line.partition(" - ")
        kind, _, options = facts.split(" ", 2)
        if kind not in groups or (kind == "cgroup" and controller not in options.split(",")):
            continue
        top, point = (_unescaped(word) for word in mount.split(" ")[3:5])
        group, mounted = groups[kind], ROOT / point.lstrip("/")
        inside = PurePosixPath()  # of what is mounted
        if group.is_relative_to(top) and ".." not in group.parts:
            inside = group.relative_to(top)
        yield from (mounted / each for each in (inside, *inside.parents))


def _unescaped(word: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), word)


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return []


def _words(file: Path) -> tuple[str, ...]:
    return tuple(word for line in _lines(file) for word in line.split())
