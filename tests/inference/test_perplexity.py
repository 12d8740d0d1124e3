"""Scoring at several lengths: the same tokens, the same masks, and the definition by hand."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from typed import typed

from ldt.data.tokenization import tokenize
from ldt.errors import ModelError, UserError
from ldt.inference.perplexity import MaskedText, perplexity, score, scorer
from ldt.model import LdtForMaskedLM, LdtModel, load


def lines():
    return Path("train.txt").read_text().splitlines()


def test_every_length_has_the_same_tokens_to_find(text_place, tokenizer):
    text = MaskedText(lines(), tokenizer, [16, 32, 128])
    found = {}
    for length in (16, 32, 128):
        inputs = list(text.inputs(length))
        assert max(len(each["input_ids"]) for each in inputs) <= length
        assert all(len(each["input_ids"]) > 0.8 * length for each in inputs)
        found[length] = [
            np.concatenate([each[key][1:-1] for each in inputs]) for key in ("input_ids", "labels")
        ]
    for key in (0, 1):
        assert (found[16][key] == found[128][key]).all()
        assert (found[32][key] == found[128][key]).all()
    assert len(found[16][0]) + text.left_over == text.tokens + len(lines()) - 1
    whole = [token for line in lines() for token in [*tokenize(tokenizer, line), 2]]
    shown, labels = found[16]
    assert np.where(labels == -100, shown, labels).tolist() == whole[: len(shown)]


def test_a_score_is_the_mean_over_masked_tokens(text_place, tokenizer, masked_lm):
    text = MaskedText(lines(), tokenizer, [32], seed=1)
    model = load(masked_lm, LdtForMaskedLM).double()
    found = score(scorer(model), text, 32, pad=1, batch_tokens=100)
    nats = []
    with torch.no_grad():
        for each in text.inputs(32):
            logits = model(torch.tensor(each["input_ids"])[None]).logits[0]
            labels = torch.tensor(each["labels"])
            nats += F.cross_entropy(logits, labels, reduction="none")[labels != -100].tolist()
    assert (found.inputs, found.masked) == (len(list(text.inputs(32))), len(nats))
    assert found.loss == pytest.approx(np.mean(nats), rel=1e-6)
    assert found.bits_per_token == pytest.approx(found.loss / math.log(2))
    size = sum(len(line) for line in lines())
    assert found.bits_per_byte == pytest.approx(found.bits_per_token * text.tokens / size)


def test_the_command_prints_a_row_a_length_and_writes_everything(text_place, masked_lm, capsys):
    file = Path("scores.json")
    command = ["evaluate", str(masked_lm), "--gold", "train.txt"]
    command += ["--length", "64", "--length", "16", "--json", str(file)]
    code, out, err = typed(capsys, *command)
    assert code == 0
    found = perplexity(str(masked_lm), ["train.txt"], lengths=[64, 16]).rows
    assert [line.split()[0] for line in out.splitlines()[1:]] == ["16", "64"]
    assert f"{found[0]['bits_per_token']:.4f}" in out
    assert f"{found[0]['masked']:,} masked tokens, the same at every length" in err
    said = json.loads(file.read_text())
    assert [row["length"] for row in said["rows"]] == [16, 64]
    assert said["rows"] == found
    assert [row["length"] for row in perplexity(str(masked_lm), ["train.txt"]).rows] == [128]


def test_what_cannot_be_scored_is_told(text_place, masked_lm, tokenizer, tmp_path):
    for length in (7, 129):
        with pytest.raises(UserError, match=f"--length {length}: .* reads 8 to 128 tokens"):
            perplexity(str(masked_lm), ["train.txt"], lengths=[length])
    for options in ({}, {"part": "eval"}, {"step": 4}):
        with pytest.raises(
            UserError, match="a masked LM takes --gold, a text; --step and --part are"
        ):
            perplexity(str(masked_lm), ["train.txt"] if options else (), **options)
    LdtModel(load(masked_lm, LdtModel).config).save_pretrained(tmp_path / "bare")
    tokenizer.save_pretrained(tmp_path / "bare")
    with pytest.raises(ModelError, match="no masked LM: there are no weights for lm_head"):
        perplexity(str(tmp_path / "bare"), ["train.txt"])
