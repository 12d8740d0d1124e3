"""Times taken in turn, peak memory on CUDA, and the machine."""

import math
import platform
import statistics
import time
from pathlib import Path

import torch

SAMPLE = 0.005  # seconds; a shorter call is repeated that long, or starting it is what is timed


def medians(runs, rounds, device="cpu"):
    """{name: median seconds} of {name: function}, run in turn; one more round first to warm up."""
    for run in runs.values():
        seconds_of(run, device)
    return {
        name: statistics.median(seconds) for name, seconds in in_turn(runs, rounds, device).items()
    }


def in_turn(runs, rounds, device="cpu", limit=math.inf):
    """{name: its seconds, round by round} of {name: function}.

    Args:
        limit: seconds; what has taken longer in all is left out of further rounds.
    """
    seconds = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            if sum(seconds[name]) <= limit:
                seconds[name].append(seconds_of(run, device))
    return seconds


def seconds_of(run, device="cpu"):
    """Wall time of one call, the device's work included; the mean of several short ones."""
    once = _seconds(run, 1, device)
    if once >= SAMPLE:
        return once
    calls = math.ceil(SAMPLE / max(once, 1e-6))
    return _seconds(run, calls, device) / calls


def _seconds(run, calls, device):
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        run()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def cuda_peak_mib(run):
    """MiB of the GPU that a call takes over what is allocated before it."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def machine():
    """The machine and the libraries that measurements depend on."""
    import transformers

    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text().splitlines() if cpu.exists() else []
    names = [line.split(":")[1].strip() for line in lines if "model name" in line]
    return {
        "cpu": names[0] if names else platform.processor(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
