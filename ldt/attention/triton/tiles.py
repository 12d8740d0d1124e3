"""Tile sizes, products, loads of rows, and the check of tensors, for all Triton kernels."""

from dataclasses import dataclass

import triton
import triton.language as tl

from ldt.attention.triton import DTYPES, LARGEST

INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))
# Options of every launch. A product and a sum are one instruction; said, because Triton 3.9 warns
# where it is not, and 3.10 makes two of them then.
OPTIONS = {"enable_fp_fusion": True}


if INTERPRETED.value:
    from triton.runtime import interpreter

    def _patch(tensor, scope, patch=interpreter._patch_lang_tensor):
        """Lets the interpreter loop up to what it loaded, of which numpy 2.4 makes no int."""
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = _patch


@dataclass(frozen=True, slots=True)
class Tile:
    """Work of a program: rows that it owns, columns at a time, warps, stages of loads."""

    rows: int
    columns: int
    warps: int
    stages: int

    @property
    def launch(self):
        return {
            "ROWS": self.rows,
            "COLUMNS": self.columns,
            "num_warps": self.warps,
            "num_stages": self.stages,
            **OPTIONS,
        }


def check(*tensors):
    """Raises ValueError where Triton kernels do not run, and says what does."""
    first = tensors[0]
    device, dtype, dim = first.device.type, first.dtype, first.shape[-1]
    if device != "cuda" and not INTERPRETED.value:
        raise ValueError(
            f"backend 'triton' runs on CUDA, the tensors are on {device}; "
            "backend 'blocked' runs there"
        )
    if dtype not in DTYPES or any(x.dtype != dtype for x in tensors):
        found = ", ".join(sorted({str(x.dtype).removeprefix("torch.") for x in tensors}))
        raise ValueError(
            "backend 'triton' takes tensors of one dtype, float32, bfloat16 or float16, "
            f"got {found}; backend 'blocked' takes float64"
        )
    if dim > LARGEST:
        raise ValueError(
            f"backend 'triton' takes heads of at most {LARGEST} dims, got {dim}; "
            "backend 'blocked' takes any"
        )


def rows(x):
    """``x`` with its last dimension contiguous."""
    return x if x.stride(-1) == 1 else x.contiguous()


def padded(dim):
    """Dims of a tile that holds ``dim`` of them: a power of two, at least 16."""
    return max(16, triton.next_power_of_2(dim))


@triton.jit
def dot(a, b, total=None):
    """Matrix product, added to ``total``, summed in float32; float32 factors are not rounded."""
    if INTERPRETED:  # its numpy has no bfloat16; products of such factors are exact in float32
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, total, input_precision="ieee")


@triton.jit
def cast(x, dtype: tl.constexpr):
    """``x``, float32, in another dtype, rounded to the nearest."""
    if INTERPRETED and dtype == tl.bfloat16:  # its own cast cuts bits off
        bits = x.to(tl.int32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        y = bits.to(tl.int16).to(tl.bfloat16, bitcast=True)
    else:
        y = x.to(dtype)
    return y


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
