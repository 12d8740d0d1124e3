"""``ldt predict --workers``: how many processes there are, and the place of each."""

import pytest
import torch

from ldt import system
from ldt.errors import UserError
from ldt.inference import engine as module
from ldt.inference.engine import seats


@pytest.fixture
def machine(monkeypatch):
    """Makes a machine of so many cores and GPUs."""

    def make(cores, gpus=0):
        parts = [frozenset([number]) for number in range(cores)]
        monkeypatch.setattr(system, "_cores", lambda: parts)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(module, "_has_driver", lambda: bool(gpus))
        monkeypatch.setattr(system, "cpu_quota", lambda: None)
        for name in ("LDT_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            monkeypatch.delenv(name, raising=False)

    return make


@pytest.mark.parametrize(
    ("workers", "device", "cores", "gpus", "devices", "threads"),
    [
        ("1", "auto", 16, 2, [], None),
        ("auto", "auto", 16, 0, ["cpu"] * 4, 4),
        ("auto", "auto", 7, 0, [], None),
        ("auto", "auto", 8, 2, ["cuda:0", "cuda:1"], 4),
        ("auto", "cuda", 8, 1, [], None),
        ("auto", "cuda:1", 8, 2, [], None),
        ("auto", "cpu", 8, 2, ["cpu"] * 2, 4),
        ("auto", "mps", 8, 0, [], None),
        ("3", "cpu", 2, 0, ["cpu"] * 3, 1),
        ("02", "auto", 9, 4, ["cuda:0", "cuda:1"], 4),
    ],
)
def test_seats_are_for_each_gpu_or_for_parts_of_the_cpu(
    machine, workers, device, cores, gpus, devices, threads
):
    machine(cores, gpus)
    found = seats(workers, device)
    assert [seat.device for seat in found] == devices
    assert {seat.threads for seat in found} <= {threads}


def test_processes_of_a_cpu_have_cores_of_their_own_and_those_of_gpus_have_none(machine):
    machine(8, 2)
    assert [sorted(seat.processors) for seat in seats("2", "cpu")] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [sorted(seat.processors) for seat in seats("2", "cuda")] == [[], []]


@pytest.mark.parametrize(
    ("workers", "device", "gpus", "words"),
    [
        ("3", "auto", 2, "workers=3: more than 2 GPUs, one for each process"),
        ("2", "cuda", 0, "workers=2: more than 0 GPUs"),
        ("2", "cuda:1", 2, "workers=2: several .* GPUs .* or the CPU, not cuda:1"),
        ("2", "mps", 0, "workers=2: several .* not mps"),
    ],
)
def test_what_has_no_place_is_refused(machine, workers, device, gpus, words):
    machine(8, gpus)
    with pytest.raises(UserError, match=words):
        seats(workers, device)
