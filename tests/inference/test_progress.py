"""The progress line of predict."""

import io
import sys

import pytest

from ldt.inference.predict import _progress
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
    with _progress(shown) as progress:
        progress(Counts(documents=3))
        assert sys.stdout is stdout
    drawn = screen.getvalue()
    if not (terminal and shown):
        assert drawn == ""
        return
    assert "3 documents" in drawn
    assert drawn.endswith("\x1b[1A\x1b[2K")  # the line is erased
    assert capsys.readouterr().out == ""
