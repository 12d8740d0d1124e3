"""Launches of Triton kernels, on the device of their tensors.

Triton binds and inspects every argument anew at each launch. Here a compiled kernel is held by all
that Triton specialises on, and called as Triton itself calls it. That is a private convention: the
first launch of a process looks at it, and where it is another one all launches go through Triton.
"""

from functools import partial
from unittest.mock import patch

import torch
from triton.compiler import CompiledKernel
from triton.runtime import driver
from triton.runtime.jit import JITFunction

# True: kernels are held; None: it is not known yet whether they can be; False: all launches go
# through Triton, as hooks of its own need.
HOLDS: bool | None = None


class launched:
    """Decorator of a kernel that is launched: ``kernel[grid](...)`` runs where its tensors are.

    Triton launches on the current device of torch, and the layers of a model may lie on several.
    Arguments come in the order of the parameters, a tensor first; constants behind them or by name,
    as options of the launch do. Integers have a kernel for each value unless they are
    ``do_not_specialize``.
    """

    def __init__(self, kernel):
        self.kernel, self._held = kernel, {}
        self._compiles = isinstance(kernel, JITFunction)  # else it is interpreted
        self._whole = [not x.do_not_specialize for x in kernel.params] if self._compiles else []

    def __getitem__(self, grid):
        return partial(self._launch, grid) if self._compiles else self.kernel[grid]

    def _launch(self, grid, *args, **options):
        place, active = args[0].get_device(), driver.active
        device = active.get_current_device()
        if place not in (device, -1):
            with torch.cuda.device(place):
                return self._launch(grid, *args, **options)
        known, values, bits = [device, *options, *options.values()], [], 0
        for x, whole in zip(args, self._whole, strict=False):
            kind = type(x)
            if kind is int:
                known.append(x if whole else x.bit_length() < 32)
            elif x is None or kind is float:
                known.append(kind)
            else:
                known.append(x.dtype)
                bits |= x.get_device() != place  # which Triton refuses
                x = x.data_ptr()
                bits |= x
            values.append(x)
        if bits & 15 or HOLDS is False:  # a pointer is not divisible by 16
            return self.kernel[grid](*args, **options)
        held = self._held.get(key := tuple(known))
        if held is None:
            return self._hold(key, grid, args, options)
        run, kernel, constants = held
        where = *grid, *(1,) * (3 - len(grid)), active.get_current_stream(device)
        return run(*where, *kernel, None, None, None, *values, *constants)

    def _hold(self, key, grid, args, options):
        """Launch by Triton, and hold the kernel."""
        global HOLDS
        arguments = *args, *(options[name] for name in self.kernel.arg_names[len(args) :])
        launch = partial(self.kernel[grid], *args, **options)
        compiled, HOLDS = _looked_at(launch, grid, arguments) if HOLDS is None else (launch(), True)
        if HOLDS and compiled is not None:
            kernel = compiled.function, compiled.packed_metadata
            self._held[key] = compiled.run, kernel, arguments[len(args) :]


def _looked_at(launch, grid, given):
    """The kernel that a launch returns, and True if Triton calls it as `launched` does; None where
    nothing is called."""
    calls, run = [], CompiledKernel.__dict__.get("run")
    if not isinstance(run, property):
        return launch(), False

    def noted(self):
        return lambda *values: calls.append((self, values)) or run.fget(self)(*values)

    with patch.object(CompiledKernel, "run", property(noted)):
        compiled = launch()
    seen = next((values for kernel, values in calls if kernel is compiled), None)
    if seen is None:
        return compiled, None
    wanted = *grid, *(1,) * (3 - len(grid)), seen[3], compiled.function, compiled.packed_metadata
    wanted = *wanted, *seen[6:9], *given
    pairs = zip(seen, wanted, strict=False)
    same = (a is b or (type(a) is type(b) is int and a == b) for a, b in pairs)
    return compiled, len(seen) == len(wanted) and all(same)
