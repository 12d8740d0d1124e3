"""Run pieces of a pass on the CPU, each by one thread from its first operation to its last.

torch's kernels divide each operation among the threads of OpenMP, which wait for one another,
hundreds of times a layer, and each time for the one that another process has taken off its core.
Here one parallel region goes over many operations: a thread takes the next piece when it is done
with one, and what torch calls inside of a region it runs in that thread alone.
"""

import ctypes
import threading
from collections import deque
from functools import cache
from pathlib import Path

import torch

# Bytes of a column of a piece: products of fewer rows are slower, and more do not fit into caches;
# nor are results of more than 2 MiB given back well to the memory of a thread by glibc.
COLUMN = 1024
WHOLE = 512  # rows, or fewer, that torch's own threads share


def run(work, pieces):
    """Call ``work(piece)`` for each piece, on as many threads as torch has, without autograd.

    Threads take the pieces in their order; what ``work`` returns is lost. What a piece computes
    must depend on no other, so that the results do not depend on the threads. Without OpenMP, or in
    a region, they run one after the other.

    Raises:
        Exception: the first that ``work`` raised; pieces not yet begun are left out.
    """
    left, raised = deque(pieces), []
    number = threads(len(left))
    inference = torch.is_inference_mode_enabled()

    def take(_=None):
        try:
            with torch.inference_mode(inference), torch.no_grad():
                while left:
                    try:
                        piece = left.popleft()
                    except IndexError:  # another thread took the last
                        return
                    work(piece)
        except BaseException as error:
            left.clear()
            raised.append(error)

    if number < 2:
        with torch.no_grad():
            for piece in left:
                work(piece)
        return
    _openmp()(_BODY(take), None, number, 0)
    if raised:
        raise raised[0]


def threads(pieces: int) -> int:
    """Number of threads on which `run` works for this many pieces."""
    # What looks at operators, as a trace or a counter of them does, looks at one thread's.
    if torch._C._len_torch_dispatch_stack() or torch.jit.is_tracing() or _openmp() is None:
        return min(1, pieces)
    return min(torch.get_num_threads(), pieces)


_BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@cache
def _openmp():
    """GNU OpenMP's ``GOMP_parallel(body, argument, threads, flags)``, which others have as well:
    calls ``body(argument)`` in each thread of a region. None where torch has no such library."""
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        call = ctypes.CDLL(str(library)).GOMP_parallel  # of it, or of what it was linked with
    except (AttributeError, OSError):
        return None
    call.argtypes = _BODY, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint
    call.restype = None
    return call


def by_rows(work, *tensors):
    """Compute ``work(*tensors)`` [rows, ...]: up to 512 rows in one call, with autograd as usual;
    more in pieces by several threads, without autograd, so that the result has no gradient.

    Args:
        work: function of tensors with n rows that gives a tensor with n rows of the first one's
            shape and dtype, in which a row depends only on the same row of the inputs.
        tensors: [rows, ...].
    """
    rows = len(tensors[0])
    if rows <= WHOLE:
        return work(*tensors)
    size = COLUMN // tensors[0].element_size()
    whole = torch.empty_like(tensors[0])  # here: what a thread allocates, it alone uses again

    def part(start):
        there = slice(start, start + size)
        whole[there] = work(*(x[there] for x in tensors))

    run(part, range(0, rows, size))
    return whole


class InOrder:
    """Run actions on shared data in the order of their pieces, whichever thread is done first."""

    def __init__(self):
        self._lock, self._waiting, self._next = threading.Lock(), {}, 0

    def __call__(self, place, act):
        """Run ``act()`` of piece ``place``, counted from 0, as soon as those before it have run."""
        with self._lock:
            self._waiting[place] = act
            while self._next in self._waiting:
                self._waiting.pop(self._next)()
                self._next += 1
