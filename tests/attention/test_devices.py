"""On which device each test of attention and of models runs its kernels."""

import ast
from pathlib import Path

import pytest
import torch
from device import on_device, there

pytest.importorskip("triton")

from ldt.attention import Layout, triton

TESTS = Path(__file__).parents[1]
MODULES = [*TESTS.glob("attention/**/test_*.py"), *TESTS.glob("model/**/test_*.py")]
OF_KERNELS = TESTS / "attention" / "triton"  # its conftest gives every test kernels_device
# Names that run kernels, in modules whose tests are not all on their device.
KERNELS = ("band", "cells", "rows", "pooling", "triton")


def devices_of(path):
    """{test: where its kernels run} of a module: "kernels" (`DEVICE`, where a tensor that was not
    moved raises), "plain" (`PLAIN`), "gpu" (nowhere else), or "none" (it runs no kernel)."""
    source = path.read_text("utf-8")
    tree = ast.parse(source)
    found = {}
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_"):
            continue
        text = ast.get_source_segment(source, node)
        marks = " ".join(ast.unparse(mark) for mark in node.decorator_list)
        if "mark.plain" in marks or "PLAIN" in text:
            found[node.name] = "plain"
        elif "mark.gpu" in source:
            found[node.name] = "gpu"
        elif OF_KERNELS in path.parents or "kernels_device" in marks:
            found[node.name] = "kernels"
        else:
            names = {x.id for x in ast.walk(node) if isinstance(x, ast.Name)}
            said = {x.value for x in ast.walk(node) if isinstance(x, ast.Constant)}
            runs = "triton" in said or "on_device" in names
            found[node.name] = "unknown" if runs else "none"
    return found


# They name the backend, and run none of its kernels.
NO_LAUNCH = {
    "test_auto_takes_the_fastest_that_can_run_and_says_why",
    "test_auto_takes_the_kernels_of_triton_and_can_take_it_where_it_fits",
    "test_auto_does_without_triton",
    "test_what_has_no_meaning_is_refused",
    "test_numbers_that_do_not_go_together_are_told",
    "test_auto_takes_functions_where_it_takes_the_kernels_and_other_backends_never",
    "test_modules_run_where_products_are_of_integers",
}


def test_every_test_that_runs_kernels_has_their_device():
    found = {path.relative_to(TESTS): devices_of(path) for path in MODULES}
    listed = [(test, where) for tests in found.values() for test, where in tests.items()]
    print("\n".join(f"{where:8} {test}" for test, where in sorted(listed)))
    unknown = {test for test, where in listed if where == "unknown"}
    assert unknown <= NO_LAUNCH
    kernels = sum(where == "kernels" for _, where in listed)
    assert kernels > 60
    assert len(MODULES) > 30


def attend(q, layout, seed=0):
    how = {"window": 4, "dropout": 0.2, "seed": seed}
    return triton.sliding_window_attention(q, q, q, layout, **how)


@pytest.mark.usefixtures("kernels_device")
@pytest.mark.parametrize("forgotten", ["q", "layout", "addend"])
def test_a_tensor_that_was_not_moved_is_noticed(forgotten):
    given = torch.randn(9, 1, 16), Layout(torch.tensor([0, 9])), torch.tensor(3)
    expected = on_device(attend)(*given)
    q, layout, seed = there(given)
    torch.testing.assert_close(attend(q, layout, seed).cpu(), expected)
    calls = {
        "q": lambda: attend(given[0], layout, seed),
        "layout": lambda: attend(q, given[1], seed),
        "addend": lambda: attend(q, layout, seed) + given[0],
    }
    with pytest.raises((RuntimeError, ValueError), match="CPU|cpu"):
        calls[forgotten]()
