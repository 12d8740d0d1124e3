"""CUDA graphs of an encoder: all kernels of a batch launched as one, its embeddings included.

A graph repeats its kernels on the same memory with the same sizes. So a batch is padded to one of a
few sizes and copied to where a graph reads; everything that depends on its documents, the tables of
its layout included, is computed from there on the device, within the graph.
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
    """Sizes of a padded batch, and which of its tensors there are.

    Args:
        tokens, documents, globals: how many, padding included.
        holes: whether there is padding inside of documents.
        first_only: whether the states of some tokens alone are wanted, one a document.
    """

    tokens: int
    documents: int
    globals: int
    holes: bool
    first_only: bool

    @classmethod
    def of(cls, layout, first_only):
        """The smallest shape that holds a batch and one document more.

        What is added is documents as all others: all but the last one have one token, the last one
        has the rest, of which the last ones are global. So every number of the padded layout is
        exact, and real documents see nothing of it.
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
    """The smallest power of two that is at least ``count``, a positive number."""
    return 1 << (count - 1).bit_length()


def _steps(count):
    """The smallest number that is at least ``count`` and one of four between powers of two, above
    `FINE` of sixteen."""
    step = 1 << max((count - 1).bit_length() - (3 if count <= FINE else 5), 0)
    return -(-count // step) * step


class Batch:
    """The memory that a graph reads: a batch of a `Shape`.

    Args:
        inputs: tensors [b, n, ...] of the shapes, dtypes and device of those that it is to hold.
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

    def fill(self, inputs, packing, first=None):
        """Copy a batch here, and pad it. The host waits for nothing."""
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
        """A new `Layout` of what lies here, without any table yet."""
        shape = self.shape
        masks = self.keep, self.is_global
        return Layout(self.cu_seqlens, *masks, shape.tokens, shape.globals)

    @property
    def bytes(self):
        """Memory of all tensors."""
        masks = self.keep, self.is_global, self.first
        tensors = *self.inputs, self.place, self.cu_seqlens, *masks
        return sum(x.nbytes for x in tensors if x is not None)


@dataclass(frozen=True, eq=False)
class Captured:
    """A graph, and the memory that it reads and writes, which lives as long as it does.

    Args:
        graph: an object with ``replay()``.
        out: [tokens, width] or [documents, width], that it writes.
        batch: that it reads.
    """

    graph: torch.cuda.CUDAGraph
    out: torch.Tensor
    batch: Batch

    @property
    def bytes(self):
        """Memory of the batch and of the output."""
        return self.batch.bytes + self.out.nbytes


def capture(run, beside=None):
    """(graph, output) of a function without arguments, on the current CUDA device.

    Args:
        beside: another graph, whose memory between its kernels this one shares; the two must not
            run at once, and what one gives is to be copied before the other runs.

    Raises:
        RuntimeError: it does what no graph holds, such as waiting for the device.
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
    """The stream of all captures on a device: libraries keep scratch memory for each stream."""
    return torch.cuda.Stream(device)


class WatchedWeights:
    """Tables of the attributes of modules, kept so that a look at them takes little time.

    Args:
        roots: modules in evaluation mode; with all that they hold.
    """

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
        """The tensors that the modules have now."""
        tensors = chain.from_iterable(map(dict.values, self._tables))
        return [x for x in tensors if x is not None]

    def moved(self):
        """True where a tensor is not where it was: what a graph reads may have been freed."""
        return [*map(torch.Tensor.data_ptr, self._tensors())] != self._places

    def changed(self):
        """True where the modules may compute something else, with tensors that are where they
        were."""
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
    """The graphs of one encoder, one a `Shape`, captured where a shape comes a second time.

    Batches of more than ``largest`` tokens run without, as does everything after a capture that
    failed. Weights may change in place between calls; where they lie elsewhere, and where modules
    were exchanged or adapters merged or switched off, all graphs are captured anew. A module that
    changes what it does in another way needs `clear`. Calls may come from several threads, but from
    one CUDA stream.

    A copy of it is empty.

    Args:
        largest: tokens.
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
        """``run(packed inputs, layout, first)`` by a graph, None where there is none for this.

        Args:
            modules: that ``run`` computes by, in evaluation mode.
            run: a function that computes on the device alone.
            inputs: tensors [b, n, ...] of a padded batch.
            packing: of the batch, which knows the number of its global tokens.
            first: [documents] int64, packed indices, one in each document; or None.

        Returns:
            [total, width], or [documents, width] where ``first`` is given.
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
    def captured(self):
        """The number of graphs that there are."""
        return len(self._graphs)

    def clear(self):
        """Let go of all graphs and their memory."""
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
        """Keep an eye on modules from now on; False where a graph would go wrong."""
        if self._weights is not None and self._weights.changed():
            self._let_go()
        if self._weights is None:
            weights = WatchedWeights(modules)
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
            captured = Captured(*self.capture(whole, beside and beside.graph), batch)
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
    """Context in which a device is the current one, at no cost where it is."""
    current = device.index is None or device.index == torch.cuda.current_device()
    return nullcontext() if current else torch.cuda.device(device)


def use_graphs(model):
    """Have the encoder of ``model`` run its batches as CUDA graphs where no gradient is wanted.

    On other devices, with hooks, and where attentions or hidden states are asked for, it runs as
    before.
    """
    for module in model.modules():
        if hasattr(type(module), "graphs"):
            module.graphs = Graphs()
