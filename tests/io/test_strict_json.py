import bz2
import gzip
import json
import lzma

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ldt.errors import DataError, UserError
from ldt.io.strict_json import JsonFile, read

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(VALUES)
def test_valid_json_is_read_as_python_reads_it(tmp_path_factory, value):
    path = tmp_path_factory.getbasetemp() / "valid.json"
    path.write_text(json.dumps(value))
    assert read(path).value == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (
            r'{"\udc00": ["a\ud800b", "\ud83d\ude00", "\\ud800"]}',  # a lone surrogate: one for one
            {"\ufffd": ["a\ufffdb", "\U0001f600", "\\ud800"]},
        ),
        ('{"a": "\x00\t\u2028\x85 \\u0000"}', {"a": "\x00\t\u2028\x85 \x00"}),
    ],
)
def test_odd_characters_of_strings_are_kept(tmp_path, text, value):
    path = tmp_path / "a.json"
    path.write_bytes(text.encode())
    assert read(path).value == value


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
        (b'{"a": NaN}', "NaN is no JSON number"),
        (b'{"a": [-Infinity]}', "-Infinity is no JSON number"),
        (b'{"a": 1e999}', "number 1e999 is too large"),
        (b'{"b": {"a": 1, "c": 2, "a": 1}}', "key 'a' stands twice in one object"),
        (b"1" * 5000, "a number of too many digits"),
        (b'{"a": x}', "not JSON: Expecting value at column 7"),
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
