import json
import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ldt.benchmarks.formats import read
from ldt.data.options import DataSection
from ldt.data.sentences import Units
from ldt.errors import DataError

ODD = ["😀", "👨‍👩‍👧", "🇫🇷", "e\u0301", "𝐀", "\r\n", "\n", "é", "a", " "]
TEXT = "😀 Acme\r\nInc. pays  👨‍👩‍👧 Cafe\u0301 𝐀."


def span(start, end, label, **more):
    value = {"start": start, "end": end, "labels": [label], **more}
    return {"from_name": "spans", "to_name": "text", "type": "labels", "value": value}


def choice(*names, control="label"):
    value = {"choices": list(names)}
    return {"from_name": control, "to_name": "text", "type": "choices", "value": value}


def task(number, *results, text=TEXT, **data):
    annotations = [{"id": 1, "result": list(results)}]
    return {"id": number, "annotations": annotations, "data": {"text": text, **data}}


@pytest.fixture
def export(tmp_path):
    """Reads tasks as an export has them."""
    file = tmp_path / "export.json"

    def examples(*tasks, **options):
        file.write_text(json.dumps(tasks), encoding="utf-8")
        options = {"format": "label-studio", **options}
        return list(read(str(file), DataSection.model_validate(options)))

    return examples


def entities(example):
    return [
        (item["start"], item["end"], item["label"], item["text"])
        for item in example.fields["entities"]
    ]


def test_spans_are_entities_in_characters(export):
    start = TEXT.index("Acme")
    (example,) = export(
        task(
            5,
            span(TEXT.index("𝐀"), len(TEXT) - 1, "X", text="𝐀"),
            # As the editor writes it: a line end as two characters, blanks as the page shows them.
            span(start, start + 17, "ORG", text="Acme\\n\\nInc. pays "),
            span(20, 25, "FAM"),
        )
    )
    assert entities(example) == [
        (2, 19, "ORG", "Acme\r\nInc. pays  "),
        (20, 25, "FAM", "\u200d👩‍👧 "),
        (31, 32, "X", "𝐀"),
    ]
    assert (example.id, example.where.rpartition("/")[2]) == (5, "export.json: task 5")


def test_places_of_old_versions_are_told_by_the_words_beside_them(export):
    units = TEXT[: TEXT.index("Cafe")].encode("utf-16-le")
    start = len(units) // 2
    (example,) = export(task(1, span(start, start + 5, "ORG", text="Cafe\u0301")))
    assert entities(example) == [(25, 30, "ORG", "Cafe\u0301")]


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (span(3, 900, "ORG"), "task 1: a span from 3 to 900: no words there; the text has 33 char"),
        (span(4, 4, "ORG"), "a span from 4 to 4: no words there"),
        (span(2, 6, "ORG", text="Bcme"), "from 2 to 6 is 'Acme', not 'Bcme'; was the text changed"),
        (span("/p[1]/text()[1]", 6, "ORG"), "'start' is '/p[1]/text()[1]', expected a whole"),
        ({"type": "labels", "value": {"start": 1, "end": 2}}, "task 1: no field 'labels'"),
        ({"type": "hypertextlabels"}, "places in HTML; spans of a Text tag are read"),
    ],
)
def test_a_span_that_is_not_there_is_named(export, result, message):
    with pytest.raises(DataError) as error:
        export(task(1, result))
    assert message in str(error.value)


def test_choices_are_a_class_or_lists_where_any_task_has_several(export):
    one = export(task(1, choice("a")), task(2, choice("b")), task(3))
    assert [each.fields["label"] for each in one] == ["a", "b", None]
    assert "entities" not in one[0].fields  # there are none in the whole file
    several = export(task(1, choice("a")), task(2, choice("b", "a")), task(3))
    assert [each.fields["label"] for each in several] == [["a"], ["b", "a"], []]


def test_each_control_is_a_field(export):
    tasks = [task(1, choice("a", control="kind"), choice("b", control="tone"))]
    assert export(*tasks)[0].fields == {"text": TEXT, "kind": "a", "tone": "b"}


def test_spans_beside_a_question_are_its_answers(export):
    (example,) = export(task(1, span(2, 6, "answer"), question="Who?", id="q1"))
    assert example.id == "q1"
    assert example.fields["context"] == TEXT
    assert example.fields["answers"] == [{"text": "Acme", "answer_start": 2}]


def test_the_ground_truth_counts_else_the_newest_and_no_cancelled_one(export, caplog):
    caplog.set_level(logging.INFO, "ldt")
    several = task(1)
    dates = ["2026-01-03", "2026-01-04", "2026-01-02", "2026-01-05"]
    several["annotations"] = [
        {"result": [choice(name)], "updated_at": date, "was_cancelled": name == "d"}
        for name, date in zip("abcd", dates, strict=True)
    ]
    assert export(several)[0].fields["label"] == "b"
    assert "1 task with several annotations" in caplog.text
    several["annotations"][2]["ground_truth"] = True
    assert export(several)[0].fields["label"] == "c"
    for each in several["annotations"]:
        each["was_cancelled"] = True
    found = export(several, task(2, choice("e")))
    assert [each.fields["label"] for each in found] == ["e"]
    assert "1 task without an annotation, left out" in caplog.text
    with pytest.raises(DataError, match=r"export.json: 1 task without an annotation; label some"):
        export(several)


def test_the_text_is_the_only_one_or_named(export):
    only = {"id": 1, "annotations": [{"result": [choice("a")]}], "data": {"review": "Good"}}
    assert export(only)[0].fields["text"] == "Good"
    only["data"]["title"] = "Well"
    with pytest.raises(DataError, match=r"no field 'text'; data.text names the one with the text"):
        export(only)
    assert export(only, text="title")[0].fields["text"] == "Well"


@pytest.mark.parametrize("value", [[], [{"text": "a", "label": []}], {"tasks": []}])
def test_another_layout_is_named(tmp_path, value):
    file = tmp_path / "export.json"
    file.write_text(json.dumps(value), encoding="utf-8")
    with pytest.raises(
        DataError, match="expected a list of tasks with data and annotations; .*MIN"
    ):
        list(read(str(file), DataSection.model_validate({"format": "label-studio"})))


@pytest.mark.parametrize("place", [{"start": 3, "end": 7}, {}])
def test_choices_of_single_spans_are_no_classes_of_the_document(export, caplog, place):
    mark, mood = span(3, 7, "ORG") | {"id": "r"}, choice("good", control="mood") | {"id": "r"}
    mood["value"] |= place
    (found,) = export(task(1, mark, mood, choice("news")))
    assert entities(found)[0][2] == "ORG"
    assert found.fields["label"] == "news"
    assert "mood" not in found.fields
    assert "1 choice of single spans (perRegion), left out" in caplog.text


@settings(deadline=None)
@given(st.lists(st.sampled_from(ODD), max_size=12).map("".join))
def test_places_are_those_of_the_encoded_text(text):
    units = Units(text, "utf-16")
    borders = [len(text[:place].encode("utf-16-le")) // 2 for place in range(len(text) + 1)]
    assert [units.unit(place) for place in range(len(text) + 1)] == borders
    assert units.size == borders[-1]
    back = {unit: place for place, unit in enumerate(borders)}
    assert [units.character(unit) for unit in range(-1, units.size + 2)] == [
        back.get(unit) for unit in range(-1, units.size + 2)
    ]


def test_relations_join_spans_to_clusters(export):
    places = [(0, 1), (2, 6), (7, 9), (11, 15), (18, 19)]
    spans = [span(a, b, "M", text=TEXT[a:b]) | {"id": f"r{a}"} for a, b in places]
    links = [
        {"type": "relation", "from_id": f"r{a}", "to_id": f"r{b}", "direction": "right"}
        for a, b in ((18, 7), (2, 0), (7, 0), (2, 18), (0, 99))
    ]
    first, second = export(task(1, *links[:2], *spans, *links[2:]), task(2, text="none"))
    assert first.fields["clusters"] == [[[0, 1], [2, 6], [7, 9], [18, 19]], [[11, 15]]]
    assert second.fields["clusters"] == []
    assert "clusters" not in export(task(1, *spans))[0].fields
