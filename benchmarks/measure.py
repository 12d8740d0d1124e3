"""Times of several calls, taken in turn."""

import statistics

from ldt.inference.measure import seconds_of


def medians(runs, rounds):
    """{name: median seconds} of {name: function}, run in turn; one more round first to warm up."""
    for run in runs.values():
        seconds_of(run)
    return {name: statistics.median(seconds) for name, seconds in in_turn(runs, rounds).items()}


def in_turn(runs, rounds):
    """{name: its seconds, round by round} of {name: function}."""
    seconds = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            seconds[name].append(seconds_of(run))
    return seconds
