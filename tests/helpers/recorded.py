"""CUDA graphs without CUDA: calls are recorded and repeated on the same memory.

What a CUDA graph would not notice on replay is not noticed here either: numbers that the host knew
at the recording stay as they were, and memory is read where it lay. What it owns is trash before
each replay, what it does not own may be freed behind its back, and it refuses to wait for the host.
"""

from contextlib import contextmanager
from unittest import mock

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map
from triton.runtime.interpreter import GridExecutor

from ldt.attention import layout
from ldt.model.graphs import Graphs

_WAITS = "nonzero", "masked_select", "_local_scalar_dense", "_unique2", "equal", "is_nonzero"


def _refuse(*_):
    raise RuntimeError("operation not permitted when stream is capturing")


def _place(x):
    return x.untyped_storage()._cdata


def _tensors(tree):
    return [x for x in tree_flatten(tree)[0] if isinstance(x, torch.Tensor)]


class _Foreign:
    """A tensor in memory that a graph does not own, and does not keep."""

    def __init__(self, x):
        self._storage = StorageWeakRef(x.untyped_storage())
        self._dtype, self._where = x.dtype, (x.storage_offset(), x.shape, x.stride())

    def __call__(self):
        storage = torch.UntypedStorage._new_with_weak_ptr(self._storage.cdata)
        if storage is None:
            raise RuntimeError("the graph reads memory that was freed")
        return torch.empty(0, dtype=self._dtype).set_(storage, *self._where)


class Recording(TorchDispatchMode):
    """A graph of what is called within it, kernels of Triton's interpreter included."""

    def __init__(self):
        super().__init__()
        self._steps = []
        self._own = {}  # by place in memory
        self._inference = torch.is_inference_mode_enabled()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        by_mask = func.overloadpacket is torch.ops.aten.index and any(
            x.dtype == torch.bool for x in _tensors(args[1])
        )
        if func.overloadpacket.__name__ in _WAITS or by_mask:
            _refuse()
        out = func(*args, **kwargs)
        places = set(map(_place, _tensors((args, kwargs))))
        fresh = [x for x in _tensors(out) if _place(x) not in places]
        if fresh or func._schema.is_mutable:
            empty = "empty" in func.overloadpacket.__name__  # whatever was there before
            self._add(func, args, kwargs, fresh, () if empty else fresh)
        return out

    def launch(self, kernel, *args, **kwargs):
        """A call of a kernel."""
        with _disable_current_modes():
            kernel(*args, **kwargs)
        self._add(kernel, args, kwargs, (), ())

    def _add(self, call, args, kwargs, fresh, written):
        def held(x):
            foreign = isinstance(x, torch.Tensor) and _place(x) not in self._own
            return _Foreign(x) if foreign else x

        step = call, *tree_map(held, (args, kwargs)), written
        self._own |= {_place(x): x for x in fresh}
        self._steps.append(step)

    def spoil(self):
        for x in self._own.values():
            x.fill_(float("nan") if x.is_floating_point() else x.dtype != torch.uint8)

    def replay(self):
        def real(x):
            return x() if isinstance(x, _Foreign) else x

        with torch.inference_mode(self._inference), torch.autocast("cpu", enabled=False):
            self.spoil()
            for call, args, kwargs, written in self._steps:
                out = call(*tree_map(real, args), **tree_map(real, kwargs))
                for x, new in zip(written, _tensors(out), strict=bool(written)):
                    assert x.shape == new.shape
                    x.copy_(new)


@contextmanager
def recording():
    """Context that gives the `Recording` of what is called in it."""
    graph = Recording()
    run = GridExecutor.__call__

    def launch(kernel, *args, **kwargs):
        if torch.utils._python_dispatch._get_current_dispatch_mode() is not graph:
            return run(kernel, *args, **kwargs)
        return graph.launch(lambda *a, **k: run(kernel, *a, **k), *args, **kwargs)

    def placed(mask, count=None):  # as on CUDA
        return layout.placed(mask, count) if count is not None else _refuse()

    with (
        mock.patch.object(GridExecutor, "__call__", launch),
        mock.patch.object(torch.Tensor, "tolist", _refuse),
        mock.patch.object(layout, "places", placed),
        graph,
    ):
        yield graph


def recorded(graphs):
    """A class of `Graphs` as one for the CPU; ``captures`` has the function of each capture."""

    class Recorded(graphs):
        device_type = "cpu"

        def __init__(self, *args):
            super().__init__(*args)
            self.captures = []

        def capture(self, run, beside=None):
            run()  # what is made at a first call is made outside
            with recording() as graph:
                out = run()
            with torch.inference_mode(torch.is_inference_mode_enabled()):
                graph.spoil()
            self.captures.append(run)
            return graph, out

    return Recorded


RecordedGraphs = recorded(Graphs)
