"""What this process may use of the machine: processors and memory, as the system grants them."""

import os
from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
_NO_LIMIT = 1 << 60  # bytes; version 1 writes a number near 2 ** 63 where there is none


def usable_cores() -> int:
    """Processors that the process may run on: all, or those that taskset or a container left."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_quota(root: Path = CGROUPS, own: Path = OWN) -> float | None:
    """Processors whose time the control groups grant, as 1.5; None without a quota.

    Args:
        root: where the groups are mounted.
        own: the file that names those of the process.
    """
    shares = []
    for folder in _folders(root, own, "cpu"):
        quota, period = (
            _words(folder / "cpu.max")
            or (
                *_words(folder / "cpu.cfs_quota_us"),
                *_words(folder / "cpu.cfs_period_us"),
            )
            or ("max", "0")
        )
        if quota.isdecimal() and int(period):
            shares.append(int(quota) / int(period))
    return min(shares, default=None)


def memory_limit(root: Path = CGROUPS, own: Path = OWN) -> int | None:
    """Bytes of memory that the control groups grant; None without a limit."""
    limits = []
    for folder in _folders(root, own, "memory"):
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


def _folders(root: Path, own: Path, controller: str) -> Iterator[Path]:
    """The folders of the process's group and of those around it, of versions 1 and 2.

    Of a group that is not mounted, as in a container, those around it are.
    """
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mounts = (controllers, controller) if controllers else ("", "unified")
        for mount in dict.fromkeys(mounts):
            top = root / mount
            group = top / path.strip("/")
            yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(top))


def _words(file: Path) -> tuple[str, ...]:
    """The words of a file; none where it cannot be read."""
    try:
        return tuple(file.read_text().split())
    except OSError:
        return ()
