import gzip
import json

import pytest

from ldt.benchmarks import formats
from ldt.benchmarks.lexglue import TASKS
from ldt.data.options import DataSection
from ldt.errors import DataError


def test_classes_are_in_the_official_order(shared_data):
    concepts = json.loads((shared_data / "lexglue" / "eurovoc_concepts.json").read_text())
    assert list(TASKS["eurlex"].classes) == concepts
    assert " ".join(TASKS["ecthr_a"].classes) == "2 3 5 6 8 9 10 11 14 P1-1"
    assert TASKS["ecthr_a"].classes == TASKS["ecthr_b"].classes
    assert list(TASKS["scotus"].classes) == [str(number) for number in range(1, 14)]


@pytest.mark.parametrize("name", TASKS)
def test_both_layouts_are_the_same_documents(shared_data, name):
    folder = shared_data / "lexglue"
    raw = folder / f"{name.removesuffix('_a').removesuffix('_b')}.jsonl.gz"
    one, other = (
        list(formats.read(str(file), DataSection(format=name)))
        for file in (raw, folder / f"{name}.hf_layout.jsonl.gz")
    )
    assert [each.fields for each in one] == [each.fields for each in other]
    assert [each.id for each in one] == [each.id for each in other] == [0, 1, 2, 3, 4, 5]
    kind = str if name == "eurlex" else list
    assert {type(each.fields["text"]) for each in one} == {kind}
    labels = [each.fields["label"] for each in one]
    assert {type(label) for label in labels} == {str if name == "scotus" else list}
    numbers = [
        json.loads(line)
        for line in gzip.decompress(
            (folder / f"{name}.hf_layout.jsonl.gz").read_bytes()
        ).splitlines()
    ]
    classes = TASKS[name].classes
    for label, line in zip(labels, numbers, strict=True):
        if name == "scotus":
            assert label == classes[line["label"]]
        else:
            assert label == [classes[number] for number in line["labels"]]


def read(tmp_path, name, *lines):
    file = tmp_path / "x.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return list(formats.read(str(file), DataSection(format=name)))


def test_articles_that_are_no_class_are_dropped(tmp_path):
    line = {"facts": ["a"], "violated_articles": ["13"], "allegedly_violated_articles": ["13", "8"]}
    assert read(tmp_path, "ecthr_a", line)[0].fields["label"] == []
    assert read(tmp_path, "ecthr_b", line)[0].fields["label"] == ["8"]


def test_a_line_without_labels_has_none_and_its_own_id(tmp_path):
    examples = read(tmp_path, "eurlex", {"text": "a", "id": "x"}, {"text": "b"})
    assert [(each.id, each.fields) for each in examples] == [
        ("x", {"text": "a"}),
        (1, {"text": "b"}),
    ]


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("ecthr_a", {"text": "a", "labels": [10]}, "label 10; expected one, or a list of numbers"),
        ("eurlex", {"text": "a", "labels": [-1]}, "label -1; expected one, or a list of numbers"),
        ("scotus", {"text": "a", "label": "14"}, "'label' is '14', none of the classes"),
        ("scotus", {"text": "a", "label": [1]}, "label a list of 1; expected one, or a list of"),
        ("eurlex", {"text": "a", "labels": 1}, "label 1; expected one, or a list of numbers"),
        ("eurlex", {"labels": [1]}, "text: field str: found null; input"),
        ("eurlex", {"text": ["a", 3], "labels": [1]}, "text: field str: found a list of 2"),
    ],
)
def test_a_line_that_cannot_be_read(tmp_path, name, line, message):
    with pytest.raises(DataError) as error:
        read(tmp_path, name, line)
    assert str(error.value).startswith(f"{tmp_path}/x.jsonl:1: {message}")
