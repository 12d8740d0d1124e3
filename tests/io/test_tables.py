import csv
import gzip
import io
import json
import logging
import os
import queue
import threading

import pytest
from reads import error, records

from ldt.benchmarks.formats import read
from ldt.data.options import DataSection
from ldt.io.records import read as read_records


@pytest.mark.parametrize("kind", ["parquet", "arrow", "stream"])
def test_classes_have_the_names_that_the_file_has(tmp_path, caplog, kind):
    import pyarrow as pa
    import pyarrow.parquet as pq

    classes = {"names": ["O", "B-A"], "_type": "ClassLabel"}
    features = {
        "label": classes,
        "tags": {"feature": classes, "_type": "Sequence"},
        "old": [classes],
        "deep": {"a": classes, "n": {"dtype": "int64", "_type": "Value"}},
        "objects": {"feature": {"a": classes}, "_type": "Sequence"},
    }
    row = {"label": 1, "tags": [0, 1], "old": [1], "deep": {"a": 0, "n": 1}, "objects": {"a": [1]}}
    empty = {"label": -1, "tags": [], "old": None, "deep": None, "objects": None}
    about = {"huggingface": json.dumps({"info": {"features": features}})}
    table = pa.Table.from_pylist([row, empty]).replace_schema_metadata(about)
    file = tmp_path / "train"
    if kind == "parquet":
        pq.write_table(table, file)
    else:
        make = pa.ipc.new_file if kind == "arrow" else pa.ipc.new_stream
        with make(file, table.schema) as writer:
            writer.write_table(table)
    caplog.set_level("INFO", "ldt")
    first, second = read_records(file)
    named = {"label": "B-A", "tags": ["O", "B-A"], "old": ["B-A"], "deep": {"a": "O", "n": 1}}
    assert first.fields == named | {"objects": {"a": ["B-A"]}}
    assert second.fields == empty | {"label": None}
    assert "read by the names in the file: label (O, B-A), tags (O, B-A), old" in caplog.text


TWO = [(1, {"text": "one", "label": "a"}), (2, {"text": "two, or so", "label": "b"})]


@pytest.mark.parametrize(
    ("content", "delimiter"),
    [
        ('text,label\none,a\n"two, or so",b\n', None),
        ("text;label\none;a\ntwo, or so;b\n", ";"),
        ("text\tlabel\none\ta\ntwo, or so\tb\n", "tabs"),
        ("text|label\none|a\ntwo, or so|b\n", "|"),
        ('"text";"label"\r\n"one";"a"\r\n\r\n"two, or so";"b"\r\n', ";"),
    ],
)
def test_the_delimiter_is_told_by_the_first_lines_and_logged(tmp_path, caplog, content, delimiter):
    path = tmp_path / "train.csv"
    with caplog.at_level(logging.INFO, "ldt"):
        assert records(path, content.encode()) == TWO
        assert records(path, b"\xef\xbb\xbf" + content.encode()) == TWO
        assert records(path, gzip.compress(content.encode())) == TWO
        assert records(path, content.encode(), format="csv") == TWO
    said = [record.getMessage() for record in caplog.records]
    assert said == ([f"{path}: cells are parted by {delimiter}"] * 4 if delimiter else [])


def test_the_delimiter_of_a_file_that_is_read_twice_is_told_once(tmp_path, caplog):
    caplog.set_level(logging.INFO, "ldt")
    for name in ("train.csv", "dev.csv"):
        records(tmp_path / name, b"text;label\none;a\n")
    for _ in range(2):
        assert len(list(read(str(tmp_path / "train.csv"), DataSection()))) == 1
    names = [record.getMessage().split(":")[0] for record in caplog.records]
    assert names == [str(tmp_path / "train.csv"), str(tmp_path / "dev.csv")]


def test_a_text_longer_than_a_cell_of_python_hides_no_delimiter(tmp_path):
    csv.field_size_limit(1 << 17)  # as a new process has it
    rows = f'text;label\n"{"a, b; " * 25_000}";a\n"c, d";b\n'.encode()
    assert [fields["label"] for _, fields in records(tmp_path / "train.csv", rows)] == ["a", "b"]


@pytest.mark.parametrize(
    ("content", "fields"),
    [
        ('a,b\n"1;2;3",x\n', {"a": "1;2;3", "b": "x"}),
        ("a;b,c\n1;2,3\n", {"a;b": "1;2", "c": "3"}),  # both would do: a comma
        ("What | Why\nit is so\n", {"What | Why": "it is so"}),
        ('a;b\n"one\n\n;two";2\n', {"a": "one\n\n;two", "b": "2"}),
        ("a;b\n" + "1;2\n" * 30 + '3;"4\n' + 'x"\n', {"a": "1", "b": "2"}),
        ("text\n" + "x;y\n", {"text": "x;y"}),
    ],
)
def test_delimiters_in_cells_are_not_taken_for_those_of_the_file(tmp_path, content, fields):
    assert records(tmp_path / "a.csv", content.encode())[0][1] == fields


def test_the_line_of_excel_that_names_the_delimiter_is_obeyed(tmp_path):
    content = b"\xef\xbb\xbfsep=;\r\na,b;c\r\n1,2;3\r\n"
    assert records(tmp_path / "a.csv", content) == [(1, {"a,b": "1,2", "c": "3"})]


def test_a_bad_row_of_commas_makes_no_other_delimiter(tmp_path):
    assert error(tmp_path / "a.csv", b"a,b;c\n1,2\n1,2,3\n").startswith(":3: 3 cells, the header")


def test_a_quoted_cell_that_goes_on_behind_the_lines_looked_at_is_read(tmp_path):
    long = "\n".join("x" * (1 << 18))
    rows = records(tmp_path / "a.csv", f'a;b\n1;2\n"{long}";4\n'.encode())
    assert rows == [(1, {"a": "1", "b": "2"}), (2, {"a": long, "b": "4"})]


def test_a_row_is_read_from_a_pipe_before_the_next_is_written(monkeypatch):
    source, sink = os.pipe()
    with open(source, "rb") as stream, open(sink, "wb", buffering=0) as writer:
        stdin = type("Stdin", (), {"buffer": stream, "isatty": lambda self: False})()
        monkeypatch.setattr("sys.stdin", stdin)
        got = queue.Queue()
        found = read_records("-", format="csv")
        reader = threading.Thread(target=lambda: [got.put(item.id) for item in found])
        reader.start()
        writer.write(b"text,label\n")
        for number in (1, 2):
            writer.write(b"x,a;b\n")
            assert got.get(timeout=10) == number
        writer.close()
        reader.join(timeout=10)


def test_ids_are_numbers_of_rows_and_places_are_lines(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b'text\n"one\ntwo"\n\nbad,row\nlast\n')
    rejected = []
    found = list(read_records(path, on_error=lambda what, raw: rejected.append(str(what))))
    assert [(item.id, item.where) for item in found] == [(1, f"{path}:2"), (3, f"{path}:6")]
    assert rejected == [f"{path}:5: 2 cells, the header has 1"]


# encodings


LATIN = "text,label\nÉtienne,a\n“so”,b\n".encode("cp1252")


def test_another_encoding_is_told_with_its_place_and_what_would_do(tmp_path):
    path = tmp_path / "a.csv"
    place = ":2: not UTF-8: byte 0xc9 at byte offset 11 of the file; "
    assert error(path, LATIN) == place + "iconv -f CP1252 -t UTF-8 FILE converts what Excel writes"
    with pytest.raises(Exception, match="data.encoding=cp1252 reads what") as caught:
        list(read(str(path), DataSection()))
    assert str(caught.value).startswith(f"{path}{place}")


@pytest.mark.parametrize(
    ("name", "content", "texts"),
    [
        ("a.csv", LATIN, ["Étienne", "“so”"]),
        ("a.csv", LATIN.replace(b",", b";"), ["Étienne", "“so”"]),
        ("a.jsonl", '{"text": "é"}\n{"text": "“"}\n'.encode("cp1252"), ["é", "“"]),
        ("a.json", '[{"text": "é"}]'.encode("cp1252"), ["é"]),
        ("a.csv", b"\xef\xbb\xbftext\nx\n", ["x"]),
    ],
)
def test_the_encoding_that_is_named_is_read(tmp_path, name, content, texts):
    path = tmp_path / name
    path.write_bytes(content)
    found = list(read(str(path), DataSection(encoding="cp1252")))
    assert [item.fields["text"] for item in found] == texts


def test_bytes_that_an_encoding_does_not_have_are_told(tmp_path):
    what = error(tmp_path / "a.csv", b"text\n\x81\n", encoding="cp1252")
    assert (
        what
        == ":2: not cp1252: byte 0x81 at byte offset 5 of the file; data.encoding names another"
    )


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("nope", "no such encoding"),
        ("rot13", "no such"),
        ("utf-16", "utf-16 has no ASCII in it; ic"),
    ],
)
def test_an_encoding_that_lines_cannot_have_is_refused(name, what):
    with pytest.raises(ValueError, match=what):
        DataSection(encoding=name)
    assert DataSection(encoding="UTF8").encoding == "utf-8"


def test_a_compressed_stream_in_another_encoding_is_read(monkeypatch):
    stream = io.BytesIO(gzip.compress(LATIN))
    stdin = type("Stdin", (), {"buffer": stream, "isatty": lambda self: False})()
    monkeypatch.setattr("sys.stdin", stdin)
    found = read_records("-", format="csv", encoding="cp1252")
    assert [item.fields["text"] for item in found] == ["Étienne", "“so”"]
