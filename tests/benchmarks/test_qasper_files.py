import logging

import pytest
from scored import examples

from ldt.benchmarks import qasper
from ldt.errors import DataError


def test_a_paper_is_read_with_its_questions(shared_data, caplog):
    found = examples("qasper", shared_data / "qasper" / "made_up.json")
    assert len(found) == 6
    fields = found[0].fields
    assert fields["title"] == "Made-up paper on river names"
    assert len(fields["paragraphs"]) == len(fields["sections"]) == 6
    assert fields["sections"][2:5] == ["Experiments ::: Results", "Experiments ::: Results", None]
    assert fields["answers"][0] == {
        "answer": "a list of names",
        "type": "extractive",
        "evidence": [fields["paragraphs"][1]],
        "spans": ["a list of names"],
        "paragraphs": [1],
    }
    kinds = [answer["type"] for example in found for answer in example.fields["answers"]]
    assert kinds.count("none") == 3
    assert found[4].fields["answers"][0]["paragraphs"] == [2]  # a table is no paragraph
    assert "evidence" not in caplog.text


def test_evidence_that_equals_no_paragraph_is_counted(shared_data, caplog):
    caplog.set_level(logging.WARNING, "ldt")
    found = examples("qasper", shared_data / "qasper" / "excerpt.dev.json")
    assert len(found) == 4
    strange = sum(
        text not in example.fields["paragraphs"] and "FLOAT SELECTED" not in text
        for example in found
        for answer in example.fields["answers"]
        for text in answer["evidence"]
    )
    assert strange
    assert f"texts of evidence that equal no paragraph: {strange}" in caplog.text


def by_rows():
    """A paper as `datasets` writes it."""
    answer = {
        "unanswerable": False,
        "extractive_spans": [],
        "yes_no": True,
        "free_form_answer": "",
        "evidence": ["two"],
    }
    return {
        "id": "1",
        "title": "t",
        "abstract": "a",
        "full_text": {"section_name": ["A", "B"], "paragraphs": [["one"], ["two", ""]]},
        "qas": {
            "question": ["What?"],
            "question_id": ["q"],
            "answers": [{"answer": [answer], "annotation_id": ["x"], "worker_id": ["y"]}],
        },
    }


def test_parallel_lists_are_the_same_paper():
    (example,) = examples("qasper", [by_rows()])
    assert example.id == "q"
    assert example.fields["sections"] == ["A", "B", "B"]
    assert example.fields["paragraphs"] == ["one", "two", ""]
    assert example.fields["answers"] == [
        {"answer": "Yes", "type": "boolean", "evidence": ["two"], "spans": [], "paragraphs": [1]}
    ]


def test_evidence_that_stands_twice_is_the_first_of_its_paragraphs():
    paper = by_rows()
    paper["full_text"]["paragraphs"] = [["one", "two"], ["two", ""]]
    (example,) = examples("qasper", [paper])
    assert example.fields["answers"][0]["paragraphs"] == [1]


@pytest.mark.parametrize(
    ("more", "reference"),
    [
        ({"unanswerable": True, "extractive_spans": ["x"]}, ("Unanswerable", "none", [])),
        ({"extractive_spans": ["x", "y"], "free_form_answer": "z"}, ("x, y", "extractive", ["e"])),
        ({"free_form_answer": "z", "yes_no": True}, ("z", "abstractive", ["e"])),
        ({"yes_no": True}, ("Yes", "boolean", ["e"])),
        ({"yes_no": False}, ("No", "boolean", ["e"])),
    ],
)
def test_the_first_that_holds_is_the_answer(more, reference):
    answer = {
        "unanswerable": False,
        "extractive_spans": [],
        "yes_no": None,
        "free_form_answer": "",
        "evidence": ["e"],
    }
    found = qasper.reference(answer | more, "f")
    assert found[:3] == reference
    assert list(found.spans) == (["x", "y"] if found.type == "extractive" else [])


def test_an_answer_that_says_nothing_is_refused():
    answer = by_rows()["qas"]["answers"][0]["answer"][0] | {"yes_no": None}
    with pytest.raises(DataError, match="f: an answer that says nothing"):
        qasper.reference(answer, "f")
