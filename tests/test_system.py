"""Processors, threads and memory by control groups of both versions; signals of the process."""

import contextlib
import logging
import os
import resource
import signal
import subprocess
import sys
import time

import pytest
import torch
from groups import tree

from ldt import cli, system
from ldt.cli import threads
from ldt.errors import Stopped, Terminated, UserError


@pytest.fixture
def rooted(monkeypatch, tmp_path):
    """Makes a file tree of control groups, see `tree`, that of this process."""

    def make(*args, **kwargs):
        monkeypatch.setattr(system, "ROOT", tree(tmp_path, *args, **kwargs))

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
def test_a_quota_is_the_least_of_the_group_and_those_around_it(own, files, quota, rooted):
    rooted(own, files)
    assert system.cpu_quota() == quota


@pytest.mark.parametrize(
    ("own", "files", "limit"),
    [
        ("0::/", {"memory.max": "1048576"}, 1 << 20),
        ("0::/", {"memory.max": "max"}, None),
        ("0::/a", {"memory.max": "4096", "a/memory.max": "8192"}, 4096),
        ("0::/a/b/c", {"a/memory.max": "max", "a/b/memory.max": "8192"}, 8192),
        ("4:memory:/p", {"memory/p/memory.limit_in_bytes": "8192"}, 8192),
        ("4:memory:/p/q", {"memory/p/memory.limit_in_bytes": "8192"}, 8192),
        ("4:memory:/", {"memory/memory.limit_in_bytes": "9223372036854771712"}, None),
    ],
)
def test_a_limit_of_memory_is_read(own, files, limit, rooted):
    rooted(own, files)
    assert system.memory_limit() == limit
    assert limit in (None, system.available_memory())


def test_the_memory_that_is_there_is_within_the_limit_of_the_shell(rooted, monkeypatch):
    rooted("0::/", {})
    monkeypatch.setattr(resource, "getrlimit", lambda what: (10 << 30, 10 << 30))
    assert system.available_memory() < 10 << 30


def test_without_control_groups_there_is_no_limit(monkeypatch, tmp_path):
    monkeypatch.setattr(system, "ROOT", tmp_path)
    assert system.cpu_quota() is None
    assert system.memory_limit() is None


@pytest.mark.parametrize(
    ("root", "own", "folder"),
    [
        ("/", "/a/b", "a/b"),
        ("/docker/1", "/docker/1", ""),  # a container that sees the names outside
        ("/docker/1", "/docker/1/sub/x", "sub/x"),
        ("/docker/1", "/docker/1/sub/x", "sub"),
        ("/docker/1", "/docker/10", ""),  # not below what is mounted
        ("/", "/../other", ""),  # outside of the container's names
    ],
)
def test_a_group_is_found_below_what_is_mounted_of_it(root, own, folder, rooted):
    files = {os.path.join(folder, "cpu.max"): "30000 20000"}
    rooted(f"0::{own}", files, root)
    assert system.cpu_quota() == 1.5


def test_a_place_of_mounting_may_have_a_blank(rooted, tmp_path):
    rooted("0::/", {})
    mounts = "31 24 0:28 / /my\\040groups rw - cgroup2 none rw\n"
    (tmp_path / "proc/self/mountinfo").write_text(mounts)
    (tmp_path / "my groups").mkdir()
    (tmp_path / "my groups/cpu.max").write_text("100000 100000\n")
    assert system.cpu_quota() == 1.0


def test_processors_are_those_that_the_process_may_use(monkeypatch):
    monkeypatch.setattr(system.os, "sched_getaffinity", lambda process: {3, 5}, raising=False)
    assert system.processors() == {3, 5}
    monkeypatch.delattr(system.os, "sched_getaffinity")
    monkeypatch.setattr(system.os, "cpu_count", lambda: 7)
    assert system.processors() == set(range(7))


@pytest.fixture
def machine(monkeypatch, rooted):
    """Makes a machine of so many processors, all of which may be used, with a quota."""

    def make(processors, quota=None, siblings=()):
        usable = set(range(processors))
        monkeypatch.setattr(system.os, "sched_getaffinity", lambda _: usable, raising=False)
        monkeypatch.setattr(system.os, "cpu_count", lambda: processors)
        files = {} if quota is None else {"cpu.max": f"{int(quota * 100_000)} 100000"}
        rooted("0::/", files, siblings=siblings)
        for name in ("LDT_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "MKL_DYNAMIC"):
            monkeypatch.setenv(name, "")  # so that it is put back
            monkeypatch.delenv(name)

    return make


PAIRS = ("0,4", "1,5", "2,6", "3,7", "0,4", "1,5", "2,6", "3,7")


@pytest.mark.parametrize(
    ("quota", "siblings", "number"),
    [
        (1.5, (), 2),
        (1.0, (), 1),
        (0.2, (), 1),
        (6.5, (), 7),
        (7.5, (), None),  # as many threads as torch takes
        (None, (), None),
        (3.0, PAIRS, 3),
        (6.0, PAIRS, None),  # torch takes four, one a core
    ],
)
def test_threads_are_those_that_a_quota_keeps_busy(quota, siblings, number, machine):
    machine(8, quota, siblings)
    why = f"a CPU quota of {quota:g} of 8 processors" if number else ""
    assert system.threads() == (number, why)


@pytest.mark.parametrize(
    ("environ", "quota", "count", "threads"),
    [
        ({}, None, 2, 4),
        ({}, None, 3, 2),
        ({}, None, 16, 1),
        ({}, 5.5, 3, 2),
        ({"LDT_THREADS": "12"}, 2.0, 3, 4),
        ({"OMP_NUM_THREADS": "6"}, None, 2, 3),
        ({"MKL_NUM_THREADS": "6,2"}, None, 2, 3),
        ({"OMP_NUM_THREADS": "many"}, None, 2, 4),
    ],
)
def test_processes_share_the_threads_of_one(environ, quota, count, threads, machine, monkeypatch):
    machine(8, quota)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert system.shares(count)[0] == threads


def test_processes_share_cores_whole_and_all_of_them(machine):
    machine(8, siblings=PAIRS)
    assert system.shares(2) == (2, [{0, 4, 1, 5}, {2, 6, 3, 7}])
    assert system.shares(3) == (1, [{0, 4}, {1, 5}, {2, 6, 3, 7}])
    assert system.shares(5) == (1, [set()] * 5)


def test_fewer_processors_that_may_be_used_are_named(machine, monkeypatch):
    machine(8)
    monkeypatch.setattr(system.os, "sched_getaffinity", lambda _: {3, 5}, raising=False)
    assert system.threads() == (None, "an affinity to 2 of 8 processors")


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "MKL_NUM_THREADS"])
def test_a_number_that_the_user_gave_is_left(name, machine, monkeypatch):
    machine(8, 1.5)
    monkeypatch.setenv(name, "4")
    assert system.threads() == (None, name)
    monkeypatch.setenv("LDT_THREADS", "3")
    assert system.threads() == (3, "LDT_THREADS")


@pytest.mark.parametrize("value", ["", "0", "-1", "1.5", "two", "2 ", "\u0663", "9999999999"])
def test_ldt_threads_is_a_whole_number(value, monkeypatch):
    monkeypatch.setenv("LDT_THREADS", value)
    with pytest.raises(UserError, match=f"^LDT_THREADS={value}: expected a whole number of thr"):
        system.threads()


def test_a_command_takes_the_threads_of_its_quota_and_says_so(machine, monkeypatch, caplog):
    taken = []
    machine(64, 1.5)
    monkeypatch.setattr(torch, "set_num_threads", taken.append)
    caplog.set_level(logging.INFO, "ldt")
    assert threads.thread_limited(lambda x: x + 1)(1) == 2
    assert [os.environ[name] for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")] == ["2", "2"]
    assert taken == [2]
    said = "2 threads: a CPU quota of 1.5 of 64 processors; LDT_THREADS takes another number"
    assert caplog.messages == [said]


def test_without_a_quota_nothing_is_set_or_said(machine, monkeypatch, caplog):
    machine(64)
    monkeypatch.setattr(system.os, "getloadavg", lambda: (64.0, 0.0, 0.0))
    monkeypatch.setattr(torch, "set_num_threads", lambda number: pytest.fail("set"))
    caplog.set_level(logging.INFO, "ldt")
    threads.limit_threads()
    assert "OMP_NUM_THREADS" not in os.environ
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("load", "name", "said"),
    [
        (6.0, None, ["a load of 6 on 4 processors: LDT_THREADS=1 may be faster than 4 threads"]),
        (4.0, None, []),
        (9.0, "LDT_THREADS", []),
        (9.0, "OMP_NUM_THREADS", []),
    ],
)
def test_beside_others_fewer_threads_are_named_and_not_taken(
    load, name, said, machine, monkeypatch, caplog
):
    machine(4)
    monkeypatch.setattr(system.os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
    if name:
        monkeypatch.setenv(name, "3")
    threads.limit_threads()
    assert name or "OMP_NUM_THREADS" not in os.environ
    assert caplog.messages == said


def test_commands_that_compute_settle_their_threads(monkeypatch, capsys):
    monkeypatch.setenv("LDT_THREADS", "many")
    arguments = {"bench": [], "predict": [], "convert": ["x", "y"], "export": ["x", "y"]}
    for name in (*cli.COMPUTING, "evaluate"):
        with pytest.raises(SystemExit) as ended:
            cli.main([name, *arguments.get(name, ["x"])])
        assert ended.value.code == 2
        assert "error: LDT_THREADS=many: expected a whole" in capsys.readouterr().err, name


@pytest.mark.slow
def test_torch_computes_with_the_threads_that_were_set():
    code = (
        "from ldt.cli import threads; threads.limit_threads(); import sys; assert 'torch' not in "
        "sys.modules; import torch; print(torch.get_num_threads())"
    )
    env = os.environ | {"LDT_THREADS": "3", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.stdout == "3\n", done.stderr


@pytest.mark.parametrize(("apart", "calls"), [(60, ["first"]), (0, ["first", "second"])])
def test_a_second_signal_is_another_wish_only_some_time_after_the_first(apart, calls):
    heard = []
    signals = system.Signals(
        lambda n: heard.append("first"), lambda n: heard.append("second"), apart
    )
    before = signal.getsignal(signal.SIGTERM)
    with signals.handled():
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
    assert (heard, signals.number) == (calls, signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_that_is_ignored_stays_so():
    with system.handled(signal.SIG_IGN, [signal.SIGTERM]), system.RaisedSignals().handled():
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


@pytest.mark.parametrize(
    ("number", "raised"), [(signal.SIGINT, Stopped), (signal.SIGTERM, Terminated)]
)
def test_a_swallowed_exception_of_a_signal_is_raised_again(number, raised):
    def work():
        with contextlib.suppress(BaseException):
            signal.raise_signal(number)
        time.sleep(10)

    signals = system.RaisedSignals()
    with signals.handled(), pytest.raises(raised):
        work()
    assert signals.number == number


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 7), (signal.SIGTERM, -15)])
def test_a_forked_process_leaves_the_terminals_signal_to_its_parent(number, code):
    script = (
        "import os, signal; from ldt import system\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "system.handle(system.Signals(system.exit_at_once).come)\n"
        "if not (pid := os.fork()):\n"
        f"    signal.raise_signal({number:d})\n"
        "    os._exit(7)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == str(code)
