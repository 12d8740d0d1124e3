"""Atomic files and folders, and the lock of a folder."""

import errno
import fcntl
import json
import os
import socket
import subprocess
import sys
import threading
import time
import warnings
from contextlib import contextmanager
from subprocess import PIPE

import pytest

from ldt.errors import EXIT_RESOURCES, EXIT_USAGE, ResourceError, UserError
from ldt.io import files


def test_a_new_folder_appears_when_it_is_filled_in_place_of_the_old(tmp_path):
    target = tmp_path / "store"
    for content in ("old", "new"):
        with files.new_folder(target) as folder:
            (folder / "inner").mkdir()
            (folder / "inner" / "a").write_text(content)
            assert folder.parent == tmp_path
            assert target.exists() == (content == "new")
        assert (target / "inner" / "a").read_text() == content
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("there", [False, True])
def test_a_folder_that_is_not_filled_leaves_what_was_there(tmp_path, monkeypatch, there):
    target = tmp_path / "store"
    if there:
        target.mkdir()

    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(KeyboardInterrupt), files.new_folder(target):
        raise KeyboardInterrupt
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"), files.new_folder(target) as folder:
        (folder / "a").touch()
    assert list(tmp_path.rglob("*")) == [target] * there


def test_a_text_file_is_written_whole_or_left_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "metrics.json"
    files.write_whole(path, "old")

    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        files.write_whole(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_too_little_disk_is_an_error_before_the_start(tmp_path):
    files.require_space(tmp_path / "not" / "yet", 1, "a byte")
    with pytest.raises(ResourceError, match="MB needed for 3 checkpoints") as raised:
        files.require_space(tmp_path, 1 << 60, "3 checkpoints")
    assert raised.value.exit_code == EXIT_RESOURCES


def test_a_second_process_is_refused_with_the_number_of_the_first(tmp_path):
    with files.Lock(tmp_path / "run"):
        with pytest.raises(UserError, match=f"process {os.getpid()} on") as raised:
            files.Lock(tmp_path / "run").__enter__()
        assert raised.value.exit_code == EXIT_USAGE
    with files.Lock(tmp_path / "run"):
        pass
    assert list((tmp_path / "run").iterdir()) == []


def owner(pid, host=None):
    host = host or socket.gethostname()
    return json.dumps({"host": host, "pid": pid, "started": "2026-01-01 00:00:00"})


GONE = 2**22 + 1  # above Linux's largest process number


@pytest.mark.parametrize("content", [owner(GONE), "", '{"host": "a', "[]"])
def test_the_lock_of_a_dead_process_is_taken_over(tmp_path, content):
    (tmp_path / ".lock.json").write_text(content)
    with files.Lock(tmp_path):
        assert json.loads((tmp_path / ".lock.json").read_text())["pid"] == os.getpid()


def test_a_lock_of_another_host_is_respected_and_named(tmp_path):
    (tmp_path / ".lock.json").write_text(owner(1, "elsewhere"))
    what = r"process 1 on elsewhere .*if it is gone, delete .*\.lock\.json$"
    with pytest.raises(UserError, match=what):
        files.Lock(tmp_path).__enter__()


def test_without_kernel_locks_the_process_number_decides(tmp_path, monkeypatch):
    def missing(handle, operation):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", missing)
    monkeypatch.setattr(warnings, "warn", lambda *args, **kwargs: None)  # that it falls back
    code = "import filelock as f, sys; l = f.SoftFileLock(sys.argv[1]); l.acquire()"
    with another_process(code, tmp_path / ".lock"):
        (tmp_path / ".lock.json").write_text(owner(os.getppid()))
        pytest.raises(UserError, files.Lock(tmp_path).__enter__).match("trains here since 2026")
    with files.Lock(tmp_path):
        assert json.loads((tmp_path / ".lock.json").read_text())["pid"] == os.getpid()
    assert list(tmp_path.iterdir()) == []


@contextmanager
def another_process(code, path):
    """A process that has run the code, and is killed at the end."""
    command = [sys.executable, "-c", f"{code}; print('held', flush=True); sys.stdin.read()", path]
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        yield other
        other.kill()


def test_a_lock_is_seen_by_another_process_and_gone_with_its_own(tmp_path):
    code = (
        "import sys, pathlib, ldt.io.files as f; l = f.Lock(pathlib.Path(sys.argv[1]));"
        " l.__enter__()"
    )
    with another_process(code, tmp_path) as other:
        pytest.raises(UserError, files.Lock(tmp_path).__enter__).match(f"process {other.pid} on")
    with files.Lock(tmp_path):
        pass


def test_who_waits_for_a_lock_gets_it_when_it_is_free(tmp_path):
    held, order = threading.Event(), []

    def first():
        with files.Lock(tmp_path):
            held.set()
            time.sleep(0.3)
            order.append("first")

    thread = threading.Thread(target=first)
    thread.start()
    held.wait()
    with files.Lock(tmp_path, wait=True):
        order.append("second")
    thread.join()
    assert order == ["first", "second"]


def test_a_file_in_the_place_of_the_folder_is_an_error(tmp_path):
    (tmp_path / "run").touch()
    for place in (tmp_path / "run", tmp_path / "run" / "inner"):
        with pytest.raises(UserError, match="is a file or lies in one") as raised:
            files.Lock(place).__enter__()
        assert raised.value.exit_code == EXIT_USAGE


@pytest.mark.parametrize(("umask", "rights"), [(0o022, 0o644), (0o077, 0o600)])
def test_a_new_folder_has_the_rights_that_the_umask_leaves(tmp_path, umask, rights):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.touch(0o400)
    before = os.umask(umask)
    try:
        with files.new_folder(tmp_path / "model") as folder:
            (folder / "link").symlink_to(elsewhere)
            (folder / "inner").mkdir()
            for place in (folder, folder / "inner"):
                os.close(os.open(place / "weights", os.O_CREAT, 0o600))  # as safetensors makes it
    finally:
        os.umask(before)
    made = list((tmp_path / "model").rglob("weights"))
    assert [path.stat().st_mode & 0o777 for path in made] == [rights] * 2
    assert elsewhere.stat().st_mode & 0o777 == 0o400


def test_an_older_folder_that_a_killed_process_moved_away_goes_back(tmp_path):
    target, source = tmp_path / "model", tmp_path / "run"
    for name in ("model.replaced.tmp-999999999", "model.tmp-999999999"):
        (tmp_path / name).mkdir()
    (tmp_path / "model.replaced.tmp-999999999" / "config.json").write_text("{}")
    with pytest.raises(UserError, match="model exists already"):
        files.check_new_folder(target, source, False)
    assert (target / "config.json").exists()
    (tmp_path / "model.replaced.tmp-999999999").mkdir()
    files.check_new_folder(target, source, True)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def fill(target):
    with files.new_folder(target) as folder:
        (folder / "a").write_text("1")


@pytest.mark.parametrize("make", [fill, lambda target: files.write_whole(target, "1")])
@pytest.mark.parametrize(
    "maker", [os.getpid(), os.getppid(), 2**22 + 1], ids="self reused dead".split()
)
def test_what_a_killed_process_left_is_gone_when_its_file_is_made(tmp_path, make, maker):
    left, other = tmp_path / f"o.json.tmp-{maker}", tmp_path / f"p.json.tmp-{maker}"
    for path in (left, other):
        path.write_text("half")
        os.utime(path, (1, 1))  # long before the process began that has the number now
    make(tmp_path / "o.json")
    assert sorted(tmp_path.iterdir()) == [tmp_path / "o.json", other]


def test_what_a_process_that_lives_is_writing_stays(tmp_path):
    left = tmp_path / f"o.json.tmp-{os.getppid()}"
    left.write_text("half")
    files.write_whole(tmp_path / "o.json", "1")
    assert left.exists()
    files.remove_abandoned(tmp_path / "*.json")
    assert left.exists()
    left.rename(tmp_path / f"o.json.tmp-{2**22 + 1}")
    files.remove_abandoned(tmp_path / "*.json")
    assert [path.name for path in tmp_path.iterdir()] == ["o.json"]
