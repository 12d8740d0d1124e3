"""Pieces in the threads of one parallel region, and what they share."""

import threading
import time
from contextlib import contextmanager

import pytest
import torch
from patterns import band
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from ldt.attention import Layout, blocked, parallel
from ldt.attention.matmul import onednn
from ldt.model import LdtConfig
from ldt.model.layers import LdtLayer


@pytest.fixture(params=[1, 2, 3])
def threads(request):
    with using(request.param):
        yield request.param


@contextmanager
def using(count):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def test_each_piece_is_worked_on_once_in_a_thread_of_the_team(threads):
    seen, everybody = [], threading.Barrier(threads)

    def work(piece):
        if piece < threads:
            everybody.wait(timeout=60)  # each of the first needs a thread of its own
        seen.append((piece, threading.get_ident()))

    parallel.run(work, range(50))
    assert sorted(piece for piece, _ in seen) == list(range(50))
    assert len({thread for _, thread in seen}) == threads


def test_a_piece_knows_the_modes_of_its_caller_and_makes_no_graph(threads):
    weight = torch.ones(3, requires_grad=True)
    for inference in (False, True):
        made = []
        with torch.inference_mode(inference):
            parallel.run(lambda _: made.append(weight * 2), range(4))  # noqa: B023
        assert [x.is_inference() for x in made] == [inference] * 4
        assert not any(x.requires_grad for x in made)


def test_a_region_within_a_piece_stays_in_its_thread(threads):
    found = []

    def work(_):
        mine = threading.get_ident()
        parallel.run(lambda _: found.append(threading.get_ident() == mine), range(3))

    parallel.run(work, range(4))
    assert found == [True] * 12


def test_an_error_ends_the_region_and_leaves_the_rest_out(threads):
    done = []

    def work(piece):
        if piece == 3:
            raise KeyError("piece 3")
        time.sleep(0.001)
        done.append(piece)

    with pytest.raises(KeyError, match="piece 3"):
        parallel.run(work, range(1000))
    assert len(done) < 500
    parallel.run(done.append, [1000])
    assert done[-1] == 1000


def test_without_openmp_the_pieces_go_one_after_the_other(monkeypatch):
    monkeypatch.setattr(parallel, "_openmp", lambda: None)
    done = []
    with using(3):
        parallel.run(done.append, range(20))
    assert done == list(range(20))


def test_a_counter_of_operators_sees_those_of_all_pieces():
    x = torch.ones(64, 64)
    with using(3), FlopCounterMode(display=False) as counter:
        parallel.run(lambda _: x @ x, range(5))
    assert counter.get_total_flops() == 5 * 2 * 64**3


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 256), (torch.bfloat16, 512)])
@pytest.mark.parametrize("rows", [1, 512, 513, 1500])
def test_rows_put_together_are_those_of_the_whole(rows, dtype, most, threads):
    x, y = torch.randn(2, rows, 3, dtype=dtype)
    sizes = []

    def work(x, y):
        sizes.append(len(x))
        return x * y

    assert torch.equal(parallel.by_rows(work, x, y), x * y)
    assert sum(sizes) == rows
    assert max(sizes) == (rows if rows <= 512 else most)


def test_acts_are_done_in_the_order_of_the_pieces():
    done, in_order = [], parallel.InOrder()
    for place in (2, 0, 3, 1):
        in_order(place, lambda place=place: done.append(place))
    assert done == [0, 1, 2, 3]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_bits_of_outputs_and_gradients_do_not_depend_on_the_threads(dtype, dropout):
    found, is_global = [], torch.arange(1000) % 200 == 0
    for count in (2, 3, 2):
        layout = Layout(torch.tensor([0, 700, 1000]), None, is_global)
        generator = torch.Generator().manual_seed(0)
        with using(count):
            pattern = {"window": 128, "dropout": dropout, "seed": 5}
            found.append(band(blocked, layout, generator, dtype=dtype, **pattern))
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_the_library_of_products_is_the_one_before_once_no_thread_needs_another():
    settings = torch.backends.mkldnn.matmul
    before = settings.fp32_precision
    with using(3):
        everybody = threading.Barrier(3)

        def work(piece):
            with onednn():
                everybody.wait(timeout=60)
                assert settings.fp32_precision == "bf16"

        parallel.run(work, range(3))
    assert settings.fp32_precision == before


def test_recomputed_dropout_is_that_of_the_first_time():
    """A checkpoint runs without a graph first, in training, and then with one."""
    config = LdtConfig(
        vocab_size=10, hidden_size=8, num_attention_heads=2, intermediate_size=16,
        num_hidden_layers=1, max_position_embeddings=10, attention_window=4,
    )  # fmt: skip
    layer = LdtLayer(config, 0).train()
    x = torch.randn(1500, 8, requires_grad=True)
    layout = Layout(torch.tensor([0, len(x)]))
    up, found = torch.randn(x.shape), []
    for run in (layer, lambda *inputs: checkpoint(layer, *inputs, use_reentrant=True)):
        torch.manual_seed(0)
        with using(3):
            out, *_ = run(x, layout)
        x.grad = None
        out.backward(up)
        found.append((out.detach(), x.grad))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
