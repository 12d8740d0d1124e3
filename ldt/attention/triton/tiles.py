"""Products, loads of rows, and the check of tensors, for all Triton kernels."""

import triton
import triton.language as tl

from ldt.attention.triton.devices import DTYPES, lacking, limits, refused

PLACES = ["cuda"]  # types of devices that kernels run on; tests interpret them on the CPU


def check(*tensors):
    """Raises ValueError where Triton kernels do not run, and says what does."""
    first = tensors[0]
    if first.device.type not in PLACES:
        raise ValueError(
            f"backend 'triton' runs on CUDA, the tensors are on {first.device.type}; "
            "backend 'blocked' runs there"
        )
    if first.dtype not in DTYPES or any(x.dtype != first.dtype for x in tensors):
        found = ", ".join(sorted({str(x.dtype).removeprefix("torch.") for x in tensors}))
        raise ValueError(
            "backend 'triton' takes tensors of one dtype, float32, bfloat16 or float16, "
            f"got {found}; backend 'blocked' takes float64"
        )
    why = lacking(first.dtype, first.shape[-1], limits(first.device))
    if why:
        raise refused(first.dtype, first.shape[-1], why)


def rows(x):
    """``x`` with its last dimension contiguous."""
    return x if x.stride(-1) == 1 else x.contiguous()


def padded(dim):
    """Dims of a tile that holds ``dim`` of them: a power of two, at least 16."""
    return max(16, triton.next_power_of_2(dim))


@triton.jit
def dot(a, b, total=None):
    """Matrix product, added to ``total``, summed in float32; float32 factors are not rounded."""
    return tl.dot(a, b, total, input_precision="ieee")


@triton.jit
def cast(x, dtype: tl.constexpr):
    """``x``, float32, in another dtype, rounded to the nearest."""
    return x.to(dtype)


@triton.jit
def place_rows(token, stride, inside, DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """(offsets, mask), [rows, BLOCK_D] each, of the dims of tokens in [tokens, DIM]."""
    dim = tl.arange(0, BLOCK_D)
    mask = inside[:, None]
    if DIM != BLOCK_D:
        mask = mask & (dim < DIM)[None, :]
    return token.to(tl.int64)[:, None] * stride + dim[None, :], mask


@triton.jit
def load_rows(ptr, token, stride, inside, DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """[rows, BLOCK_D] of the dims of tokens in [tokens, DIM]; zeros where there are none."""
    offset, mask = place_rows(token, stride, inside, DIM, BLOCK_D)
    return tl.load(ptr + offset, mask=mask, other=0.0)


@triton.jit
def store_rows(ptr, x, token, stride, inside, DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """Stores x [rows, BLOCK_D] as the dims of tokens in [tokens, DIM]."""
    offset, mask = place_rows(token, stride, inside, DIM, BLOCK_D)
    tl.store(ptr + offset, cast(x, ptr.dtype.element_ty), mask=mask)
