import pytest

from ldt.data import formats
from ldt.data.formats import cuad, squad
from ldt.errors import DataError
from ldt.io.strict_json import JsonFile, read


def test_published_contracts_are_read_with_their_categories(shared_data):
    file = read(str(shared_data / "cuad_v1_layout" / "train.json.gz"))
    examples = list(cuad.read(file, None))
    assert len(examples) == 720
    assert sum(bool(example.fields["answers"]) for example in examples) == 365
    first = examples[0].fields
    assert first["category"] == "Agreement Date"
    assert f'related to "{first["category"]}"' in first["question"]
    for example in examples:
        for answer in example.fields["answers"]:
            context = example.fields["context"]
            assert context.startswith(answer["text"], answer["answer_start"])
    assert max(len(example.fields["answers"]) for example in examples) > 5


def test_a_contract_has_the_layout_of_squad_and_ids_with_its_title():
    qas = [{"id": "t__Cap", "question": "?", "answers": []}]
    value = {"data": [{"title": "t", "paragraphs": [{"context": "c", "qas": qas}]}]}
    assert cuad.fits(value)
    assert squad.fits(value)
    assert formats.detect(value) == "squad"
    assert formats.fits(value, "cuad")
    assert [each.fields["category"] for each in cuad.read(JsonFile("f", value), None)] == ["Cap"]


@pytest.mark.parametrize(
    "value",
    [
        {"data": []},
        {"data": [{"title": "t", "paragraphs": [{"context": "c", "qas": [{"id": "x"}]}]}]},
        {"data": [{"title": 3, "paragraphs": [{"qas": [{"id": "x"}]}]}]},
        {"data": [{"paragraphs": []}]},
        [],
    ],
)
def test_what_is_no_contract(value):
    assert not cuad.fits(value)


def test_a_broken_contract_does_not_hide_the_layout():
    qas = [{"id": "t__Cap", "question": "q", "answers": []}]
    good = {"title": "t", "paragraphs": [{"context": "c", "qas": qas}]}
    for broken in (None, {"title": "t", "paragraphs": None}, good | {"paragraphs": [None]}):
        value = {"data": [broken, good]}
        assert cuad.fits(value)
        with pytest.raises(DataError, match="^f: article 1"):
            list(cuad.gold(JsonFile("f", value)))


def test_a_question_twice_is_told_before_any_is_read():
    qas = [{"id": "t__Cap", "question": "q", "answers": []}] * 2
    value = {"data": [{"title": "t", "paragraphs": [{"context": "c", "qas": qas}]}]}
    with pytest.raises(DataError, match="^f: the id 't__Cap' stands twice"):
        next(cuad.read(JsonFile("f", value), None))


def test_a_category_stands_behind_the_last_border():
    assert cuad.category("A__B__Cap On Liability") == "Cap On Liability"
