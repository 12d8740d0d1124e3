"""Kernels compiled ahead of time for an A100 (80) and a Hopper GPU (90); -s shows the table."""

import pytest
from compiled import as_table, compile_launches

SHARED = {80: 163 * 1024, 90: 227 * 1024}  # bytes that a program can have


@pytest.fixture(scope="module")
def results():
    found = compile_launches("band", "rows", "cells", "pool")
    print("\n" + as_table(found))
    return found


def test_no_kernel_spills_registers(results):
    assert {row["kernel"] for row in results} >= {
        *("_forward", "_queries", "_keys", "_globals"),
        *("_fill", "attend", "merge", "pull", "push"),
        *("collect", "scores", "filters", "spread"),
    }
    cells = {row["kernel"] for row in results if "cells" in row["call"]}
    assert cells == {"_forward", "_queries", "_keys"}
    assert [row for row in results if row["spilled"]] == []


def test_every_launch_asks_for_products_and_sums_in_one_instruction(results):
    assert [row for row in results if not row["fused"]] == []


def test_shared_memory_is_within_the_limit(results):
    assert [row for row in results if row["shared"] > SHARED[row["capability"]]] == []


def test_hopper_uses_its_matrix_units(results):
    def uses(kernel, call):
        return {
            (row["capability"], row["wgmma"])
            for row in results
            if row["kernel"] == kernel and row["call"].startswith(call)
        }

    for kernel in ("attend", "pull", "push"):
        assert uses(kernel, "bf16 plain") == {(80, False), (90, True)}
        assert uses(kernel, "fp32") == {(80, False), (90, False)}
    for kernel in ("_forward", "_queries", "_keys"):
        assert uses(kernel, "bf16") == {(80, False), (90, True)}
        assert uses(kernel, "fp32") == {(80, False), (90, False)}  # those would round the factors
