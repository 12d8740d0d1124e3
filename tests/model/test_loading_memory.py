"""What loading takes of memory, and what becomes of a model whose file changes."""

import json
import os
import subprocess
import sys

import pytest
import torch
from leds import led
from longformers import batch, ldt_model, longformer, to_bin, to_bin_shards, to_shards
from safetensors.torch import load_file, save_file

from ldt.errors import ModelError
from ldt.inference.measure import STATUS
from ldt.model import (
    LdtConfig,
    LdtForCausalLM,
    LdtForConditionalGeneration,
    LdtForMaskedLM,
    LdtForSequenceClassification,
    LdtModel,
    load,
)
from ldt.model.config import LdtCausalConfig

linux = pytest.mark.skipif(not STATUS.exists(), reason="memory is told by Linux alone")

MEASURE = """
import json, sys
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from ldt.inference.measure import peak_mib
from ldt.model import LdtForMaskedLM, load

WAYS = {
    "load": partial(load, cls=LdtForMaskedLM),
    "from_pretrained": LdtForMaskedLM.from_pretrained,
    "mapped": partial(load, cls=LdtForMaskedLM, mapped=True),
}

def private():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("Anonymous"))

def measured(way):
    small, large = sys.argv[1:]
    kept, before = [WAYS[way](small)], private()
    peak = peak_mib(lambda: kept.append(WAYS[way](large)), lambda: None)
    return peak, private() - before

if __name__ == "__main__":
    with get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        print(json.dumps(dict(zip(WAYS, pool.map(measured, WAYS, chunksize=1)))))
"""
WIDE = {
    "vocab_size": 6000,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_attention_heads": 8,
    "num_hidden_layers": 4,
    "attention_window": 8,
    "max_position_embeddings": 66,
}


def old_bin(folder):
    """The weights of ``folder`` as torch wrote them before its version 1.6."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)


def is_mapped(file):
    with open("/proc/self/maps") as maps:
        return str(file) in maps.read()


def state(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert tensor.dtype == other[name].dtype
        assert torch.equal(tensor, other[name]), name


@pytest.mark.slow
@linux
@pytest.mark.parametrize("form", [lambda folder: None, to_bin], ids=["safetensors", "bin"])
def test_loading_takes_the_weights_once_and_a_mapped_file_nearly_nothing(form, tmp_path):
    ldt_model("ForMaskedLM").save_pretrained(tmp_path / "small")
    LdtForMaskedLM(LdtConfig(**WIDE)).save_pretrained(tmp_path / "large")
    for name in ("small", "large"):
        form(tmp_path / name)
    size = max(file.stat().st_size for file in (tmp_path / "large").iterdir()) / 2**20
    assert size > 50
    script = tmp_path / "measure.py"
    script.write_text(MEASURE)
    command = [sys.executable, script, tmp_path / "small", tmp_path / "large"]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    for way in ("load", "from_pretrained"):
        peak, private = found[way]
        assert 0.95 * size < private <= peak <= 1.1 * size, found
    assert found["mapped"][1] <= 0.3 * size, found


@pytest.mark.parametrize(
    "form",
    [lambda folder: None, to_shards, to_bin, to_bin_shards, old_bin],
    ids=["safetensors", "shards", "bin", "bin shards", "old bin"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_mapped_or_not_the_weights_are_those_of_the_file(form, dtype, folder):
    theirs = load_file(folder / "model.safetensors")
    form(folder)
    for mapped in (False, True):
        assert_same(
            load(folder, LdtModel, mapped=mapped, dtype=dtype).state_dict(),
            {name: tensor.to(dtype) for name, tensor in theirs.items()},
        )


def test_mapped_weights_of_an_encoder_decoder_stay_tied(tmp_path):
    theirs = led()
    theirs.save_pretrained(tmp_path)
    expected = load(tmp_path, LdtForConditionalGeneration)
    model = load(tmp_path, LdtForConditionalGeneration, mapped=True)
    assert_same(model.state_dict(), expected.state_dict())
    assert torch.equal(model.get_input_embeddings().weight, theirs.get_input_embeddings().weight)
    assert model.lm_head.weight is model.get_input_embeddings().weight


@pytest.mark.parametrize("form", [lambda folder: None, to_bin], ids=["safetensors", "bin"])
def test_what_is_read_lies_as_torch_lays_it(form, folder):
    form(folder)
    for size in range(0, 640, 16):  # other places of the heap
        kept = bytes(size), load(folder, LdtModel)
        assert {weight.data_ptr() % 64 for weight in kept[1].parameters()} == {0}


@linux
def test_only_a_mapped_model_holds_its_file(folder, tmp_path):
    file = folder / "model.safetensors"
    character = tmp_path / "characters"
    config = LdtCausalConfig(vocab_size=20, hidden_size=16, num_hidden_layers=1)
    LdtForCausalLM(config).save_pretrained(character)
    for mapped in (False, True):
        kept = [
            load(folder, LdtModel, mapped=mapped),
            load(character, LdtForCausalLM, mapped=mapped),
        ]
        assert is_mapped(file) == is_mapped(character / "model.safetensors") == mapped
        del kept
    kept = LdtModel.from_pretrained(folder)
    assert not is_mapped(file)
    assert not kept.training


@linux
def test_a_mapped_model_stays_as_it_was_when_its_file_is_replaced(folder):
    file, inputs = folder / "model.safetensors", batch(21, "right", "some")
    model = load(folder, LdtModel, mapped=True)
    before, answer = state(model), model(**inputs).last_hidden_state
    other = longformer("Model").state_dict()
    assert not torch.equal(other["pooler.dense.weight"], before["pooler.dense.weight"])
    save_file(other, folder / "new", metadata={"format": "pt"})
    os.replace(folder / "new", file)
    assert is_mapped(f"{file} (deleted)")
    assert_same(model.state_dict(), before)
    assert torch.equal(model(**inputs).last_hidden_state, answer)


def test_a_model_with_copies_stays_as_it_was_when_its_file_is_written_to(folder):
    file = folder / "model.safetensors"
    kept = load(folder, LdtModel), LdtModel.from_pretrained(folder)
    before = state(kept[0])
    with file.open("r+b") as opened:
        opened.write(bytes(file.stat().st_size))
    for model in kept:
        assert_same(model.state_dict(), before)


def test_writing_to_a_mapped_model_leaves_the_file_alone(folder):
    file = folder / "model.safetensors"
    content = file.read_bytes()
    model = load(folder, LdtModel, mapped=True)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(1)
    assert file.read_bytes() == content


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_weight_that_is_not_finite_is_refused(value, mapped, folder):
    weights = load_file(folder / "model.safetensors")
    weights["pooler.dense.weight"][3, 5] = value
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"pooler\.dense\.weight holds numbers that are not fin"):
        load(folder, LdtModel, mapped=mapped)


def test_large_weights_whose_sum_is_not_finite_are_taken(folder):
    weights = load_file(folder / "model.safetensors")
    weights["pooler.dense.weight"][:] = 3e38
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert load(folder, LdtModel).pooler.dense.weight.isfinite().all()


@linux
def test_a_model_is_mapped_to_answer_and_read_to_be_trained(tiny_longformer, tmp_path):
    from classified import make_run

    from ldt.inference.engine import read_recipe
    from ldt.inference.predictor import EncoderPredictor

    make_run(tiny_longformer, tmp_path)
    file = tmp_path / "model.safetensors"
    predictor = EncoderPredictor(tmp_path, read_recipe(tmp_path))
    assert is_mapped(file)
    del predictor
    trained = load(tmp_path, LdtForSequenceClassification)
    assert not is_mapped(file)
    assert trained.new_weights == ()
