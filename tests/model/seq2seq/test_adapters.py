"""LoRA and lower precision of an encoder-decoder."""

import peft
import pytest
import torch
from leds import documents, led, targets

from ldt.model import LdtForConditionalGeneration
from ldt.model.adapters import OF_DECODERS, PROJECTIONS
from ldt.model.precision import lower
from ldt.training import lora


@pytest.fixture
def base(tmp_path):
    led(init_std=0.1).save_pretrained(tmp_path / "base")
    return LdtForConditionalGeneration.from_pretrained(tmp_path / "base")


def logits(model):
    torch.manual_seed(3)
    return model(**documents(21, "right"), labels=targets((5, 7, 6, 2))).logits


def adapted(model):
    made = peft.get_peft_model(model, peft.LoraConfig(r=4))
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn_like(parameter) / 4)
    return made.eval()


def test_the_projections_of_both_halves_are_adapted_by_default(base):
    made = peft.get_peft_model(base, peft.LoraConfig())
    trained = {name for name, x in made.named_parameters() if x.requires_grad}
    assert {name.split(".")[-4] for name in trained} == {*PROJECTIONS, *OF_DECODERS}


def test_a_folder_of_an_adapter_loads_as_a_model(base, tmp_path):
    made = adapted(base)
    expected = logits(made)
    made.save_pretrained(tmp_path / "adapter")
    ours = LdtForConditionalGeneration.from_pretrained(tmp_path / "adapter")
    assert (logits(ours) - expected).abs().max() < 1e-5
    assert not any("lora" in name for name, _ in ours.named_parameters())


def test_beams_read_a_document_through_its_adapters(base):
    made = adapted(base)
    inputs = documents(21, "right")
    found = made.generate(**inputs, num_beams=3, max_length=12)
    expected = made.merge_and_unload().generate(**inputs, num_beams=3, max_length=12)
    assert torch.equal(found, expected)


def test_tied_words_are_no_head(base):
    assert lora.head_modules(base) == []
    assert lora._words(base) == "shared"


def test_lower_precision_is_bf16_and_int8_says_so(base):
    with pytest.raises(ValueError, match="int8 is for encoders, not for LdtForConditional"):
        lower(base, "int8")
    expected = base.generate(**documents(21), max_length=9).shape
    lower(base, "bf16")
    assert base.generate(**documents(21), max_length=9).shape == expected
