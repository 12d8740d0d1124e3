"""What this process may use of the machine: processors and memory, as the system grants them."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import pairwise
from math import ceil
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from ldt.errors import UserError

ROOT = Path("/")
VARIABLES = "LDT_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"  # by which users choose threads
_NO_LIMIT = 1 << 60  # bytes; version 1 writes a number near 2 ** 63 where there is none


class Threads(NamedTuple):
    """How many threads a command computes with, and what decides it.

    Args:
        number: None leaves it to torch: what the user gave it, else one a core of those that the
            process may run on.
        why: a variable, a quota or an affinity; empty where the machine decides.
    """

    number: int | None
    why: str


def threads(environ: Mapping[str, str] = os.environ, root: Path = ROOT) -> Threads:
    """The threads of a command: LDT_THREADS, or no more than the CPU quota keeps busy.

    A quota is rounded up: of 1.5 processors one thread would leave a third unused, while two get it
    all and are both halted where it is used up.

    Args:
        environ: variables of the process.
        root: of the file tree in which its quota is looked up.

    Raises:
        UserError: LDT_THREADS is no whole number from 1 on.
    """
    asked = environ.get("LDT_THREADS")
    if asked is not None:
        if not re.fullmatch("0*[1-9][0-9]{0,5}", asked):
            raise UserError(f"LDT_THREADS={asked}: expected a whole number of threads, at least 1")
        return Threads(int(asked), "LDT_THREADS")
    for name in VARIABLES[1:]:
        if environ.get(name):
            return Threads(None, name)
    quota, there, usable = cpu_quota(root), os.cpu_count() or 1, usable_cores()
    if quota is not None and ceil(quota) < _physical_cores(root):
        return Threads(ceil(quota), f"a CPU quota of {quota:.3g} of {there} processors")
    affinity = f"an affinity to {usable} of {there} processors"
    return Threads(None, affinity if usable < there else "")


def shared(
    count: int, environ: Mapping[str, str] = os.environ, root: Path = ROOT
) -> tuple[int, list[frozenset[int]]]:
    """Threads of each of some processes, and numbers of the processors of each.

    They share what one command would compute with, as `threads` has it or the user's own variables.
    A core whole goes to one of them, with its neighbours; where there are fewer cores than
    processes, all may run on all of them.

    Args:
        environ: variables of the process.
        root: of the file tree in which its quota is looked up.

    Raises:
        UserError: LDT_THREADS is no whole number from 1 on.
    """
    cores = _cores(root)
    first = [i * len(cores) // count for i in range(count + 1)]
    parts = [frozenset().union(*cores[a:b]) for a, b in pairwise(first)]
    if len(cores) < count:
        parts = [frozenset()] * count
    return max(1, granted(environ, root) // count), parts


def granted(environ: Mapping[str, str] = os.environ, root: Path = ROOT) -> int:
    """Threads that a command computes with, in all; arguments and errors as of `threads`."""
    number, why = threads(environ, root)
    if number is None and re.fullmatch("[1-9][0-9]{0,5}(,.*)?", set_ := environ.get(why, "")):
        number = int(set_.partition(",")[0])  # one a level of nested loops, of which there is one
    return number or len(_cores(root))


def halves(number: int) -> list[int]:
    """A number of threads, half of it, and so on down to one."""
    return [number >> half for half in range(number.bit_length())]


def load() -> float:
    """Programs that computed or waited for it in the last minute; 0 where no system tells."""
    with suppress(OSError, AttributeError):
        return os.getloadavg()[0]
    return 0.0


def usable_cores() -> int:
    """Processors that the process may run on: all, or those that taskset or a container left."""
    return len(_usable())


def cpu_quota(root: Path = ROOT) -> float | None:
    """Processors whose time the control groups grant, as 1.5; None without a quota.

    Args:
        root: of the file tree with ``proc`` and the mounted groups.
    """
    shares = []
    for folder in _folders(root, "cpu"):
        quota, period = (
            _words(folder / "cpu.max")
            or (
                *_words(folder / "cpu.cfs_quota_us"),
                *_words(folder / "cpu.cfs_period_us"),
            )
            or ("max", "0")
        )
        if quota.isdecimal() and int(quota) and int(period):
            shares.append(int(quota) / int(period))
    return min(shares, default=None)


def memory_limit(root: Path = ROOT) -> int | None:
    """Bytes of memory that the control groups grant; None without a limit.

    Args:
        root: of the file tree with ``proc`` and the mounted groups.
    """
    limits = []
    for folder in _folders(root, "memory"):
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


def _usable() -> set[int]:
    """Numbers of the processors that the process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _physical_cores(root: Path) -> int:
    """Cores that the process may run on, each of which may be several processors; as many threads
    torch takes by itself."""
    return len(_cores(root))


def _cores(root: Path) -> list[frozenset[int]]:
    """Numbers of the processors of each core, in order, that the process may run on."""
    topology = root / "sys/devices/system/cpu"
    cores: dict[tuple[str, ...], set[int]] = {}
    for number in sorted(_usable()):
        file = topology / f"cpu{number}/topology/thread_siblings_list"
        cores.setdefault(_words(file) or (str(number),), set()).add(number)
    return [frozenset(core) for core in cores.values()]


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """The folders of the process's group and of those around it, of versions 1 and 2.

    Of a group that is not mounted, as in a container, those around it are.
    """
    groups = {}  # by version, the path of the process's group
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            groups["cgroup" if controllers else "cgroup2"] = PurePosixPath(path)
    for line in _lines(root / "proc/self/mountinfo"):
        mount, _, about = line.partition(" - ")
        kind, _, options = about.split(" ", 2)
        if kind not in groups or (kind == "cgroup" and controller not in options.split(",")):
            continue
        top, point = (_unescaped(word) for word in mount.split(" ")[3:5])
        group, mounted = groups[kind], root / point.lstrip("/")
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
    """The words of a file; none where it cannot be read."""
    try:
        return tuple(file.read_text().split())
    except OSError:
        return ()
