"""CUDA graphs of an encoder: all kernels of a batch in one launch, including the embeddings.

A graph repeats its kernels on the same memory with the same sizes. So batches are padded to one of
a few sizes and copied to the graph's input; everything that depends on the documents, such as the
tables of their layout, is computed on the device within the graph.
"""

import logging
from collections import OrderedDict
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from itertools import chain, repeat
from operator import attrgetter, contains, itemgetter
from threading import Lock

import torch
from torch.nn.modules.module import _has_any_global_hook

from ldt.attention import Layout
from ldt.attention.matmul import HOOKS, hooked
from ldt.errors import first_line

log = logging.getLogger("ldt")

LEAST = 512  # tokens of the smallest graph, without SPARE
FINE = 8192  # tokens above which sizes lie closer: the device has no time to spare
LARGEST = 65536  # tokens above which the host is far ahead of the device
SPARE = 64  # tokens more, so that a batch of 4,096 tokens and its padding need no 5,120
MOST = 32  # graphs of a model
BYTES = 512 * 2**20  # of what their batches and outputs take
WARM_UP = 2  # passes before a capture, for what libraries do at a first call

_DTYPE, _TRAINING = attrgetter("dtype"), itemgetter("training")
_ADAPTERS = attrgetter("merged_adapters", "disable_adapters", "active_adapters")  # peft's layers


@dataclass(frozen=True)
class Shape:
    """Sizes of a padded batch, and which tensors it has.

    Args:
        tokens, documents, globals: numbers including padding.
        holes: True if there is padding inside documents.
        first_only: True if only one state per document is needed.
    """

    tokens: int
    documents: int
    globals: int
    holes: bool
    first_only: bool

    @classmethod
    def of(cls, layout: Layout, first_only: bool):
        """Smallest shape for a batch plus one more document.

        Padding is added as ordinary documents: all but the last have one token, the last one has
        the rest, of which the last tokens are global. So the padded layout is exact, and real
        documents are unaffected.
        """
        real = len(layout.cu_seqlens) - 1
        documents = _power(real + 1)
        globals = _power(layout.num_global) if layout.is_global is not None else 0
        last = max(globals - (layout.num_global or 0), 1)
        least = layout.total_tokens + documents - 1 - real + last
        return cls(
            _steps(max(least - SPARE, layout.total_tokens, LEAST)) + SPARE,
            documents,
            globals,
            layout.key_padding_mask is not None,
            first_only,
        )


def _power(count):
    """Smallest power of two that is at least ``count`` (positive)."""
    return 1 << (count - 1).bit_length()


def _steps(count):
    """Smallest number that is at least ``count`` and one of four steps between powers of two, above
    `FINE` of sixteen."""
    step = 1 << max((count - 1).bit_length() - (3 if count <= FINE else 5), 0)
    return -(-count // step) * step


class Batch:
    """Input memory of a graph, for a batch of a `Shape`.

    Args:
        inputs: tensors [b, n, ...] with the trailing shapes, types and device of the inputs.
    """

    def __init__(self, shape, inputs):
        self.shape = shape
        tokens, documents = shape.tokens, shape.documents
        masks = {"dtype": torch.bool, "device": inputs[0].device}
        borders = {"dtype": torch.int64, "device": inputs[0].device}
        self.inputs = [x.new_zeros(tokens, *x.shape[2:]) for x in inputs]
        self.place = torch.arange(tokens, **borders)
        self.cu_seqlens = torch.full((documents + 1,), tokens, **borders)
        self.keep = torch.ones(tokens, **masks) if shape.holes else None
        self.is_global = torch.zeros(tokens, **masks) if shape.globals else None
        self.first = torch.zeros(documents, **borders) if shape.first_only else None

    def fill(self, inputs, packing, first: torch.Tensor | None = None):
        """Copy a batch here and pad it, without synchronising with the device.

        Args:
            inputs: tensors [b, n, ...] of a padded batch.
            packing: `Packing` of the batch, not larger than the shape.
            first: [documents] int64, packed index of one token per document, if only those are
                needed.
        """
        layout, shape = packing.layout, self.shape
        total, real = layout.total_tokens, len(layout.cu_seqlens) - 1
        for room, x in zip(self.inputs, inputs, strict=True):
            packing.pack(x, out=room[:total])
            if room.is_floating_point():  # ids of another batch are as good as any
                room[total:].zero_()
        borders = self.cu_seqlens
        borders[: real + 1].copy_(layout.cu_seqlens)
        more = shape.documents - real  # the last border never changes
        borders[real + 1 : -1].copy_(self.place[total + 1 : total + more])
        if self.keep is not None:
            self.keep[:total].copy_(layout.key_padding_mask)
            self.keep[total:].fill_(True)
        if self.is_global is not None:
            self.is_global[:total].copy_(layout.is_global)
            begin = shape.tokens - shape.globals + layout.num_global
            torch.ge(self.place[total:], begin, out=self.is_global[total:])
        if self.first is not None:
            self.first[:real].copy_(first)
            self.first[real:].copy_(borders[real:-1])

    def layout(self):
        """New `Layout` of the memory's tensors, padding included, with no cached tables."""
        shape = self.shape
        masks = self.keep, self.is_global
        return Layout(self.cu_seqlens, *masks, shape.tokens, shape.globals)

    @property
    def bytes(self):
        """Bytes of all tensors."""
        masks = self.keep, self.is_global, self.first
        tensors = *self.inputs, self.place, self.cu_seqlens, *masks
        return sum(x.nbytes for x in tensors if x is not None)


@dataclass(frozen=True, eq=False)
class _Captured:
    """Graph with the memory it reads and writes; ``out`` is [tokens, width] or [documents,
    width]."""

    graph: torch.cuda.CUDAGraph
    out: torch.Tensor
    batch: Batch

    @property
    def bytes(self):
        return self.batch.bytes + self.out.nbytes


def capture(run, beside=None):
    """Capture ``run``, a function without arguments, on the current CUDA device after 2 calls to
    warm up: (graph, output).

    Args:
        beside: another graph to share temporary memory with; the two must not run at once, and the
            output of one must be copied before the other runs.

    Raises:
        RuntimeError: the function does something a graph cannot contain, such as synchronising.
    """
    stream = _stream(torch.cuda.current_device())
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    pool = None if beside is None else beside.pool()
    # Other threads may go on: they fetch data into pinned memory, or watch over processes.
    options = {"pool": pool, "stream": stream, "capture_error_mode": "thread_local"}
    with torch.cuda.graph(graph, **options):
        out = run()
    return graph, out


@cache
def _stream(device):
    """Stream for all captures on a device, since libraries keep scratch memory per stream."""
    return torch.cuda.Stream(device)


class _WatchedWeights:
    """Attributes of modules in evaluation mode, and of their submodules, to detect changes fast."""

    def __init__(self, roots):
        modules = [module for root in roots for module in root.modules()]
        self._own = [vars(module) for module in modules]
        names = ("_parameters", "_buffers", "_modules")
        held = {
            name: [attributes[name] for attributes in self._own if attributes[name]]
            for name in names
        }
        self._tables = held["_parameters"] + held["_buffers"]
        self._modules = held["_modules"]
        self._children = [dict(children) for children in self._modules]
        self._empty = [
            attributes[name]
            for attributes in self._own
            for name in HOOKS + names
            if not attributes[name]
        ]
        tensors = self._tensors()
        # A hook may do anything, and a tensor of a class of its own is not one place in memory.
        self.plain = {type(x) for x in tensors} <= {torch.Tensor, torch.nn.Parameter}
        self.plain = self.plain and not any(m.training or hooked(m) for m in modules)
        self._places = [*map(torch.Tensor.data_ptr, tensors)] if self.plain else []
        self._dtypes = [*map(_DTYPE, tensors)]
        self._adapted = [m for m in modules if hasattr(m, "merged_adapters")]
        self._adapters = [repr(_ADAPTERS(m)) for m in self._adapted]

    def _tensors(self):
        tensors = chain.from_iterable(map(dict.values, self._tables))
        return [x for x in tensors if x is not None]

    def moved(self):
        """True if a tensor has another address, so that the graph's memory may have been freed."""
        return [*map(torch.Tensor.data_ptr, self._tensors())] != self._places

    def changed(self):
        """True if the modules may compute something else with tensors at the same addresses."""
        return (
            any(self._empty)
            or any(map(_TRAINING, self._own))
            or any(map(contains, self._own, repeat("forward")))
            or self._modules != self._children
            or [*map(_DTYPE, self._tensors())] != self._dtypes
            or [repr(_ADAPTERS(m)) for m in self._adapted] != self._adapters
            or _has_any_global_hook()
        )


class Graphs:
    """CUDA graphs of an encoder, one per `Shape`, captured when a shape occurs a second time.

    Batches above ``largest`` tokens run without graphs, as does everything after a failed capture.
    Weights may change in place between calls; if they move, modules are exchanged, or adapters are
    merged or disabled, all graphs are captured again. Other changes of a module's behaviour need
    `clear`. Several threads may call it, on one CUDA stream. A copy is empty.

    Args:
        largest: largest number of tokens.
    """

    device_type = "cuda"
    capture = staticmethod(capture)

    def __init__(self, largest=LARGEST):
        self.largest = largest
        self._off = False
        self._lock = Lock()
        self._seen = set()
        self._graphs = OrderedDict()  # those used last at the end
        self._weights = None  # there with the first graph

    def __reduce__(self):
        return type(self), (self.largest,)

    def __call__(self, modules, run, inputs, packing, first=None):
        """``run(packed inputs, layout, first)`` by a graph; None if there is no graph for this
        batch.

        Args:
            modules: modules used by ``run``, in evaluation mode.
            run: function that computes on the device only.
            inputs: tensors [b, n, ...] of a padded batch.
            packing: packing of the batch, with a known number of global tokens.
            first: [documents] int64, packed index of one token per document; or None.

        Returns:
            [total, width], or [documents, width] if ``first`` is given.
        """
        device, layout = inputs[0].device, packing.layout
        if self._off or device.type != self.device_type or torch.is_grad_enabled():
            return None
        if layout.is_global is not None and layout.num_global is None:
            return None
        shape = Shape.of(layout, first is not None)
        if shape.tokens - SPARE > self.largest or layout.cu_seqlens.device != device:
            return None
        with self._lock, _current(device):
            if self._weights is not None and self._weights.moved():
                self._let_go()
            captured = self._found(shape, modules, run, (inputs, packing, first))
            if captured is None:
                return None
            captured.batch.fill(inputs, packing, first)
            captured.graph.replay()
            out = captured.out[: layout.total_tokens if first is None else len(first)].clone()
            if self._weights.changed():  # looked at while the device computes
                self._let_go()
                return None
            return out

    @property
    def captured(self) -> int:
        """Number of captured graphs."""
        return len(self._graphs)

    def clear(self):
        """Release all graphs and their memory."""
        with self._lock:
            self._let_go()

    def _let_go(self):
        self._graphs.clear()
        self._weights = None

    def _found(self, shape, modules, run, batch):
        inputs = batch[0]
        kind = inputs[0].device.type
        autocast = {"enabled": torch.is_autocast_enabled(kind)}
        autocast["dtype"] = torch.get_autocast_dtype(kind)
        mode = torch.is_inference_mode_enabled()  # its tensors are of no use outside
        kinds = tuple((x.dtype, x.shape[2:]) for x in inputs)
        key = shape, kinds, inputs[0].device, mode, *autocast.values()
        if key in self._graphs:
            self._graphs.move_to_end(key)
        elif key not in self._seen:
            self._seen.add(key)
        elif self._watch(modules):
            self._capture(key, shape, run, batch, autocast)
        return self._graphs.get(key)

    def _watch(self, modules):
        """Watch the modules from now on; returns False if a graph would be wrong."""
        if self._weights is not None and self._weights.changed():
            self._let_go()
        if self._weights is None:
            weights = _WatchedWeights(modules)
            self._weights = weights if weights.plain else None
        return self._weights is not None

    def _capture(self, key, shape, run, given, autocast):
        kind = given[0][0].device.type
        batch = Batch(shape, given[0])
        batch.fill(*given)  # what runs before the capture reads it

        def whole():
            # Casts of weights belong to the graph: autocast would free those that it keeps.
            with torch.autocast(kind, **autocast, cache_enabled=False):
                return run(batch.inputs, batch.layout(), batch.first)

        beside = next(iter(self._graphs.values()), None)
        try:
            captured = _Captured(*self.capture(whole, beside and beside.graph), batch)
        except RuntimeError as error:
            self._off = True
            self._let_go()
            log.info("CUDA graphs are off, a capture failed: %s", first_line(error))
            return
        self._graphs[key] = captured
        while len(self._graphs) > 1 and (len(self._graphs) > MOST or self._bytes() > BYTES):
            self._seen.discard(self._graphs.popitem(last=False)[0])

    def _bytes(self):
        return sum(captured.bytes for captured in self._graphs.values())


def _current(device):
    """Context with a device as the current one, without cost if it already is."""
    current = device.index is None or device.index == torch.cuda.current_device()
    return nullcontext() if current else torch.cuda.device(device)


def use_graphs(model):
    """Set ``graphs`` of a model's encoder, in place, so that CUDA graphs run it when no gradient is
    needed.

    On other devices, with hooks, or if attentions or hidden states are requested, nothing changes.
    """
    for module in model.modules():
        if hasattr(type(module), "graphs"):
            module.graphs = Graphs()
