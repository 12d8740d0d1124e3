"""Conversions of small random models of every kind, held against transformers' own classes."""

import json
import shutil

import pytest
import torch
import transformers
from convertible import ROWS, SMALL, digests, edit
from safetensors.torch import load_file
from transformers import AutoTokenizer, LongformerForMaskedLM, LongformerModel

from ldt.convert import convert
from ldt.convert.kinds import KINDS
from ldt.errors import UserError
from ldt.model import LdtConfig, LdtForMaskedLM, LdtModel, load, load_tokenizer

POSITIONS = "embeddings.position_embeddings.weight"


def _inputs(config, lengths, seed=0):
    """A padded batch of random tokens, and where the real ones are."""
    random = torch.Generator().manual_seed(seed)
    real = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    ids = torch.randint(5, config.vocab_size, real.shape, generator=random)
    types = torch.randint(config.type_vocab_size, real.shape, generator=random)
    ids = ids.where(real, torch.tensor(config.pad_token_id))
    return {"input_ids": ids, "attention_mask": real.long(), "token_type_ids": types}, real


@pytest.mark.parametrize("cls", ["Model", "ForMaskedLM"])
@pytest.mark.parametrize("kind", ["bert", "roberta", "xlm-roberta", "camembert", "longformer"])
def test_the_converted_model_equals_its_source_and_loads_in_transformers(kind, cls, make, tmp_path):
    folder, target = make(kind, cls), tmp_path / "long"
    report = convert(str(folder), target, **SMALL)
    assert report.ok
    assert report.difference < 1e-5
    assert report.facts["masked-LM head"] == (
        "kept" if cls == "ForMaskedLM" else "none in the source"
    )
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([kind, "long"])

    source = getattr(transformers, KINDS[kind] + cls).from_pretrained(folder).eval()
    peer = {"Model": LongformerModel, "ForMaskedLM": LongformerForMaskedLM}[cls]
    peer, info = peer.from_pretrained(target, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    ours = load(target, {"Model": LdtModel, "ForMaskedLM": LdtForMaskedLM}[cls]).eval()
    assert ours.new_weights == ()
    for lengths, models in (([5, 3, 1], (source, peer.eval(), ours)), ([44, 30], (peer, ours))):
        inputs, real = _inputs(ours.config, lengths)
        with torch.no_grad():
            first, *others = (m(**inputs, output_hidden_states=True) for m in models)
        for other in others:
            for a, b in zip(first.hidden_states, other.hidden_states, strict=True):
                torch.testing.assert_close(b[real], a[real], atol=1e-4, rtol=1e-4)
            if cls == "ForMaskedLM":
                torch.testing.assert_close(
                    other.logits[real], first.logits[real], atol=1e-3, rtol=1e-4
                )
            else:
                torch.testing.assert_close(
                    other.pooler_output, first.pooler_output, atol=1e-4, rtol=1e-4
                )


def test_an_ldt_model_is_a_source_too(make, tmp_path):
    once, twice, again = (tmp_path / name for name in ("once", "twice", "again"))
    convert(make("roberta", "ForMaskedLM"), once, **SMALL)
    report = convert(once, twice, max_length=44, window=8)
    assert (
        load_file(once / "model.safetensors").keys()
        == load_file(twice / "model.safetensors").keys()
    )
    assert digests(once) == digests(twice)
    assert "44 -> 44 (tile)" in str(report)
    report = convert(once, again, max_length=100, window=4)
    table = load_file(again / "model.safetensors")["longformer." + POSITIONS]
    before = load_file(once / "model.safetensors")["longformer." + POSITIONS]
    assert torch.equal(table[2:], before[2:].repeat(3, 1)[:100])
    assert "4 tokens, both sides together (source: 8)" in str(report)


def test_a_long_source_keeps_its_windows_unless_others_are_asked_for(make, tmp_path):
    once, again = tmp_path / "once", tmp_path / "again"
    convert(make("roberta"), once, **SMALL)
    config = json.loads((once / "config.json").read_text())
    windows = config["attention_window"] = [8, *config["attention_window"][1:-1], 4]
    (once / "config.json").write_text(json.dumps(config))
    report = convert(once, again, max_length=100)
    assert report.ok
    assert "4, 8 tokens, both sides together (source: 4, 8)" in str(report)
    assert LdtConfig.from_pretrained(again).attention_window == windows
    convert(once, again, max_length=100, window=6, overwrite=True)
    assert LdtConfig.from_pretrained(again).attention_window == [6] * len(windows)


@pytest.mark.parametrize("max_length", [16, 17, 31, 32, 100])
def test_positions_repeat_the_source_in_blocks_of_its_own_length(max_length, make, tmp_path):
    folder = make("roberta")
    convert(folder, tmp_path / "long", max_length=max_length, window=8)
    old = load_file(folder / "model.safetensors")[POSITIONS]
    new = load_file(tmp_path / "long" / "model.safetensors")[POSITIONS]
    assert new.shape == (max_length + 2, 16)
    assert LdtConfig.from_pretrained(tmp_path / "long").max_position_embeddings == max_length + 2
    assert torch.equal(new[:2], old[:2])
    for row in range(max_length):
        assert torch.equal(new[2 + row], old[2 + row % 16]), row


def test_positions_of_bert_start_behind_a_zero_row(make, tmp_path):
    folder = make("bert")
    convert(folder, tmp_path / "long", max_length=40, window=8)
    old = load_file(folder / "model.safetensors")[POSITIONS]
    new = load_file(tmp_path / "long" / "model.safetensors")[POSITIONS]
    assert torch.equal(new, torch.cat([torch.zeros(1, 16), old, old, old[:4]]))


def test_a_longformer_keeps_its_global_projections(tiny_longformer, tmp_path, capfd, caplog):
    report = convert(tiny_longformer, tmp_path / "long", max_length=300, window=16)
    assert capfd.readouterr() == ("", "")  # the report says it all
    assert caplog.records == []
    old = load_file(tiny_longformer / "model.safetensors")
    new = load_file(tmp_path / "long" / "model.safetensors")
    name = "encoder.layer.0.attention.self.query_global.weight"
    assert torch.equal(new[name], old[name])
    assert not torch.equal(new[name], new[name.replace("_global", "")])
    assert new[POSITIONS].shape == (302, 16)
    assert "16 tokens, both sides together (source: 8)" in str(report)


def test_the_config_carries_over_what_the_source_is(make, tmp_path):
    convert(make("camembert"), tmp_path / "long", **SMALL)
    config = LdtConfig.from_pretrained(tmp_path / "long")
    assert (config.bos_token_id, config.eos_token_id, config.sep_token_id) == (5, 6, 6)
    assert config.pad_token_id == 1
    assert config.layer_norm_eps == 1e-3
    assert config.hidden_dropout_prob == 0.25
    assert config.attention_window == [8, 8]
    convert(make("bert"), tmp_path / "bert-long", **SMALL)
    config = LdtConfig.from_pretrained(tmp_path / "bert-long")
    assert (config.pad_token_id, config.cls_token_id, config.sep_token_id) == (0, 2, 3)


@pytest.mark.parametrize("kind", ["bert", "roberta", "xlm-roberta", "camembert", "longformer"])
def test_the_tokenizer_stays_what_it_was_but_for_its_length(kind, make, tmp_path):
    folder = make(kind)
    convert(folder, tmp_path / "long", **SMALL)
    old, new = (AutoTokenizer.from_pretrained(path) for path in (folder, tmp_path / "long"))
    assert type(new) is type(old)
    assert new.is_fast
    assert (old.model_max_length, new.model_max_length) == (ROWS - 2, 44)
    text = ("the party ends the lease.", "the party")
    assert dict(new(*text)) == dict(old(*text))
    assert new.mask_token_id == old.mask_token_id
    loaded = load_tokenizer(tmp_path / "long", LdtConfig.from_pretrained(tmp_path / "long"))
    assert loaded.model_max_length == 44


def test_a_tokenizer_that_cuts_on_its_own_no_longer_does(make, tmp_path):
    folder = make("bert")
    edit(
        folder / "tokenizer.json",
        truncation={"max_length": 4, "stride": 0, "strategy": "LongestFirst", "direction": "Right"},
    )
    edit(folder / "tokenizer_config.json", max_length=4, name_or_path=str(folder))
    convert(folder, tmp_path / "long", **SMALL)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "long")
    assert len(tokenizer.backend_tokenizer.encode("the lease ends the lease").ids) == 7
    assert len(tokenizer("the lease ends the lease").input_ids) == 7
    saved = json.loads((tmp_path / "long" / "tokenizer_config.json").read_text())
    assert not {"max_length", "name_or_path", "is_local", "local_files_only"} & saved.keys()


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_the_same_source_gives_the_same_bytes(kind, make, tmp_path):
    folder = make(kind, "ForMaskedLM")
    convert(folder, tmp_path / "one", **SMALL)
    moved = tmp_path / "elsewhere" / "copy"
    shutil.copytree(folder, moved)
    convert(moved, tmp_path / "deeper" / "two", **SMALL)
    assert digests(tmp_path / "one") == digests(tmp_path / "deeper" / "two")
    for file in (tmp_path / "one").iterdir():
        assert str(tmp_path).encode() not in file.read_bytes(), file


def test_without_a_target_it_is_named_after_the_source(make, tmp_path, monkeypatch):
    folder = make()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    report = convert(f"{folder}/", **SMALL)
    assert (tmp_path / "here" / "roberta-44" / "model.safetensors").is_file()
    assert report.lines()[-1] == "next: ldt finetune recipe.yaml model.path=./roberta-44"


def test_the_report_says_what_was_done(make, tmp_path):
    report = convert(make("bert", "ForMaskedLM"), tmp_path / "long", **SMALL)
    text = report.lines()
    size = sum(p.numel() for p in load(tmp_path / "long", LdtForMaskedLM).parameters())
    assert text[0] == f"{tmp_path / 'bert'} -> {tmp_path / 'long'}"
    assert f"bert, 2 layers of width 16, {size:,} parameters" in text[1]
    assert text[2].endswith("18 -> 44 (tile)")
    assert text[4].endswith("kept")
    assert sum("tolerance" in line for line in text) == 3
    assert [check.tokens for check in report.checks] == [5, 18, 5]


def test_a_target_is_only_replaced_when_told_to(make, tmp_path):
    folder, target = make(), tmp_path / "long"
    convert(folder, target, **SMALL)
    with pytest.raises(UserError, match="long exists already; --overwrite replaces it"):
        convert(folder, target, **SMALL)
    (target / "stray").write_text("of the first conversion")
    convert(folder, target, max_length=60, window=4, overwrite=True)
    assert not (target / "stray").exists()
    assert LdtConfig.from_pretrained(target).attention_window == [4, 4]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["long", "roberta"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 511}, "--window must be even and at least 2, got 511"),
        ({"window": 0}, "--window must be even and at least 2, got 0"),
        ({"max_length": 15}, "--max-length 15 would cut the 16 positions of .*; 16 is the least"),
    ],
)
def test_options_that_cannot_work_are_refused(options, message, make, tmp_path):
    with pytest.raises(UserError, match=message) as caught:
        convert(make(), tmp_path / "long", **options)
    assert caught.value.exit_code == 2
    assert [p.name for p in tmp_path.iterdir()] == ["roberta"]


def test_minilm_still_knows_what_is_alike(minilm, tmp_path):
    report = convert(minilm, tmp_path / "minilm-1000", max_length=1000, window=64)
    assert report.facts["model"].endswith("25,562,112 parameters")
    assert report.difference < 1e-4
    model = load(tmp_path / "minilm-1000", LdtModel).eval()
    tokenizer = load_tokenizer(tmp_path / "minilm-1000", model.config)
    texts = [
        "A man is eating food.",
        "A man is eating a piece of bread.",
        "The stock market fell sharply today.",
    ]
    inputs = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**inputs).last_hidden_state
    mask = inputs.attention_mask[..., None]
    mean = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1))
    alike = (mean[0] @ mean[1:].T).tolist()
    assert alike == pytest.approx([0.7553, 0.0037], abs=1e-4)
