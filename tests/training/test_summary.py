from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from features_of import feature
from transformers import AutoTokenizer, PretrainedConfig

from ldt.errors import DataError
from ldt.io.records import Example
from ldt.recipe.recipe import DataSection
from ldt.tasks import Classification, EvidenceClassification, Squad, TokenClassification
from ldt.training.dataset_cache import Examples
from ldt.training.labelled import DocumentEncoder, encode_all, split, unique
from ldt.training.summary import encoded_input, labelled_data, length_report


def examples(*labels):
    return [
        Example({"text": f"party {number}", "label": label}, number, f"train.jsonl:{number}")
        for number, label in enumerate(labels, start=1)
    ]


@pytest.fixture(scope="module")
def tiny(tokenizer_folder):
    return AutoTokenizer.from_pretrained(tokenizer_folder)


# ids and splits


def test_an_id_that_comes_twice_is_an_error_that_names_both_places():
    found = examples("a", "b")
    assert list(unique(found)) == found
    with pytest.raises(DataError, match="^dev.jsonl:9: id 2 stands at train.jsonl:2 too$"):
        unique([*found, Example({}, 2, "dev.jsonl:9")])


def test_a_split_keeps_proportions_order_and_every_document():
    labels = ["a", "a", "b", "a", "b"] * 20
    whole, data = examples(*labels), DataSection(eval_fraction=0.2)
    train, dev = split(Examples(whole), Classification(), data, seed=3)
    assert Counter(item.fields["label"] for item in dev) == {"a": 12, "b": 8}
    assert sorted([*train, *dev], key=lambda item: item.id) == whole
    for part in (train, dev):
        assert [item.id for item in part] == sorted(item.id for item in part)


def test_a_split_follows_its_seed():
    whole, data = examples(*["a", "b"] * 50), DataSection(eval_fraction=0.3)
    parts = [
        [e.id for e in split(Examples(whole), Classification(), data, seed)[1]]
        for seed in (1, 1, 2)
    ]
    assert parts[0] == parts[1] != parts[2]


def test_copies_of_a_document_stay_on_its_side_of_a_split():
    whole = examples(*["a", "b"] * 50)
    copied = [
        replace(e, id=-e.id, fields=e.fields | {"text": e.fields["text"].upper() + " "})
        for e in whole
    ]
    train, dev = split(
        Examples([*whole, *copied]), Classification(), DataSection(eval_fraction=0.3), seed=0
    )
    assert {-item.id for item in dev} == {item.id for item in dev}
    assert len(dev) == 60


ONE = {"answers": [{"text": "text", "answer_start": 0}]}
RARE = {
    "several labels": (
        Classification(),
        [{"text": f"d {n}", "label": ["a", "b"][: 1 + n % 2]} for n in range(18)]
        + [{"text": "x", "label": ["a", "rare"]}, {"text": "y", "label": ["b", "once", "a"]}],
        lambda train: {name for each in train for name in each.fields["label"]},
        {"a", "b", "rare", "once"},
    ),
    "the only question without an answer": (
        Squad(),
        [{"context": f"text {n}", "question": "?", **ONE} for n in range(11)]
        + [{"context": "none", "question": "?", "answers": []}],
        lambda train: {bool(each.fields["answers"]) for each in train},
        {True, False},
    ),
    "a type of entity in one document": (
        TokenClassification(),
        [{"tokens": [f"w{n}"], "tags": [("B-A", "O")[n % 2]]} for n in range(11)]
        + [{"tokens": ["Ann", "in"], "tags": ["B-PER", "B-A"]}],
        lambda train: {tag for each in train for tag in each.fields["tags"]},
        {"O", "B-A", "B-PER"},
    ),
    "hypotheses on one document": (
        EvidenceClassification(),
        [
            {"text": f"t {n // 2}", "hypothesis": "h", "spans": [], "label": label, "evidence": []}
            for n, label in enumerate(["x", "y"] * 8 + ["x", "rare"])
        ],
        lambda train: {each.fields["label"] for each in train},
        {"x", "y", "rare"},
    ),
}


@pytest.mark.parametrize("kind", RARE)
def test_a_split_leaves_all_classes_of_a_document_one_to_train_on(kind):
    task, rows, seen, wanted = RARE[kind]
    whole = [Example(fields, n, f"t.jsonl:{n}") for n, fields in enumerate(rows, 1)]
    drawn = set()
    for seed in range(12):
        train, dev = split(Examples(whole), task, DataSection(eval_fraction=0.3), seed)
        assert seen(train) == wanted
        assert len(dev) >= 0.2 * len(whole)
        drawn.add(tuple(each.id for each in dev))
    assert len(drawn) > 3


def test_a_split_keeps_the_shares_of_several_labels():
    draw = np.random.default_rng(0)
    names = [[f"c{name}" for name in np.flatnonzero(row)] for row in draw.random((900, 9)) < 0.3]
    train, dev = split(
        Examples(examples(*names)), Classification(), DataSection(eval_fraction=0.1), 0
    )
    here, there = (
        Counter(c for each in part for c in each.fields["label"]) for part in (dev, train)
    )
    assert len(dev) == 90
    for name, count in here.items():
        assert abs(count - 0.1 * (count + there[name])) < 2


@pytest.mark.parametrize(
    "labels", [[0.5 + n for n in range(10)], [f"{n}.5" for n in range(10)], [["a"], []] * 5]
)
def test_a_split_without_classes_is_of_the_asked_size(labels):
    train, dev = split(
        Examples(examples(*labels)), Classification(), DataSection(eval_fraction=0.3), 0
    )
    assert (len(train), len(dev)) == (7, 3)


@pytest.mark.parametrize(("labels", "fraction"), [([], 0.5), (["a"], 0.9), (["a", "b"], 0.1)])
def test_a_split_that_leaves_nothing_to_evaluate_on_is_a_data_error(labels, fraction):
    data = DataSection(train="t.jsonl", eval_fraction=fraction)
    what = f"^t.jsonl: data.eval_fraction={fraction} of {len(labels)} documents leaves none"
    with pytest.raises(DataError, match=what):
        split(Examples(examples(*labels)), Classification(), data, 0)


def test_a_split_does_not_part_the_questions_on_a_text():
    whole = [
        Example({"context": f"text {n // 5}", "question": "?", "answers": []}, n, f"t.jsonl:{n}")
        for n in range(50)
    ]
    train, dev = split(Examples(whole), Squad(), DataSection(eval_fraction=0.2), seed=0)
    assert (len(train), len(dev)) == (40, 10)
    texts = [{example.fields["context"] for example in part} for part in (train, dev)]
    assert len(texts[1]) == 2
    assert texts[0].isdisjoint(texts[1])


def test_encode_all_numbers_the_documents_and_keeps_their_windows_together(tiny):
    found = examples("a", "b", "a")
    found[1].fields["text"] = "the party of the first part " * 9
    config = PretrainedConfig(id2label={0: "a", 1: "b"}, problem_type="single_label_classification")
    encoder = DocumentEncoder(Classification(), tiny, DataSection(), 16, config)
    features = encode_all(iter(found), encoder)
    windows = len(features) - 2
    assert windows > 2
    assert features.documents.tolist() == [0, *[1] * windows, 2]
    assert [item["labels"] for item in features] == [0, *[1] * windows, 0]
    assert "labels" not in encode_all(found, replace(encoder, config=None))[0]


# reports


def test_the_report_counts_documents_windows_and_cuts():
    cut, empty = {"truncated": True}, {"empty": True}
    report = length_report(
        [
            feature(8, document=0, tokens=2),
            feature(2, document=1, tokens=2, flags=empty),
            *[feature(8, document=2, tokens=14)] * 2,
            *[feature(8, document=3, tokens=5000, flags=cut)] * 2,
            feature(8, document=4, tokens=8),
        ],
        max_length=8,
    )
    assert (report.documents, report.inputs, report.windowed) == (5, 7, 2)
    assert (report.truncated, report.empty) == (1, 1)
    assert (report.median, report.p95, report.longest) == (8, 4003, 5000)
    assert report.lines == [
        "5 documents: 8 tokens in the median, 4,003 at the 95th percentile, 5,000 in the longest",
        "2 (40%) have more than 8 tokens and are read in chunks, 7 inputs in all",
        "1 (20%) are cut off: their last tokens are not read",
        "1 (20%) are empty",
    ]


def test_the_report_says_so_when_nothing_is_cut():
    report = length_report([feature(30)], max_length=128)
    assert report.lines[1:] == ["all fit into 128 tokens, nothing is cut off"]
    assert report.warnings == []
    assert length_report([], max_length=8).documents == 0


def test_the_report_warns_of_inputs_without_global_tokens():
    report = length_report([feature(9), feature(9, 1, marked=0)], max_length=16)
    assert report.warnings[0].startswith("1 of 2 inputs have no global token")
    told = [notice.text for notice in labelled_data({"train": report, "eval": report}, {}, [])]
    assert told[1:] == [f"{name}: {report.warnings[0]}" for name in ("train", "eval")]


def shown(item, tokenizer):
    heading, *lines = encoded_input("document 'a':", item, tokenizer).text.splitlines()
    assert heading == "document 'a':"
    assert all(line.startswith("  ") and len(line) <= 80 for line in lines)
    assert all(line.endswith("|") for line in lines[:-1])
    return [line[2:] for line in lines]


def test_an_encoded_example_is_shown_with_its_global_tokens_marked(tiny):
    example = examples("a")[0]
    example.fields["text"] = "the [/b] party\n\x1b"
    (item,) = Classification().encode(example, tiny, data=DataSection(), max_length=99)
    (line,) = shown(item, tiny)
    assert line.startswith("*<s>*|")
    assert line.replace("|", "") == "*<s>*the [/b] party\\n\\x1b</s>"


def test_a_long_example_is_shown_by_its_ends_with_the_middle_counted(tiny):
    ids = [tiny.cls_token_id] + [tiny.convert_tokens_to_ids("a")] * 98 + [tiny.sep_token_id]
    item = {"input_ids": np.array(ids), "global_attention_mask": np.array([1, *[0] * 49] * 2)}
    lines = shown(item, tiny)
    assert len(lines) > 1
    middle = " ... 40 tokens, 1 of them global ... |"
    assert "".join(lines) == "*<s>*|" + "a|" * 39 + middle + "a|" * 19 + "</s>"
    assert "..." not in "".join(shown({name: ids[:60] for name, ids in item.items()}, tiny))


# real documents
