from types import SimpleNamespace

import pytest

from ldt.data import heartbeat
from ldt.data.heartbeat import Heartbeat, duration, reported


@pytest.fixture
def clock(monkeypatch, caplog):
    """The seconds that the module sees, in a list of one; lines are in caplog."""
    caplog.set_level("INFO", "ldt")
    now = [1000.0]
    monkeypatch.setattr(heartbeat, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_a_line_comes_every_half_minute_and_says_how_long_it_takes_yet(clock, caplog):
    for _ in reported(range(60), "encoding train"):
        clock[0] += 7
    # After 35 s, 70 s ...: with the first document that is done when half a minute has gone by.
    assert len(caplog.messages) == 60 * 7 // 35
    assert caplog.messages[:2] == [
        "encoding train: 5 of 60 documents, ETA 6:25",
        "encoding train: 10 of 60 documents, ETA 5:50",
    ]


def test_quick_work_has_no_line(clock, caplog):
    for _ in reported(range(29), "encoding train"):
        clock[0] += 1
    assert caplog.messages == []


def test_where_nobody_knows_how_many_there_are_the_time_taken_is_said(clock, caplog):
    for _ in reported(iter(range(2)), "tokenizing a.txt", first=1200):
        clock[0] += 40
    assert caplog.messages == [
        "tokenizing a.txt: 1,201 documents, after 0:40",
        "tokenizing a.txt: 1,202 documents, after 1:20",
    ]


def test_what_was_done_before_does_not_count_in_the_speed(clock, caplog):
    made = Heartbeat("tokenizing", 100, first=80)
    clock[0] += 30
    made(90)
    assert caplog.messages == ["tokenizing: 90 of 100 documents, ETA 0:30"]


def test_another_line_puts_the_next_one_off(clock):
    made = Heartbeat("training")
    clock[0] += 29
    made.heard()
    clock[0] += 29
    assert not made.due()
    clock[0] += 1
    assert made.due()
    assert not made.due()


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (187, "3:07"), (3723, "1:02:03")]
)
def test_a_duration_is_minutes_and_seconds_or_hours_too(seconds, text):
    assert duration(seconds) == text
