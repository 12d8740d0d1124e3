import json
from typing import get_args

import numpy as np
import pytest
import torch
from classified import LABELS, answer, write

from ldt.data.tokenization import add_tokens
from ldt.errors import UserError
from ldt.inference.engine import read_recipe
from ldt.inference.options import By, PredictOptions
from ldt.inference.passages import Explaining, hiding
from ldt.inference.predictor import EncoderPredictor
from ldt.io.records import Example
from ldt.model import load, load_tokenizer
from ldt.model.loading import draw_embeddings
from ldt.tasks import TASKS
from ldt.tasks.explained import MERGES

TEXT = (
    "The party of the first part ends this agreement. Other parties 😀 of it end, and the\r\n"
    "cafe\u0301 ends. This agreement of the first and other party ends! 第一。"
    "合同 of the part ends。 Ends the other part of this and the agreement. And this ends it."
)


def lines(*texts):
    return [json.dumps({"name": f"d{n}", "body": {"text": text}}) for n, text in enumerate(texts)]


@pytest.fixture(scope="module")
def loaded(fine_tuned):
    predictor = EncoderPredictor(fine_tuned, read_recipe(fine_tuned), "cpu")
    predictor.max_length = 32
    return predictor


def explained(predictor, text, merge="mean", **wanted):
    predictor.task = predictor.task.model_copy(update={"merge": merge})
    explaining = Explaining(predictor, PredictOptions.of(wanted))
    example = Example(where="docs.jsonl:1", id="d", fields={"body": {"text": text}})
    features = explaining.encode(example)
    outputs = explaining.outputs(features)
    return explaining.decode(outputs, example, features), features, outputs, example


@pytest.mark.parametrize("by", ["gradient", "occlusion", "chunks"])
def test_passages_are_cut_from_the_text_best_first(fine_tuned, tmp_path, by):
    source = write(tmp_path / "docs.jsonl", lines(TEXT, "", "One sentence ends."))
    code, answers = answer(source, fine_tuned, tmp_path, passages=3, passages_by=by)
    assert code == 0
    for each, text in zip(answers, (TEXT, "", "One sentence ends."), strict=True):
        for passage in each["passages"]:
            assert list(passage) == ["start", "end", "text", "score", "label"]
            assert text[passage["start"] : passage["end"]] == passage["text"].strip() != ""
            assert passage["label"] == each["label"]
        scores = [passage["score"] for passage in each["passages"]]
        assert scores == sorted(scores, reverse=True)
    assert [len(each["passages"]) for each in answers[1:]] == [0, 1]
    assert len(answers[0]["passages"]) == (answers[0]["chunks"] if by == "chunks" else 3)


def test_answers_are_the_same_beside_their_passages(fine_tuned, tmp_path):
    source = write(tmp_path / "docs.jsonl", lines(TEXT, TEXT * 3, ""))
    _, plain = answer(source, fine_tuned, tmp_path)
    _, more = answer(source, fine_tuned, tmp_path, overwrite=True, passages=2, chunks=True)
    for each in more:
        del each["passages"], each["by_chunk"]
    assert more == plain


@pytest.mark.parametrize("merge", ["mean", "max", "logsumexp"])
def test_gradients_are_those_of_dense_attention_in_float64(fine_tuned, loaded, merge, monkeypatch):
    """Against embeddings given as such, all chunks in one graph, and a leaf of our own."""
    got, features, outputs, example = explained(
        loaded, TEXT, merge, passages=99, passages_of=("no", "007")
    )
    assert len(features) > 2
    model, task = loaded.model, loaded.task
    reading = task.reading(example, loaded.tokenizer, loaded.data)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    embeddings = model.get_input_embeddings()
    try:
        model.double()
        leaves = [
            embeddings(torch.tensor([f["input_ids"]])).detach().requires_grad_() for f in features
        ]
        logits = torch.cat(
            [
                model(
                    inputs_embeds=leaf,
                    global_attention_mask=torch.tensor([f["global_attention_mask"]]),
                ).logits
                for leaf, f in zip(leaves, features, strict=True)
            ]
        )
        merged = {"mean": logits.mean(0), "max": logits.amax(0), "logsumexp": logits.logsumexp(0)}
        for label in ("no", "007"):
            total = merged[merge][LABELS.index(label)]
            grads = torch.autograd.grad(total, leaves, retain_graph=True)
            expected = dict.fromkeys(reading.passages, 0.0)
            for leaf, grad, feature in zip(leaves, grads, features, strict=True):
                products = (leaf * grad).sum(-1)[0].tolist()
                first, start, end = feature["read"]
                for token, product in zip(range(start, end), products[first:], strict=False):
                    place, behind = reading.offsets[token]
                    if place == behind:
                        continue  # white space
                    span = next(s for s in reading.passages if s[0] <= place < s[1])
                    expected[span] += product
            found = {
                (p["start"], p["end"]): p["score"] for p in got["passages"] if p["label"] == label
            }
            assert found == pytest.approx(expected, rel=1e-3, abs=1e-4)
    finally:
        model.float()
        model.load_state_dict(state)


@pytest.mark.parametrize("by", ["gradient", "occlusion"])
def test_a_paragraph_has_the_score_of_all_its_tokens(loaded, by):
    """By gradients the sum over its sentences; hidden as a whole the fall of the logit."""
    text = f"{TEXT}\r\n\r\n{TEXT}\u2029The end."
    got, features, outputs, example = explained(
        loaded, text, passages=9, passages_by=by, passages_unit="paragraph"
    )
    assert sorted(p["text"] for p in got["passages"]) == sorted([TEXT, TEXT, "The end."])
    finer, *_ = explained(loaded, text, passages=99, passages_by=by)
    index = LABELS.index(got["label"])
    reading = loaded.task.reading(example, loaded.tokenizer, loaded.data)
    for passage in got["passages"]:
        a, b = passage["start"], passage["end"]
        own = [p["score"] for p in finer["passages"] if a <= p["start"] < b]
        expected = sum(own)
        if by == "occlusion":
            left, right = reading.offsets.T
            gone = (left >= a) & (left < b) & (left < right)
            read = [feature["read"] for feature in features]
            tokens = [first + np.flatnonzero(gone[start:end]) for first, start, end in read]
            changed = hiding(loaded, list(zip(features, tokens, strict=True)), 16384)
            logits = [np.mean([each["logits"][index] for each in e]) for e in (outputs, changed)]
            expected = logits[0] - logits[1]
        assert passage["score"] == pytest.approx(expected, abs=1e-4)


def test_a_run_is_resumed_with_its_unit():
    by_unit = [
        PredictOptions.of({"passages": 2, "passages_unit": unit}).explanation()
        for unit in ("sentence", "paragraph")
    ]
    assert by_unit == ["2,gradient", "2,gradient,unit=paragraph"]


def test_explaining_leaves_the_model_as_it_was(loaded):
    before = loaded.model.state_dict()
    before = {name: value.clone() for name, value in before.items()}
    explained(loaded, TEXT, passages=2)
    assert not loaded.model.training
    assert all(weight.grad is None for weight in loaded.model.parameters())
    assert not loaded.model.get_input_embeddings()._forward_hooks
    after = loaded.model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_occlusion_is_the_fall_of_the_logit_without_the_passage(loaded):
    got, features, outputs, example = explained(loaded, TEXT, passages=99, passages_by="occlusion")
    reading = loaded.task.reading(example, loaded.tokenizer, loaded.data)
    index = LABELS.index(got["label"])
    full = np.mean([each["logits"][index] for each in outputs])
    for passage in got["passages"]:
        logits = []
        for feature in features:
            inputs = loaded.collate([feature])
            first, start, end = feature["read"]
            left, right = reading.offsets[start:end].T
            inside = (left >= passage["start"]) & (left < right) & (right <= passage["end"])
            inputs["attention_mask"][0, first : first + end - start][torch.tensor(inside)] = 0
            with torch.inference_mode():
                logits.append(loaded.model(**inputs).logits[0, index].item())
        assert passage["score"] == pytest.approx(full - np.mean(logits), abs=1e-5)


def test_batches_of_one_input_explain_alike(loaded):
    for by in ("gradient", "occlusion"):
        scores = [
            [
                each["score"]
                for each in explained(loaded, TEXT, passages=9, passages_by=by, batch_tokens=n)[0][
                    "passages"
                ]
            ]
            for n in (1, 16384)
        ]
        assert scores[0] == pytest.approx(scores[1], abs=1e-4)


def test_chunks_have_their_characters_and_the_scores_of_each_alone(loaded):
    got, features, outputs, _ = explained(loaded, TEXT, "max", chunks=True)
    assert "passages" not in got
    assert len(got["by_chunk"]) == len(features) == got["chunks"]
    assert got["by_chunk"][0]["start"] == 0
    assert got["by_chunk"][-1]["end"] == len(TEXT)
    for chunk, output in zip(got["by_chunk"], outputs, strict=True):
        p = np.exp(output["logits"].astype(float))
        assert list(chunk["scores"].values()) == pytest.approx(p / p.sum(), abs=1e-6)
    logits = np.stack([output["logits"] for output in outputs])
    won = {
        name: place for place, chunk in enumerate(got["by_chunk"]) for name in chunk.get("won", ())
    }
    assert won == dict(zip(LABELS, logits.argmax(0).tolist(), strict=True))
    assert not any("won" in chunk for chunk in explained(loaded, TEXT, chunks=True)[0]["by_chunk"])


def test_labels_that_are_asked_for_are_explained(fine_tuned, tmp_path):
    source = write(tmp_path / "docs.jsonl", lines(TEXT))
    _, answers = answer(source, fine_tuned, tmp_path, passages=2, passages_of=["no", "yes"])
    assert [each["label"] for each in answers[0]["passages"]] == ["no", "no", "yes", "yes"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"passages": 1, "passages_of": ["maybe"]}, "passages_of=maybe: the model knows"),
        ({"passages_of": ["no"]}, "passages=K asks for passages"),
        ({"passages_unit": "paragraph"}, "passages=K asks for passages"),
        (
            {"passages": 1, "passages_unit": "paragraph", "passages_by": "chunks"},
            "passages by chunks are whole chunks",
        ),
        ({"passages": 1, "precision": "int8"}, "there are no gradients in int8"),
        ({"passages": 1, "keep": ["passages=name"]}, "answers of classification have 'passages'"),
    ],
)
def test_what_cannot_be_explained_is_said(fine_tuned, tmp_path, options, message):
    source = write(tmp_path / "docs.jsonl", lines(TEXT))
    with pytest.raises(UserError, match=message):
        answer(source, fine_tuned, tmp_path, **options)


RECORDS = {
    "classification": {"text": TEXT},  # of a number
    "multiple_choice": {"context": TEXT, "question": "the party", "choices": ["first", "the"]},
    "squad": {"context": TEXT, "question": "the party"},
    "token_classification": {"text": TEXT},
    "wikihop": {"query": "q", "candidates": ["a", "the party"], "supports": [TEXT, TEXT]},
}
CONFIGS = {
    "classification": {"num_labels": 1, "problem_type": "regression"},
    "token_classification": {"id2label": {0: "O", 1: "B-X", 2: "I-X"}},
}


@pytest.mark.parametrize("name", RECORDS)
def test_every_task_cuts_its_passages_from_its_text(tiny_longformer, tmp_path, name):
    torch.manual_seed(0)
    task = TASKS[name]()
    model = load(tiny_longformer, task.head(), **CONFIGS.get(name, {}))
    tokenizer = load_tokenizer(tiny_longformer, model.config)
    draw_embeddings(model, add_tokens(tokenizer, task.inputs.markers))
    for weight in model.parameters():
        if weight.dim() == 2:
            torch.nn.init.normal_(weight, std=0.7)
    model.save_pretrained(tmp_path / "run")
    tokenizer.save_pretrained(tmp_path / "run")
    (tmp_path / "run" / "recipe.yaml").write_text(
        f"task: {{name: {name}}}\nmodel: {{path: x}}\ndata: {{train: x, max_length: 64}}\n"
    )
    source = write(tmp_path / "docs.jsonl", [json.dumps(RECORDS[name])])
    options = {"chunks": name != "token_classification", "overwrite": True}
    for by, unit in [*((by, "sentence") for by in get_args(By)), ("gradient", "paragraph")]:
        options |= {"passages_by": by, "passages_unit": unit}
        _, (got,) = answer(source, tmp_path / "run", tmp_path, passages=2, **options)
        text = "\n".join([TEXT, TEXT]) if name == "wikihop" else TEXT
        assert 1 <= len(got["passages"]) <= 2
        for each in got["passages"] + got.get("by_chunk", []):
            assert text[each["start"] : each["end"]].strip()
        for each in got["passages"]:
            assert unit == "sentence" or each["text"] == TEXT  # one paragraph
            assert list(each) == ["start", "end", "text", "score"]
            assert each["text"] == text[each["start"] : each["end"]]
        if "by_chunk" in got:
            assert len(got["by_chunk"]) == got["chunks"] > 1


@pytest.mark.parametrize("merge", MERGES)
def test_shares_are_the_derivative_of_the_merged_logit(merge):
    logits = np.array([0.3, -1.0, 2.0, 0.5])
    step = 1e-6
    found = [
        (MERGES[merge].value(logits + step * np.eye(4)[n]) - MERGES[merge].value(logits)) / step
        for n in range(4)
    ]
    assert MERGES[merge].shares(logits) == pytest.approx(np.array(found), abs=1e-5)
