"""Products, loads of rows, and checks of tensors, for all Triton kernels."""

from functools import cache

import torch
import triton
import triton.language as tl

from ldt.attention.triton.devices import DTYPES, lacking, limits, refused

IEEE = tl.constexpr("ieee")
PLACES = ["cuda"]  # types of devices that kernels run on; tests interpret them on the CPU


def check(*tensors: torch.Tensor) -> None:
    """Raise a ValueError that names a working backend if Triton kernels do not run on these
    tensors."""
    first = tensors[0]
    if first.device.type not in PLACES:
        raise ValueError(
            f"backend 'triton' runs on CUDA, the tensors are on {first.device.type}; "
            "backend 'blocked' runs there"
        )
    if first.dtype not in DTYPES or any(x.dtype != first.dtype for x in tensors):
        dtypes = ", ".join(sorted({str(x.dtype).removeprefix("torch.") for x in tensors}))
        raise ValueError(
            "backend 'triton' takes tensors of one dtype, float32, bfloat16 or float16, "
            f"got {dtypes}; backend 'blocked' takes float64"
        )
    why = lacking(first.dtype, first.shape[-1], limits(first.device))
    if why:
        raise refused(first.dtype, first.shape[-1], why)


def rows(x):
    """Return ``x`` [tokens, ...] with the numbers of each token contiguous, copied if need be."""
    last = x.stride()[1:]
    return x if last == ((1,) if x.dim() == 2 else (x.shape[2], 1)) else x.contiguous()


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up. triton's own takes a hundred times as long outside of kernels."""
    return -(-a // b)


@cache
def padded(dim: int) -> int:
    """Number of dims of a tile that holds ``dim`` of them: a power of two, at least 16."""
    return max(16, triton.next_power_of_2(dim))


@triton.jit
def dot(a, b, total=None, PRECISION: tl.constexpr = IEEE):
    """Matrix product of a and b, added to ``total`` or None, in float32; PRECISION is that of
    `devices.precision`."""
    return tl.dot(a, b, total, input_precision=PRECISION)


@triton.jit
def cast(x, dtype: tl.constexpr):
    """Cast ``x`` to another dtype, rounded to the nearest."""
    return x.to(dtype)


@triton.jit
def _place_rows(token, stride, BLOCK_D: tl.constexpr):
    return token.to(tl.int64)[:, None] * stride + tl.arange(0, BLOCK_D)[None, :]


@triton.jit
def _place_mask(inside, DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """[rows, BLOCK_D] or [rows, 1], which of them are there."""
    mask = inside[:, None]
    if DIM != BLOCK_D:
        mask = mask & (tl.arange(0, BLOCK_D) < DIM)[None, :]
    return mask


@triton.jit
def load_rows(ptr, token, stride, inside, DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """[rows, BLOCK_D] of the DIM numbers of tokens at ``token`` [rows], ``stride`` apart; zeros
    where not ``inside``, a mask [rows], or None for all, and past DIM."""
    ptr += _place_rows(token, stride, BLOCK_D)
    if inside is not None:
        x = tl.load(ptr, mask=_place_mask(inside, DIM, BLOCK_D), other=0.0)
    elif DIM == BLOCK_D:
        x = tl.load(ptr)
    else:
        x = tl.load(ptr, mask=(tl.arange(0, BLOCK_D) < DIM)[None, :], other=0.0)
    return x


@triton.jit
def load_columns(ptr, token, stride, DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """[BLOCK_D, columns] of the DIM numbers of tokens at ``token`` [columns], ``stride`` apart;
    zeros past DIM.

    A tile that is loaded as rows and transposed costs the same on Hopper. Before, Triton would not
    see that the product with it and the next one are a chain, which stays in registers, where a
    branch lies between them.
    """
    dims = tl.arange(0, BLOCK_D)
    ptr += token.to(tl.int64)[None, :] * stride + dims[:, None]
    return tl.load(ptr) if DIM == BLOCK_D else tl.load(ptr, mask=(dims < DIM)[:, None], other=0.0)


@triton.jit
def store_rows(ptr, x, token, stride, inside, DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """Store x [rows, BLOCK_D] as the DIM numbers of tokens at ``token`` [rows], ``stride`` apart,
    where ``inside``."""
    ptr += _place_rows(token, stride, BLOCK_D)
    tl.store(ptr, cast(x, ptr.dtype.element_ty), mask=_place_mask(inside, DIM, BLOCK_D))
