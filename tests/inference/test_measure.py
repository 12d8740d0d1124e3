"""Times and peaks: of the calls that are measured, on a GPU as well, and of nothing else."""

import os
import signal

import pytest
import torch

from ldt.inference import measure

linux = pytest.mark.skipif(not measure.STATUS.exists(), reason="memory is told by Linux alone")


def fails(error):
    raise error


def ends():
    os.kill(os.getpid(), signal.SIGKILL)


def peak_of(mib):
    """MiB that a call takes which fills so many, beside a warm-up that fills more."""
    fill = lambda size: torch.ones(size, 2**18)  # noqa: E731, float32
    return measure.peak_mib(lambda: fill(mib), lambda: fill(300))


@linux
def test_peak_memory_is_that_of_the_call_alone():
    small, large = (measure.fresh(peak_of, mib) for mib in (50, 200))
    assert small == pytest.approx(50, abs=5)
    assert large == pytest.approx(200, abs=5)


@pytest.mark.parametrize(
    ("call", "arguments", "words"),
    [
        (fails, (ValueError("first line\nsecond line"),), "^first line$"),
        (fails, (RuntimeError("DefaultCPUAllocator: can't allocate memory"),), "^out of memory$"),
        (ends, (), "^out of memory: the system ended the process$"),
    ],
)
def test_a_call_that_fails_or_ends_its_process_says_why(call, arguments, words):
    with pytest.raises(RuntimeError, match=words):
        measure.fresh(call, *arguments)
