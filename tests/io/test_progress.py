"""Lines of the log during long work, and the one that counts on a terminal."""

import io
import sys
from types import SimpleNamespace

import pytest

from ldt.inference.stream import Counts
from ldt.io import progress
from ldt.io.progress import duration, progress_line, reported


@pytest.fixture
def clock(monkeypatch, caplog):
    """The seconds that the module sees, in a list of one; lines are in caplog."""
    caplog.set_level("INFO", "ldt")
    now = [1000.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


@pytest.mark.parametrize(
    ("items", "first", "seconds", "lines"),
    [
        # After 35 s, 70 s ...: with the first that is done when half a minute has gone by.
        (range(10), 0, 7, ["5 of 10 documents, ETA 0:35", "10 of 10 documents, ETA 0:00"]),
        (range(29), 0, 1, []),
        (iter(range(2)), 1200, 40, ["1,201 documents, after 0:40", "1,202 documents, after 1:20"]),
    ],
)
def test_a_line_comes_every_half_minute(clock, caplog, items, first, seconds, lines):
    for _ in reported(items, "encoding train", first=first):
        clock[0] += seconds
    assert caplog.messages == [f"encoding train: {line}" for line in lines]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (187, "3:07"), (3723, "1:02:03")]
)
def test_a_duration_is_minutes_and_seconds_or_hours_too(seconds, text):
    assert duration(seconds) == text


class Screen(io.StringIO):
    terminal = True

    def isatty(self):
        return self.terminal


@pytest.mark.parametrize(("terminal", "shown"), [(True, True), (False, True), (True, False)])
def test_progress_is_drawn_on_a_terminal_only_and_leaves_nothing(
    terminal, shown, monkeypatch, capsys
):
    monkeypatch.setenv("TERM", "xterm")
    screen, stdout = Screen(), sys.stdout
    screen.terminal = terminal
    monkeypatch.setattr(sys, "stderr", screen)
    with progress_line(shown) as (tell, _):
        tell(Counts(documents=3))
        assert sys.stdout is stdout
    drawn = screen.getvalue()
    if not (terminal and shown):  # a line of the log may be there, where the log is shown
        assert "\x1b" not in drawn
        assert not (terminal and drawn)
        return
    assert "3 documents" in drawn
    assert drawn.endswith("\x1b[1A\x1b[2K")  # the line is erased
    assert capsys.readouterr().out == ""


def test_without_a_terminal_there_is_a_line_every_30_seconds(monkeypatch, caplog):
    caplog.set_level("INFO", "ldt")
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr(progress.time, "monotonic", lambda: 130.0)
    with progress_line(shown=False) as (tell, seconds):
        tell(Counts(started=100.0, documents=3))
    assert seconds == 30
    assert caplog.messages[0].startswith("3 documents, ")
    assert "in 30.0 s" in caplog.messages[0]
