import bz2
import gzip
import json
import lzma

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ldt.errors import DataError, UserError
from ldt.io.strict_json import JsonDecoder, JsonFile, read


def decode(text):
    decoder = JsonDecoder()
    value, end = decoder.decode(text)
    return value, end, decoder.problems


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"a": NaN}', "NaN is no JSON number"),
        ('{"a": [-Infinity]}', "-Infinity is no JSON number"),
        ('{"a": 1e999}', "number 1e999 is too large"),
        ('{"b": {"a": 1, "c": 2, "a": 1}}', "key 'a' stands twice in one object"),
    ],
)
def test_what_only_python_calls_json_is_a_problem_but_is_read_to_its_end(text, problem):
    value, end, problems = decode(text + " more")
    assert end == len(text)
    assert len(problems) == 1
    assert problems[0].startswith(problem)


def test_a_problem_does_not_outlive_its_value():
    decoder = JsonDecoder()
    decoder.decode("[NaN]")
    decoder.decode("[1]")
    assert decoder.problems == []


@pytest.mark.parametrize(
    ("text", "message", "at_end"),
    [
        ('{"a": 1', "not JSON: Expecting ',' delimiter at column 8", True),
        ('{"a": x}', "not JSON: Expecting value at column 7", False),
        ('{"a":\n x}', "not JSON: Expecting value at line 2, column 2", False),
    ],
)
def test_what_is_not_json_is_an_error_with_its_place(text, message, at_end):
    with pytest.raises(ValueError, match=message) as caught:
        decode(text)
    assert caught.value.at_end is at_end


def test_deep_nesting_and_endless_digits_are_errors_and_no_crash():
    with pytest.raises(ValueError, match="nested too deep"):
        decode("[" * 100_000)
    with pytest.raises(ValueError, match="too many digits"):
        decode("1" * 5000)


def test_a_lone_surrogate_becomes_one_replacement_character_everywhere():
    value, _, problems = decode(r'{"\udc00": ["a\ud800b", "\ud83d\ude00", "\\ud800"]}')
    assert value == {"\ufffd": ["a\ufffdb", "\U0001f600", "\\ud800"]}
    assert problems == []


def test_control_characters_and_line_separators_in_strings_are_kept():
    value, _, problems = decode('{"a": "\x00\t\u2028\x85 \\u0000"}')
    assert value == {"a": "\x00\t\u2028\x85 \x00"}
    assert problems == []


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=10,
    )
)
def test_valid_json_is_read_as_python_reads_it(value):
    text = json.dumps(value)
    assert decode(text) == (value, len(text), [])


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress])
@pytest.mark.parametrize("data", ['{"ä": [1]}', '\ufeff{"ä": [1]}\r\n', '\n {"ä":\n[1]}\n\n'])
def test_one_value_is_read_packed_or_not_with_a_mark_and_space_around(tmp_path, pack, data):
    path = tmp_path / "a.json"
    path.write_bytes(pack(data.encode()))
    assert read(path) == JsonFile(path, {"ä": [1]})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty; expected JSON"),
        (b" \n", "empty; expected JSON"),
        (b'{"a": 1', "not JSON: Expecting ',' delimiter at column 8; the file breaks off there"),
        (b'{"a":\n x}', "not JSON: Expecting value at line 2, column 2"),
        (b'{"a": 1}\n{"a": 2}\n', "more text after the JSON value, at line 2; JSON Lines will not"),
        (b"[1] x", "more text after the JSON value, at line 1"),
        (b'{"a": 1, "b": 2, "a": 3}', "key 'a' stands twice in one object"),
        (b'{"a": NaN}', "NaN is no JSON number"),
        (
            b'{"a": "\xff"}',
            "not UTF-8: byte 0xff at byte offset 7 of the file; iconv -f CP1252 -t UTF-8 FILE",
        ),
        (b"[" * 200_000, "not JSON that can be read: nested too deep"),
        (
            gzip.compress(b'{"a": "' + bytes(range(32, 91)) * 9, mtime=0)[:-9],
            "the gzip data are damaged",
        ),
    ],
)
def test_what_is_not_one_value_is_told_in_a_line(tmp_path, data, message):
    path = tmp_path / "a.json"
    path.write_bytes(data)
    with pytest.raises(DataError) as error:
        read(path)
    assert str(error.value).startswith(f"{path}: {message}")
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        read(tmp_path / "a.json")
