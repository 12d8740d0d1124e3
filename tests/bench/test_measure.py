"""Times and peaks: of the calls that are measured, on a GPU as well, and of nothing else."""

import time

import pytest
import torch

from ldt.bench import measure


def test_all_run_in_turn_after_a_round_to_warm_up(monkeypatch):
    monkeypatch.setattr(measure, "SAMPLE", 0.0)
    calls = []
    runs = {name: lambda n=name: calls.append(n) for name in "ab"}
    assert set(measure.medians(runs, 2)) == {"a", "b"}
    assert "".join(calls) == "ababab"


def test_a_short_call_is_repeated(monkeypatch):
    monkeypatch.setattr(measure, "SAMPLE", 0.05)
    calls = []
    seconds = measure.seconds_of(lambda: (calls.append(0), time.sleep(0.01)))
    assert 4 <= len(calls) <= 6
    assert 0.01 <= seconds < 0.05


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
    gpu.launch(7.0)
    found = measure.in_turn({"a": run, "b": lambda: gpu.launch(2 * seconds)}, 2, "cuda")
    assert found["a"] == pytest.approx([0.001 + seconds] * 2)
    assert found["b"] == pytest.approx([0.001 + 2 * seconds] * 2)
    assert measure.medians({"a": run}, 3, "cuda")["a"] == pytest.approx(0.001 + seconds)


def test_peak_memory_of_a_gpu_is_that_of_the_call_alone(monkeypatch):
    gpu = Gpu(monkeypatch)
    gpu.launch(1.0, mib=900)  # of somebody else
    assert measure.cuda_peak_mib(lambda: gpu.launch(1.0, mib=30)) == 30
    assert measure.cuda_peak_mib(lambda: gpu.launch(1.0, mib=10)) == 10
