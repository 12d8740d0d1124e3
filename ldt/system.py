"""Processors, threads, memory and signals of this process, as the system grants them."""

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
AGAIN = 0.2  # seconds after which a signal is raised again that some library has swallowed


class Threads(NamedTuple):
    """Threads that a command computes with, and the reason for their number.

    Args:
        number: None leaves it to torch: what the user gave it, else one a core of those that the
            process may run on.
        why: a variable, a quota or an affinity; empty where the machine decides.
    """

    number: int | None
    why: str


def threads() -> Threads:
    """The threads of a command: LDT_THREADS, or no more than the CPU quota keeps busy.

    A quota is rounded up: of 1.5 processors one thread would leave a third unused, while two get it
    all and are both halted where it is used up.

    Raises:
        UserError: LDT_THREADS is no whole number from 1 on.
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
    """The number of `threads`, also where the user's variables or the machine decide it.

    Raises:
        UserError: LDT_THREADS is no whole number from 1 on.
    """
    number, why = threads()
    if number is None and re.fullmatch("[1-9][0-9]{0,5}(,.*)?", text := os.environ.get(why, "")):
        number = int(text.partition(",")[0])  # one a level of nested loops, of which there is one
    return number or len(_cores())


def shares(count: int) -> tuple[int, list[frozenset[int]]]:
    """Threads of each of ``count`` processes, and numbers of the processors of each.

    They share the `thread_count` of one command. A core whole goes to one of them, with its
    neighbours; where there are fewer cores than processes, all may run on all of them.

    Raises:
        UserError: LDT_THREADS is no whole number from 1 on.
    """
    cores = _cores()
    first = [i * len(cores) // count for i in range(count + 1)]
    parts = [frozenset().union(*cores[a:b]) for a, b in pairwise(first)]
    if len(cores) < count:
        parts = [frozenset()] * count
    return max(1, thread_count() // count), parts


def thread_variables(number: int) -> dict[str, str]:
    """Variables by which torch and numpy take so many threads, where they are imported later."""
    counts = dict.fromkeys(VARIABLES[1:], str(number))
    return counts | {"MKL_DYNAMIC": "FALSE"}  # else MKL takes fewer, as set_num_threads knows


def use_threads(number: int) -> None:
    """Have this process compute with so many threads."""
    os.environ.update(thread_variables(number))
    if torch := sys.modules.get("torch"):  # it has read them already
        torch.set_num_threads(number)


def can_fork() -> bool:
    """True if processes may go on from this one: not where torch may have started threads.

    Threads are not there in a forked process, and OpenMP waits for its own forever.
    """
    return sys.platform == "linux" and os.path.isdir("/proc/self/fd") and "torch" not in sys.modules


def end_with_parent(*ignored: int) -> None:
    """Let the system kill this process as the thread ends that started it; on Linux alone.

    Args:
        ignored: numbers of signals that are left to the other process, which gets them too.
    """
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        import ctypes

        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)


def handle(handler: Any, numbers: Sequence[int] = ENDING) -> dict[int, Any]:
    """Handle signals by a function; those that the process ignores are ignored still.

    Only the main thread can do so; in another one signals act as before.

    Returns:
        The handlers of before, by number.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}
    heard = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    return {number: signal.signal(number, handler) for number in heard}


@contextmanager
def handled(handler: Any, numbers: Sequence[int] = ENDING) -> Iterator[None]:
    """`handle` signals while the context lasts."""
    before = handle(handler, numbers)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, signal.SIG_DFL if old is None else old)


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Keep SIGINT and SIGTERM waiting; a process that is started here never gets them."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def raise_stopped(number: int, frame: Any = None) -> None:
    """Raise `Stopped` for SIGINT and `Terminated` for SIGTERM."""
    raise Terminated if number == signal.SIGTERM else Stopped


def exit_at_once(number: int) -> None:
    """End the process with the exit code of a signal, whatever it is doing."""
    os._exit(128 + number)


class Signals:
    """The first SIGINT or SIGTERM of a process, and the one after it.

    In a process that is forked from this one SIGTERM acts by itself, and SIGINT not at all: a
    terminal sends it to both.

    Args:
        first: called with the number of the first signal.
        second: called with the number of any other one.
        apart: seconds after the first one within which another one is ignored.

    Attributes:
        number: of the first signal; 0 before it.
        came: time of `time.monotonic` at which it came.
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
        """Handle the signals while the context lasts; see `handle`."""
        with handled(self.come):
            yield

    def come(self, number: int, frame: Any) -> None:
        """Handle a signal."""
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
    """The first signal as an exception that lets go of what a command holds: `raise_stopped`.

    An exception that comes in the middle of an import or of a callback may be swallowed there, or
    turned into another one. So it is raised again until the context is left, except where it is
    being handled; and ``number`` says what ended the command, whatever exception arrives.
    """

    def __init__(self) -> None:
        super().__init__(self._raise)
        self._over = False

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Raise the first signal while the context lasts; a second one ends the process."""
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
        """Say nothing of a signal that came in a destructor; it is raised again."""
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            sys.__unraisablehook__(unraisable)


def load() -> float:
    """Programs that computed or waited for it in the last minute; 0 where no system tells."""
    with suppress(OSError, AttributeError):
        return os.getloadavg()[0]
    return 0.0


def processors() -> set[int]:
    """Numbers of the processors that the process may run on: all, or those that taskset or a
    container left."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def cpu_quota() -> float | None:
    """Processors whose time the control groups grant, as 1.5; None without a quota."""
    quotas = []
    for folder in _groups("cpu"):
        words = _words(folder / "cpu.max")
        words = words or _words(folder / "cpu.cfs_quota_us") + _words(folder / "cpu.cfs_period_us")
        quota, period = words or ("max", "0")
        if quota.isdecimal() and int(quota) and int(period):
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def memory_limit() -> int | None:
    """Bytes of memory that the control groups grant; None without a limit."""
    limits = []
    for folder in _groups("memory"):
        (limit,) = _words(folder / "memory.max") or _words(folder / "memory.limit_in_bytes") or "-"
        if limit.isdecimal() and int(limit) < _NO_LIMIT:
            limits.append(int(limit))
    return min(limits, default=None)


def address_space() -> int | None:
    """Bytes that ``ulimit -v`` allows; None without a limit, or where there is no such thing."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def available_memory() -> int:
    """Bytes that this process can have in all: what it has and what is free, within its limits."""
    import psutil

    used = psutil.Process().memory_info()
    limits = [used.rss + psutil.virtual_memory().available]
    if (group := memory_limit()) is not None:
        limits.append(group)
    if (space := address_space()) is not None:
        limits.append(used.rss + space - used.vms)
    return min(limits)


def _cores() -> list[frozenset[int]]:
    """Numbers of the processors of each core, in order, that the process may run on."""
    topology = ROOT / "sys/devices/system/cpu"
    cores: dict[tuple[str, ...], set[int]] = {}
    for number in sorted(processors()):
        file = topology / f"cpu{number}/topology/thread_siblings_list"
        cores.setdefault(_words(file) or (str(number),), set()).add(number)
    return [frozenset(core) for core in cores.values()]


def _groups(controller: str) -> Iterator[Path]:
    """The folders of the process's control group and of those around it, of versions 1 and 2.

    Of a group that is not mounted, as in a container, those around it are.
    """
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
    """A path of mountinfo, which has blanks as ``\\040``."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), word)


def _lines(file: Path) -> list[str]:
    """The lines of a file; none where it cannot be read."""
    try:
        return file.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return []


def _words(file: Path) -> tuple[str, ...]:
    return tuple(word for line in _lines(file) for word in line.split())
