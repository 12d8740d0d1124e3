import json

import pytest

from ldt.benchmarks.formats import read
from ldt.data import summaries
from ldt.data.options import DataSection
from ldt.errors import DataError


@pytest.fixture
def examples(tmp_path):
    """The examples of a file of these records."""

    def examples(*records):
        file = tmp_path / "train.jsonl"
        file.write_text("".join(json.dumps(record) + "\n" for record in records))
        return list(read(str(file), DataSection(format="summarization")))

    return examples


@pytest.mark.parametrize(
    ("record", "text", "summary"),
    [
        ({"text": "a", "summary": "b"}, "a", "b"),
        ({"article": "a", "abstract": "b"}, "a", "b"),
        ({"document": "a", "summary": "b"}, "a", "b"),
        ({"report": "a", "summary": "b"}, "a", "b"),
        ({"chapter": "a", "summary_text": "b"}, "a", "b"),
        # A whole pair goes before a half of one, and before null.
        ({"text": "x", "article": "a", "abstract": "b"}, "a", "b"),
        ({"text": None, "summary": "x", "chapter": "a", "summary_text": "b"}, "a", "b"),
        ({"article": "a", "summary": "b"}, "a", "b"),
        # Several documents; those of Multi-News stand in one text.
        ({"text": ["a", "c"], "summary": "b"}, ["a", "c"], "b"),
        ({"document": "a\n ||||| c |||||", "summary": "b"}, ["a", "c"], "b"),
        ({"text": "a ||||| c", "summary": "b"}, "a ||||| c", "b"),
    ],
)
def test_published_names_become_text_and_summary(examples, record, text, summary):
    (example,) = examples(record)
    assert summaries.text(example) == text
    assert summaries.summary(example) == summary


def test_other_fields_and_ids_stay(examples):
    record = {"id": "x", "article": "a", "abstract": "b", "question": "q", "section_names": ["s"]}
    first, second = examples(record, {"text": "a"})
    assert first.fields == record | {"text": "a", "summary": "b"}
    assert (first.id, second.id) == ("x", 2)
    assert second.fields == {"text": "a"}  # as a document to summarise has it


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (
            {"id": 1, "text": "a", "body": "b"},
            "no field 'summary'; it has 'id', 'text', 'body'",
        ),
        ({"text": "a", "summary": ["b"]}, "l:1: field 'summary' is a list, expected text"),
        ({"body": "a", "summary": "b"}, "l:1: no field 'text'; it has 'body', 'summary'"),
        ({"text": ["a", 1], "summary": "b"}, "'text': a number in place 2, expected text"),
        ({"text": {}, "summary": "b"}, "l:1: field 'text' is an object, expected text"),
    ],
)
def test_what_lacks_is_named_with_what_is_there(examples, record, message):
    (example,) = examples(record)
    with pytest.raises(DataError) as error:
        summaries.text(example), summaries.summary(example)
    assert str(error.value).endswith(message)


def test_several_files_are_read_with_places_and_bad_lines_rejected(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_text('{"article": "a", "abstract": "b"}\n{\n')
    rejected = []
    files = [str(tmp_path / name) for name in ("a", "b")]
    section = DataSection(format="summarization")
    found = list(read(files, section, on_error=lambda error, raw: rejected.append(raw)))
    assert [example.id for example in found] == [f"{file}:1" for file in files]
    assert [example.fields["text"] for example in found] == ["a", "a"]
    assert rejected == [b"{\n", b"{\n"]
