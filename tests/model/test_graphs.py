"""CUDA graphs of the encoder, recorded and repeated on the CPU: each batch gets its own numbers."""

import copy
import gc
import logging
import pickle
import weakref

import dense
import pytest
import torch
from device import HAS_GPU
from longformers import batch, ldt_model
from torch.nn.modules.module import register_module_forward_hook

pytest.importorskip("triton")

from recorded import RecordedGraphs

from ldt.attention import BACKENDS, Layout, matmul
from ldt.model import graphs as module
from ldt.model.base import Packing
from ldt.model.graphs import Shape, use_graphs

ONE = {"num_hidden_layers": 1, "attention_window": 8}
HEADS = {
    "Model": "last_hidden_state",
    "ForSequenceClassification": "logits",  # of whose last layer only the first tokens are read
    "ForQuestionAnswering": "start_logits",
}


KERNELS = BACKENDS["triton"]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Graphs for inputs of a test; one library for products, whichever code calls them."""
    monkeypatch.setattr(module, "LEAST", 32)
    monkeypatch.setattr(module, "SPARE", 16)
    monkeypatch.setitem(BACKENDS, "triton", dense)
    with matmul.chosen({"linear": False, "bmm": False}):
        yield


def encoder(head="Model", graphs=None, **changes):
    """A random model whose encoder has graphs, and these."""
    model = ldt_model(head, attention_backend="triton", **changes).double()
    model.base_model.graphs = graphs = graphs or RecordedGraphs()
    return model, graphs


def same(found, expected):
    """Whether two tensors differ by no more than the order of sums."""
    return torch.allclose(found, expected, rtol=1e-12, atol=1e-12)


@torch.no_grad()
def both(model, inputs, field="last_hidden_state"):
    """A field of what a model gives with its graphs, and without."""
    return with_graphs_and_without(model, lambda: model(**inputs)[field])


@torch.no_grad()
def with_graphs_and_without(model, run):
    found = run()
    graphs, model.base_model.graphs = model.base_model.graphs, None
    expected = run()
    model.base_model.graphs = graphs
    return found, expected


def ragged(lengths, globals_=1, holes=False):
    """A batch of rows of these lengths, the first tokens of each global, and maybe one hole."""
    n = max(lengths)
    inputs = batch(n)
    rows = torch.tensor(lengths)[:, None]
    mask = (torch.arange(n) < rows).long()
    if holes:
        mask[:, globals_ + int(torch.randint(3, ()))] = 0
    ids = inputs["input_ids"].repeat(-(-len(lengths) // 4), 1)[: len(lengths)]
    return {
        "input_ids": ids.roll(int(torch.randint(n, ())), 1),
        "attention_mask": mask,
        "global_attention_mask": (torch.arange(n) < globals_).long().expand(mask.shape),
    }


# Of one shape each, four to eight documents with its padding.
LENGTHS = [(12, 9, 6, 10), (5, 20, 3, 8), (16, 1, 1, 20), (11, 10, 3, 4, 7)]


@torch.no_grad()
def repeats(graphs):
    """Whether the only graph gives the bits that its batch has kernel by kernel, all finite."""
    (captured,), (run,) = graphs._graphs.values(), graphs.captures  # captured once
    return torch.equal(run(), captured.out) and bool(captured.out.isfinite().all())


@pytest.mark.parametrize("head", HEADS)
def test_batches_of_one_shape_share_a_graph_and_get_their_own_numbers(head):
    model, graphs = encoder(head, attention_dilation=[1, [1, 2]])
    exact = copy.deepcopy(model)
    exact.base_model.graphs = None
    for layer in exact.base_model.encoder.layer:
        layer.attention.self.backend = "reference"
    for lengths in LENGTHS:
        inputs = ragged(lengths)
        found, expected = both(model, inputs, HEADS[head])
        assert same(found, expected)
        with torch.no_grad():
            assert same(found, exact(**inputs)[HEADS[head]])
    assert repeats(graphs)


@pytest.mark.slow
@pytest.mark.plain
@pytest.mark.skipif(HAS_GPU, reason="records the interpreter, where there is no GPU")
def test_a_graph_holds_the_kernels_and_what_they_make_of_a_layout(monkeypatch):
    monkeypatch.setitem(BACKENDS, "triton", KERNELS)
    monkeypatch.setattr(module, "LEAST", 16)
    monkeypatch.setattr(module, "SPARE", 8)
    second = {"pooling_layers": [0], "pooling_window": 16, "num_attention_heads": 1}
    model, graphs = encoder("ForSequenceClassification", attention_window=8, **second)
    model.float()
    for lengths in ((9, 7), (12, 3), (8, 8)):
        found, expected = both(model, ragged(lengths, 2, holes=True), "logits")
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-6)
    assert repeats(graphs)


@pytest.mark.parametrize("globals_", [0, 1, 3])
def test_padding_inside_documents_and_any_number_of_globals(globals_):
    model, graphs = encoder(**ONE)
    for lengths in LENGTHS[:3]:
        found, expected = both(model, ragged(lengths, globals_, holes=True))
        assert same(found, expected)
    assert [key[0].holes for key in graphs._graphs] == [True]
    assert len(graphs.captures) == 1


def layout_of(lengths, globals_=None, holes=False):
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0)
    total = int(cu_seqlens[-1])
    keep = torch.ones(total, dtype=torch.bool) if holes else None
    is_global = None if globals_ is None else torch.arange(total) < globals_
    return Layout(cu_seqlens, keep, is_global, total, globals_ or 0)


@pytest.mark.parametrize(
    ("lengths", "globals_", "expected"),
    [
        ([512], None, (512, 2, 0)),  # room for one token of padding is spare
        ([512], 1, (512, 2, 1)),
        ([511] * 8, 8, (4096, 16, 8)),
        ([520] * 8, 9, (5120, 16, 16)),
        ([513], 3, (640, 2, 4)),
        ([4096], 129, (5120, 2, 256)),  # 127 tokens of padding are global, more than is spare
        ([1] * 65, None, (512, 128, 0)),
        ([8] * 64, None, (512, 128, 0)),  # 64 documents more, of one token each
        ([8] * 65, None, (640, 128, 0)),
        ([8192], None, (8192, 2, 0)),
        ([8193], None, (8704, 2, 0)),  # sixteenths from here on
        ([17126], None, (17408, 2, 0)),
        ([4096] * 16, 16, (65536, 32, 16)),
    ],
)
def test_the_shape_of_a_batch(lengths, globals_, expected, monkeypatch):
    monkeypatch.setattr(module, "LEAST", 512)
    monkeypatch.setattr(module, "SPARE", 64)
    shape = Shape.of(layout_of(lengths, globals_), first_only=True)
    tokens, documents, globals_ = expected
    assert shape == Shape(tokens + 64, documents, globals_, holes=False, first_only=True)
    assert Shape.of(layout_of(lengths, holes=True), False).holes


@pytest.mark.parametrize("count", [1, 3, 4, 7, 8, 15])
@pytest.mark.parametrize("globals_", [None, 1, 2, 3, 5])
def test_padding_is_documents_of_their_own_and_all_counts_are_exact(count, globals_):
    lengths = (1 + torch.randint(9, (count,))).tolist()
    layout = layout_of(lengths, globals_ and min(globals_, sum(lengths)), holes=True)
    first, total = layout.cu_seqlens[:-1], layout.total_tokens
    inputs = torch.randn(1, total, 4), torch.randint(9, (1, total))
    shape = Shape.of(layout, first_only=True)
    padded = module.Batch(shape, inputs)
    for tensor in (*padded.inputs, padded.keep, padded.is_global, padded.first):
        if tensor is not None:
            tensor.fill_(1)  # of another batch
    padded.keep.fill_(False)
    padded.cu_seqlens[:-1] = 0
    padded.fill(inputs, Packing(layout, (1, total)), first)
    found, real = padded.layout(), len(lengths)
    assert torch.equal(found.cu_seqlens[: real + 1], layout.cu_seqlens)
    assert found.cu_seqlens.diff().min() >= 1
    assert found.cu_seqlens_host[-1] == shape.tokens == found.total_tokens
    assert len(found.cu_seqlens) == shape.documents + 1 > real + 1
    assert torch.equal(padded.first, found.cu_seqlens[:-1])
    for held, x in zip(padded.inputs, inputs, strict=True):
        assert torch.equal(held[:total], x[0])
    assert not padded.inputs[0][total:].any()
    assert bool(found.key_padding_mask[total:].all())
    if globals_ is not None:
        assert torch.equal(found.is_global[:total], layout.is_global)
        assert int(found.is_global.sum()) == shape.globals == found.num_global
        assert found.document_of[found.is_global][layout.num_global :].unique().numel() <= 1


@pytest.mark.parametrize("names", [(), ("position_ids",), ("token_type_ids",)])
def test_embeddings_are_inside(names):
    model, graphs = encoder(**ONE)
    for lengths in LENGTHS:
        inputs = ragged(lengths)
        inputs |= {name: torch.randint(2, inputs["input_ids"].shape) for name in names}
        found, expected = both(model, inputs)
        assert same(found, expected)
    (captured,) = graphs._graphs.values()
    assert {x.dtype for x in captured.batch.inputs} == {torch.int64}
    assert len(graphs.captures) == 1


def test_embeddings_that_are_given_leave_nothing_to_the_next_batch():
    model, graphs = encoder(**ONE)
    for lengths, lost in (((8, 8), False), ((20, 6), True), ((8, 8), False)) * 2:
        inputs = ragged(lengths)
        ids = inputs.pop("input_ids")
        words = model.embeddings.word_embeddings(ids).detach()
        if lost:
            words[:] = float("nan")
        found, expected = both(model, inputs | {"inputs_embeds": words})
        if not lost:
            assert same(found, expected)
    assert len(graphs.captures) == 1
    both(model, ragged((8, 8)))
    assert len(graphs._seen) == 2  # ids have graphs of their own


def test_more_documents_globals_or_tokens_take_another_graph():
    model, graphs = encoder(**ONE)
    more = [(8, 8), (8, 8, 8), (8,) * 4], [(20, 20), (20, 28)]
    sizes = [(ragged(lengths), None) for group in more for lengths in group]
    sizes.append((ragged((8, 8), globals_=3), None))
    sizes.append((ragged((8, 8), globals_=0), None))
    for inputs, _ in sizes * 2:
        found, expected = both(model, inputs)
        assert same(found, expected)
    shapes = {key[0] for key in graphs._graphs}
    assert len(shapes) == len(graphs.captures)
    found = sorted((s.tokens - 16, s.documents, s.globals) for s in shapes)
    assert found == [
        (32, 4, 0),
        (32, 4, 2),
        (32, 4, 4),
        (32, 4, 8),
        (32, 8, 4),
        (40, 4, 2),
        (48, 4, 2),
    ]


def test_large_batches_run_without():
    model, graphs = encoder(graphs=RecordedGraphs(32), **ONE)
    for _ in range(2):
        both(model, ragged((30, 20)))
    assert not graphs._seen
    both(model, ragged((30,)))
    assert len(graphs._seen) == 1


def test_graphs_used_least_lately_are_let_go(monkeypatch):
    monkeypatch.setattr(module, "MOST", 2)
    model, graphs = encoder(**ONE)
    a, b, c = ragged((8,)), ragged((8, 8)), ragged((8,) * 4)
    for inputs in (a, a, b, b, a, c, c):
        both(model, inputs)
    assert [key[0].documents for key in graphs._graphs] == [2, 8]
    monkeypatch.setattr(module, "BYTES", 1)
    both(model, b)
    assert len(graphs.captures) == 3  # as if it had never come
    both(model, b)
    assert [key[0].documents for key in graphs._graphs] == [4]
    assert len(graphs.captures) == 4


def test_weights_that_change_in_place_are_read_and_others_captured_anew():
    model, graphs = encoder(**ONE)
    inputs = ragged((8, 8))
    for _ in range(2):
        both(model, inputs)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(0.9)
    found, expected = both(model, inputs)
    assert same(found, expected)
    assert len(graphs.captures) == 1
    model.bfloat16()
    found, expected = both(model, inputs)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)
    assert len(graphs.captures) == 2


def value_of(model):
    return model.encoder.layer[0].attention.self.value


def adapted(model):
    """LoRA that changes what the model computes."""
    peft = pytest.importorskip("peft")
    peft.inject_adapter_in_model(peft.LoraConfig(r=2, target_modules=["value"]), model)
    torch.nn.init.normal_(value_of(model).lora_B["default"].weight)
    return value_of(model.eval()).double()


def reinterpreted(model):
    """A bias of another dtype at the place where it was."""
    bias = value_of(model).bias
    bias.data = bias.data.view(torch.bfloat16)[: len(bias)]


def put(module, name, tensor):
    """A new parameter, past every check."""
    module._parameters[name] = torch.nn.Parameter(tensor)


def moved(parameter):
    parameter.data = parameter.data + torch.randn_like(parameter.data)


# What is done to a model behind the back of its graphs, and whether there are graphs again.
CHANGES = {
    "a weight is replaced": (lambda m: put(value_of(m), "weight", value_of(m).weight * 2), True),
    "a weight moves": (lambda m: moved(value_of(m).bias), True),
    "words move": (lambda m: moved(m.embeddings.word_embeddings.weight), True),
    "another dtype at the same place": (reinterpreted, True),
    "a module is exchanged": (
        lambda m: setattr(m.encoder.layer[0].intermediate, "activation", torch.nn.Tanh().eval()),
        True,
    ),
    "a module is added": (lambda m: value_of(m).add_module("more", torch.nn.ReLU().eval()), True),
    "an adapter is added": (adapted, True),
    "a forward of its own": (lambda m: setattr(value_of(m), "forward", torch.zeros_like), False),
    "a hook": (lambda m: value_of(m).register_forward_hook(lambda *a: a[2] * 2), False),
    "a hook before": (
        lambda m: value_of(m).register_forward_pre_hook(lambda _, x: 2 * x[0]),
        False,
    ),
    "a hook of the embeddings": (
        lambda m: m.embeddings.LayerNorm.register_forward_hook(lambda *a: a[2] * 2),
        False,
    ),
    "a dropout acts": (lambda m: m.encoder.layer[0].output.dropout.train(), False),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_model_that_changes_is_captured_anew(change):
    model, graphs = encoder(**ONE)
    autocast = change == "another dtype at the same place"
    if autocast:
        model.float()
        value_of(model).bias.data.fill_(1.5)  # of which halves are 0 and 1.5
    inputs = ragged((8, 8))
    act, again = CHANGES[change]
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        for _ in range(2):
            before, _ = both(model, inputs)
        assert len(graphs.captures) == graphs.captured == 1
        act(model)
        for _ in range(2):
            found, expected = both(model, inputs)
            assert torch.equal(found, expected) if autocast else same(found, expected)
    if change not in ("a dropout acts", "a module is added"):  # of probability 0
        assert not same(found, before)
    assert (len(graphs.captures), graphs.captured) == ((2, 1) if again else (1, 0))


def test_adapters_that_are_merged_or_off_are_noticed():
    model, graphs = encoder(**ONE)
    lora, inputs = adapted(model), ragged((8, 8))
    steps = [lambda: None, lora.merge, lora.unmerge, lambda: lora.enable_adapters(False)]
    for step in steps:
        step()
        for _ in range(3):
            found, expected = both(model, inputs)
            assert same(found, expected)
    assert len(graphs.captures) == len(steps)


@pytest.mark.parametrize("everywhere", [False, True])
def test_a_hook_is_not_captured(everywhere):
    model, graphs = encoder(**ONE)
    inputs, calls = ragged((8,) * 4), []
    for each in (ragged((8, 8)), ragged((8, 8)), inputs):
        both(model, each)
    if everywhere:
        hook = register_module_forward_hook(lambda *_: calls.append(1))
    else:
        hook = value_of(model).register_forward_hook(lambda *_: calls.append(1))
    with hook, torch.no_grad():
        model(**inputs)
    assert calls
    assert not graphs.captured


@pytest.mark.slow
def test_autocast_and_inference_mode_have_graphs_of_their_own():
    model, graphs = encoder(**ONE)
    model.float()
    inputs = ragged((8, 8))
    for _ in range(3):
        with torch.autocast("cpu", torch.bfloat16):
            found, expected = both(model, inputs)
        torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)
        with torch.inference_mode():
            found, expected = both(model, inputs)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-6)
        found, expected = both(model, inputs)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-6)
    assert len(graphs.captures) == 3


@pytest.mark.parametrize(
    "why", ["gradients", "training", "attentions", "states", "hook", "backend"]
)
def test_it_runs_as_before(why):
    model, graphs = encoder(**ONE)
    if why == "backend":
        model.config.attention_backend = "auto"  # which is another one on a CPU
    if why == "training":
        model.train()
    if why == "hook":
        model.encoder.layer[0].output.dense.register_forward_hook(lambda *_: None)
    asked = {"attentions": "output_attentions", "states": "output_hidden_states"}.get(why)
    for _ in range(3):
        with torch.set_grad_enabled(why == "gradients"):
            model(**ragged((8, 8)), **({asked: True} if asked else {}))
    assert not graphs.captures


def test_training_has_the_memory_of_all_graphs():
    model, graphs = encoder("ForSequenceClassification", **ONE)
    for _ in range(2):
        both(model, ragged((8, 8)), "logits")
    assert len(graphs._graphs) == 1
    model.eval()
    assert len(graphs._graphs) == 1
    model.train()
    assert not graphs._graphs


def test_a_capture_that_fails_is_the_last_and_said_once(caplog):
    caplog.set_level(logging.INFO, "ldt")
    model, graphs = encoder(**ONE)
    layer = model.encoder.layer[0]
    layer.intermediate.activation = Waiting().eval()
    layer.intermediate.known = Waiting
    for _ in range(2):
        for lengths in ((8, 8), (8, 8), (20,), (20,)):
            both(model, ragged(lengths))
    assert caplog.messages == [
        "CUDA graphs are off, a capture failed: operation not permitted when stream is capturing"
    ]
    assert not graphs._graphs


class Waiting(torch.nn.Module):
    """An activation that looks at a number on the host."""

    def forward(self, x):
        return x * (1 if x.sum().item() else 2)


def test_what_a_graph_reads_lives_as_long_as_it_does():
    model, graphs = encoder(**ONE)
    for _ in range(2):
        both(model, ragged((8, 8)))
    graphs.captures.clear()
    (captured,) = graphs._graphs.values()
    there = *captured.batch.inputs, captured.batch.cu_seqlens, captured.batch.is_global
    there = [weakref.ref(x) for x in (*there, captured.out, captured.graph)]
    del captured
    gc.collect()
    assert all(ref() is not None for ref in there)
    both(model, ragged((7, 4)))
    graphs.clear()
    assert [ref() for ref in there] == [None] * len(there)


def test_a_copy_of_a_model_has_graphs_of_its_own():
    model, _ = encoder(graphs=RecordedGraphs(48), **ONE)
    for _ in range(2):
        both(model, ragged((8, 8)))
    again = copy.deepcopy(model)
    assert not again.graphs._graphs
    assert again.graphs.largest == 48
    assert pickle.loads(pickle.dumps(module.Graphs(48))).largest == 48


def test_use_graphs_finds_the_encoder_of_a_head():
    model = ldt_model("ForQuestionAnswering")
    assert model.base_model.graphs is None
    use_graphs(model)
    assert isinstance(model.base_model.graphs, module.Graphs)
    assert "graphs" not in vars(model)
