"""Coreference: words of chunks, answers through a whole document, and what training draws."""

import json
import logging
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

import ldt
from ldt.data.options import DataSection
from ldt.io.records import Example
from ldt.model import LdtConfig, LdtForCoreference, load
from ldt.tasks import TASKS
from ldt.tasks.coreference import resolved

SENTENCES = [f"the party {n} agrees that it ends .".split() for n in range(9)]
MENTIONS = [[[8 * n, 8 * n + 2] for n in range(9)], [[8 * n + 5, 8 * n + 5] for n in range(1, 9)]]
RECORD = {"sentences": SENTENCES, "clusters": MENTIONS}
HEAD = {"ffnn_size": 8, "max_span_length": 5, "singletons": True}


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder):
    return AutoTokenizer.from_pretrained(tokenizer_folder)


@pytest.fixture(scope="module")
def run(tokenizer, tmp_path_factory):
    """The folder of a random model, with and without a recipe."""
    folder = tmp_path_factory.mktemp("runs") / "coreference"
    size = {"num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 24}
    size |= {"num_attention_heads": 2, "attention_window": 8, "type_vocab_size": 1}
    size |= {"max_position_embeddings": 400, "vocab_size": len(tokenizer), "initializer_range": 0.7}
    size |= {"pad_token_id": tokenizer.pad_token_id, "coref_head": HEAD}
    torch.manual_seed(0)
    model = LdtForCoreference(LdtConfig(**size))
    model.mention_end_classifier.bias.data.zero_()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    recipe = {"task": {"name": "coreference"}, "model": {"path": "x"}}
    recipe["data"] = {"train": "t.jsonl", "stride": 12}
    (folder / "recipe.yaml").write_text(json.dumps(recipe))
    return folder


def encode(tokenizer, fields, max_length=40, stride=12, config=None, **task):
    task = TASKS["coreference"](**task)
    data = DataSection(stride=stride)
    example = Example(fields, "d", "t.jsonl:1")
    return task.encode(example, tokenizer, data=data, max_length=max_length, config=config)


def test_clusters_go_through_chunks_by_the_states_of_their_middles(run, tokenizer):
    words = [word for sentence in SENTENCES for word in sentence]
    features = encode(tokenizer, RECORD)
    assert len(features) > 3
    length = max(each["read"][2] for each in features)
    model = load(run, LdtForCoreference)
    best = {}
    with torch.inference_mode():
        for feature in features:
            before, start, end = feature["read"]
            ids = torch.tensor([feature["input_ids"]])
            states = model.base_model(ids).last_hidden_state[0]
            whole = encode(tokenizer, RECORD, max_length=390)[0]
            for row in whole["words"]:  # tokens behind one special one
                first, last = (int(place) - 1 for place in row[1:3])
                left = 1000 if start == 0 else first - start
                right = 1000 if end == length else end - 1 - last
                if min(left, right) > best.get(row[0], (-1,))[0] and last < end:
                    places = [place - start + before for place in (first, last)]
                    best[row[0]] = min(left, right), row, states[places].flatten()
        rows = [best[number] for number in range(len(words))]
        table = torch.stack([torch.as_tensor(row).long() for _, row, _ in rows])
        links, _ = model.links(torch.stack([states for *_, states in rows]), table)
    expected = {}
    for row in links.tolist():
        if row[2] >= 0:
            expected[tuple(map(int, row[:2]))] = tuple(map(int, links[int(row[2]), :2].tolist()))
    reader = ldt.load(run, data={"max_length": 40})
    answer = reader(RECORD)
    text = "\n".join(" ".join(sentence) for sentence in SENTENCES)
    place_of = {start: n for n, (start, _) in enumerate(features[0]["places"].tolist())}
    end_of = {end: n for n, (_, end) in enumerate(features[0]["places"].tolist())}
    answered = {}
    for cluster in answer["clusters"]:
        spans = [(place_of[each["start"]], end_of[each["end"]]) for each in cluster]
        for each, span in zip(cluster, spans, strict=True):
            assert each["text"] == text[each["start"] : each["end"]]
            if each["antecedent"] is not None:
                answered[span] = spans[each["antecedent"]]
    assert answer["chunks"] == len(features)
    assert answered == expected
    assert max(span[0] - other[0] for span, other in answered.items()) > 30  # words


def test_a_folder_without_a_recipe_answers(run, tmp_path):
    for file in run.iterdir():
        if file.name != "recipe.yaml":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    answer = ldt.load(tmp_path)("The party agrees. It ends \U0001f600 here.")
    assert (
        answer["clusters"]
        == ldt.load(run)("The party agrees. It ends \U0001f600 here.")["clusters"]
    )
    for text in ("", " \n", "a"):
        assert len(ldt.load(run)(text)["clusters"]) <= 1


def test_bf16_tells_how_close_the_states_of_words_are(run, caplog):
    with caplog.at_level(logging.INFO, "ldt"):
        ldt.load(run, precision="bf16", device="cpu")(RECORD)
    (cosine,) = re.findall(r"the least cosine of the states is (\S+)$", caplog.text, re.M)
    assert 0.9 < float(cosine) < 1


def test_the_name_of_a_speaker_stands_where_it_changes(tokenizer):
    speakers = [["A"] * 8, *([["B"] * 8] * 8)]
    plain = encode(tokenizer, RECORD, 390)[0]
    spoken = encode(tokenizer, RECORD | {"speakers": speakers}, 390)[0]
    tokens = tokenizer.convert_ids_to_tokens
    for one, other in zip(plain["words"], spoken["words"], strict=True):
        a, b = (x["input_ids"][w[1] : w[2] + 1] for x, w in ((plain, one), (spoken, other)))
        assert tokens(a) == tokens(b)
    text = tokenizer.decode(spoken["input_ids"]).replace(" ", "")
    assert text.count("###A###"[2:]) == text.count("B###") == 1
    unspoken = encode(tokenizer, RECORD | {"speakers": speakers}, 390, speakers=False)[0]
    assert unspoken["input_ids"] == plain["input_ids"]


def test_an_epoch_draws_neighbouring_chunks_of_whole_sentences(tokenizer):
    features = encode(tokenizer, RECORD, config=object(), chunks=2)
    task = TASKS["coreference"](chunks=2)
    starts = set()
    for seed in range(20):
        drawn = task.draw(features, np.random.default_rng(seed))
        assert len(drawn) == 2
        words = np.concatenate([each["words"] for each in drawn])
        assert (np.diff(words[:, 0]) == 1).all()
        assert words[0, 0] % 8 == 0
        assert words[-1, 0] % 8 == 7
        starts.add(int(words[0, 0]))
    assert len(starts) > 2
    chunk = {int(row[0]): n for n, each in enumerate(features) for row in each["words"]}
    pairs = [pair for each in MENTIONS for pair in zip(each, each[1:], strict=False)]
    lost = sum(chunk[one[0]] < chunk[other[0]] for one, other in pairs)
    rows = [each | {"document": 0} for each in features]
    (line,) = TASKS["coreference"](chunks=1).remarks(rows, 0)
    assert line.startswith(f"of {len(pairs)} links {lost} lost where")


@pytest.mark.parametrize("singletons", [True, False])
def test_a_cluster_of_one_is_a_mention_by_its_score(tokenizer, singletons):
    features = encode(tokenizer, RECORD, 390)
    # first and last word, antecedent, score of the link, score of the span
    rows = [(0, 1, -1, -9, 2), (3, 3, -1, -9, 1), (4, 4, -1, -9, -1), (5, 6, 0, 1, -2)]
    outputs = [{"logits": np.array([*rows, [-100] * 5], np.float32)}]
    config = SimpleNamespace(coref_head={"singletons": singletons})
    answer = TASKS["coreference"]().decode(outputs, config, None, features)
    texts = [[each["text"] for each in cluster] for cluster in answer["clusters"]]
    assert texts == [["the party", "it ends"], ["agrees"]][: 1 + singletons]
    linked = answer["clusters"][0][1]
    assert (linked["antecedent"], linked["score"]) == (0, pytest.approx(1 / (1 + np.exp(-1))))


def test_pronouns_are_replaced_by_the_first_name():
    text = "It fell. Ann saw it and took her bag; she left."

    def mention(words, after=0):
        start = text.index(words, after)
        return {"start": start, "end": start + len(words), "text": words}

    ann = [mention("Ann"), mention("her"), mention("she")]
    it = [mention("It"), mention("it")]
    assert resolved(text, [ann, it]) == "It fell. Ann saw it and took Ann's bag; Ann left."


def test_sentences_that_are_not_given_are_found(tokenizer):
    given = encode(tokenizer, RECORD, 390)[0]["words"][:, 3]
    words = [word.capitalize() if n % 8 == 0 else word for n, word in enumerate(sum(SENTENCES, []))]
    for fields in ({"tokens": words}, {"text": " ".join(words)}):
        found = encode(tokenizer, fields, 390)[0]["words"][:, 3]
        assert found.tolist() == given.tolist()
