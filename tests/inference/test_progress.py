"""The progress line of predict."""

import io
import sys

import pytest

from ldt.inference import stream
from ldt.inference.progress import progress
from ldt.inference.stream import Counts


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
    with progress(shown) as tell:
        tell(Counts(documents=3))
        assert sys.stdout is stdout
    drawn = screen.getvalue()
    if not (terminal and shown):
        assert drawn == ""
        return
    assert "3 documents" in drawn
    assert drawn.endswith("\x1b[1A\x1b[2K")  # the line is erased
    assert capsys.readouterr().out == ""


def test_without_a_terminal_there_is_a_line_every_30_seconds(monkeypatch, log):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    now = [100.0]
    monkeypatch.setattr(stream.time, "monotonic", lambda: now[0])
    with progress(shown=False) as tell:
        counts = Counts(started=100.0, told=100.0)
        for now[0], counts.documents in ((110.0, 1), (130.0, 3), (159.0, 5), (160.0, 6)):
            tell(counts)
    assert [each.split(",")[0] for each in log.messages] == ["3 documents", "6 documents"]
    assert "in 30.0 s" in log.messages[0]
