"""peft's own adapters on ldt's models: targets, figures, folders of adapters as models."""

import json
import subprocess
import sys

import peft
import pytest
import torch
from longformers import batch, ldt_model
from safetensors.torch import load_file, save_file
from torch.nn.utils.stateless import _reparametrize_module

from ldt.errors import ModelError
from ldt.model import LdtCausalConfig, LdtForCausalLM, LdtForSequenceClassification, load
from ldt.model.adapters import PROJECTIONS

POOLED = {"pooling_layers": [1], "pooling_window": 16}
TARGETS = [None, list(PROJECTIONS), "all-linear"]


@pytest.fixture
def base(tmp_path):
    model = ldt_model("ForSequenceClassification", initializer_range=0.1)
    model.save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def adapted(model, targets=None, **options):
    """The model with random adapters, in evaluation mode."""
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=targets, **options)
    made = peft.get_peft_model(model, config)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn_like(parameter) / 4)
    return made.eval()


def weights_with_adapters(made):
    """{name in the base: weight, W + 2 B A where there is an adapter}, with the gradient to it."""
    weights = {}
    for name, module in made.get_base_model().named_modules():
        if isinstance(module, peft.tuners.lora.Linear):
            up, down = module.lora_B["default"].weight, module.lora_A["default"].weight
            weights[f"{name}.weight"] = module.base_layer.weight + 2 * up @ down
            weights[f"{name}.bias"] = module.base_layer.bias
    assert len(weights) >= 2 * 12
    rest = made.get_base_model().named_parameters()
    return {name: x for name, x in rest if "_layer." not in name and "lora_" not in name} | weights


@pytest.mark.slow
def test_peft_is_not_imported_by_ldt():
    code = "import sys, ldt.model; ldt.model.LdtConfig().to_dict(); print('peft' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"


@pytest.mark.parametrize("kind", ["encoder", "characters"])
def test_without_targets_all_projections_are_adapted(kind):
    if kind == "encoder":
        model, names = ldt_model("ForMaskedLM"), set(PROJECTIONS)
    else:
        config = LdtCausalConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
        model, names = LdtForCausalLM(config), set(PROJECTIONS[:3])
    made = peft.get_peft_model(model, peft.LoraConfig())
    trained = {name for name, x in made.named_parameters() if x.requires_grad}
    assert {name.split(".")[-4] for name in trained} == names


@pytest.mark.parametrize("changes", [{}, POOLED], ids=["longformer", "poolingformer"])
@pytest.mark.parametrize("targets", TARGETS, ids=["default", "six", "all-linear"])
def test_figures_and_gradients_are_those_of_the_dense_model_with_adapted_weights(targets, changes):
    model = ldt_model("ForSequenceClassification", **changes).double()
    made = adapted(model, targets).double()
    dense = ldt_model("ForSequenceClassification", attention_backend="reference", **changes)
    dense = dense.double()
    leaves = [x for name, x in made.named_parameters() if "lora_" in name]
    for globals_ in ("default", "some", "all"):
        inputs, weights = batch(37, "mixed", globals_), weights_with_adapters(made)
        assert weights.keys() == dict(dense.named_parameters()).keys()
        found = made(**inputs).logits
        grads = torch.autograd.grad(found.pow(2).sum(), leaves, materialize_grads=True)
        # Until the backward pass is over: a second level is computed again in it.
        with _reparametrize_module(dense, weights):
            expected = dense(**inputs).logits
            states = dense(**inputs, output_attentions=True)
            others = torch.autograd.grad(expected.pow(2).sum(), leaves, materialize_grads=True)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)
        same = made(**inputs, output_attentions=True).global_attentions
        torch.testing.assert_close(same, states.global_attentions)
        for ours, theirs in zip(grads, others, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("targets", TARGETS, ids=["default", "six", "all-linear"])
def test_saved_read_back_and_merged_are_equal(base, tmp_path, targets):
    made = adapted(LdtForSequenceClassification.from_pretrained(base), targets)
    inputs = batch(40, "right", "default")
    expected = made(**inputs).logits
    made.save_pretrained(tmp_path / "adapter")
    plain = LdtForSequenceClassification.from_pretrained(base)
    again = peft.PeftModel.from_pretrained(plain, tmp_path / "adapter").eval()
    assert torch.equal(again(**inputs).logits, expected)
    ours = LdtForSequenceClassification.from_pretrained(tmp_path / "adapter")
    merged = made.merge_and_unload()
    for model in (merged, ours):
        assert (model(**inputs).logits - expected).abs().max() < 1e-6
    assert not any("lora" in name for name, _ in ours.named_parameters())
    assert all(x.requires_grad for x in ours.parameters())
    ours.save_pretrained(tmp_path / "whole")
    whole = load(tmp_path / "whole", LdtForSequenceClassification)
    assert torch.equal(whole(**inputs).logits, ours(**inputs).logits)


def test_an_adapted_position_map_of_a_character_model_is_not_passed_over():
    torch.manual_seed(0)
    config = LdtCausalConfig(
        vocab_size=20,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        attention_window=8,
        attention_dilation=[1, [1, 2]],
    )
    model, ids = LdtForCausalLM(config).double().eval(), torch.randint(0, 20, (2, 30))
    plain = model(input_ids=ids).logits
    made = adapted(model, ["position"]).double()
    found = made(input_ids=ids).logits
    assert (found - plain).abs().max() > 1e-5
    torch.testing.assert_close(found, made.merge_and_unload()(input_ids=ids).logits)


def damaged(adapter, change):
    file = adapter / "adapter_model.safetensors"
    weights = load_file(file)
    change(weights)
    save_file(weights, file)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda weights: weights.popitem(), "the adapter lacks weights: base_model"),
        (
            lambda weights: weights.update({"base_model.model.x.lora_A.weight": torch.ones(1)}),
            "the adapter has weights without a place: base_model.model.x",
        ),
        (lambda weights: next(iter(weights.values())).fill_(torch.nan), "adapter"),
    ],
    ids=["missing", "unknown", "nan"],
)
def test_an_adapter_that_is_not_whole_is_refused(base, tmp_path, change, message):
    made = adapted(load(base, LdtForSequenceClassification))
    made.save_pretrained(tmp_path / "adapter")
    damaged(tmp_path / "adapter", change)
    with pytest.raises(ModelError, match=message):
        load(tmp_path / "adapter", LdtForSequenceClassification)


def test_an_adapter_of_another_size_or_cut_off_is_refused(base, tmp_path):
    other = ldt_model("ForSequenceClassification", hidden_size=32)
    adapted(other).save_pretrained(tmp_path / "adapter")
    file = tmp_path / "adapter" / "adapter_config.json"
    file.write_text(
        json.dumps(json.loads(file.read_text()) | {"base_model_name_or_path": str(base)})
    )
    with pytest.raises(ModelError, match="adapter: the adapter cannot be read"):
        load(tmp_path / "adapter", LdtForSequenceClassification)
    (tmp_path / "adapter" / "adapter_model.safetensors").write_bytes(b"x" * 99)
    with pytest.raises(ModelError, match="adapter: the adapter cannot be read"):
        load(tmp_path / "adapter", LdtForSequenceClassification)
    file.write_text("{}")
    with pytest.raises(ModelError, match="no base_model_name_or_path, which names"):
        load(tmp_path / "adapter", LdtForSequenceClassification)


def test_without_peft_an_adapter_says_what_to_install(base, tmp_path, monkeypatch):
    adapted(load(base, LdtForSequenceClassification)).save_pretrained(tmp_path / "adapter")
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ModelError, match=r"takes peft: pip install 'ldt-toolkit\[lora\]'$"):
        load(tmp_path / "adapter", LdtForSequenceClassification)
