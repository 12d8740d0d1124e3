"""Kernels compiled ahead of time for the GPUs of `devices.KNOWN`; -s shows the table."""

import pytest
from compiled import as_table, compile_launches

pytest.importorskip("triton")

from ldt.attention.triton.devices import KNOWN

REGISTERS = 255  # of a thread
# Bytes that a thread may spill where tiles without have not been looked for, or not found yet:
# results/aot.json names the kernels.
SPILLED = dict.fromkeys(("T4", "A10, RTX 30", "L4, RTX 40", "B200", "RTX 50"), 16)
# A part of `launches.calls` for each GPU: of each operator, where something is near its limit.
COVER = {
    "T4": ["rows half 64, many", "pool fp32 64, conv"],
    "A100": ["band half 128, globals, gaps, dropout", "rows half folded 1024, several, dropout"],
    "A10, RTX 30": ["band half 64, globals, gaps", "rows half folded 768, several, dropout"],
    "L4, RTX 40": ["cells half 128, holes, dropout"],
    "H100, H200": [
        "band half 64, globals, gaps, dropout",
        "band half 128, globals, long",
        "band fp32 64, globals, gaps, dropout",
        "cells half 64",
        "rows half 128, many, dropout",
        "rows fp32 128, many, dropout",
    ],
    "B200": ["band half 64, globals, gaps", "pool half 64, ldconv"],
    "RTX 50": ["rows half 128, many", "cells fp32 64, holes, dropout"],
}
WITH_PRODUCTS = {
    *("forward._forward", "backward._bwd_dq", "backward._bwd_dkv"),
    *("rows_kernels.attend", "rows_backward.bwd_dq", "rows_backward.bwd_dx"),
}


def over(rows, spilled=0):
    """Of the rows of `compile_launches`, those that spill or do not fit their GPU.

    Args:
        spilled: bytes of a thread that are let pass.
    """
    found = []
    for row in rows:
        limits = KNOWN[row["device"]]
        of_program = row["registers"] * row["warps"] * limits.warp
        fits = row["registers"] <= REGISTERS and of_program <= limits.registers
        if row["spilled"] > spilled or row["shared"] > limits.shared or not fits:
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
        *("splits._combine", "rows_plan._fill", "rows_kernels.merge"),
        *("pooling_kernels.collect", "pooling_kernels.scores", "pooling_kernels.filters"),
        "pooling_kernels.spread",
    }
    assert over(results) == []


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


@pytest.mark.nightly
@pytest.mark.parametrize("name", KNOWN)
def test_every_kernel_keeps_to_the_limits_of_every_gpu(name):
    found = compile_launches({name: None})
    print("\n" + as_table(found))
    assert over(found, SPILLED.get(name, 0)) == []
