"""Small text, a tokenizer and a model for the tests of pretraining."""

import random
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from ldt.model import LdtConfig, LdtForMaskedLM
from ldt.recipe import recipe as recipes

WORDS = "the party of first part and other agree that this agreement ends".split()


def text(rng, size):
    return " ".join(rng.choice(WORDS) for _ in range(size))


@pytest.fixture
def text_place(tmp_path, monkeypatch, one_library):
    """The current directory, with 24 lines of text to train on and 6 to evaluate on."""
    monkeypatch.chdir(tmp_path)
    rng = random.Random(0)
    for name, count in (("train.txt", 24), ("dev.txt", 6)):
        lines = [text(rng, rng.choice([3, 20, 60])) for _ in range(count)]
        Path(name).write_text("\n".join(lines) + "\n")
    return tmp_path


@pytest.fixture(scope="session")
def tokenizer(tokenizer_folder):
    return AutoTokenizer.from_pretrained(tokenizer_folder)


@pytest.fixture(scope="session")
def masked_lm(tmp_path_factory, tokenizer):
    """A random masked LM of 128 tokens, window 8, whose global projections are copies."""
    from ldt.training.masked_lm import copy_local_to_global

    config = LdtConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        attention_window=[8, 8],
        max_position_embeddings=130,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
        bos_token_id=0,
        pad_token_id=1,
        eos_token_id=2,
        sep_token_id=2,
    )
    folder = tmp_path_factory.mktemp("masked_lm")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LdtForMaskedLM(config)
    copy_local_to_global(model)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def pretraining_recipe(text_place, masked_lm):
    """Makes a recipe of 6 steps of 2 inputs of 64 tokens, a checkpoint every 2 steps."""

    def make(*overrides):
        Path("r.yaml").write_text(
            f"""
task: {{name: mlm}}
model: {{path: {masked_lm}}}
data: {{train: train.txt, eval: dev.txt, document_unit: line, max_length: 64, tokens_per_step: 128}}
training:
  max_steps: 6
  learning_rate: 0.01
  eval_strategy: steps
  save_steps: 2
"""
        )
        return recipes.load("r.yaml", overrides, command="pretrain")

    return make
