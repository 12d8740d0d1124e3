"""The maker of sources."""

import pytest
from encoders import random_encoder


@pytest.fixture
def make(tmp_path, tokenizer_folder):
    """make(kind, cls="Model", **config) -> folder of a random model of that kind."""

    def make(kind="roberta", cls="Model", **changes):
        return random_encoder(tmp_path, kind, cls, tokenizer_folder, **changes)

    return make
