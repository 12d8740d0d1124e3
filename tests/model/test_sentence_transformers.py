"""Folders of sentence-transformers read, and such folders written: both libraries' vectors."""

import json
import logging
from functools import partial

import numpy as np
import pytest
import torch
from convertible import random_encoder
from safetensors.torch import save_file
from served import make_run
from transformers import AutoTokenizer, ModernBertModel

import ldt
from ldt.cli import app
from ldt.errors import ModelError
from ldt.model import LdtForEmbedding
from ldt.model import sentence_transformers as module
from ldt.model.loading import load_tokenizer, read_config

TEXTS = ["the party of the first part", "this agreement ends. the party agrees", "and?"]


@pytest.fixture(scope="session")
def theirs():
    return pytest.importorskip("sentence_transformers")


def modules(folder, pooling, *others, new=False, **texts):
    """Make a folder of transformers one of sentence-transformers, as that library writes it."""
    kinds = ["Transformer", "Pooling", *others]
    place = "sentence_transformers.models."
    entries = [
        {"idx": n, "name": str(n), "path": f"{n}_{kind}" if n else "", "type": place + kind}
        for n, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(entries))
    old = {f"pooling_mode_{name}": name == pooling for name in ("cls_token", "mean_tokens")}
    settings = {"word_embedding_dimension": 16} | old
    if new:
        settings = {"embedding_dimension": 16, "pooling_mode": pooling, "include_prompt": True}
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(settings))
    if "Dense" in others:
        (folder / "2_Dense").mkdir()
        identity = "torch.nn.modules.linear.Identity"
        sizes = {"in_features": 16, "out_features": 6, "bias": False}
        config = json.dumps(sizes | {"activation_function": identity})
        (folder / "2_Dense" / "config.json").write_text(config)
        save_file({"linear.weight": torch.randn(6, 16)}, folder / "2_Dense" / "model.safetensors")
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 128}')
    (folder / "config_sentence_transformers.json").write_text(json.dumps(texts))
    return folder


@pytest.fixture
def encoder(tmp_path, tiny_modernbert):
    """The random ModernBERT of transformers alone, without its head."""
    ModernBertModel.from_pretrained(tiny_modernbert).save_pretrained(tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(tiny_modernbert)
    tokenizer.model_max_length = 128
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize(
    ("pooling", "others", "new"),
    [
        ("mean_tokens", ["Normalize"], False),
        ("cls", [], True),
        ("lasttoken", ["Normalize"], True),
        ("max", ["Dense", "Normalize"], True),
    ],
)
def test_a_folder_of_theirs_has_their_vectors(theirs, encoder, pooling, others, new):
    prompts = {"query": "who ends? ", "document": "party: "}
    folder = modules(encoder, pooling, *others, new=new, prompts=prompts)
    model = theirs.SentenceTransformer(str(folder), device="cpu")
    ours = ldt.load(str(folder))
    for name, encode in (("text", model.encode_document), ("query", model.encode_query)):
        answers = ours({name: text} for text in TEXTS)
        found = np.concatenate([answer["vectors"] for answer in answers])
        np.testing.assert_allclose(found, encode(TEXTS), atol=1e-5)


def exclude_prompt(folder):
    modules(folder, "mean", new=True, prompts={"query": "who? "})
    settings = json.loads((folder / "1_Pooling" / "config.json").read_text())
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(settings | {"include_prompt": 0}))


def bend(folder):
    modules(folder, "mean", "Dense", new=True)
    (folder / "2_Dense" / "config.json").write_text('{"out_features": 6, "bias": false}')


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (partial(modules, pooling="weightedmean", new=True), "pooling weightedmean, one of cls"),
        (lambda folder: modules(folder, "mean", "LayerNorm"), "Pooling, LayerNorm: not computed"),
        (exclude_prompt, "its pooling leaves out the prompt"),
        (bend, "its Dense is not a plain product"),
    ],
)
def test_what_is_not_computed_is_refused(encoder, change, message):
    change(encoder)
    with pytest.raises(ModelError, match=message):
        ldt.load(str(encoder))


@pytest.mark.parametrize("kind", ["bert", "roberta", "xlm-roberta", "camembert"])
def test_their_short_encoders_are_used_as_they_are(theirs, kind, tmp_path, tokenizer_folder):
    size = {"max_position_embeddings": 128}
    folder = random_encoder(tmp_path, kind, "Model", tokenizer_folder, **size)
    modules(folder, "mean", "Normalize", new=True)
    model = theirs.SentenceTransformer(str(folder), device="cpu")
    found = [each["vectors"][0] for each in ldt.load(str(folder))(TEXTS)]
    np.testing.assert_allclose(found, model.encode(TEXTS), atol=1e-5)
    again = LdtForEmbedding.from_pretrained(folder)
    assert again.longformer.encoder.layer[0].attention.self.query_global.weight.any()
    again.save_pretrained(tmp_path / "saved")
    load_tokenizer(folder, again.config).save_pretrained(tmp_path / "saved")
    saved = [each["vectors"][0] for each in ldt.load(str(tmp_path / "saved"))(TEXTS)]
    np.testing.assert_array_equal(saved, found)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("mpnet", "a mpnet model cannot be used or converted: no model here has relative"),
        ("distilbert", "is a distilbert model, which nothing here computes or converts"),
    ],
)
def test_their_other_encoders_are_refused(encoder, kind, message):
    modules(encoder, "mean", new=True)
    values = json.loads((encoder / "config.json").read_text())
    (encoder / "config.json").write_text(json.dumps(values | {"model_type": kind}))
    with pytest.raises(ModelError, match=message):
        ldt.load(str(encoder))


@pytest.mark.slow
def test_minilm_has_the_vectors_of_sentence_transformers(theirs, minilm, tmp_path):
    target = tmp_path / "long"
    convert = ["convert", minilm, target, "--max-length", "512", "--window", "1024"]
    app([*map(str, convert)], standalone_mode=False)
    texts = ["A man is eating food.", "A man is eating a piece of bread.", "Stocks fell. " * 120]
    model = theirs.SentenceTransformer(str(minilm), device="cpu")
    model.max_seq_length = 512
    expected = model.encode(texts)
    for folder in (minilm, target):
        found = np.concatenate([each["vectors"] for each in ldt.load(str(folder))(texts)])
        np.testing.assert_allclose(found, expected, atol=1e-5)
        assert found[0] @ found[1] == pytest.approx(0.7553, abs=1e-4)


@pytest.mark.parametrize("source", ["tiny_longformer", "tiny_modernbert"])
@pytest.mark.parametrize(
    "task", ["pooling: mean", "pooling: max, size: 5", "pooling: last, normalize: false"]
)
def test_sentence_transformers_has_the_vectors_of_a_run(theirs, request, tmp_path, source, task):
    run = make_run(request.getfixturevalue(source), tmp_path / "run", "embedding", task)
    module.write(run, read_config(run), load_tokenizer(run, read_config(run)))
    model = theirs.SentenceTransformer(str(run), device="cpu")
    answers = ldt.load(str(run))(TEXTS)
    found = np.concatenate([answer["vectors"] for answer in answers])
    np.testing.assert_allclose(model.encode(TEXTS), found, atol=1e-5)


def test_a_model_of_ldt_alone_is_theirs_once_ldt_model_is_imported(
    theirs, tiny_longformer, tmp_path
):
    run = make_run(tiny_longformer, tmp_path / "run", "embedding")
    plain = ldt.load(str(run))(TEXTS)
    config = read_config(run, attention_dilation=2)
    config.save_pretrained(run)
    assert json.loads((run / "config.json").read_text())["model_type"] == "ldt"
    module.write(run, config, load_tokenizer(run, config))
    found = np.concatenate([answer["vectors"] for answer in ldt.load(str(run))(TEXTS)])
    assert np.abs(found[1] - plain[1]["vectors"][0]).max() > 1e-3
    model = theirs.SentenceTransformer(str(run), device="cpu")
    np.testing.assert_allclose(model.encode(TEXTS), found, atol=1e-5)


def test_a_run_with_global_tokens_is_refused_by_them(theirs, tiny_longformer, tmp_path, caplog):
    caplog.set_level(logging.INFO, "ldt")
    run = make_run(tiny_longformer, tmp_path / "run", "embedding", "pooling: cls")
    config = read_config(run)
    config.global_attention = ["cls"]
    module.write(run, config, load_tokenizer(run, config))
    assert "global attention (cls), which no module of theirs marks" in caplog.text
    with pytest.raises(ValueError, match="sentence_transformers.GlobalTokens"):
        theirs.SentenceTransformer(str(run), device="cpu")
    with pytest.raises(ModelError, match=r"has tokens with global attention.*ldt\.load\("):
        theirs.SentenceTransformer(str(run), device="cpu", trust_remote_code=True)
    assert len(ldt.load(str(run))(TEXTS)) == len(TEXTS)


@pytest.mark.parametrize("source", ["tiny_longformer", "tiny_modernbert"])
def test_their_encoder_of_several_vectors_has_those_of_a_run(theirs, request, tmp_path, source):
    task = "vectors: tokens, size: 6"
    run = make_run(request.getfixturevalue(source), tmp_path / "run", "embedding", task)
    config = read_config(run)
    config.embedding["skip"] = [load_tokenizer(run, config).convert_tokens_to_ids("e")]
    config.save_pretrained(run)
    module.write(run, config, load_tokenizer(run, config))
    model = theirs.MultiVectorEncoder(str(run), device="cpu")
    for name, encode in (("text", model.encode_document), ("query", model.encode_query)):
        answers = ldt.load(str(run))({name: text} for text in TEXTS)
        for answer, expected in zip(answers, encode(TEXTS), strict=True):
            np.testing.assert_allclose(answer["vectors"], expected, atol=1e-5)
    (run / "recipe.yaml").unlink()  # a folder of theirs
    (run / "config.json").write_text(
        json.dumps(json.loads((run / "config.json").read_text()) | {"embedding": {}})
    )
    again = ldt.load(str(run))({"text": TEXTS[0]})
    np.testing.assert_allclose(again["vectors"], encode_first(model), atol=1e-5)


def encode_first(model):
    return model.encode_document(TEXTS[:1])[0]


@pytest.mark.nightly  # an export takes ten seconds
def test_a_folder_of_theirs_is_exported_with_pooling_and_normalisation(encoder, tmp_path):
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    from ldt.export import export

    modules(encoder, "mean", "Dense", "Normalize", new=True)
    export(encoder, tmp_path / "onnx")
    found = ldt.load(str(tmp_path / "onnx"), runtime="onnx")(TEXTS)
    for one, other in zip(found, ldt.load(str(encoder))(TEXTS), strict=True):
        np.testing.assert_allclose(one["vectors"], other["vectors"], atol=1e-5)
        assert one["vectors"].shape == (1, 6)


@pytest.mark.slow
def test_a_training_starts_from_their_folder_and_leaves_one(theirs, encoder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    modules(encoder, "mean", "Dense", "Normalize", new=True)
    lines = [json.dumps({"query": f"who is {n}?", "pos": f"It is party {n}."}) for n in range(8)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines))
    keys = {"data.train": tmp_path / "pairs.jsonl", "data.eval": "null", "model.path": encoder}
    keys |= {"task.size": 6, "data.max_length": 128, "training.max_steps": 2}
    keys |= {"training.output_dir": tmp_path / "run"}
    words = [f"{key}={value}" for key, value in keys.items()]
    app(["finetune", "embedding", *words], standalone_mode=False)
    model = theirs.SentenceTransformer(str(tmp_path / "run"), device="cpu")
    found = [each["vectors"][0] for each in ldt.load(str(tmp_path / "run"))(TEXTS)]
    np.testing.assert_allclose(model.encode(TEXTS), found, atol=1e-5)
    before = [each["vectors"][0] for each in ldt.load(str(encoder))(TEXTS)]
    assert np.sum(np.array(before) * found, 1).min() > 0.9
