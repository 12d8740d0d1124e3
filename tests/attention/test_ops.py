"""The operators of torch.library as CUDA graphs see them."""

import pytest
import torch

from ldt.attention import ops

FORWARD = ["band", "fill_global_rows", "fill_projected_rows", "pooled"]
OPERATORS = sorted(name for name in torch._C._dispatch_get_all_op_names() if "ldt::" in name)


def test_these_are_all_operators():
    names = [*FORWARD, *(f"{name}_backward" for name in FORWARD), "count_globals"]
    assert sorted(f"ldt::{name}" for name in names) == OPERATORS
    assert ops.count_globals(torch.tensor([True, False, True])) == 2


@pytest.mark.parametrize("name", OPERATORS)
def test_no_operator_is_captured_in_a_cuda_graph(name):
    """It would go on with the layout and the seed that it was captured with."""
    operator = getattr(torch.ops.ldt, name.removeprefix("ldt::")).default
    assert torch.Tag.cudagraph_unsafe in operator.tags
