import json
import shutil

import pytest
from writers import random_writer

from ldt.convert.kinds import candidate
from ldt.errors import ModelError


def test_a_long_model_is_trained_as_it_is(tiny_longformer):
    known = candidate(str(tiny_longformer))
    values = json.loads((tiny_longformer / "config.json").read_text())
    assert known.length == values["max_position_embeddings"] - values["pad_token_id"] - 1
    assert known.width == values["hidden_size"]
    assert known.count("some words of it") > 3


def test_a_short_one_is_converted_unless_it_is_of_sentence_transformers(minilm, tmp_path):
    assert candidate(str(minilm)).length == 512
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(minilm / name, tmp_path)
    known = candidate(str(tmp_path))
    assert (known.length, known.width, known.shortest) == (None, 384, 512)
    assert known.count("word " * 1000) == 1000


def test_of_a_model_that_is_not_here_the_name_tells(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert candidate("allenai/longformer-base-4096").length == 4096
    assert candidate("answerdotai/ModernBERT-large").length == 8192
    assert candidate("jhu-clsp/ettin-encoder-17m").length == 7999
    assert candidate("nobody/roberta-base-of-ours").length is None
    assert candidate("allenai/led-base-16384", writes=True).length == 16384
    assert candidate("facebook/bart-base", writes=True).shortest == 1024


def test_a_bart_is_converted_first_and_a_led_is_not(tmp_path, tokenizer_folder):
    bart = random_writer(tmp_path, "bart", tokenizer_folder, max_position_embeddings=600)
    known = candidate(str(bart), writes=True)
    assert (known.length, known.width, known.shortest) == (None, 16, 600)
    assert (
        candidate(str(random_writer(tmp_path, "led", tokenizer_folder)), writes=True).length == 24
    )


def test_a_model_that_the_task_has_no_use_for_is_refused(minilm, tmp_path, tokenizer_folder):
    bart = str(random_writer(tmp_path, "bart", tokenizer_folder))
    with pytest.raises(ModelError, match="bart writes text; this task needs an encoder"):
        candidate(bart)
    with pytest.raises(ModelError, match="writes no text; this task needs a BART or LED"):
        candidate(str(minilm), writes=True)


def test_what_is_no_model_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m").mkdir()
    for name in ("./nothing", "nothing/", "m/nothing", "a/b/c"):
        with pytest.raises(ModelError, match="no such folder"):
            candidate(name)
    (tmp_path / "m" / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(ModelError, match="gpt2"):
        candidate("m")


def test_a_modernbert_is_trained_as_it_is(tiny_modernbert):
    found = candidate(str(tiny_modernbert))
    assert (found.length, found.width) == (128, 16)
