"""`ldt serve` where no file can be written, as examples/deploy runs it."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
from served import LONG, assert_same, predicted

for name in ("starlette", "uvicorn"):
    pytest.importorskip(name, reason=f"{name} is not installed")
from serve_processes import Process  # noqa: E402

# Makes all that is mounted read-only but, where one is named, a folder in memory; runs a command.
READ_ONLY = """
import ctypes, os, sys
folder, *command = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
def done(failed):
    if failed:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
read_only = (ctypes.c_uint64 * 4)(1, 0, 0, 0)  # MOUNT_ATTR_RDONLY; 442 is mount_setattr
done(libc.syscall(442, -100, b"/", 0x8000, read_only, ctypes.c_size_t(32)))
if folder:
    done(libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, None))
places = [os.getcwd(), os.path.dirname(sys.executable), "/tmp", "/var/tmp", "/dev/shm"]
for place in filter(os.path.isdir, places):
    try:
        open(os.path.join(place, "written"), "x")
    except OSError:
        continue
    sys.exit(place + " can be written")
os.execvp(command[0], command)
"""


def read_only(folder=""):
    """The words of a command under which another one can write to this folder alone.

    Skips where processes may not have mounts of their own.
    """
    under = ["unshare", "-rm", sys.executable, "-c", READ_ONLY, str(folder)]
    if sys.platform != "linux" or shutil.which("unshare") is None:
        pytest.skip("no unshare on this machine, which gives a process mounts of its own")
    tried = subprocess.run([*under, "true"], stderr=subprocess.PIPE, text=True)
    if tried.returncode and "can be written" not in tried.stderr:
        said = tried.stderr.strip().rpartition("\n")[2]
        pytest.skip(f"no process may have mounts of its own on this machine: {said}")
    assert tried.returncode == 0, tried.stderr
    return under


@pytest.mark.slow
@pytest.mark.parametrize("writable", [True, False], ids=["a folder in memory", "no place"])
def test_it_answers_and_drains_where_nothing_can_be_written(writable, runs, tmp_path):
    scratch = tmp_path / "memory"
    scratch.mkdir()
    under = read_only(scratch if writable else "")
    run = runs("classification")
    (right,) = predicted(run, [{"id": 1, "text": LONG}], tmp_path)
    places = {"TMPDIR": str(scratch), "HOME": str(scratch)} if writable else {}
    with Process(run, under=under, PYTHONDONTWRITEBYTECODE="1", **places) as here:
        status, body = here.ask("POST", "/answer", {"text": LONG})
        assert status == 200
        assert_same(json.loads(body), right | {"chunks": json.loads(body)["chunks"]})
        here.process.send_signal(signal.SIGTERM)
        assert here.process.wait(30) == 0
        assert here.process.stderr.read() == ""
    assert os.listdir(scratch) == []
