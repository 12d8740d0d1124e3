"""Folders that transformers loads without ldt, and folders that only ldt answers rightly by."""

import json
import subprocess
import sys

import pytest
import torch
import transformers
from longformers import HEADS, batch, ldt_model
from transformers import AutoConfig, AutoTokenizer, LongformerConfig

import ldt.model
from ldt.inference.engine import Engine
from ldt.model import LdtConfig, load

HEAD = "ForSequenceClassification"
CODE = """
import json, sys
import torch, transformers
from pathlib import Path

found = {}
for folder in sorted(Path(sys.argv[1]).iterdir()):
    auto = getattr(transformers, "AutoModel" + folder.name.removeprefix("Model"))
    model = auto.from_pretrained(folder, dtype=torch.float64).eval()
    with torch.no_grad():
        out = model(**torch.load(folder / "inputs.pt"))
    found[folder.name] = [type(model).__name__, [x.tolist() for x in out.to_tuple()]]
assert not any(name.partition(".")[0] == "ldt" for name in sys.modules)
print(json.dumps(found))
"""
PIPELINE = """
import json, sys
from transformers import pipeline

print(json.dumps(pipeline("text-classification", sys.argv[1], top_k=None)(sys.argv[2])))
assert "ldt" not in sys.modules
"""


def run(code, *arguments):
    """What a program prints as JSON."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def saved(folder, head=HEAD, **changes):
    """The config.json of a random model that ldt saves."""
    ldt_model(head, **changes).save_pretrained(folder)
    return json.loads((folder / "config.json").read_text())


@pytest.mark.slow
def test_transformers_answers_alike_by_every_head_where_ldt_is_never_imported(tmp_path):
    expected = {}
    for head in HEADS:
        model = ldt_model(head)
        model.save_pretrained(tmp_path / head)
        # Other masks than one for all rows are at padding, where outputs differ on purpose.
        inputs = {key: x for key, x in batch(21).items() if key != "global_attention_mask"}
        if head == "ForMultipleChoice":
            inputs = {key: x.view(2, 2, 21) for key, x in inputs.items()}
        torch.save(inputs, tmp_path / head / "inputs.pt")
        with torch.no_grad():
            expected[head] = model.double()(**inputs).to_tuple()
    found = run(CODE, tmp_path)
    assert found.keys() == expected.keys()
    for head, (name, outputs) in found.items():
        assert name == f"Longformer{head}"
        for a, b in zip(outputs, expected[head], strict=True):
            # Its softmax is of float32, whatever the dtype.
            torch.testing.assert_close(torch.tensor(a).to(b), b, rtol=1e-6, atol=1e-6)


@pytest.fixture(scope="module")
def classifier(tiny_longformer, tmp_path_factory):
    """A run whose folder is a plain Longformer's."""
    folder = tmp_path_factory.mktemp("classifier")
    torch.manual_seed(0)
    names = {0: "yes", 1: "no", 2: "maybe"}
    model = load(
        tiny_longformer,
        ldt.model.LdtForSequenceClassification,
        id2label=names,
        label2id={name: number for number, name in names.items()},
        problem_type="single_label_classification",
        global_attention=["cls"],
    )
    for weight in model.parameters():
        if weight.dim() == 2:
            torch.nn.init.normal_(weight, std=0.7)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_longformer).save_pretrained(folder)
    recipe = "task: {name: classification}\nmodel: {path: m}\ndata: {train: t.jsonl}\n"
    (folder / "recipe.yaml").write_text(recipe)
    return folder


@pytest.mark.slow
def test_a_pipeline_gives_the_scores_of_ldt_predict(classifier):
    text = "the first party and the other party agree that this agreement ends"
    assert json.loads((classifier / "config.json").read_text())["model_type"] == "longformer"
    expected = Engine.open(str(classifier), precision="fp32")(text)["scores"]
    (scores,) = run(PIPELINE, classifier, text)
    found = {each["label"]: each["score"] for each in scores}
    assert len(set(found.values())) == 3
    assert found == pytest.approx(expected, abs=2e-6)  # of which ldt writes six digits


def test_sentence_transformers_embeds_by_a_plain_folder(classifier):
    sentences = pytest.importorskip("sentence_transformers")
    text = "the first party and the other party"
    body = load(classifier, ldt.model.LdtModel)
    tokenizer = AutoTokenizer.from_pretrained(classifier)
    with torch.no_grad():
        states = body(**tokenizer(text, return_tensors="pt")).last_hidden_state
    found = sentences.SentenceTransformer(str(classifier), device="cpu").encode(text)
    torch.testing.assert_close(torch.tensor(found), states.mean(1)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("head", "trained"),
    [
        (HEAD, None),
        (HEAD, ["cls"]),
        ("ForTokenClassification", []),
        ("ForMaskedLM", []),
        ("Model", None),
    ],
)
def test_what_transformers_answers_alike_is_one_of_its_models(head, trained, tmp_path):
    config = saved(tmp_path, head, global_attention=trained)
    assert config["model_type"] == "longformer"
    assert config["architectures"] == [f"Longformer{head}"]
    assert not any(key.startswith(("pooling", "attention_dilation")) for key in config)
    again = load(tmp_path, getattr(ldt.model, f"Ldt{head}"))
    assert (type(again.config), again.config.global_attention) == (LdtConfig, trained)
    assert type(AutoConfig.from_pretrained(tmp_path)) is LongformerConfig


@pytest.mark.parametrize(
    ("head", "changes"),
    [
        (HEAD, {"attention_dilation": [1, 2]}),
        (HEAD, {"causal": True}),
        (HEAD, {"pooling_layers": [1]}),
        (HEAD, {"classifier_pooling": "mean"}),
        (HEAD, {"attention_window": [6, 4]}),  # which it cannot part an input by
        (HEAD, {"attention_window": [2, 2]}),
        (HEAD, {"global_attention": []}),
        ("ForTokenClassification", {"global_attention": ["cls"]}),
        ("ForMaskedLM", {"global_attention": ["cls"]}),
        ("ForQuestionAnswering", {"global_attention": ["cls", "question"]}),
        ("ForMultipleChoice", {"global_attention": ["cls", "question", "choice"]}),
        ("ForCandidateRanking", {}),
    ],
)
def test_what_transformers_would_answer_otherwise_is_ldts_alone(head, changes, tmp_path):
    config = saved(tmp_path, head, **changes)
    assert (config["model_type"], config["architectures"]) == ("ldt", [f"Ldt{head}"])
    assert type(AutoConfig.from_pretrained(tmp_path)) is LdtConfig
    auto = getattr(transformers, f"AutoModel{head}", None)
    if auto is not None:
        again = auto.from_pretrained(tmp_path)
        assert type(again) is getattr(ldt.model, f"Ldt{head}")
        assert {key: getattr(again.config, key) for key in changes} == changes


def test_transformers_knows_ldts_models_by_import_ldt_model_alone(tmp_path):
    saved(tmp_path, classifier_pooling="mean")
    code = """
import json, sys
import ldt
assert "torch" not in sys.modules
from transformers import AutoConfig
try:
    AutoConfig.from_pretrained(sys.argv[1])
except ValueError as error:
    assert "does not recognize" in str(error), error
else:
    raise AssertionError("registered by import ldt")
import ldt.model
print(json.dumps(type(AutoConfig.from_pretrained(sys.argv[1])).__name__))
"""
    assert run(code, tmp_path) == "LdtConfig"
