"""SIGINT and SIGTERM at any moment of a command, from its first instruction to its last."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from faults import sample

COMMANDS = {
    "predict": "predict new.jsonl --output a.jsonl",
    "convert": "convert short other --max-length 512 --window 16",
    "finetune": "finetune ft.yaml",
    "perplexity": "evaluate long --gold text.txt --length 32 --json p.json",
}
MOMENTS = [0.02 + 0.16 * number for number in range(25)]
CASES = [
    (number, moment, command)
    for number in (signal.SIGINT, signal.SIGTERM)
    for moment in MOMENTS
    for command in COMMANDS
]
TEMPORARY = re.compile(r"\.tmp-|\.lock")


def started(arguments, folder):
    """A process of ldt that has executed its first instruction, and heeds signals."""
    root = str(Path(__file__).parents[2])
    process = subprocess.Popen(
        [sys.executable, "-m", "ldt", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": root, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A job in the background ignores SIGINT, and so would all that it starts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while not _catches(process.pid, signal.SIGTERM):
        assert process.poll() is None
        time.sleep(0.001)
    return process


def _catches(pid, number):
    status = Path(f"/proc/{pid}/status").read_text()
    (mask,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(mask, 16) >> (number - 1) & 1)


def ended(process, number, moment):
    """(exit code, standard error) of a process that gets a signal after some seconds."""
    try:
        process.wait(moment)
    except subprocess.TimeoutExpired:
        process.send_signal(number)
    try:
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    return process.returncode, err


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="tells when signals are heeded")
@pytest.mark.parametrize(("number", "moment", "command"), sample(CASES, 5))
def test_a_signal_ends_a_command_with_its_code_and_leaves_nothing(number, moment, command, home):
    process = started(COMMANDS[command].split(), home)
    code, err = ended(process, number, moment)
    assert code in (128 + number, 0), err
    assert "Traceback" not in err
    assert "bug:" not in err
    left = [path.name for path in home.rglob("*") if TEMPORARY.search(path.name)]
    assert left == []


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="tells when signals are heeded")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_at_the_first_instruction_is_heeded(number, tmp_path):
    process = started(["--version"], tmp_path)
    code, err = ended(process, number, 0)
    assert (code, err) == (128 + number, "")
