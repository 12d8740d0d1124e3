import json

import numpy as np
import pytest
from transformers import AutoTokenizer, PretrainedConfig

from ldt.errors import DataError
from ldt.io.records import Example
from ldt.metrics import entities as conll
from ldt.recipe.recipe import DataSection
from ldt.tasks import TokenClassification
from ldt.tasks.base import score_all

SENTENCES = [["EU", "rejects", "German", "call", "."], ["Peter", "Blackburn"]]
TAGS = [["B-ORG", "O", "B-MISC", "O", "O"], ["B-PER", "I-PER"]]
NAMES = ["O", "B-MISC", "I-MISC", "B-ORG", "I-ORG", "B-PER", "I-PER"]


def example(**fields):
    return Example(fields, "d", "dev.jsonl:3")


def learnt(*examples, task=None, **data):
    task = task or TokenClassification()
    return PretrainedConfig(**task.learn(examples, DataSection(**data)))


@pytest.fixture
def config():
    return learnt(example(tokens=SENTENCES, tags=TAGS))


def encode(item, tokenizer, max_length=64, config=None, task=None, **data):
    task = task or TokenClassification()
    section = DataSection(**data)
    return task.encode(item, tokenizer, data=section, max_length=max_length, config=config)


def says(features, config, tags):
    """Outputs whose highest logit is that of the tag of each word, by its number."""
    outputs = []
    for feature in features:
        logits = np.full((len(feature["input_ids"]) + 3, len(config.id2label)), -1.0, np.float32)
        for number, place, *_ in feature["words"]:
            logits[place, config.label2id[tags[number]]] = 2
        outputs.append({"logits": logits})
    return outputs


# what there is to learn


def test_the_types_of_the_training_set_are_the_classes(config):
    assert [config.id2label[number] for number in range(config.num_labels)] == NAMES
    assert config.label2id == {name: number for number, name in enumerate(NAMES)}
    text = example(text="In Rome", entities=[{"start": 3, "end": 7, "label": "LOC"}])
    assert learnt(text).id2label == {0: "O", 1: "B-LOC", 2: "I-LOC"}


def test_the_recipe_can_fix_the_types():
    task = TokenClassification(labels=["PER", "ORG", "MISC"])
    found = learnt(example(tokens=SENTENCES, tags=TAGS), task=task)
    assert list(found.label2id) == ["O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-MISC", "I-MISC"]
    with pytest.raises(
        DataError, match="dev.jsonl:3: an entity 'MISC', .* not in task.labels: 'ORG'"
    ):
        learnt(example(tokens=SENTENCES, tags=TAGS), task=TokenClassification(labels=["ORG"]))


def test_a_set_without_entities_cannot_be_learnt():
    with pytest.raises(DataError, match="t.jsonl: nothing to learn, 1 documents and no entity"):
        learnt(example(tokens=["a"], tags=["O"]), train="t.jsonl")


def test_types_unseen_in_training_are_found_before_it(config):
    task, data = TokenClassification(), DataSection(eval="dev.jsonl")
    task.check([example(tokens=SENTENCES, tags=TAGS)], data, config)
    unseen = example(tokens=["a", "b"], tags=["B-X", "B-X"])
    with pytest.raises(DataError) as error:
        task.check([unseen], data, config)
    assert str(error.value) == (
        "dev.jsonl:3: types that the training set does not have, with their number: "
        "'X' (2); it has 'MISC', 'ORG', 'PER'"
    )


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"tokens": ["a"], "tags": ["X"]}, "field 'tags': 'X' is no tag; O, B-type and I-type are"),
        ({"tokens": ["a"], "tags": [3]}, "field 'tags': a list of 1, expected a list of text"),
        ({"tokens": ["a"]}, "no field 'tags'; it has 'tokens'"),
        ({"tokens": ["a"], "tags": ["O", "O"]}, "2 tags and 1 tokens, in 1 and 1 sentences; each"),
        ({"tokens": [["a"], ["b"]], "tags": ["O", "O"]}, "2 tags and 2 tokens, in 1 and 2 sent"),
        ({"words": ["a"]}, "no field 'tokens', a list of words, and no 'text'; data.fields and"),
        ({"text": "a"}, "no field 'entities'; did you mean"),
        ({"text": None, "entities": []}, "field 'text' is null, expected text"),
    ],
)
def test_a_line_without_words_and_their_tags_is_told(fields, what):
    if "mean" in what:
        what = "no field 'entities'; it has 'text'"
    with pytest.raises(DataError) as error:
        TokenClassification().gold(example(**fields), DataSection(), None)
    assert str(error.value).startswith(f"dev.jsonl:3: {what}")


def test_fields_can_have_other_names():
    item = example(words=["Rome"], ner=["B-LOC"], text="unread")
    data = DataSection(fields={"tokens": "words", "tags": "ner"})
    assert TokenClassification().gold(item, data, None) == [(0, 1, "LOC")]
    item = example(tokens=["unread"], body="Rome", marks=[{"start": 0, "end": 4, "label": "LOC"}])
    data = DataSection(text="body", fields={"entities": "marks"})
    assert TokenClassification().gold(item, data, None) == [(0, 4, "LOC")]


def test_golds_are_read_by_sentence_and_repaired():
    item = example(tokens=[["a", "b"], ["c", "d"]], tags=[["O", "I-X"], ["I-X", "B-X"]])
    gold = TokenClassification().gold(item, DataSection(), None)
    assert gold == [(1, 2, "X"), (2, 3, "X"), (3, 4, "X")]


# encoding

GOLDEN = {
    "roberta-base": [0, 14707, 24020, 1859, 486, 479, 2155, 20809, 2],
    "bert-base-uncased": [101, 7327, 19164, 2446, 2655, 1012, 2848, 13934, 102],
}


def test_the_encoding_of_given_words_is_pinned(real, config):
    (feature,) = encode(example(tokens=SENTENCES, tags=TAGS), real, config=config)
    assert feature["input_ids"] == GOLDEN[real.name_or_path.rpartition("/")[2]]
    assert feature["labels"].tolist() == [-100, 3, 0, 1, 0, 0, 5, 6, -100]
    assert feature["global_attention_mask"] == [1] + [0] * 8
    text = "EU rejects German call . Peter Blackburn"
    assert feature["text"] == text
    assert [text[a:b] for *_, a, b in feature["words"]] == text.split()
    assert feature["words"][:, :2].tolist() == [[number, number + 1] for number in range(7)]


GOLDEN_RAW = {  # ids, the tokens that have a label, words
    "roberta-base": (
        [0, 6209, 44, 48, 16750, 39128, 6118, 17, 46, 6, 47416, 46, 15389, 46499, 11582, 18, 4910]
        + [36, 4628, 4059, 238, 11, 116, 2],
        [1, 2, 4, 6, 7, 9, 10, 13, 15, 16, 17, 18, 19, 20, 21, 22],
        "Is “ Emmanuel Macron ” , 東 京 's guest ( aged 46 ), in ?",  # "),"  is one token
    ),
    "bert-base-uncased": (
        [101, 2003, 1523, 14459, 26632, 2078, 1524, 1010, 1879, 1755, 1005, 1055, 4113, 1006, 4793]
        + [4805, 1007, 1010, 1999, 1029, 102],
        [1, 2, 3, 4, *range(6, 20)],
        "Is “ Emmanuel Macron ” , 東 京 ' s guest ( aged 46 ) , in ?",
    ),
}


def test_the_encoding_of_raw_text_is_pinned(real):
    raw = "Is “Emmanuel Macron”, 東京's guest (aged 46), in?"
    marks = [(4, 19, "PER"), (22, 24, "LOC"), (39, 41, "AGE")]
    marks = [{"start": start, "end": end, "label": label} for start, end, label in marks]
    item = example(text=raw, entities=marks)
    found = learnt(item)
    (feature,) = encode(item, real, config=found)
    ids, places, words = GOLDEN_RAW[real.name_or_path.rpartition("/")[2]]
    assert (feature["input_ids"], feature["words"][:, 1].tolist()) == (ids, places)
    assert [raw[a:b] for *_, a, b in feature["words"]] == words.split()
    labels = {
        word: found.id2label[feature["labels"][at]]
        for word, at in zip(words.split(), places, strict=True)
    }
    assert {word: label for word, label in labels.items() if label != "O"} == {
        "Emmanuel": "B-PER",
        "Macron": "I-PER",
        "東": "B-LOC",
        "京": "I-LOC",
        "46": "B-AGE",
    }
    assert np.flatnonzero(feature["labels"] != -100).tolist() == places
    assert feature["astray"] == 0


def test_an_empty_document_is_flagged(tiny, config):
    for item in (
        example(tokens=[], tags=[]),
        example(tokens=[[], []], tags=[[], []]),
        example(text=" ", entities=[]),
    ):
        (feature,) = encode(item, tiny, config=config)
        assert feature["flags"] == {"empty": True}
        assert feature["labels"].tolist() == [-100] * len(feature["input_ids"])
        answer = TokenClassification().decode(says([feature], config, []), config, item, [feature])
        assert answer["entities"] == []


def test_entities_inside_of_words_are_counted_and_learnt_as_whole_words(tiny):
    marks = [{"start": 5, "end": 9, "label": "X"}, {"start": 11, "end": 13, "label": "X"}]
    item = example(text="the partys of it", entities=marks)
    found = learnt(item)
    features = encode(item, tiny, config=found)
    labels = features[0]["labels"]
    assert [found.id2label[labels[place]] for _, place, *_ in features[0]["words"]] == [
        *("O", "B-X", "B-X", "O")
    ]
    assert TokenClassification().remarks(features, 0) == [
        "entities that begin or end inside of a word, learnt as whole words: 1"
    ]
    assert TokenClassification().remarks([{"astray": 0}, {}], 0) == []


# answers


def long_example(size=40):
    tokens = [f"w{number % 7}" for number in range(size)]
    tags = [("O", "B-PER", "I-PER", "O", "B-ORG")[number % 5] for number in range(size)]
    return example(tokens=tokens, tags=tags), tags


@pytest.mark.parametrize("stride", [0, 5])
def test_windows_read_every_word_once_where_it_stands_most_central(tiny, config, stride):
    item, tags = long_example()
    features = encode(item, tiny, max_length=24, stride=stride, config=config)
    assert len(features) > 3
    outputs = says(features, config, tags)
    covered = {}
    for output, feature in zip(outputs, features, strict=True):
        last = len(feature["input_ids"]) - 1
        for row, (number, place, *_) in enumerate(feature["words"]):
            depth = min(place, last - place)
            if number in covered and covered[number][0] >= depth:
                output["logits"][place] = np.eye(len(NAMES))[NAMES.index("B-MISC")]  # not asked
            elif number in covered:
                before, row, old = covered[number]
                old["logits"][row] = np.eye(len(NAMES))[NAMES.index("B-MISC")]
                covered[number] = depth, place, output
            else:
                covered[number] = depth, place, output
    answer = TokenClassification().decode(outputs, config, item, features)
    assert answer["tags"] == tags
    assert [conll.Entity(e["start"], e["end"], e["label"]) for e in answer["entities"]] == (
        TokenClassification().gold(item, DataSection(), config)
    )


def test_words_that_are_not_read_are_outside(tiny, config):
    item, tags = long_example()
    (cut,) = encode(item, tiny, max_length=24, overflow="truncate")
    answer = TokenClassification().decode(says([cut], config, tags), config, item, [cut])
    read = len(cut["words"])
    assert answer["tags"] == [*tags[:read], *["O"] * (len(tags) - read)]
    assert answer["truncated"] is True


def test_the_answer_has_words_of_given_tokens_and_their_tags_repaired(tiny, config):
    item = example(tokens=[["a", "New", "York"], ["b", "c"]])
    features = encode(item, tiny)
    said = ["I-ORG", "O", "I-PER", "I-PER", "B-PER"]  # none goes on over the sentence's end
    answer = TokenClassification().decode(says(features, config, said), config, item, features)
    sure = float(1 / (1 + 6 * np.exp(-3)))
    assert [tuple(entity.values()) for entity in answer["entities"]] == [
        (0, 1, "ORG", "a", pytest.approx(sure)),
        (2, 3, "PER", "York", pytest.approx(sure)),
        (3, 4, "PER", "b", pytest.approx(sure)),
        (4, 5, "PER", "c", pytest.approx(sure)),
    ]
    assert answer["tags"] == [["B-ORG", "O", "B-PER"], ["B-PER", "B-PER"]]
    assert json.loads(json.dumps(answer)) == answer


def test_the_answer_has_characters_of_raw_text(real, config):
    raw = "\ufeffזה “Emmanuel  Macron”, 👩‍👧."
    item = example(text=raw)
    features = encode(item, real)
    words = [raw[a:b] for *_, a, b in features[0]["words"]]
    tags = ["O"] * len(words)
    tags[words.index("Emmanuel")], tags[words.index("Macron")] = "B-PER", "I-PER"
    answer = TokenClassification().decode(says(features, config, tags), config, item, features)
    (entity,) = answer["entities"]
    assert raw[entity["start"] : entity["end"]] == entity["text"] == "Emmanuel  Macron"
    assert "tags" not in answer


def test_a_word_that_the_tokenizer_drops_does_not_part_an_entity(shared_data, config):
    bert = AutoTokenizer.from_pretrained(shared_data / "tokenizers" / "bert-base-uncased")
    item = example(tokens=["New", "\u200b", "York"])
    features = encode(item, bert)
    assert features[0]["words"][:, 0].tolist() == [0, 2]
    tags = {0: "B-PER", 2: "I-PER"}
    answer = TokenClassification().decode(says(features, config, tags), config, item, features)
    assert answer["tags"] == ["B-PER", "I-PER", "I-PER"]


def test_scores_are_of_entities_and_by_type(config):
    gold = [[conll.Entity(0, 1, "ORG"), conll.Entity(3, 5, "PER")], []]
    found = [
        {"entities": [{"start": 0, "end": 1, "label": "ORG"}]},
        {"entities": [{"start": 3, "end": 5, "label": "PER"}]},  # of the other document
    ]
    metrics, rows = score_all(TokenClassification(), found, gold, config)
    assert metrics == {"precision": 50, "recall": 50, "f1": 50}
    assert rows == [
        {"type": "MISC", "precision": 0, "recall": 0, "f1": 0, "support": 0},
        {"type": "ORG", "precision": 100, "recall": 100, "f1": 100, "support": 1},
        {"type": "PER", "precision": 0, "recall": 0, "f1": 0, "support": 1},
    ]
    with pytest.raises(DataError, match="no documents to score"):
        score_all(TokenClassification(), [], [], config)
