"""Tokenizers for all tasks; one that adds its markers has its own."""

import pytest
from transformers import AutoTokenizer


@pytest.fixture(scope="module")
def tiny(tokenizer_folder):
    return AutoTokenizer.from_pretrained(tokenizer_folder)


@pytest.fixture(scope="module", params=["roberta-base", "bert-base-uncased"])
def real(request, shared_data):
    return AutoTokenizer.from_pretrained(shared_data / "tokenizers" / request.param)
