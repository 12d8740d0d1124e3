"""CUDA graphs of an encoder's layers: all kernels of a small batch launched as one.

A graph repeats its kernels on the same memory with the same sizes. So a batch is padded to one of a
few sizes and copied to where a graph reads; everything that depends on its documents, the tables of
its layout included, is computed from there on the device, within the graph.
"""

import logging
from collections import OrderedDict
from dataclasses import dataclass
from functools import cache
from threading import Lock

import torch

from ldt.attention import Layout
from ldt.attention.matmul import hooked
from ldt.errors import first_line

log = logging.getLogger("ldt")

LEAST = 512  # tokens of the smallest graph, without SPARE
LARGEST = 8192  # tokens above which the device takes longer than the host
SPARE = 64  # tokens more, so that a batch of 4,096 tokens and its padding need no 5,120
MOST = 32  # graphs of a model
BYTES = 512 * 2**20  # of what their batches and outputs take
WARM_UP = 2  # passes before a capture, for what libraries do at a first call


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
    """The smallest number that is at least ``count`` and one of four between powers of two."""
    step = 1 << max((count - 1).bit_length() - 3, 0)
    return -(-count // step) * step


class Batch:
    """The memory that a graph reads: a batch of a `Shape`.

    Args:
        like: [total, width], of the width, dtype and device of the states.
    """

    def __init__(self, shape, like):
        self.shape = shape
        tokens, documents = shape.tokens, shape.documents
        masks = {"dtype": torch.bool, "device": like.device}
        borders = {"dtype": torch.int64, "device": like.device}
        self.x = like.new_zeros(tokens, like.shape[1])
        self.cu_seqlens = torch.full((documents + 1,), tokens, **borders)
        self.keep = torch.ones(tokens, **masks) if shape.holes else None
        self.is_global = torch.zeros(tokens, **masks) if shape.globals else None
        self.first = torch.zeros(documents, **borders) if shape.first_only else None

    def fill(self, x, layout, first=None):
        """Copy a batch here, and pad it. The host waits for nothing."""
        total, real = len(x), len(layout.cu_seqlens) - 1
        self.x[:total].copy_(x)
        self.x[total:].zero_()
        borders = self.cu_seqlens
        borders[: real + 1].copy_(layout.cu_seqlens)
        more = self.shape.documents - real  # the last border never changes
        borders[real + 1 : -1] = torch.arange(total + 1, total + more, device=x.device)
        if self.keep is not None:
            self.keep[:total].copy_(layout.key_padding_mask)
            self.keep[total:].fill_(True)
        if self.is_global is not None:
            self.is_global[:total].copy_(layout.is_global)
            self.is_global[total:].zero_()
            self.is_global[self.shape.tokens - self.shape.globals + layout.num_global :].fill_(True)
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
        found = self.x, self.cu_seqlens, self.keep, self.is_global, self.first
        return sum(x.nbytes for x in found if x is not None)


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
    how = {"pool": pool, "stream": stream, "capture_error_mode": "thread_local"}
    with torch.cuda.graph(graph, **how):
        out = run()
    return graph, out


@cache
def _stream(device):
    """The stream of all captures on a device: libraries keep scratch memory for each stream."""
    return torch.cuda.Stream(device)


class Graphs:
    """The graphs of one encoder, one a `Shape`, captured where a shape comes a second time.

    Batches of more than ``largest`` tokens run without, as does everything after a capture that
    failed. Weights may change in place between calls; where they lie elsewhere, all graphs are
    captured anew. A module that changes what it does in another way (such as an adapter that is
    switched off) needs `clear`. Calls may come from several threads, but from one CUDA stream.

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
        self._weights = None

    def __reduce__(self):
        return type(self), (self.largest,)

    def __call__(self, layers, run, x, layout, first=None):
        """``run(x, layout, first)`` by a graph, None where there is none for this batch.

        Args:
            layers: the module that ``run`` computes by, in evaluation mode.
            run: a function that computes on the device alone.
            x: [total, width].
            layout: of the packed tokens, which knows the number of its global tokens.
            first: [documents] int64, packed indices, one in each document; or None.

        Returns:
            [total, width], or [documents, width] where ``first`` is given.
        """
        if self._off or x.device.type != self.device_type or torch.is_grad_enabled():
            return None
        if layout.is_global is not None and layout.num_global is None:
            return None
        shape = Shape.of(layout, first is not None)
        if shape.tokens - SPARE > self.largest or layout.cu_seqlens.device != x.device:
            return None
        weights = _weights(layers)
        if weights is None:
            return None
        with self._lock, torch.cuda.device_of(x):
            if self._weights != weights:
                self._let_go()
            captured = self._found(shape, run, (x, layout, first))
            if captured is None:
                return None
            self._weights = weights
            captured.batch.fill(x, layout, first)
            captured.graph.replay()
            return captured.out[: len(x) if first is None else len(first)].clone()

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

    def _found(self, shape, run, given):
        x = given[0]
        kind = x.device.type
        autocast = {"enabled": torch.is_autocast_enabled(kind)}
        autocast["dtype"] = torch.get_autocast_dtype(kind)
        mode = torch.is_inference_mode_enabled()  # its tensors are of no use outside
        key = shape, x.dtype, x.device, mode, *autocast.values()
        if key in self._graphs:
            self._graphs.move_to_end(key)
        elif key not in self._seen:
            self._seen.add(key)
        else:
            self._capture(key, shape, run, given, autocast)
        return self._graphs.get(key)

    def _capture(self, key, shape, run, given, autocast):
        kind = given[0].device.type
        batch = Batch(shape, given[0])
        batch.fill(*given)  # what runs before the capture reads it

        def whole():
            # Casts of weights belong to the graph: autocast would free those that it keeps.
            with torch.autocast(kind, **autocast, cache_enabled=False):
                return run(batch.x, batch.layout(), batch.first)

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
            self._graphs.popitem(last=False)

    def _bytes(self):
        return sum(captured.bytes for captured in self._graphs.values())


def _weights(layers):
    """Where the tensors of modules lie, as something to compare; None where graphs would go wrong:
    a hook may do anything, and a tensor of a class of its own is not one place in memory."""
    places = []
    for module in layers.modules():
        if module.training or hooked(module):
            return None
        for tensors in (module._parameters, module._buffers):
            for x in tensors.values():
                if x is None:
                    continue
                if type(x) not in (torch.Tensor, torch.nn.Parameter):
                    return None
                places.append((x.data_ptr(), x.dtype))
    return places


def use_graphs(model):
    """Have the encoder of ``model`` run small batches as CUDA graphs where no gradient is wanted.

    On other devices, with hooks, and where attentions or hidden states are asked for, it runs as
    before.
    """
    for module in model.modules():
        if hasattr(type(module), "graphs"):
            module.graphs = Graphs()
