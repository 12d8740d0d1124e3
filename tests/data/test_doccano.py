import json

import pytest

from ldt.benchmarks.formats import read
from ldt.data.options import DataSection
from ldt.errors import DataError

TEXT = "😀 Acme\r\nInc. and Cafe\u0301 𝐀."


@pytest.fixture
def export(tmp_path):
    """Reads lines as an export has them."""
    file = tmp_path / "all.jsonl"

    def examples(*lines, **options):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        file.write_text(text, encoding="utf-8")
        options = {"format": "doccano", **options}
        return list(read(str(file), DataSection.model_validate(options)))

    return examples


def test_spans_are_entities_in_characters(export):
    # As the browser counts them: an emoji is two, CR LF too, a letter with its mark.
    spans = [[18, 23, "ORG"], [3, 13, "ORG"], [24, 26, "X"]]
    objects = [{"id": 3, "label": "ORG", "start_offset": 3, "end_offset": 13}]
    flat, deep = export(
        {"id": 8, "text": TEXT, "label": spans, "meta": 1},
        {"id": 9, "text": TEXT, "entities": objects, "relations": []},
    )
    wanted = [
        {"start": 2, "end": 12, "label": "ORG", "text": "Acme\r\nInc."},
        {"start": 17, "end": 22, "label": "ORG", "text": "Cafe\u0301"},
        {"start": 23, "end": 24, "label": "X", "text": "𝐀"},
    ]
    assert flat.fields == {"id": 8, "text": TEXT, "meta": 1, "entities": wanted}
    assert deep.fields["entities"] == wanted[:1]
    assert [flat.id, deep.id] == [8, 9]


def test_classes_are_one_or_lists_where_any_line_has_several(export):
    lines = [{"text": "a", "label": ["x"]}, {"text": "b", "label": []}]
    assert [each.fields["label"] for each in export(*lines)] == ["x", None]
    lines.append({"text": "c", "cats": ["y", "x"], "entities": [[0, 1, "L"]]})
    found = export(*lines)
    assert [each.fields["label"] for each in found] == [["x"], [], ["y", "x"]]
    assert [len(each.fields["entities"]) for each in found] == [0, 0, 1]


def test_spans_beside_a_question_are_its_answers(export):
    (example,) = export({"text": TEXT, "label": [[3, 7, "answer"]], "question": "Who?"})
    assert example.fields["answers"] == [{"text": "Acme", "answer_start": 2}]
    assert example.fields["context"] == TEXT


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            {"label": [[3, 99, "ORG"]]},
            "all.jsonl:1: ORG from 3 to 99: no words there; the text has 27 units",
        ),
        ({"label": [[7, 7, "ORG"]]}, "ORG from 7 to 7: no words there"),
        ({"label": [[1, 7, "ORG"]]}, "ORG from 1 to 7: it parts a character"),
        (
            {"label": [[3, 7]]},
            "field 'label': a list of 2, expected a class, or [start, end, label]",
        ),
        ({"label": [7]}, "field 'label': 7, expected a class"),
        ({}, "all.jsonl:1: no labels: no field label, labels, cats, entities or annot"),
        ({"annotations": [{"label": 2}]}, "'annotations' has the number of a label, 2"),
    ],
)
def test_a_label_that_cannot_be_is_named(export, line, message):
    with pytest.raises(DataError) as error:
        export({"text": TEXT} | line)
    assert message in str(error.value)


def test_a_field_names_the_text_and_bad_lines_are_rejected(tmp_path):
    file = tmp_path / "all.jsonl"
    file.write_text('{"data": "abc", "label": [[0, 1, "X"]]}\n{\n', encoding="utf-8")
    rejected = []
    data = DataSection.model_validate({"format": "doccano", "text": "data"})
    (example,) = read(str(file), data, on_error=lambda error, raw: rejected.append(raw))
    assert example.fields["entities"][0]["text"] == "a"
    assert rejected == [b"{\n"]


def test_exports_of_all_ages_are_read(export):
    found = export(
        {"text": TEXT, "labels": [[3, 7, "ORG"]]},
        {"text": TEXT, "annotations": [{"label": "ORG", "start_offset": 3, "end_offset": 7}]},
        {"text": TEXT, "label": [[3, 7, "ORG"]]},
    )
    assert {each.fields["entities"][0]["text"] for each in found} == {"Acme"}
    (old,) = export({"text": "a", "annotations": [{"label": "x", "user": 1}]})
    assert old.fields["label"] == "x"
