"""The operators of torch.library as CUDA graphs see them."""

import pytest
import torch

from ldt.attention import Layout, ops

FORWARD = ["band", "fill_global_rows", "fill_projected_rows", "pooled"]
OPERATORS = sorted(name for name in torch._C._dispatch_get_all_op_names() if "ldt::" in name)


def test_these_are_all_operators():
    parts = [f"{name}_{part}" for name in FORWARD for part in ("forward", "backward")]
    names = [*parts, "count_globals", "layout"]
    assert sorted(f"ldt::{name}" for name in names) == OPERATORS
    assert ops.count_globals(torch.tensor([True, False, True])) == 2


@pytest.mark.parametrize("name", OPERATORS)
def test_no_operator_is_captured_in_a_cuda_graph(name):
    """It would go on with the layout and the seed that it was captured with."""
    operator = getattr(torch.ops.ldt, name.removeprefix("ldt::")).default
    assert torch.Tag.cudagraph_unsafe in operator.tags


def both(function, q, *rest):
    """What a function gives, and its gradient by q."""
    q = q.detach().requires_grad_()
    out = function(q, *rest)
    return out, *torch.autograd.grad(out.square().sum(), q)


@pytest.fixture
def packed():
    """q [total, heads, dim] and the tensors of a layout."""
    mask = torch.arange(30) % 9 == 3
    tensors = torch.tensor([0, 20, 30]), torch.arange(30) != 7, mask, mask.sum()
    return torch.randn(30, 2, 4, dtype=torch.float64), tensors


def layout_of(cu_seqlens, keep, is_global, globals):
    return Layout(cu_seqlens, keep, is_global, num_global=int(globals))


def test_a_layout_is_known_by_its_number_alone_and_made_anew_when_forgotten(packed):
    q, tensors = packed
    layout, other = layout_of(*tensors), Layout(torch.tensor([0, 30]))

    def run(q, given, number):
        given = Layout(
            *[getattr(given, name) for name in vars(given) if name[0] != "_"][:5], number
        )
        return ops.band(q, q, q, given, 6, [1, 1], False, 0.0, None, "blocked")

    known = ops.shared(layout).number
    assert ops.shared(layout).number != known  # even of the same
    wanted = both(run, q, layout, None)
    torch.testing.assert_close(both(run, q, other, known), wanted)
    for _ in range(ops._KEPT):
        ops.shared(other)
    torch.testing.assert_close(both(run, q, layout, known), wanted)
    assert len(ops._layouts) == ops._KEPT
