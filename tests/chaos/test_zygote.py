"""The tool of these tests does what it says, or they would pass for nothing."""

import errno
import signal

from zygote import Fault


def test_a_command_runs_and_its_file_events_are_seen(ldt, home):
    outcome = ldt("predict", "new.jsonl", "--output", "a.jsonl", cwd=home)
    assert outcome.code == 0, outcome.err
    assert "os.rename a.jsonl.partial" in outcome.events
    assert (home / "a.jsonl").read_text().count("\n") == 12


def test_a_fault_comes_at_its_event(ldt, home):
    command = ("predict", "new.jsonl", "--output", "a.jsonl")
    killed = ldt(*command, cwd=home, fault=Fault(at=1, number=signal.SIGKILL))
    assert killed.code == -signal.SIGKILL
    assert len(killed.events) == 1
    full = ldt(*command, cwd=home, fault=Fault(at=1, errno=errno.ENOSPC))
    assert full.code != 0
    assert "space" in full.err


def test_limits_hold(ldt, home):
    command = ("convert", "short", "other", "--max-length", "512")
    assert ldt(*command, cwd=home, fault=Fault(file_size=4096)).code != 0
    assert ldt(*command, cwd=home, fault=Fault(after=0.01, number=signal.SIGKILL)).code == -9
