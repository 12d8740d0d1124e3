"""Processors and memory that control groups grant, of both versions, in and out of containers."""

import pytest

from ldt.bench import limits


@pytest.fixture
def groups(tmp_path):
    """Makes the files of control groups: (where they are mounted, the file that names ours)."""

    def make(own, files):
        root = tmp_path / "cgroup"
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text + "\n")
        (tmp_path / "own").write_text(own + "\n")
        return root, tmp_path / "own"

    return make


@pytest.mark.parametrize(
    ("own", "files", "quota"),
    [
        ("0::/", {"cpu.max": "150000 100000"}, 1.5),
        ("0::/", {"cpu.max": "max 100000"}, None),
        ("0::/a/b", {"a/cpu.max": "50000 100000", "a/b/cpu.max": "max 100000"}, 0.5),
        ("0::/a/b", {"a/cpu.max": "100000 50000", "a/b/cpu.max": "100000 100000"}, 1.0),
        ("0::/docker/1", {"cpu.max": "200000 100000"}, 2.0),  # of a container: not mounted
        ("2:cpu:/", {"cpu/cpu.cfs_quota_us": "250000", "cpu/cpu.cfs_period_us": "100000"}, 2.5),
        ("2:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        (
            "4:cpu,cpuacct:/x\n0::/",
            {
                "cpu,cpuacct/x/cpu.cfs_quota_us": "50000",
                "cpu,cpuacct/x/cpu.cfs_period_us": "100000",
            },
            0.5,
        ),
        ("3:memory:/", {"cpu/cpu.cfs_quota_us": "1000"}, None),
    ],
)
def test_a_quota_is_the_least_of_the_group_and_those_around_it(own, files, quota, groups):
    assert limits.cpu_quota(*groups(own, files)) == quota


@pytest.mark.parametrize(
    ("own", "files", "limit"),
    [
        ("0::/", {"memory.max": "1073741824"}, 1 << 30),
        ("0::/", {"memory.max": "max"}, None),
        ("0::/a", {"memory.max": "4096", "a/memory.max": "8192"}, 4096),
        ("4:memory:/p", {"memory/p/memory.limit_in_bytes": "8192"}, 8192),
        ("4:memory:/", {"memory/memory.limit_in_bytes": "9223372036854771712"}, None),
    ],
)
def test_a_limit_of_memory_is_read(own, files, limit, groups):
    assert limits.memory_limit(*groups(own, files)) == limit


def test_without_control_groups_there_is_no_limit(tmp_path):
    assert limits.cpu_quota(tmp_path, tmp_path / "none") is None
    assert limits.memory_limit(tmp_path, tmp_path / "none") is None


def test_processors_are_those_that_the_process_may_use(monkeypatch):
    monkeypatch.setattr(limits.os, "sched_getaffinity", lambda process: {3, 5}, raising=False)
    assert limits.usable_cores() == 2
    monkeypatch.delattr(limits.os, "sched_getaffinity")
    monkeypatch.setattr(limits.os, "cpu_count", lambda: 7)
    assert limits.usable_cores() == 7
