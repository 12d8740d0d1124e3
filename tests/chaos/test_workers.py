"""Kills at any moment of a run by several processes, which then goes on to the same bytes."""

import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import termios
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from faults import SEED, sample

WHO = ("a worker", "the parent", "all", "a worker is stopped")
CASES = [(who, number) for number in range(10) for who in WHO]
DOCUMENTS = 1500


@pytest.fixture(scope="session")
def unbroken(made, tmp_path_factory):
    """Documents, and their answers by one run of two workers."""
    folder = tmp_path_factory.mktemp("unbroken")
    rows = [json.loads(line) for line in (made / "new.jsonl").read_text().splitlines()]
    texts = [row["text"].split() for row in rows]
    rng = random.Random(SEED)
    with open(folder / "docs.jsonl", "w") as file:
        for number in range(DOCUMENTS):
            words = rng.choice(texts)[: rng.randint(1, 60)]
            file.write(json.dumps({"id": f"d{number}", "text": " ".join(words)}) + "\n")
    begun = time.monotonic()
    with started(made, folder) as run:
        _, said = run.communicate()
    assert run.returncode == 0, said
    return folder, (folder / "a.jsonl").read_bytes(), time.monotonic() - begun


def started(made, folder, *options, terminal=subprocess.DEVNULL, stderr=subprocess.PIPE):
    """A run of two workers, all of whose processes are a group of their own.

    Args:
        terminal: descriptor of the one that it has.
    """
    command = ["predict", str(folder / "docs.jsonl"), "--output", "a.jsonl", "--workers", "2"]
    command += ["--model", str(made / "runs" / "done"), "--device", "cpu", "--batch-tokens", "256"]
    return subprocess.Popen(
        [sys.executable, "-m", "ldt", *command, *options],
        cwd=folder,
        env=os.environ
        | {"PYTHONPATH": str(Path(__file__).parents[2]), "LDT_THREADS": "2", "LDT_ONEDNN": "0"},
        stdin=terminal,
        stdout=terminal,
        stderr=stderr,
        text=True,
        start_new_session=True,
        preexec_fn=None if terminal == subprocess.DEVNULL else _control,
    )


def _control():
    """Make standard input the terminal that controls this process, which leads a session."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def in_shared_memory():
    """Names in /dev/shm but for those of multiprocessing, which others use and workers do not."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith("sem.mp-")}


@pytest.mark.slow
@pytest.mark.parametrize(("who", "number"), sample(CASES, 2))
def test_a_run_that_was_killed_goes_on_to_the_same_bytes(made, unbroken, tmp_path, who, number):
    source, answers, seconds = unbroken
    (tmp_path / "docs.jsonl").symlink_to(source / "docs.jsonl")
    rng = random.Random(f"{SEED} {who} {number}")
    shared = in_shared_memory()
    with started(made, tmp_path) as run:
        time.sleep(rng.uniform(0, seconds))
        workers = []
        with suppress(psutil.NoSuchProcess):
            workers = psutil.Process(run.pid).children()
        with suppress(ProcessLookupError, IndexError):
            if who == "all":
                os.killpg(run.pid, signal.SIGKILL)
            elif who == "the parent":
                run.kill()
            else:
                sign = signal.SIGSTOP if "stopped" in who else signal.SIGKILL
                os.kill(rng.choice(workers).pid, sign)
        if "stopped" in who:  # it would be killed after ten minutes; the run ends before that
            time.sleep(0.5)
            run.terminate()
        _, said = run.communicate(timeout=600)
    assert not psutil.wait_procs(workers, timeout=60)[1]
    if who == "a worker":
        assert run.returncode == 0, said
    elif not (tmp_path / "a.jsonl").exists():
        with started(made, tmp_path, "--resume") as run:
            _, said = run.communicate(timeout=600)
        assert run.returncode == 0, said
    assert (tmp_path / "a.jsonl").read_bytes() == answers
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"docs.jsonl", "a.jsonl", ".a.jsonl.run.json"}
    assert in_shared_memory() <= shared


@pytest.mark.slow
@pytest.mark.parametrize("number", sample(range(20), 4))
def test_ctrl_c_at_a_terminal_ends_all_processes(made, unbroken, tmp_path, number):
    source, answers, _ = unbroken
    (tmp_path / "docs.jsonl").symlink_to(source / "docs.jsonl")
    ours, theirs = os.openpty()
    with started(made, tmp_path, terminal=theirs, stderr=theirs) as run:
        os.close(theirs)
        share = random.Random(f"{SEED} {number}").uniform(0, 0.5)
        partial = tmp_path / "a.jsonl.partial"
        while not (partial.exists() and partial.stat().st_size >= share * len(answers)):
            time.sleep(0.02)
        workers = psutil.Process(run.pid).children()
        os.write(ours, b"\x03")
        try:
            run.wait(timeout=20)
        finally:
            run.kill()
        alive = psutil.wait_procs(workers, timeout=20)[1]
    said = b""
    with suppress(OSError):  # Linux says so where nobody has the other end any more
        while block := os.read(ours, 1 << 12):
            said += block
    os.close(ours)
    assert not alive, said
    assert (run.returncode, b"Traceback" in said) == (130, False), said
    with started(made, tmp_path, "--resume") as run:
        _, said = run.communicate(timeout=600)
    assert run.returncode == 0, said
    assert (tmp_path / "a.jsonl").read_bytes() == answers
