"""The character model against its definition, written out in float64, and what it must not see."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from properties import cases
from torch.nn.functional import gelu, layer_norm
from transformers import AutoConfig, AutoModelForCausalLM

from ldt.attention import Layout
from ldt.errors import ModelError
from ldt.model import LdtCausalConfig, LdtForCausalLM

VOCABULARY = 11
PATTERNS = {
    "one window": {"attention_window": 6},
    "growing, two heads dilated": {
        "attention_window": [4, 8],
        "attention_dilation": [1, [1, 3, 1, 3]],
    },
    "shrinking, every head another gap": {
        "attention_window": [12, 2],
        "attention_dilation": [[1, 2, 3, 4], 2],
    },
    "longer than the text": {"attention_window": 400, "attention_dilation": [[1, 1, 2, 2], 1]},
}
patterns = pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)


def character_model(**changes):
    """A random model in float64 and evaluation mode: two layers, four heads of 4."""
    values = {
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 24,
        "initializer_range": 0.3,
        "hidden_dropout_prob": 0.0,
    }
    model = LdtForCausalLM(LdtCausalConfig(**values | changes)).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += 0.1 * torch.randn_like(parameter)
    return model


def ids(*shape):
    return torch.randint(VOCABULARY, shape)


def wave(distance, width):
    """Sines and cosines of one distance, by Python's own."""
    angles = [distance / 10000 ** (2 * i / width) for i in range(width // 2)]
    return [*map(math.sin, angles), *map(math.cos, angles)]


def per_layer(value, layer):
    return value if isinstance(value, int) else value[layer]


def attended(attention, read, own, window, gaps):
    """The attention of the last ``own`` of the normalised tokens ``read`` [n, width]."""
    n, width = read.shape
    dim = width // attention.heads
    q, k, v = (
        (read @ project.weight.T).view(n, attention.heads, dim)
        for project in (attention.query, attention.key, attention.value)
    )
    rows = []
    for i in range(n - own, n):
        heads = []
        for h in range(attention.heads):
            gap = gaps if isinstance(gaps, int) else gaps[h]
            seen = [i - m * gap for m in range(window // 2 + 1) if i - m * gap >= 0]
            waves = torch.tensor([wave(i - j, width) for j in seen], dtype=torch.float64)
            r = (waves @ attention.position.weight.T).view(len(seen), attention.heads, dim)[:, h]
            scores = k[seen, h] @ (q[i, h] + attention.content_bias[h])
            scores = (scores + r @ (q[i, h] + attention.position_bias[h])) / math.sqrt(dim)
            heads.append(scores.softmax(0) @ v[seen, h])
        rows.append(torch.cat(heads))
    return torch.stack(rows) @ attention.output.weight.T


def normalised(x, norm):
    return layer_norm(x, x.shape[-1:], norm.weight, norm.bias, norm.eps)


def defined(model, text, segment=None):
    """The logits of a text [n], segment after segment, each with the states of the one before."""
    config, out = model.config, []
    size = segment or len(text)
    memory = [torch.empty(0, config.hidden_size, dtype=torch.float64)] * len(model.layers)
    for start in range(0, len(text), size):
        x = model.embeddings.weight[text[start : start + size]] * math.sqrt(config.hidden_size)
        states = []
        for number, layer in enumerate(model.layers):
            states.append(x.detach())
            read = normalised(torch.cat([memory[number], x]), layer.attention_norm)
            window = per_layer(config.attention_window, number)
            gaps = per_layer(config.attention_dilation, number)
            x = x + attended(layer.attention, read, len(x), window, gaps)
            wide = gelu(normalised(x, layer.norm) @ layer.wide.weight.T + layer.wide.bias)
            x = x + wide @ layer.narrow.weight.T + layer.narrow.bias
        out.append(normalised(x, model.norm) @ model.embeddings.weight.T + model.decoder.bias)
        memory = states
    return torch.cat(out)


def gradients(model, logits, up):
    names, parameters = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(logits, parameters, up), strict=True))


def assert_same(model, ours, theirs):
    torch.testing.assert_close(ours, theirs)
    up = torch.randn_like(ours)
    torch.testing.assert_close(gradients(model, ours, up), gradients(model, theirs, up))


@pytest.mark.parametrize("backend", ["reference", "blocked"])
@patterns
def test_logits_and_gradients_are_those_of_the_definition(pattern, backend):
    model, text = character_model(**pattern, attention_backend=backend), ids(1, 21)
    assert_same(model, model(text).logits[0], defined(model, text[0]))


def test_gradients_do_not_flow_through_the_memory_and_outputs_do_not_change():
    pattern = PATTERNS["growing, two heads dilated"]
    model, text = character_model(**pattern, memory_length=12), ids(2, 29)
    mask = torch.ones_like(text)
    mask[1, :3] = 0

    def read(memory_length):
        model.config.memory_length = memory_length
        out = model(text, attention_mask=mask).logits
        return torch.cat([out[0], out[1, 3:]])

    theirs = torch.cat([defined(model, text[0], 12), defined(model, text[1, 3:], 12)])
    assert_same(model, read(12), theirs)
    torch.testing.assert_close(read(0), read(12))
    up = torch.randn_like(theirs)
    cut, whole = (gradients(model, read(length), up)["layers.0.wide.weight"] for length in (12, 0))
    assert not torch.allclose(cut, whole)


def test_a_text_is_not_changed_by_its_batch_nor_by_padding():
    model = character_model(**PATTERNS["growing, two heads dilated"])
    text, mask = ids(3, 17), torch.ones(3, 17, dtype=torch.long)
    mask[0, 11:], mask[1, :5], mask[2, 9:] = 0, 0, 0
    out = model(text, attention_mask=mask).logits
    for row in range(3):
        real = mask[row].bool()
        torch.testing.assert_close(out[row, real], model(text[row][real][None]).logits[0])
        assert not out[row, ~real].any()


@cases(30)
@given(st.data())
def test_a_character_changes_no_earlier_logit(data):
    draw = data.draw
    layers, n = draw(st.integers(1, 3)), draw(st.integers(2, 150))
    gap = st.integers(1, 4)
    windows = [draw(st.sampled_from([2, 4, 10, 64, 300])) for _ in range(layers)]
    gaps = [draw(st.one_of(gap, st.lists(gap, min_size=4, max_size=4))) for _ in range(layers)]
    torch.manual_seed(draw(st.integers(0, 99)))
    memory = draw(st.sampled_from([0, 600]))
    model = character_model(
        num_hidden_layers=layers,
        attention_window=windows,
        attention_dilation=gaps,
        memory_length=memory,
    )
    text, mask = ids(2, n), torch.ones(2, n, dtype=torch.long)
    mask[1, : draw(st.integers(0, n - 1))] = 0
    place = draw(st.integers(0, n - 1))
    other = text.clone()
    other[0, place] = (other[0, place] + 1) % VOCABULARY
    before, after = (model(x, attention_mask=mask).logits for x in (text, other))
    assert torch.equal(before[0, :place], after[0, :place])
    assert not torch.equal(before[0, place], after[0, place])
    assert torch.equal(before[1], after[1])


@patterns
def test_going_on_from_a_past_gives_the_logits_of_the_whole(pattern):
    model, text = character_model(**pattern), ids(2, 33)
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[1, :4] = 0
    full = model(text[:1]).logits, model(text[1:, 4:]).logits
    with torch.no_grad():
        out = model(text[:, :9], attention_mask=mask, use_cache=True)
        logits, past = [out.logits], out.past_key_values
        for start, end in ((9, 10), (10, 11), (11, 16), (16, 17), (17, 33)):
            logits.append(model(text[:, start:end], past_key_values=past).logits)
    logits = torch.cat(logits, 1)
    torch.testing.assert_close(logits[0], full[0][0])
    torch.testing.assert_close(logits[1, 4:], full[1][0])


def test_a_past_is_no_longer_than_the_windows_reach():
    model = character_model(**PATTERNS["growing, two heads dilated"])
    with torch.no_grad():
        past = model(ids(1, 50), use_cache=True).past_key_values
        for _ in range(40):
            model(ids(1, 1), past_key_values=past)
    assert [layer.last[0].shape[1] for layer in past.layers] == [2, 12]
    assert past.keep.shape == (1, 12)


def test_the_loss_is_that_of_each_next_character():
    model, text = character_model(attention_window=6), ids(2, 9)
    mask = torch.ones_like(text)
    mask[1, 6:] = 0
    labels = text.masked_fill(mask == 0, -100)
    labels[0, 4] = -100
    logits = model(text, attention_mask=mask).logits.log_softmax(-1)
    pairs = [(0, t) for t in range(1, 9) if t != 4] + [(1, t) for t in range(1, 6)]
    nats = [-logits[row, t - 1, text[row, t]] for row, t in pairs]
    out = model(text, attention_mask=mask, labels=labels)
    torch.testing.assert_close(out.loss, torch.stack(nats).mean())
    of_step = model(text, attention_mask=mask, labels=labels, num_items_in_batch=torch.tensor(40))
    torch.testing.assert_close(of_step.loss, torch.stack(nats).sum() / 40)
    few = model(text, attention_mask=mask, labels=labels, at_labels=True)
    torch.testing.assert_close(few.loss, out.loss)
    expected = torch.stack([out.logits[row, t - 1] for row, t in pairs])
    torch.testing.assert_close(few.logits, expected)


def test_a_label_behind_padding_does_not_count():
    model, text = character_model(attention_window=6), ids(1, 8)
    mask = torch.ones_like(text)
    mask[0, [0, 3]] = 0
    logits = model(text, attention_mask=mask).logits.log_softmax(-1)
    nats = [-logits[0, t - 1, text[0, t]] for t in (2, 5, 6, 7)]
    loss = model(text, attention_mask=mask, labels=text).loss
    torch.testing.assert_close(loss, torch.stack(nats).mean())


def test_every_part_of_a_layer_drops_before_its_residual():
    """Where dropout takes everything, the residual is left."""
    model = character_model(hidden_dropout_prob=1.0).train()
    x, calls = torch.randn(9, model.config.hidden_size, dtype=torch.float64), []
    for layer in model.layers:
        layer.dropout.register_forward_hook(lambda *_: calls.append(0))
        assert torch.equal(layer(x, Layout(torch.tensor([0, 9])))[0], x)
    assert len(calls) == 3 * len(model.layers)  # the output, the activation, the wide part


def test_gradient_checkpointing_changes_nothing():
    pattern = PATTERNS["growing, two heads dilated"] | {"memory_length": 12}
    dropout = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.2}
    model, text = character_model(**pattern, **dropout).train(), ids(2, 30)

    def run():
        torch.manual_seed(5)
        loss = model(text, labels=text).loss
        return loss, gradients(model, loss, torch.ones_like(loss))

    plain = run()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    torch.testing.assert_close(run(), plain)


def test_the_papers_sizes_have_the_papers_parameters():
    sizes = {}
    for layers in (12, 30):
        with torch.device("meta"):
            config = LdtCausalConfig(vocab_size=27, num_hidden_layers=layers)
            sizes[layers] = round(LdtForCausalLM(config).num_parameters() / 1e6)
    assert sizes == {12: 41, 30: 102}


@pytest.mark.parametrize("tied", [True, False])
def test_a_saved_model_is_loaded_as_it_was(tied, tmp_path):
    changes = PATTERNS["growing, two heads dilated"] | {"tie_word_embeddings": tied}
    model, text = character_model(**changes), ids(1, 12)
    model.save_pretrained(tmp_path)
    assert isinstance(AutoConfig.from_pretrained(tmp_path), LdtCausalConfig)
    for cls in (AutoModelForCausalLM, LdtForCausalLM):
        again = cls.from_pretrained(tmp_path, dtype=torch.float64)
        assert torch.equal(again.eval()(text).logits, model(text).logits)
        assert (again.decoder.weight is again.embeddings.weight) == tied


def test_a_folder_without_all_weights_is_refused(tmp_path):
    model = character_model()
    weights = model.state_dict()
    del weights["layers.1.attention.position.weight"]
    model.save_pretrained(tmp_path, state_dict=weights)
    with pytest.raises(ModelError, match=r"layers\.1\.attention\.position\.weight"):
        LdtForCausalLM.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"attention_window": 5}, "even"),
        ({"attention_window": [4, 8], "memory_length": 3}, "at least 4"),
        ({"attention_backend": "triton"}, "auto, reference, blocked"),
        ({"hidden_size": 18}, "multiple of num_attention_heads"),
        ({"attention_dilation": [1, [1, 2]]}, "4 heads"),
    ],
)
def test_numbers_that_do_not_go_together_are_told(changes, words):
    with pytest.raises(ValueError, match=words):
        character_model(**changes)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"input_ids": torch.zeros(1, 0, dtype=torch.long)}, "at least one token"),
        ({"input_ids": torch.tensor([[3, VOCABULARY]])}, "0 to 10, got 11"),
        ({"input_ids": torch.tensor([[1, 2]]), "labels": torch.tensor([[1]])}, "labels must have"),
        (
            {
                "input_ids": torch.tensor([[1, 2]]),
                "attention_mask": torch.tensor([[1, 0]]),
                "use_cache": True,
            },
            "pad on the left",
        ),
    ],
)
def test_inputs_that_cannot_be_used_are_told(arguments, words):
    with pytest.raises(ValueError, match=words):
        character_model(attention_window=4)(**arguments)
