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


class Gpu:
    """Stands for torch.cuda and the clock: work is queued at once and takes its time when waited
    for."""

    def __init__(self, monkeypatch):
        self.now, self.queued, self.mib = 0.0, 0.0, 0
        self.taken, self.peak = 1000, 5000  # bytes
        for name in ("synchronize", "memory_allocated", "max_memory_allocated"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", self.reset)
        monkeypatch.setattr(measure.time, "perf_counter", lambda: self.now)

    def launch(self, seconds, mib=0):
        self.now += 0.001  # of the host
        self.queued += seconds
        self.mib = max(self.mib, mib)

    def synchronize(self):
        self.now += self.queued
        if self.queued:
            self.peak = max(self.peak, self.taken + self.mib * 2**20)
        self.queued, self.mib = 0.0, 0

    def reset(self):
        self.peak = self.taken

    def memory_allocated(self):
        return self.taken

    def max_memory_allocated(self):
        return self.peak


@pytest.mark.parametrize(("seconds", "calls"), [(0.5, 1), (0.002, 3)])
def test_time_on_a_gpu_is_that_of_its_work_and_of_no_work_before(seconds, calls, monkeypatch):
    gpu, made = Gpu(monkeypatch), []

    def run():
        made.append(0)
        gpu.launch(seconds)

    gpu.launch(7.0)  # of somebody else
    assert measure.seconds_of(run, "cuda") == pytest.approx(0.001 + seconds)
    assert len(made) == calls  # a short one again, for 5 ms


def test_peak_memory_of_a_gpu_is_that_of_the_call_alone(monkeypatch):
    gpu = Gpu(monkeypatch)
    gpu.launch(1.0, mib=900)  # of somebody else
    for mib in (30, 10):
        run, warm_up = (lambda m=m: gpu.launch(1.0, mib=m) for m in (mib, 500))
        assert measure.peak_mib(run, warm_up, "cuda") == mib
