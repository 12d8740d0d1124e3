"""Launches of Triton kernels, on the device of their tensors.

Triton binds and inspects every argument anew at each launch. Here a compiled kernel is held by all
that Triton specialises on, and called as Triton itself calls it. That is a private convention: the
first launch of a process looks at it, and where it is another one all launches go through Triton.
`Launch` is one whose other arguments are made ready once.
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
# True: what Triton's launcher does in Python is left out, which adds settings to the arguments.
DIRECT = False


class launched:
    """Decorator of a kernel: ``kernel[grid](...)`` launches it on the device of its tensors.

    Triton launches on the current device of torch, and the layers of a model may lie on several.
    Arguments come in the order of the parameters: tensors, whose names end in ``_ptr``, numbers,
    and by name the constants, as options of the launch do. Integers have a kernel for each value
    unless they are ``do_not_specialize``.
    """

    def __init__(self, kernel):
        self.kernel, self.held = kernel, {}
        self.compiles = isinstance(kernel, JITFunction)  # else it is interpreted
        self.whole = [not x.do_not_specialize for x in kernel.params] if self.compiles else []
        self.names = kernel.arg_names
        self._tensors = sum(name.endswith("_ptr") for name in self.names)

    def __getitem__(self, grid):
        return partial(self._launch, grid)

    def _launch(self, grid, *args, **options):
        Launch(self, grid, args[self._tensors :], options)(*args[: self._tensors])


class Launch:
    """Repeated launch of a kernel on other tensors like those of its first call: of the same
    dtypes, on the same device, and None where one was None.

    Args:
        kernel: a `launched` one.
        grid: numbers of programs, one to three.
        fixed: the last arguments, tensors among them.
        options: constants and options of the launch, by name.
    """

    def __init__(self, kernel, grid, fixed, options):
        self.kernel, self.fixed, self.options = kernel, fixed, options
        self._grid = *grid, *(1,) * (3 - len(grid))
        self._bound = None  # the held kernel

    def __call__(self, *tensors):
        if self._bound is None:
            return self._bind(tensors)
        device, get_device, get_stream, run, kernel, fixed = self._bound
        pointers = [0 if x is None else x.data_ptr() for x in tensors]
        if reduce(or_, pointers) & 15:
            return self._by_triton(tensors)
        if get_device() != device:
            with torch.cuda.device(device):
                return self(*tensors)
        run(*self._grid, get_stream(device), *kernel, *pointers, *fixed)

    def _by_triton(self, tensors):
        """Launch on the device of the tensors, wherever a pointer points to."""
        launch = partial(self.kernel.kernel[self._grid], *tensors, *self.fixed, **self.options)
        place = tensors[0].get_device()
        if not self.kernel.compiles or place in (driver.active.get_current_device(), -1):
            return launch()
        with torch.cuda.device(place):
            return launch()

    def _bind(self, tensors):
        """Launch, and hold the kernel, of which other launches may have got hold before."""
        global HOLDS
        kernel, place = self.kernel, tensors[0].get_device()
        if not kernel.compiles or HOLDS is False:
            return self._by_triton(tensors)
        active = driver.active
        device = active.get_current_device()
        if place not in (device, -1):
            with torch.cuda.device(place):
                return self._bind(tensors)
        every, options, bits, kinds, values = (*tensors, *self.fixed), self.options, 0, [], []
        for x, whole in zip(every, kernel.whole, strict=False):
            kind = type(x)
            if kind is int:
                kind = x if whole else x.bit_length() < 32
            elif hasattr(x, "data_ptr"):
                if x.get_device() != place:
                    return self._by_triton(tensors)  # which refuses tensors elsewhere
                kind, x = x.dtype, x.data_ptr()
                bits |= x
            kinds.append(kind)
            values.append(x)
        if bits & 15:
            return self._by_triton(tensors)
        constants = [options[name] for name in kernel.names[len(every) :]]
        key = device, *kinds, *options.items()
        known = kernel.held.get(key)
        if known is None:
            launch, arguments = partial(self._by_triton, tensors), (*every, *constants)
            if HOLDS is None:
                compiled, HOLDS = _looked_at(launch, self._grid, arguments)
            else:
                compiled = launch()
            if not HOLDS or compiled is None:
                return None
            run, settings = _settings(compiled.run)
            held = compiled.function, *settings, compiled.packed_metadata, None, None, None
            kernel.held[key] = run, held
        of_device = active.get_current_device, active.get_current_stream
        fixed = values[len(tensors) :] + constants
        self._bound = device, *of_device, *kernel.held[key], fixed
        return None if known is None else self(*tensors)


def room(x: torch.Tensor, shape: tuple[int, ...], dtype=torch.float32) -> torch.Tensor:
    """Make a tensor of this shape on the device of ``x``, without memory, as a template for
    ``empty_like``, which allocates from it in half the time of a shape and a dtype."""
    return x.new_empty((), dtype=dtype).expand(shape)


def _settings(launcher):
    """A launcher of Triton without its Python, and the settings that this adds; else
    itself and ()."""
    sizes = {getattr(launcher, f"{kind}_scratch_size", None) for kind in ("global", "profile")}
    if not DIRECT or sizes != {0}:
        return launcher, ()
    return launcher.launch, (launcher.launch_cooperative_grid, launcher.launch_pdl, None, None)


def _looked_at(launch, grid, given):
    """The kernel that a launch returns, and True if Triton calls it as `launched` does; None where
    nothing is called."""
    global DIRECT
    calls, run = [], CompiledKernel.__dict__.get("run")
    if not isinstance(run, property):
        return launch(), False

    def noted(self):
        launcher, within = run.fget(self), []
        direct = getattr(launcher, "launch", None)

        def call(*values):
            calls.append((self, values, within))
            if direct is None:
                return launcher(*values)
            note = lambda *last: within.append(last) or direct(*last)  # noqa: E731
            with patch.object(launcher, "launch", note):
                return launcher(*values)

        return call

    with patch.object(CompiledKernel, "run", property(noted)):
        compiled = launch()
    seen, within = next((call[1:] for call in calls if call[0] is compiled), (None, []))
    if seen is None:
        return compiled, None
    kernel = compiled.function, compiled.packed_metadata
    if not _same(seen, (*grid, seen[3], *kernel, *seen[6:9], *given)):
        return compiled, False
    DIRECT = True
    _, settings = _settings(compiled.run)
    DIRECT = within != [] and _same(within[0], (*seen[:5], *settings, *seen[5:]))
    return compiled, True


def _same(values, wanted):
    pairs = zip(values, wanted, strict=False)
    same = (a is b or (type(a) is type(b) is int and a == b) for a, b in pairs)
    return len(values) == len(wanted) and all(same)
