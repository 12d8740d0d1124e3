"""Kernels compiled ahead of time for the GPUs of `devices.KNOWN`; -s shows the table."""

import re

import pytest
from compiled import as_table, compile_launches

pytest.importorskip("triton")

from ldt.attention.triton.devices import KNOWN
from ldt.cli.doctor import assembler

pytestmark = pytest.mark.slow

REGISTERS = 255  # of a thread
BYTES = 72  # that a thread may spill: what it needs again behind its loops
# Kernels, dtypes and widths that do so, for which no tile without has been found yet; on a B200 the
# compiler does it with registers to spare as well. On an H100 `_forward` of few rows keeps to 128
# of them, by which four programs fit: with a ``maxnreg`` of 136 it spills nothing, and three do.
SPILLED = {
    "T4": {
        *("_forward half 96", "_forward fp32 64", "_forward fp32 96", "_forward fp32 128"),
        *("_bwd_dq half 96", "_bwd_dq half 128", "_bwd_dq fp32 64", "_bwd_dkv fp32 32"),
    },
    "A100": {
        *("_forward half 96", "_forward half 128", "_bwd_dq half 96", "_bwd_dq half 128"),
        *("_bwd_dkv half 32", "bwd_dx fp32 768"),
    },
    "H100, H200": {"_forward half 96", "bwd_dx fp32 768"},
    **dict.fromkeys(
        ("A10, RTX 30", "L4, RTX 40"),
        {
            *("_forward half 96", "_forward half 128", "_bwd_dq half 96", "_bwd_dq half 128"),
            *("_bwd_dkv half 32", "bwd_dx half 768"),
        },
    ),
    "B200": {
        *("_forward half 64", "_forward half 96", "_forward half 128"),
        *("_bwd_dq half 64", "_bwd_dq half 96", "_bwd_dkv half 64", "_bwd_dkv half 128"),
    },
    "RTX 50": {
        *("_forward half 96", "_forward half 128", "_bwd_dq half 32", "_bwd_dq half 96"),
        *("_bwd_dq half 128", "bwd_dx half 768", "weights half 768"),
    },
}
# A part of `launches.calls` for each GPU: of each operator, where something is near its limit.
COVER = {
    "T4": ["rows half 64, many", "pool fp32 64, conv", "norm and gelu half 768, dropout"],
    "A100": ["band half 128, globals, gaps, dropout", "rows half folded 1024, several, dropout"],
    "A10, RTX 30": ["band half 64, globals, gaps", "rows half folded 768, several, dropout"],
    "L4, RTX 40": ["cells half 128, holes, dropout"],
    "H100, H200": [
        "band half 64, globals, gaps, dropout",
        "band half 128, globals, long",
        "band fp32 32, globals, gaps",
        "band fp32 64, globals, gaps",
        "band fp32 64, globals, gaps, dropout",
        "cells half 64",
        "rows half 128, many, dropout",
        "rows fp32 128, many, dropout",
        "norm and gelu fp32 768, dropout",
        "norm and gelu fp32 768, products fp32",
    ],
    "B200": ["band half 64, globals, gaps", "pool half 64, ldconv"],
    "RTX 50": ["rows half 128, many", "cells fp32 64, holes, dropout"],
}
WITH_PRODUCTS = {
    *("forward._forward", "backward._bwd_dq", "backward._bwd_dkv"),
    *("rows_kernels.attend", "rows_kernels.bwd_dq", "rows_kernels.bwd_dx"),
}


def over(rows, spilled=()):
    """Of the rows of `compile_launches`, those that spill or do not fit their GPU.

    Args:
        spilled: of `SPILLED`, what may spill `BYTES`.
    """
    found = []
    for row in rows:
        limits = KNOWN[row["device"]]
        of_program = row["registers"] * row["warps"] * limits.warp
        fits = row["registers"] <= REGISTERS and of_program <= limits.registers
        kind, width = re.search(r"(half|fp32).*?(\d+)", row["call"]).groups()
        name = f"{row['kernel'].split('.')[1]} {kind} {width}"
        if row["spilled"] > BYTES * (name in spilled) or row["shared"] > limits.shared or not fits:
            found.append(row)
    return found


@pytest.fixture(scope="module")
def results():
    found = compile_launches(COVER)
    print("\n" + as_table(found))
    return found


def test_what_is_near_a_limit_keeps_to_it(results):
    assert {row["device"] for row in results} == set(KNOWN)
    assert {row["kernel"] for row in results} >= WITH_PRODUCTS | {
        *("splits._combine", "pattern._fill", "rows_plan._fill", "rows_kernels.merge"),
        *("rows_products.fold", "rows_products.unfold", "rows_products.weights"),
        *("pooling_kernels.collect", "pooling_kernels.scores", "pooling_kernels.filters"),
        *("pooling_kernels.spread", "norms._norm", "norms._norm_backward", "norms._partials"),
        *("norms._gelu", "norms._gelu_backward"),
    }
    for name in KNOWN:
        own = [row for row in results if row["device"] == name]
        assert over(own, SPILLED.get(name, ())) == []


def test_every_launch_asks_for_products_and_sums_in_one_instruction(results):
    assert [row for row in results if not row["fused"]] == []


def test_hopper_uses_its_matrix_units_of_half_precision(results):
    own = [row for row in results if row["kernel"] in WITH_PRODUCTS]
    half = {  # programs of 16 rows are too small for Hopper's units
        (row["device"], row["wgmma"])
        for row in own
        if " half " in row["call"] and (row["tile"][0] > 16 or row["device"] != "H100, H200")
    }
    assert half == {(name, name == "H100, H200") for name in KNOWN}


def test_float32_goes_to_matrix_units_in_three_parts(results):
    own = [row for row in results if row["kernel"] in WITH_PRODUCTS and " fp32 " in row["call"]]
    assert {row["precision"] for row in own} == {"tf32x3"}


def by_warpgroups(rows):
    """Of the rows of `compile_launches`, those of float32 that use Hopper's matrix units."""
    return [row for row in rows if " fp32 " in row["call"] and row["wgmma"]]


def test_float32_never_goes_to_warpgroup_units(results):
    assert by_warpgroups(results) == []


def test_a_thread_has_no_more_registers_than_its_tile_says():
    wanted, tile = {"H100, H200": ["cells half 64"]}, ["forward", 2, 64, (64, 64, 4, 2, 128)]
    taken = {row["kernel"]: row["registers"] for row in compile_launches(wanted, [tile])}
    assert taken["forward._forward"] <= 128 < taken["backward._bwd_dq"]


@pytest.mark.nightly
@pytest.mark.parametrize("name", KNOWN)
def test_every_kernel_keeps_to_the_limits_of_every_gpu(name):
    found = compile_launches({name: None})
    print("\n" + as_table(found), assembler())
    assert over(found, SPILLED.get(name, ())) == []
    assert by_warpgroups(found) == []
