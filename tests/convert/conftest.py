"""The makers of sources."""

import pytest
from convertible import random_encoder
from writers import random_writer


@pytest.fixture
def make(tmp_path, tokenizer_folder):
    """make(kind, cls="Model", **config) -> folder of a random model of that kind."""

    def make(kind="roberta", cls="Model", **changes):
        return random_encoder(tmp_path, kind, cls, tokenizer_folder, **changes)

    return make


@pytest.fixture
def make_writer(tmp_path, tokenizer_folder):
    """make_writer(kind, **config) -> folder of a random BART or LED."""

    def make(kind="bart", **changes):
        return random_writer(tmp_path, kind, tokenizer_folder, **changes)

    return make
