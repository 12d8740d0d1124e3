"""Encoders with a second level: against the dense definition, saved, compiled, checkpointed."""

import pytest
import torch
import transformers
from longformers import (
    batch,
    ldt_config,
    ldt_model,
    reconfigured,
)

import ldt.attention
from ldt.attention import POOLINGS, Layout
from ldt.errors import ModelError
from ldt.model import LdtConfig, LdtModel, load
from ldt.model.config import upper_middle_layers
from ldt.model.pooling import GATE_SCALE

SECOND = {"pooling_layers": [1], "pooling_window": 16}


def model(head="Model", **changes):
    """A random model whose second level matters: its gates and pooling weights are not zero."""
    made = ldt_model(head, **SECOND | changes)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if name.endswith("pooled.weight"):
                parameter += torch.randn_like(parameter)
            if name.endswith("pooled.gate"):
                parameter.fill_(1 / GATE_SCALE)
    return made


def twin(other, **changes):
    """A model of the same weights, as far as it has a place for them."""
    made = type(other)(LdtConfig.from_dict(other.config.to_dict() | changes)).to(other.dtype)
    made.load_state_dict(other.state_dict(), strict=not changes.keys() - {"attention_backend"})
    return made.eval()


def state(made, inputs):
    return made(**inputs).last_hidden_state


VARIANTS = [
    *({"pooling": name} for name in POOLINGS),
    {"pooling_input": "embeddings"},
    {"pooling_share_weights": True},
    {"pooling_gate": True, "pooling_layers": [0, 1]},
    {"pooling_size": 3, "pooling_stride": 5, "pooling_window": 4},
]


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
@pytest.mark.parametrize("globals_", ["none", "some"])
def test_every_variant_equals_the_dense_definition(changes, globals_):
    ours = model(**changes).double()
    dense = twin(ours, attention_backend="reference")
    inputs = batch(33, "mixed", globals_)
    expected = state(dense, inputs)
    assert (state(ours, inputs) - expected).abs().max() < 1e-12
    plain = twin(ours, pooling_layers=[])
    real = inputs["attention_mask"].bool()
    assert ((state(plain, inputs) - expected)[real].abs().amax(-1) > 1e-6).float().mean() > 0.5


def test_the_layer_is_what_its_docstring_says():
    made = model(pooling_layers=[0], num_hidden_layers=1, attention_window=[4]).double()
    attention = made.encoder.layer[0].attention.self
    second = attention.pooled
    docs = Layout(torch.tensor([0, 30]), None, torch.arange(30) == 7)
    x = torch.randn(30, 16, dtype=torch.float64)
    out, _, _ = attention(x, docs)
    attention.pooled = None
    first, _, _ = attention(x, docs)
    q, k, v = (
        (first @ p.weight.T + p.bias).view(30, 2, 8)
        for p in (second.query, second.key, second.value)
    )
    z = torch.zeros(30, 2, 8, dtype=torch.float64)
    starts = range(0, 30, 4)
    for h in range(2):
        cells = []
        for start in starts:
            places = range(min(5, 30 - start))
            centre = v[start + 2, h] if start + 2 < 30 else torch.zeros(8, dtype=torch.float64)
            share = torch.stack([second.weight[h, p] @ centre for p in places]).softmax(0)
            cells.append([sum(share[p] * y[start + p, h] for p in places) for y in (k, v)])
        for i in range(30):
            near = [c for c, start in zip(cells, starts, strict=True) if abs(start + 2 - i) <= 8]
            share = torch.stack([q[i, h] @ key / 8**0.5 for key, _ in near]).softmax(0)
            z[i, h] = sum(s * value for s, (_, value) in zip(share, near, strict=True))
    z[7] = 0
    torch.testing.assert_close(out, first + z.flatten(1))
    second.gate = torch.nn.Parameter(torch.tensor([0.0, 0.02]).double())
    attention.pooled = second
    z[:, 0] = 0
    torch.testing.assert_close(attention(x, docs)[0], first + 2 * z.flatten(1))


@pytest.mark.parametrize("reads", ["first_level", "embeddings"])
@pytest.mark.parametrize("shared", [False, True])
def test_mix_and_weight_sharing_are_what_the_config_says(reads, shared, monkeypatch):
    made = model(pooling_input=reads, pooling_share_weights=shared)
    attention = made.encoder.layer[1].attention.self
    seen = []

    def spy(*args, **how):
        seen.extend(project() for project in args[:3])
        return torch.zeros_like(seen[0])

    monkeypatch.setattr("ldt.model.pooling.pooled_attention", spy)
    x, docs = torch.randn(20, 16), Layout(torch.tensor([0, 20]))
    first, _, _ = attention(x, docs)
    source = {"first_level": first, "embeddings": x}[reads]
    owner = attention if shared else attention.pooled
    for found, project in zip(seen, (owner.query, owner.key, owner.value), strict=True):
        torch.testing.assert_close(found.flatten(1), project(source))
    assert any(name.startswith("query.") for name in attention.pooled.state_dict()) != shared


def test_a_gate_of_zero_is_the_plain_longformer():
    made = model(pooling_gate=True)
    torch.nn.init.zeros_(made.encoder.layer[1].attention.self.pooled.gate)
    inputs = batch(33, "mixed", "some")
    plain = twin(made, pooling_layers=[])
    assert torch.equal(state(made, inputs), state(plain, inputs))
    summed = twin(made, pooling_gate=False)
    assert (state(summed, inputs) - state(plain, inputs)).abs().max() > 0.01


def test_without_pooling_layers_it_is_a_longformer_by_name_and_number():
    names = [name for name, _ in ldt_model("Model").named_parameters()]
    assert not any("pooled" in name for name in names)
    more = [name for name, _ in model(pooling_gate=True).named_parameters()]
    prefix = "encoder.layer.1.attention.self.pooled."
    linear = [f"{name}.{part}" for name in ("query", "key", "value") for part in ("weight", "bias")]
    assert set(more) - set(names) == {prefix + n for n in ("weight", "gate", *linear)}
    shared = model(pooling_share_weights=True, pooling="mean").named_parameters()
    assert [name for name, _ in shared] == names


def test_the_gradient_opens_a_gate_of_zero():
    made = model(pooling_gate=True).train()
    gate = made.encoder.layer[1].attention.self.pooled.gate
    torch.nn.init.zeros_(gate)
    state(made, batch(33)).square().sum().backward()
    assert gate.grad.all()


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_saved_model_comes_back_through_the_auto_classes(pooling, tmp_path):
    made = model("ForSequenceClassification", pooling=pooling, pooling_gate=True)
    made.save_pretrained(tmp_path)
    inputs = batch(21, "right", "one")
    for again in (
        load(tmp_path, type(made)),
        transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path).eval(),
    ):
        assert type(again) is type(made)
        assert again.new_weights == ()
        assert again.config.pooling_layers == [1]
        assert torch.equal(again(**inputs).logits, made(**inputs).logits)


def test_a_second_level_that_is_missing_or_without_a_place_is_refused(tmp_path):
    model().save_pretrained(tmp_path)
    reconfigured(tmp_path, pooling_layers=[])
    with pytest.raises(ModelError, match="without a place .*layer.1.attention.self.pooled"):
        load(tmp_path, LdtModel)
    reconfigured(tmp_path, pooling_layers=[0, 1])
    with pytest.raises(ModelError, match="encoder weights are missing: .*layer.0.*pooled"):
        load(tmp_path, LdtModel)
    reconfigured(tmp_path, pooling_layers=[1], pooling_size=7)
    with pytest.raises(ModelError, match="weights of another shape: .*pooled.weight"):
        load(tmp_path, LdtModel)


@pytest.mark.parametrize("training", ["checkpointed", "eager"])
def test_both_levels_and_all_layers_drop_by_seeds_of_their_own(training, monkeypatch):
    made = model(attention_probs_dropout_prob=0.5, pooling_layers=[0, 1]).train()
    blocked, seeds = ldt.attention.blocked, []
    for module, name in (
        (blocked, "sliding_window_attention"),
        (blocked, "global_attention"),
        (blocked, "cell_attention"),
    ):
        real = getattr(module, name)

        def spy(*args, name=name, real=real, **how):
            seeds.append((name, int(how["seed"])))
            return real(*args, **how)

        monkeypatch.setattr(module, name, spy)
    with torch.set_grad_enabled(training == "checkpointed"):
        made(**batch(21, globals_="some"))
    assert [name for name, _ in seeds] == 2 * [
        "sliding_window_attention",
        "global_attention",
        "cell_attention",
    ]
    windows, rows, cells = ([seed for _, seed in seeds[first::3]] for first in range(3))
    assert len({*windows, *cells}) == 4
    assert rows == windows  # of other queries: those rows are masked in the windows


def test_the_papers_layers_are_a_quarter_in_the_upper_middle():
    assert upper_middle_layers(24) == [14, 15, 16, 17, 18, 19]
    assert upper_middle_layers(12) == [7, 8, 9]
    assert [upper_middle_layers(n) for n in (1, 2, 6)] == [[0], [0], [4]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pooling_layers": [2]}, r"different numbers of layers, 0 to 1, got \[2\]"),
        ({"pooling_layers": [-1]}, r"0 to 1, got \[-1\]"),
        ({"pooling_layers": [1, 1]}, r"different numbers .* got \[1, 1\]"),
        ({"pooling": "median"}, "pooling must be ldconv, .*, max, conv, got 'median'"),
        ({"pooling_window": 9}, "pooling_window must be even and at least 2, got 9"),
        ({"pooling_size": 0}, "pooling_size must be at least 1, got 0"),
        ({"pooling_stride": 0}, "pooling_stride must be at least 1, got 0"),
        ({"pooling_layers": [1], "causal": True}, "would see the future in its own cell"),
    ],
)
def test_numbers_that_do_not_go_together_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        ldt_config(**changes).check()
