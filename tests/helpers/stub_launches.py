"""Launches through `ldt.attention.triton.launch` on a `stub_driver`: what the driver gets of them.

As a script it prints JSON. It must be a process of its own: under TRITON_INTERPRET=1 kernels are
Python for good.
"""

import inspect
import json
import sys
import textwrap
from unittest.mock import patch

import stub_driver
import torch
import triton
import triton.language as tl


class Elsewhere:
    """A tensor on a second GPU."""

    dtype = torch.float32

    def get_device(self):
        return 1

    def data_ptr(self):
        return 32


def main(folder, other_convention):
    """Rows of one kernel: what was launched, and what the driver got; its launches by Triton."""
    last = stub_driver.install(folder)
    from triton.runtime import driver, jit

    from ldt.attention.triton import launch

    @launch.launched
    @triton.jit(do_not_specialize=["count"])
    def double(x_ptr, y_ptr, count, step, factor, BLOCK: tl.constexpr):
        place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        there = place < count
        tl.store(y_ptr + place * step, tl.load(x_ptr + place, mask=there) * factor, mask=there)

    by_triton, run, rows = [], jit.JITFunction.run, []
    if other_convention:  # one in which the stream comes first
        source = textwrap.dedent(inspect.getsource(run))
        own = "kernel.run(grid_0, grid_1, grid_2, stream,"
        assert own in source
        exec(
            source.replace(own, "kernel.run(stream, grid_0, grid_1, grid_2,"), vars(jit), made := {}
        )
        run, launcher = made["run"], driver.active.launcher_cls

        def changed(*given):
            call = launcher(*given)
            return lambda stream, x, y, z, *rest: call(x, y, z, stream, *rest)

        driver.active.launcher_cls = changed

    def counted(self, *args, **how):
        by_triton.append(how["grid"])
        return run(self, *args, **how)

    x, y = torch.zeros(2, 64)
    half = x.half()
    on_second = []
    calls = {
        "first": (x, y, 64, 1, 2.0),
        "again": (x, y, 50, 1, 3.0),
        "other numbers": (y, x, 1, 1, 3.0),
        "another step": (x, y, 64, 2, 2.0),
        "another dtype": (half, y, 64, 1, 2.0),
        "another dtype again": (half, y, 64, 1, 2.0),
        "a number of 64 bits": (x, y, 2**40, 1, 2.0),
        "not aligned": (x[1:], y, 60, 1, 2.0),
        "not aligned again": (x[1:], y, 60, 1, 2.0),
        "another block": (x, y, 64, 1, 2.0),
        "a second GPU": (Elsewhere(), Elsewhere(), 64, 1, 2.0),
    }

    class Device:
        def __init__(self, index):
            self.index = index

        def __enter__(self):
            on_second.append(self.index)
            driver.active.get_current_device = lambda: self.index

        def __exit__(self, *error):
            driver.active.get_current_device = lambda: 0

    with patch.object(jit.JITFunction, "run", counted), patch.object(torch.cuda, "device", Device):
        for place, (name, given) in enumerate(calls.items()):
            before = len(by_triton), last[0]
            block = 16 if name == "another block" else 32
            double[(place + 1, 5)](*given, BLOCK=block, num_warps=2, enable_fp_fusion=True)
            assert list(last)[:5] == [before[1] + 1, place + 1, 5, 1, 64]
            assert list(last)[6:] == [given[0].data_ptr(), given[1].data_ptr()]
            rows.append((name, len(by_triton) - before[0], launch.HOLDS))
    print(json.dumps({"rows": rows, "devices": on_second, "direct": launch.DIRECT}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] == "other")
