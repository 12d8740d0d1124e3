"""What torch's profiler tells of a call, for benchmarks/parts.py."""

import re

import torch
from parts_shown import BAND

HERE = "ldt: the call"
# Operators that start no parallel region: they make views or memory.
VIEWS = (
    "alias as_strided as_strided_ chunk detach_ detach dropout empty empty_like empty_strided "
    "expand flatten item lift_fresh _local_scalar_dense narrow new_empty numpy_T permute "
    "promote_types reshape _reshape_alias resize_ resolve_conj resolve_neg select slice split "
    "split_with_sizes squeeze t transpose unbind unflatten _unsafe_view unsqueeze view "
    "view_as"
).split()


def operators(run):
    """{operator: (seconds of its own, calls, calls in this thread)} of one call, in all of Python's
    threads. The seconds, whatever the profiler calls them, are of wall time."""
    config = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    activities = [torch.profiler.ProfilerActivity.CPU]
    run()
    profiler = torch.profiler.profile(activities=activities, experimental_config=config)
    with profiler as profiled, torch.profiler.record_function(HERE):
        run()
    events = profiled.events()
    here = next(event.thread for event in events if event.name == HERE)
    found = {}
    for event in events:
        if event.name != HERE:
            seconds, calls, own = found.get(event.name, (0, 0, 0))
            seconds += 1e-6 * event.self_cpu_time_total
            found[event.name] = seconds, calls + 1, own + (event.thread == here)
    return found


def shares_of_band(found):
    """What part of the time of the band's `operators` each of `BAND` takes."""
    seconds = dict.fromkeys(BAND, 0.0)
    for name, (own, *_) in found.items():
        seconds[kind_of(name)] += own
    whole = sum(seconds.values())
    return {name: value / whole for name, value in seconds.items()}


def kind_of(operator):
    """One of `BAND`; torch's kernel of attention, in which the softmax is, counts as products."""
    name = operator.removeprefix("aten::")
    if re.search(r"softmax|^exp_?$|^amax$|^sum$", name):
        return "softmax"
    return "products" if re.search(r"mm(_|$)|matmul|einsum|attention", name) else "copies and masks"


def is_work(operator):
    """True of an operator that computes or copies, itself and not by others."""
    name = operator.removeprefix("aten::")
    composed = ("linear", "matmul", "einsum", "layer_norm", "softmax", "to", "_to_copy", "clone")
    composed += ("contiguous", "embedding", "zeros", "new_zeros", "zeros_like")
    return operator.startswith("aten::") and name not in (*VIEWS, *composed)
