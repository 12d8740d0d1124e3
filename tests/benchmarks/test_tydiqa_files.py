"""TyDi QA: bytes to characters and back, and bad lines."""

import pytest
from passages_made import changed, places, tydi, write

from ldt.benchmarks import tydiqa as layout
from ldt.benchmarks.formats import read
from ldt.data.options import DataSection
from ldt.data.sentences import Units
from ldt.errors import DataError

# By hand, characters over bytes:  \n é  😀 \r \n e  mark U+180E z
#                        character  0 1  2  3  4  5  6    7      8  (9)
#                        byte       0 1  3  7  8  9  10   12     15 (16)
TEXT = "\né😀\r\ne\u0301\u180ez"
LINE = tydi(
    -5, TEXT, [(1, 8), (9, 16)], [(0, (3, 7), "NONE"), (1, (10, 16), "none"), (None, None, "YES")]
)


def test_bytes_become_characters_of_the_text(tmp_path):
    (example,) = read(write(tmp_path / "t.jsonl", LINE), DataSection(format="tydiqa"))
    fields = example.fields
    assert (example.id, fields["language"], fields["context"]) == (-5, "finnish", TEXT)
    assert fields["candidates"] == [{"start": 1, "end": 4}, {"start": 5, "end": 9}]
    assert fields["annotations"] == [
        {"passage": 0, "spans": [[2, 3]], "yes_no": None},
        {"passage": 1, "spans": [[6, 9]], "yes_no": None},
        {"passage": None, "spans": [], "yes_no": "yes"},
    ]


def test_every_span_of_characters_goes_to_bytes_and_back(tmp_path):
    fields, encoded, utf8 = {"context": TEXT, "language": "thai"}, TEXT.encode(), Units(TEXT)
    for start in range(len(TEXT)):
        for end in range(start + 1, len(TEXT) + 1):
            found = layout.offsets(fields, 3, (start, end))
            first, last = found["minimal_answer"].values()
            assert encoded[first:last].decode() == TEXT[start:end]
            assert (utf8.character(first), utf8.character(last)) == (start, end)
            assert found["passage_answer_index"] == 3
    nothing = layout.offsets(fields, None, None)
    assert nothing["passage_answer_index"] == -1
    assert set(nothing["minimal_answer"].values()) == {-1}


def test_the_real_samples_hold_spans_of_whole_characters_in_all_languages(shared_data):
    files = [str(path) for path in sorted((shared_data / "tydiqa").glob("*.jsonl.gz"))]
    examples = list(read(files, DataSection(format="tydiqa")))
    assert {example.fields["language"] for example in examples} == set(layout.LANGUAGES)
    for example in examples:
        context = example.fields["context"]
        assert all(0 <= c["start"] < c["end"] <= len(context) for c in example.fields["candidates"])


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            "language",
            "klingon",
            "field language: found 'klingon'; string should",
        ),
        (
            "passage_answer_candidates.1",
            places((9, 17)),
            "candidate 1: plaintext_start_byte 9, plaintext_end_byte 17; expected 0 <= start < end",
        ),
        (
            "passage_answer_candidates.0",
            places((2, 8)),
            "candidate 0: plaintext_start_byte 2 is inside of a character of the UTF-8",
        ),
        (
            "passage_answer_candidates.0",
            places(None),
            "candidate 0: plaintext_start_byte is -1, expected a byte",
        ),
        (
            "annotations.1.minimal_answer",
            places((1, 5)),
            "annotation 1: plaintext_end_byte 5 is inside of a character of the UTF-8",
        ),
        (
            "annotations.1.passage_answer.candidate_index",
            2,
            "annotation 1: candidate_index is 2, expected 0 to 1, or -1",
        ),
        ("annotations.0", None, "field annotations.0: found null; input should be a valid dict"),
        (
            "annotations.0.yes_no_answer",
            True,
            "field annotations.0.yes_no_answer: found true;",
        ),
    ],
)
def test_a_line_that_cannot_be_is_one_line_with_its_place(path, value, message, tmp_path):
    line = changed(LINE, path, value)
    file = tmp_path / "t.jsonl"
    with pytest.raises(DataError) as raised:
        list(read(write(file, {**LINE, "example_id": 1}, line), DataSection(format="tydiqa")))
    assert str(raised.value).startswith(f"{file}:2: {message}")
    assert "\n" not in str(raised.value)
