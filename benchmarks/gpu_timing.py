"""Times of calls on a GPU: of the device, of the host, of both; on a CPU those of the call."""

import statistics
import time

import torch

from ldt.inference.measure import seconds_of

LAUNCHES, REPLAYS = 20, 7  # calls in a graph, and timed replays of it
COMPILING = False  # in a job that only fills the cache of compiled kernels: each call runs once


def compile_only():
    """From now on Triton kernels are compiled and not launched, and no call is timed."""
    global COMPILING
    COMPILING = True
    try:
        from triton.runtime.jit import JITFunction
    except ImportError:
        return
    run = JITFunction.run
    JITFunction.run = lambda self, *args, warmup, **how: run(self, *args, warmup=True, **how)


def device_time(run, cuda):
    """{"ms": milliseconds that the device takes for a call}: the median of replays of a CUDA graph
    of `LAUNCHES` calls, between two events, over their number, so that the host has no part in it.
    What no graph holds is called between the events, and its row says so."""
    if COMPILING or not cuda:
        run()
        return {"ms": 0.0 if COMPILING else 1000 * seconds_of(run)}
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # what is made at a first call is made outside of the graph
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)

    def calls():
        for _ in range(LAUNCHES):
            run()

    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            calls()
    except RuntimeError as error:
        torch.cuda.synchronize()
        return {"ms": _between_events(calls), "without_graph": str(error)[:200]}
    graph.replay()
    return {"ms": _between_events(graph.replay)}


def _between_events(calls):
    times = []
    for _ in range(REPLAYS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        calls()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / LAUNCHES)
    return statistics.median(times)


def in_turn(runs, rounds, cuda):
    """{name: figures} of {name: call}, called in turn: medians of the milliseconds until the host
    has enqueued all (``enqueue_ms``) and until all is done (``wall_ms``); of one more call the sum
    of its kernels' times (``busy_ms``), their number, and the most memory it takes (``mib``)."""
    if COMPILING:
        for run in runs.values():
            run()
        return {name: {} for name in runs}
    times = {name: [] for name in runs}
    for turn in range(rounds + 1):
        for name, run in runs.items():
            times[name].append(_once(run, cuda))
            if turn == 0:  # to warm up
                times[name].clear()
    found = {}
    for name, pairs in times.items():
        enqueued, wall = (1000 * statistics.median(x) for x in zip(*pairs, strict=True))
        found[name] = {"wall_ms": wall, "enqueue_ms": enqueued}
        if cuda:
            found[name] |= _profile(runs[name])
    return found


def _once(run, cuda):
    begin = time.perf_counter()
    run()
    enqueued = time.perf_counter()
    if cuda:
        torch.cuda.synchronize()
    return enqueued - begin, time.perf_counter() - begin


def _profile(run):
    """What one call has the device do."""
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    mib = (torch.cuda.max_memory_allocated() - before) / 2**20
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        run()
        torch.cuda.synchronize()
    kernels = [x for x in seen.events() if x.device_type == torch.autograd.DeviceType.CUDA]
    busy = sum(x.self_device_time_total for x in kernels) / 1000
    return {"busy_ms": busy, "kernels": len(kernels), "mib": mib}


def host_us(run, calls=200, rounds=5):
    """Microseconds of the host for a call that does not wait, (wall time, time of the thread): the
    least of some rounds, fewer calls in each than the queue of a device holds."""
    wall, thread = [], []
    for _ in range(1 if COMPILING else rounds):
        run()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        begin = time.perf_counter(), time.thread_time()
        for _ in range(calls):
            run()
        wall.append(time.perf_counter() - begin[0])
        thread.append(time.thread_time() - begin[1])
    return 1e6 * min(wall) / calls, 1e6 * min(thread) / calls
