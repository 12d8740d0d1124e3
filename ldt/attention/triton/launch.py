"""Launches of Triton kernels, on the device of their tensors.

Triton binds and inspects every argument anew at each launch. Here a compiled kernel is held by all
that Triton specialises on, and called as Triton itself calls it. That is a private convention: the
first launch of a process looks at it, and where it is another one all launches go through Triton.
"""

from functools import partial, reduce
from operator import or_
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
    Arguments come in the order of the parameters: tensors, whose names end in ``_ptr``, numbers,
    and by name the constants, as options of the launch do. Integers have a kernel for each value
    unless they are ``do_not_specialize``.
    """

    def __init__(self, kernel):
        self.kernel, self.held = kernel, {}
        self.compiles = isinstance(kernel, JITFunction)  # else it is interpreted
        self._tensors = sum(name.endswith("_ptr") for name in kernel.arg_names)

    def __getitem__(self, grid):
        return partial(self._launch, grid)

    def _launch(self, grid, *args, **options):
        Launch(self, grid, args[self._tensors :], options)(*args[: self._tensors])


class Launch:
    """A launch that is made again and again, of other tensors.

    Args:
        kernel: a `launched` one.
        grid: numbers of programs.
        fixed: the last arguments, tensors among them.
        options: constants and options of the launch, by name.
    """

    def __init__(self, kernel, grid, fixed, options):
        self.kernel, self.fixed, self.options = kernel, fixed, options
        self._grid = *grid, *(1,) * (3 - len(grid))
        self._bound = {}  # held kernels, by device and dtypes of the first arguments

    def __call__(self, *tensors):
        if not self.kernel.compiles:
            return self._by_triton(tensors)
        place, active = tensors[0].get_device(), driver.active
        device = active.get_current_device()
        if place not in (device, -1):
            with torch.cuda.device(place):
                return self(*tensors)
        kinds = device, *[x is None or x.dtype for x in tensors]
        pointers = [x if x is None else x.data_ptr() for x in tensors]
        if HOLDS is False or reduce(or_, filter(None, pointers), 0) & 15:
            return self._by_triton(tensors)  # a pointer is not divisible by 16
        bound = self._bound.get(kinds)
        if bound is None:
            return self._bind(kinds, place, tensors)
        run, function, packed, fixed = bound
        stream = active.get_current_stream(device)
        run(*self._grid, stream, function, packed, None, None, None, *pointers, *fixed)

    def _by_triton(self, tensors):
        return self.kernel.kernel[self._grid](*tensors, *self.fixed, **self.options)

    def _bind(self, kinds, place, tensors):
        """Launch, and hold the kernel, of which other launches may have got hold before."""
        global HOLDS
        kernel, held = self.kernel.kernel, self.kernel.held
        parameters = kernel.params[len(tensors) :]
        known, values = [*kinds, *self.options.items()], []
        for x, parameter in zip(self.fixed, parameters, strict=False):
            values.append(x)
            if type(x) is int:
                whole = not parameter.do_not_specialize
                known.append(x if whole else x.bit_length() < 32)
            elif x is None or type(x) is float:
                known.append(type(x))
            else:
                known.append(x.dtype)
                values[-1] = x.data_ptr()
        bits = (
            x for x, one in zip(values, self.fixed, strict=True) if isinstance(one, torch.Tensor)
        )
        every = (x for x in (*tensors, *self.fixed) if hasattr(x, "get_device"))
        if reduce(or_, bits, 0) & 15 or any(x.get_device() != place for x in every):
            return self._by_triton(tensors)  # which refuses tensors elsewhere
        values += [self.options[x.name] for x in parameters[len(values) :]]
        if (key := tuple(known)) not in held:
            launch, given = partial(self._by_triton, tensors), (*tensors, *self.fixed)
            given += tuple(values[len(self.fixed) :])
            compiled, HOLDS = (
                _looked_at(launch, self._grid, given) if HOLDS is None else (launch(), True)
            )
            if HOLDS and compiled is not None:
                held[key] = compiled.run, compiled.function, compiled.packed_metadata
                self._bound[kinds] = *held[key], values
            return None
        self._bound[kinds] = *held[key], values
        return self(*tensors)


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
