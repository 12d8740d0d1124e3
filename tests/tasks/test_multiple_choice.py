import json
import math

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, PretrainedConfig

from ldt.data.features import Collator
from ldt.errors import DataError, RecipeError
from ldt.io.records import Example
from ldt.model import load
from ldt.recipe.recipe import DataSection
from ldt.tasks import MultipleChoice
from ldt.tasks.base import default_layout, score_all

CONFIG = PretrainedConfig(decisions={})


LONG = "the party of the first part and the other party agree " * 3


def question(**fields):
    known = {
        "question": "the end",
        "context": "the party of the first part",
        "choices": ["party", "other", "the first part"],
        "label": 2,
    }
    return Example(known | fields, "q", "train.jsonl:17")


@pytest.fixture
def encode(tiny):
    def encode(example, max_length=128, config=CONFIG, task=None, **data):
        task = task or MultipleChoice()
        section = DataSection(**data)
        return task.encode(example, tiny, data=section, max_length=max_length, config=config)

    return encode


# encoding


def test_each_choice_is_an_input_with_question_and_choice_in_front_and_global(tiny, encode):
    features = encode(question())
    assert [tiny.decode(feature["input_ids"]) for feature in features] == [
        f"<s>the end {choice}</s>the party of the first part</s>"
        for choice in ("party", "other", "the first part")
    ]
    for place, feature in enumerate(features):
        head = feature["input_ids"].index(tiny.sep_token_id)
        mask = feature["global_attention_mask"]
        assert mask == [1] * head + [0] * (len(mask) - head)
        assert (feature["choices"], feature["labels"], feature["chunks"]) == (place, 2, 1)
        assert feature["tokens"] == len(mask)
    (marked, *_) = encode(question(), task=MultipleChoice(global_attention=["cls", "choice"]))
    assert sum(marked["global_attention_mask"]) == 1 + len(tiny(" party")["input_ids"]) - 2


def test_known_ids(shared_data):
    tokenizer = AutoTokenizer.from_pretrained(shared_data / "tokenizers" / "roberta-base")
    example = question(question="Who?", context="Hello world!", choices=["Hello", "world"], label=1)
    features = MultipleChoice().encode(example, tokenizer, data=DataSection(), max_length=99)
    assert [feature["input_ids"] for feature in features] == [
        [0, 12375, 116, 20920, 2, 31414, 232, 328, 2],
        [0, 12375, 116, 232, 2, 31414, 232, 328, 2],
    ]


def test_a_long_text_has_the_same_windows_for_all_choices(tiny, encode):
    example = question(context=LONG)
    whole = encode(example)
    features = encode(example, max_length=20, stride=1)
    windows = features[0]["chunks"]
    assert windows > 1
    assert [feature["choices"] for feature in features] == np.repeat(range(3), windows).tolist()
    read = []
    for feature in features:
        ids = feature["input_ids"]
        middle = ids.index(tiny.sep_token_id)
        assert ids[: middle + 1] == whole[feature["choices"]]["input_ids"][: middle + 1]
        assert feature["tokens"] == whole[feature["choices"]]["tokens"]
        assert len(ids) <= 20
        read.append(ids[middle + 1 : -1])
    assert read[:windows] == read[windows : 2 * windows] == read[2 * windows :]
    (cut, *_) = encode(example, max_length=20, overflow="truncate")
    unread = cut["tokens"] - len(cut["input_ids"])
    assert (cut["flags"], cut["chunks"]) == ({"truncated": True, "unread_tokens": unread}, 1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"choices": []}, "train.jsonl:17: field 'choices': a list, empty, expected"),
        ({"choices": ["a", ""]}, "train.jsonl:17: field 'choices': a list of 2, expected"),
        ({"choices": "a"}, "field 'choices' is text, expected a list of texts"),
        ({"choices": ["a", 1]}, "field 'choices': a number in place 2, expected text"),
        ({"context": None}, "field 'context' is null, expected text"),
        (
            {"question": "the end " * 99},
            "what is asked leaves 0 tokens of an input",
        ),
    ],
)
def test_what_cannot_be_read_is_a_data_error(encode, fields, message):
    with pytest.raises(DataError) as caught:
        encode(question(**fields), config=None)
    assert message in str(caught.value)


def test_an_empty_text_is_flagged_and_needs_no_label(encode):
    example = question(context=" ")
    del example.fields["label"]
    features = encode(example, config=None)
    assert [feature["flags"] for feature in features] == [{"empty": True}] * 3
    assert "labels" not in features[0]


# labels


@pytest.mark.parametrize(("label", "place"), [(0, 0), (2, 2), ("other", 1), ("the first part", 2)])
def test_the_label_is_a_place_or_the_text_of_a_choice(encode, label, place):
    assert encode(question(label=label))[0]["labels"] == place
    data = DataSection(label="right.one", fields={"choices": "options"})
    fields = {"right": {"one": label}, "options": question().fields["choices"]}
    found = Example(fields, "q", "t:1")
    assert MultipleChoice().gold(found, data, CONFIG) == {"choice": place}


@pytest.mark.parametrize(
    ("label", "shown"),
    [(3, "3"), (-1, "-1"), (True, "true"), ("Other", "'Other'"), (None, "null")],
)
def test_a_label_that_is_no_choice_is_a_data_error_before_training(label, shown):
    task, data = MultipleChoice(), DataSection(train="t.jsonl", eval="e.jsonl")
    wanted = (
        f"train.jsonl:17: label 'label' is {shown}, expected the text of one of the choices or its "
        "place, 0 to 2"
    )
    for look in (task.learn, lambda *args: task.check(*args, CONFIG)):
        with pytest.raises(DataError) as caught:
            look([question(), question(label=label)], data)
        assert str(caught.value) == wanted


def test_several_label_fields_are_refused():
    with pytest.raises(RecipeError, match="data.label: several fields; one choice is right"):
        MultipleChoice().learn([question()], DataSection(label=["a", "b"]))


# answers


def test_the_mean_over_the_windows_decides_between_the_choices(encode):
    features = encode(question(context=LONG), max_length=20)
    windows = features[0]["chunks"]
    assert windows > 1
    logits = np.random.default_rng(0).normal(size=(3, windows))
    said = [{"logits": np.array([value])} for value in logits.flatten()]
    answer = MultipleChoice().decode(said, CONFIG, question(), features)
    merged = [sum(row) / windows for row in logits.tolist()]
    chances = [math.exp(value) / sum(map(math.exp, merged)) for value in merged]
    best = max(range(3), key=merged.__getitem__)
    assert answer == {
        "answer": question().fields["choices"][best],
        "choice": best,
        "score": pytest.approx(chances[best]),
        "scores": pytest.approx(chances),
        "chunks": windows,
    }
    assert json.loads(json.dumps(answer)) == answer


def test_accuracy_is_in_percent_and_there_is_no_published_layout():
    task = MultipleChoice()
    golds = [{"choice": choice} for choice in (0, 1, 2)]
    answers = [{"choice": choice} for choice in (0, 0, 2)]
    assert score_all(task, answers, golds, CONFIG) == ({"accuracy": pytest.approx(200 / 3)}, [])
    assert default_layout(task, [None]) is None


# the whole


def test_training_and_predicting_see_the_same_scores(tiny, tiny_longformer, encode):
    task = MultipleChoice()
    model = load(tiny_longformer, task.head()).eval()
    collate = Collator(tiny.pad_token_id, task.head(), task.inputs.extras)
    two = question(choices=["party", "other"], label="other")
    several = [encode(question(), max_length=20), encode(two, max_length=24)]
    with torch.no_grad():
        batch = collate(several)
        together = model(**batch)
        rows = [feature for features in several for feature in features]
        alone = model(**{k: v for k, v in collate(rows).items() if k != "labels"})
    torch.testing.assert_close(together.logits, alone.logits)
    logits, losses, start = alone.logits.numpy()[:, 0], [], 0
    for features, gold in zip(several, (2, 1), strict=True):
        own = logits[start : start + len(features)].reshape(-1, features[0]["chunks"]).mean(1)
        losses.append(math.log(np.exp(own).sum()) - own[gold])
        start += len(features)
    assert together.loss.item() == pytest.approx(sum(losses) / 2, rel=1e-5)
