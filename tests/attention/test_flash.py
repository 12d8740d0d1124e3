"""Windows by FlashAttention with global tokens merged in, against the dense definition.

`dense_flash` stands in for torch's kernels, which run on CUDA alone; float64 is exact then.
"""

import inspect
import types
from contextlib import nullcontext
from functools import partial

import dense_flash
import pytest
import torch
from hypothesis import given
from longformers import batch, ldt_model
from mutants import mutant
from patterns import as_close, band, patterns, same
from properties import cases

from ldt import attention
from ldt.attention import Layout, flash, reference
from ldt.attention.blocked import Reach
from ldt.attention.triton import devices

kernels = flash.kernels


@pytest.fixture(autouse=True)
def dense(monkeypatch):
    """FlashAttention that runs here."""
    monkeypatch.setattr(flash, "kernels", dense_flash.kernels)


@pytest.fixture
def ampere(monkeypatch):
    """A GPU, as far as `flash.kernels` asks for one."""
    monkeypatch.setattr(flash, "kernels", kernels)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)
    monkeypatch.setattr(devices, "limits", lambda _: devices.KNOWN["A100"])


def pack(lengths, globals=()):
    """Documents of these lengths, with global tokens at these packed places."""
    is_global = torch.zeros(sum(lengths), dtype=torch.bool)
    is_global[list(globals)] = True
    return Layout(torch.tensor([0, *lengths]).cumsum(0), None, is_global if globals else None)


def check(layout, module=flash, generator=None, **arguments):
    """True if output and gradients are those of the definition."""
    generator = generator or torch.Generator().manual_seed(0)
    state = generator.get_state()
    expected = band(reference, layout, generator, **arguments)
    return same(band(module, layout, generator.set_state(state), **arguments), expected)


@cases(60)
@given(pattern=patterns(longest=400))
def test_it_equals_the_definition_with_all_gradients(pattern):
    layout, generator, arguments = pattern
    layout = Layout(layout.cu_seqlens, None, layout.is_global)  # without what it does not take
    arguments |= {"dilation": 1, "dropout": 0.0}
    assert check(layout, generator=generator, **arguments)


@pytest.mark.parametrize(
    ("lengths", "globals", "window"),
    [
        ((50,), (), 8),
        ((50,), (20,), 8),  # in some windows, outside of the others
        ((50,), (0, 49), 8),  # at the borders of the document
        ((20, 30), (19, 20), 8),  # on both sides of a border
        ((5, 1, 7), (0, 5, 9), 16),  # all in all windows
        ((40, 30, 20, 1), (3, 75, 76, 77, 80), 6),  # two documents have none
        ((30,), tuple(range(30)), 4),  # all tokens
        ((9,), (4,), 2),
    ],
)
def test_each_global_token_counts_once_in_a_window_or_outside(lengths, globals, window):
    assert check(pack(lengths, globals), window=window)


@pytest.mark.parametrize("lengths", [(40,), (3, 40, 1, 9)])
def test_causal_windows_end_at_their_token(lengths):
    assert check(pack(lengths), window=12, causal=True)


def many():
    """Hundreds of global tokens in one document, some in others, one alone, none in the first."""
    return pack((5, 330, 1, 40, 60), (*range(5, 335, 2), 335, *range(336, 436, 7)))


@pytest.mark.parametrize("tokens", [100, flash.TOKENS])
def test_many_global_tokens_go_in_pieces(tokens, monkeypatch):
    monkeypatch.setattr(flash, "TOKENS", tokens)
    assert check(many(), window=16)


@pytest.mark.parametrize("tokens", [100, flash.TOKENS])
def test_pieces_are_bounded_and_hold_each_pair_of_a_query_and_a_global_key_once(
    tokens, monkeypatch
):
    monkeypatch.setattr(flash, "TOKENS", tokens)
    layout, seen = many(), torch.zeros(436, 436).int()
    index = layout.global_index
    for piece in flash._pieces(layout, Reach(8, 8)):
        queries, keys = piece.hidden.shape
        assert queries <= tokens
        assert keys <= flash.GLOBALS
        rows = torch.arange(436)[piece.tokens]
        seen[rows[:, None], index[piece.slots]] += (~piece.hidden).int()
    place = torch.arange(436)
    outside = (place[:, None] - place).abs() > 8
    own = layout.document_of[:, None] == layout.document_of
    assert torch.equal(seen.bool(), outside & own & layout.is_global)
    assert seen.max() == 1


def test_few_global_tokens_need_no_number_from_the_device():
    is_global = torch.arange(50) % 10 == 0
    layout = Layout(torch.tensor([0, 20, 50]), None, is_global, total_tokens=50, num_global=5)
    band(flash, layout, torch.Generator().manual_seed(0), window=4)
    assert not {"cu_seqlens_host", "cu_globals_host"} & set(vars(layout))


def test_places_that_stand_for_no_global_token_change_nothing():
    """On CUDA there may be some, where the number of global tokens is a bound."""
    layout = pack((20, 30), (3, 49))
    vars(layout)["global_index"] = torch.tensor([3, 49, 50, 50])
    ours = band(flash, layout, torch.Generator().manual_seed(0), window=4)
    plain = pack((20, 30), (3, 49))
    assert same(ours, band(reference, plain, torch.Generator().manual_seed(0), window=4))


@pytest.mark.parametrize("globals", [(), (0, 20)])
def test_queries_keys_values_and_gradients_may_lie_in_any_order_in_memory(globals):
    layout = pack((30,), globals)
    x = torch.randn(3, 2, 4, 30, dtype=torch.float64).permute(0, 3, 1, 2).requires_grad_()
    found = []
    for module in (flash, reference):
        out = module.sliding_window_attention(*x, layout, window=4)
        found.append((out, *torch.autograd.grad(out.sum(), x)))
    assert same(*found)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_about_as_close_as_the_dense_definition(dtype):
    """The windows' output is rounded before the parts merge, and gradients before they add up."""
    layout = pack((300, 100), (0, 1, 170, 300))
    assert as_close(flash, layout, dtype, dim=16, window=64, factor=3) == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_what_many_pieces_add_to_a_row_is_not_rounded_between(dtype, monkeypatch):
    monkeypatch.setattr(flash, "GLOBALS", 2)
    layout = pack((300,), range(0, 300, 2))
    assert as_close(flash, layout, dtype, dim=16, window=4, factor=3) == []


@pytest.mark.skipif(
    not torch.cuda.is_available() or bool(flash.unfit("cuda", torch.bfloat16, 64)),
    reason="no GPU that runs FlashAttention",
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("causal", [False, True])
def test_the_kernels_of_torch_are_about_as_close_as_the_dense_definition(
    dtype, causal, monkeypatch
):
    monkeypatch.setattr(flash, "kernels", kernels)
    layout = pack((300, 100)) if causal else pack((300, 100), (0, 1, 170, 300))
    there = types.SimpleNamespace(
        sliding_window_attention=lambda q, k, v, layout, **arguments: (
            flash.sliding_window_attention(
                q.cuda(), k.cuda(), v.cuda(), layout.to("cuda"), **arguments
            ).cpu()
        )
    )
    assert as_close(there, layout, dtype, dim=64, window=64, causal=causal, factor=4) == []


def test_autocast_does_not_round_the_scores_of_global_keys():
    layout, arguments = pack((60,), (0, 30)), {"dtype": torch.float32, "window": 4}
    plain, under = (torch.Generator().manual_seed(0) for _ in range(2))
    expected = band(flash, layout, plain, **arguments)
    with torch.autocast("cpu", torch.bfloat16):
        ours = band(flash_alone(), layout, under, **arguments)
    assert same(ours, expected, 1e-6)


def flash_alone():
    """flash whose windows, which are torch's, run without autocast."""

    def without(call):
        def run(*args, **kwargs):
            with torch.autocast("cpu", enabled=False):
                return call(*args, **kwargs)

        return run

    module = on_dense("", "")
    module.kernels = lambda *_: flash.Kernels(*map(without, dense_flash.kernels()))
    return module


def test_global_rows_are_those_of_the_backend_beside_it():
    layout, x = pack((30, 20), (0, 7, 30)), torch.randn(50, 8, dtype=torch.float64)
    weight, bias = torch.randn(8, 8, dtype=torch.float64), torch.randn(8, dtype=torch.float64)
    out = x.view(50, 2, 4)
    for project in ((weight, bias), lambda rows: rows @ weight):
        ours, theirs = (
            attention.fill_global_rows(out, x, *[project] * 3, layout, backend=name)
            for name in ("flash", "reference")
        )
        torch.testing.assert_close(ours, theirs)


def test_a_compiled_graph_has_it_and_does_not_attend_twice(monkeypatch):
    calls = []
    forward, backward = dense_flash.kernels()
    counted = flash.Kernels(lambda *a, **k: calls.append(1) or forward(*a, **k), backward)
    monkeypatch.setattr(flash, "kernels", lambda *_: counted)
    layout = Layout(
        torch.tensor([0, 30, 50]), None, torch.arange(50) % 19 == 0, 50, torch.tensor(3)
    )
    torch.compiler.reset()
    run = partial(attention.sliding_window_attention, window=8, backend="flash")
    fast = torch.compile(run, fullgraph=True, backend="aot_eager")
    q, k, v = (torch.randn(50, 2, 8, requires_grad=True) for _ in range(3))
    out = fast(q, k, v, layout)
    ours = out, *torch.autograd.grad(out.square().sum(), (q, k, v))
    assert len(calls) == 1
    out = run(q, k, v, pack((30, 20), (0, 19, 38)))
    theirs = out, *torch.autograd.grad(out.square().sum(), (q, k, v))
    assert same(ours, theirs, 1e-6)


@pytest.mark.parametrize("globals", [0, 3])
def test_the_kernels_of_this_torch_take_what_they_are_given(globals, monkeypatch):
    """As far as shapes and arguments go: tensors on ``meta`` have no numbers."""
    monkeypatch.setattr(flash, "kernels", lambda *_: flash.of_torch())
    monkeypatch.setattr(flash, "fast_matmul", lambda _: nullcontext())  # has no such device
    shape = {"device": "meta", "dtype": torch.bfloat16, "requires_grad": True}
    leaves = [torch.randn(50, 2, 64, **shape) for _ in range(3)]
    cu_seqlens, mask = torch.tensor([0, 20, 50]), torch.zeros(50, dtype=torch.bool)
    layout = Layout(cu_seqlens, None, mask if globals else None, 50, globals).to("meta")
    out = flash.sliding_window_attention(*leaves, layout, window=8)
    for x in (out, *torch.autograd.grad(out.sum(), leaves)):
        assert (x.shape, x.dtype, x.device.type) == ((50, 2, 64), torch.bfloat16, "meta")


def test_the_dense_kernels_take_what_is_passed_to_those_of_this_torch():
    """torch 2.11 lacks names of 2.13 that nobody passes."""
    ours, theirs = dense_flash.kernels(), flash.of_torch()
    schema = theirs.backward.default._schema.arguments
    of_torch = inspect.signature(theirs.forward.func).parameters, [x.name for x in schema]
    for call, names in zip(ours, of_torch, strict=True):
        taken = inspect.signature(call).parameters.values()
        by_place = [x.name for x in taken if x.kind != x.KEYWORD_ONLY]
        assert by_place == [*names][: len(by_place)]
        assert {x.name for x in taken} <= set(names)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, None),
        ({"device": "cpu"}, "runs on CUDA, the tensors are on cpu"),
        ({"dtype": torch.float32}, "takes bfloat16 and float16, got float32"),
        ({"dtype": torch.float64}, "takes bfloat16 and float16, got float64"),
        ({"dim": 60}, "takes heads of a multiple of 8 dims, at most 192, got 60"),
        ({"dim": 200}, "takes heads of a multiple of 8 dims, at most 192, got 200"),
        ({"dilation": 2}, "takes windows without gaps, attention_dilation 1"),
        ({"dilation": (1, 2)}, "takes windows without gaps, attention_dilation 1"),
        ({"dilation": (1, 1), "dtype": torch.float16}, None),
        ({"dropout": 0.1}, "has no dropout of probabilities"),
        ({"layout": pack((3,))}, None),
        (
            {"layout": Layout(torch.tensor([0, 3]), torch.tensor([True, False, True]))},
            "takes documents without padding between their tokens",
        ),
    ],
)
def test_it_says_why_it_does_not_fit(changes, why, ampere):
    tensors = {"device": "cuda", "dtype": torch.bfloat16, "dim": 64}
    assert flash.unfit(**tensors | changes) == why


def test_it_says_what_torch_or_the_gpu_lacks(ampere, monkeypatch):
    tensors = "cuda", torch.bfloat16, 64
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    assert flash.unfit(*tensors) == "needs a GPU of compute capability 8.0, this one has 7.5"
    monkeypatch.setattr(flash, "of_torch", lambda: None)
    assert flash.unfit(*tensors).startswith("needs window_size and return_aux of torch.nn.att")
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: False)
    assert flash.unfit(*tensors) == "needs a torch that was built with FlashAttention"


@pytest.mark.parametrize("lacks", [None, "window_size", "return_aux"])
def test_an_older_torch_is_known_by_the_arguments_of_its_function(lacks, monkeypatch):
    from torch.nn.attention import varlen

    def older(query, **rest):
        raise AssertionError("only its signature is of use")

    known = inspect.signature(varlen.varlen_attn).parameters.values()
    older.__signature__ = inspect.Signature([x for x in known if x.name != lacks])
    monkeypatch.setattr(varlen, "varlen_attn", older)
    assert (flash.of_torch.__wrapped__() is None) == bool(lacks)


def test_what_it_does_not_take_is_refused_with_the_backend_that_does(ampere):
    q = torch.randn(9, 2, 64)
    layout = Layout(torch.tensor([0, 9]))
    run = partial(attention.sliding_window_attention, layout=layout, window=4, backend="flash")
    with pytest.raises(ValueError, match=r"^backend 'flash' runs on CUDA, .*'blocked' takes these"):
        run(q, q, q)
    table = torch.randn(2, 5, 64)
    with pytest.raises(ValueError, match="'flash' has no relative positions; auto, reference"):
        run(q, q, q, relative=(q, table))
    weight = {"pooling": "mean", "size": 2, "stride": 2, "window": 4}
    with pytest.raises(ValueError, match="'flash' has no pooled level; auto, reference"):
        attention.pooled_attention(q, q, q, None, layout, backend="flash", **weight)


def test_tensors_of_different_dtypes_are_refused():
    q = torch.randn(9, 2, 8)
    with pytest.raises(ValueError, match="of one dtype, got float32, float32, bfloat16"):
        flash.sliding_window_attention(q, q, q.bfloat16(), pack((9,)), window=4)


def test_auto_takes_the_kernels_of_triton_and_can_take_it_where_it_fits(ampere, monkeypatch):
    pytest.importorskip("triton")
    choose = partial(attention.choose, "cuda", torch.bfloat16, 64)
    assert choose(layout=pack((3,)))[0] == "triton"
    monkeypatch.setattr(attention, "FUSED", "flash")
    assert choose(layout=pack((3,))) == ("flash", "torch's FlashAttention")
    assert choose(layout=pack((3,)), dropout=0.1) == (
        "triton",
        "flash has no dropout of probabilities",
    )
    assert choose()[0] == "triton"  # of rows of global tokens and the pooled level
    assert attention.choose("cpu", torch.bfloat16, layout=pack((3,)))[0] == "blocked"


def test_second_derivatives_are_refused():
    q = torch.randn(9, 1, 4, dtype=torch.float64, requires_grad=True)
    out = flash.sliding_window_attention(q, q, q, pack((9,), (0,)), window=2)
    (slope,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivatives"):
        slope.sum().backward()


def test_a_model_computes_the_same_with_it():
    inputs = {k: v for k, v in batch(21, "right", "some").items() if v is not None}
    found = []
    for name in ("flash", "blocked"):
        torch.manual_seed(0)
        model = ldt_model("Model", attention_backend=name).double().eval()
        out = model(**inputs).last_hidden_state
        out.square().sum().backward()
        found.append((out, *[p.grad for p in model.parameters() if p.grad is not None]))
    assert same(*found, 1e-9)


def on_dense(old, new):
    """The module with ``new`` for ``old`` in its source, on the dense kernels."""
    module = mutant(flash, old, new)
    module.kernels = dense_flash.kernels
    return module


FAULTS = {
    "a term of the log-sum-exp is dropped": ("inside.copy_(both)", "pass"),
    "the windows' part is not scaled": ("rows *= (inside - both).exp_()[..., None]", "pass"),
    "a global token counts twice in the window": ("inside | other", "other"),
    "documents see each other's global tokens": ("inside | other", "inside"),
    "a window is one token narrower on the left": ("<= reach.before", "< reach.before"),
    "a window is one token wider on the right": (">= -reach.after", ">= -reach.after - 1"),
    "the kernel's window is one token wider": ("(reach.before, ", "(reach.before + 1, "),
    "the kernel's gradient has another window": (
        '"window_size_right": reach.after',
        '"window_size_right": reach.after - 1',
    ),
    "windows have the gradient of their own log-sum-exp": (
        "pull(grad, q, k, v, out, lse,",
        "pull(grad, q, k, v, *_forward_of_windows(q, k, v, layout, reach),",
    ),
    "windows have the gradient of their own output": (
        "pull(grad, q, k, v, out, lse,",
        "pull(grad, q, k, v, _forward_of_windows(q, k, v, layout, reach)[0], lse,",
    ),
    "global keys have the gradients of the windows alone": (
        "total.index_add_(",
        "total.index_add(",
    ),
    "global keys have the gradients from outside alone": (
        "total.index_add_(0",
        "total.index_fill_(0, work.index, 0).index_add_(0",
    ),
    "queries have the gradients of the windows alone": (
        "dq[piece.tokens].transpose(0, 1).add_(",
        "dq[piece.tokens].transpose(0, 1).add(",
    ),
    "the mean slope is missing": (".sub_(mean)", ""),
    "slopes are not scaled": (".mul_(probs).mul_(work.scale)", ".mul_(probs)"),
    "values have the gradient of the last piece": (
        "dvalues[:, piece.slots] +=",
        "dvalues[:, piece.slots] =",
    ),
    "global rows are not silent": ("out.masked_fill_(", "out.masked_fill("),
    "global rows send gradients": (
        "grad = grad.masked_fill(layout.is_global[:, None, None], 0)",
        "pass",
    ),
    "the last document of a piece is cut off": (
        "borders[bisect_right(rows, last - 1)]",
        "borders[bisect_right(rows, last - 1) - 1]",
    ),
    "the first document of a piece is the next": (
        "borders[bisect_right(rows, first) - 1]",
        "borders[bisect_right(rows, first)]",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_seeded_fault_is_caught(fault, monkeypatch):
    module = on_dense(*FAULTS[fault])
    module._forward_of_windows = lambda q, k, v, layout, reach: dense_flash.varlen_attn(
        q, k, v, *flash._documents(layout), window_size=(reach.before, reach.after)
    )
    module.TOKENS = 100
    caught = []
    for layout in (many(), pack((30, 40), (0, 45))):
        try:
            caught.append(not check(layout, module=module, window=8))
        except RuntimeError:  # shapes that do not go together
            caught.append(True)
    assert any(caught)


def test_the_module_without_a_fault_passes():
    assert check(many(), module=on_dense("", ""), window=8)
