import gzip
import json
import random
import tracemalloc

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from properties import cases
from reads import LINES, error, records

from ldt.errors import DataError
from ldt.io.records import Example, field, kind, read, text


@pytest.fixture
def file(tmp_path):
    return tmp_path / "train.jsonl"


# JSONL


def test_jsonl_gives_fields_id_and_place(file):
    file.write_bytes(b'{"id": "a", "text": "x"}\n\n{"n": 2}\n{"id": 7}\n{"id": null}\n{"id": ""}')
    assert list(read(file)) == [
        Example({"id": "a", "text": "x"}, "a", f"{file}:1"),
        Example({"n": 2}, 3, f"{file}:3"),  # without an id, the number of the line
        Example({"id": 7}, 7, f"{file}:4"),
        Example({"id": None}, 5, f"{file}:5"),
        Example({"id": ""}, 6, f"{file}:6"),
    ]


def test_the_id_may_be_a_field_inside_another(file):
    assert records(file, b'{"meta": {"key": "k"}}', id_field="meta.key")[0][0] == "k"


@pytest.mark.parametrize("value", ["1.5", "true", "[1]", "{}"])
def test_an_id_that_is_no_text_or_whole_number_is_an_error(file, value):
    assert error(file, b'{"id": %s}\n' % value.encode()).startswith(":1: field 'id' is ")


def test_a_byte_order_mark_and_windows_line_ends_are_accepted(file):
    assert records(file, b"\xef\xbb\xbf" + LINES.replace(b"\n", b"\r\n")) == records(file, LINES)


def test_lines_end_only_at_line_feeds(file):
    inside = "\u2028 \u2029 \x85 \x0b \x0c \x1c \x00"
    line = json.dumps({"text": inside}, ensure_ascii=False) + "\n"
    assert records(file, line.encode() * 2) == [(1, {"text": inside}), (2, {"text": inside})]


def test_a_lone_surrogate_is_read_as_something_that_can_be_written(file):
    ((_, fields),) = records(file, rb'{"text": "a\ud800b"}')
    assert fields["text"].encode() == "a\ufffdb".encode()


def test_an_empty_file_has_no_records(file):
    assert records(file, b"") == records(file, b"\n \r\n") == []


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (b'{"text": NaN}\n', ":3: NaN is no JSON number; null or text would do"),
        (b'{"a": 1, "a": 2}\n', ":3: key 'a' stands twice in one object"),
        (b"17\n", ':3: a number, expected an object such as {"text": "…"}'),
        (b"null\n", ':3: null, expected an object such as {"text": "…"}'),
        (b'{"a": 1} {"a": 2}\n', ":3: text after the object, at column 9"),
        (b"{'a': 1}\n", ":3: not JSON: Expecting property name enclosed in double quotes at "),
        (b'{"a": ' + b"[" * 100_000 + b"\n", ":3: not JSON that can be read: nested too deep"),
        (b'{"a": "\xff"}\n', ":3: not UTF-8: byte 0xff at byte offset 61 of the file"),
        (b'{"a": "\xed\xa0\x80"}\n', ":3: not UTF-8: byte 0xed at byte offset 61 of the file"),
    ],
)
def test_a_bad_line_stops_with_its_place_or_is_handed_to_on_error(file, bad, message):
    assert error(file, LINES + bad + LINES).startswith(message)
    rejected = []
    kept = records(file, LINES + bad + LINES, on_error=lambda *args: rejected.append(args))
    assert [id for id, _ in kept] == ["a", "b"] * 2
    ((what, raw),) = rejected
    assert str(what).startswith(f"{file}{message}")
    assert raw == bad


def test_a_last_line_without_a_line_end_is_read(file):
    assert records(file, LINES.rstrip()) == records(file, LINES)


def test_one_object_over_many_lines_is_explained(file):
    assert "each line must be one whole object" in error(file, b'{\n  "text": "a"\n}\n')


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf16_is_named(file, encoding):
    assert error(file, LINES.decode().encode(encoding)).startswith(": looks like UTF-16, expected")


def test_a_line_over_the_limit_is_rejected_without_holding_it(file):
    size = 40_000_000
    file.write_bytes(b'{"text": "' + b"x" * size + b'"}\n' + LINES)
    rejected = []
    tracemalloc.start()
    kept = list(read(file, on_error=lambda *args: rejected.append(args), max_line_bytes=100_000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [example.where for example in kept] == [f"{file}:2", f"{file}:3"]
    ((what, raw),) = rejected
    assert str(what) == f"{file}:1: a line of 40,000,013 bytes; at most 100,000 are read in one"
    assert raw == b'{"text": "' + b"x" * 1014
    assert peak < 5_000_000


def test_a_line_of_exactly_the_limit_is_read(file):
    line = LINES.splitlines(keepends=True)[0]
    assert len(records(file, line, max_line_bytes=len(line))) == 1
    assert "a line of" in error(file, line, max_line_bytes=len(line) - 1)


def test_reading_takes_the_memory_of_one_record(file):
    with gzip.open(file, "wb", compresslevel=1) as out:
        for _ in range(300):
            out.write(b'{"text": "' + random.randbytes(50_000).hex().encode() + b'"}\n')
    tracemalloc.start()
    count = sum(1 for _ in read(file))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 300
    assert peak < 3_000_000  # of 30 million bytes


@cases(400)
@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=8), st.booleans())
@example([(0, ord("["))], False)
@example([(0, 0x1F), (1, 0x8B)], False)
def test_flipped_bytes_give_records_or_data_errors_only(tmp_path_factory, flips, packed):
    content = bytearray(
        LINES + '{"id": 3, "text": "é\\ud83d\\ude00", "n": [1.5e3, {"a": null}]}\n'.encode() * 2
    )
    if packed:
        content = bytearray(gzip.compress(content, mtime=0))
    for place, value in flips:
        content[place % len(content)] = value
    path = tmp_path_factory.getbasetemp() / "fuzzed.jsonl"
    path.write_bytes(content)
    rejected = []
    try:
        for found in read(path, on_error=lambda *args: rejected.append(args)):
            json.dumps(found.fields, ensure_ascii=False, allow_nan=False).encode()
    except DataError:
        pass
    assert all(isinstance(what, DataError) for what, _ in rejected)


# JSON arrays


def test_a_json_array_is_told_by_its_first_byte_whatever_the_suffix(tmp_path):
    content = json.dumps([{"id": "a"}, {"text": "é"}], indent=1).encode()
    for name in ("dev.json", "dev.jsonl", "dev"):
        assert records(tmp_path / name, content) == [("a", {"id": "a"}), (2, {"text": "é"})]
    assert records(tmp_path / "dev.json", LINES) == records(tmp_path / "train.jsonl", LINES)
    assert records(tmp_path / "dev.json", b"\n []\n") == []


def test_a_bad_item_of_an_array_is_rejected_alone(file):
    content = b'[{"id": "a"}, {"n": NaN}, 3, {"id": "b"}]'
    assert error(file, content).startswith(": item 2: NaN is no JSON number")
    rejected = []
    kept = records(file, content, on_error=lambda what, raw: rejected.append(raw))
    assert [id for id, _ in kept] == ["a", "b"]
    assert rejected == [b'{"n": NaN}', b"3"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'[{"a": 1}, {"a": 2}', ": item 2: expected , or ] after it; is the file cut off?"),
        (b'[{"a": 1},\n {"a": ', ": item 2: not JSON: Expecting value at line 2, column 8"),
        (b'[{"a": 1},]', ": item 2: not JSON: Expecting value"),
        (b'[{"a": 1}] {"a": 2}', ": text after the JSON array's closing ]"),
        (b'\n[{"a":\n "\xff"}]', ":3: not UTF-8: byte 0xff at byte offset 10 of the file"),
    ],
)
def test_a_broken_array_stops_even_where_records_may_be_skipped(file, content, message):
    assert error(file, content, on_error=lambda *_: None).startswith(message)


def test_an_array_over_the_limit_is_refused_with_what_would_do(file):
    content = b"[\n" + b'{"a": 1},\n' * 10 + b'{"a": 1}]'
    assert len(records(file, content, max_line_bytes=len(content))) == 11
    assert "a JSON array of more than 110 bytes" in error(file, content, max_line_bytes=110)


# tables


def test_csv_has_a_header_and_cells_of_text(tmp_path):
    content = '\ufeffid,text,label\na,"one, ""two""\nthree",1\r\n\r\n,é,0\n'.encode()
    path = tmp_path / "train.csv"
    assert records(path, content) == [
        ("a", {"id": "a", "text": 'one, "two"\nthree', "label": "1"}),
        (2, {"id": "", "text": "é", "label": "0"}),
    ]
    assert list(read(path))[1].where == f"{path}:5"


def test_tables_are_told_by_suffix_under_a_compression_or_by_format(tmp_path):
    comma, tab = b"text,label\na\tb,c\n", b"text\tlabel\na,b\tc\n"
    assert records(tmp_path / "a.csv.gz", gzip.compress(comma))[0][1]["text"] == "a\tb"
    assert records(tmp_path / "a.TSV", tab)[0][1]["text"] == "a,b"
    assert records(tmp_path / "a.txt", tab, format="tsv")[0][1]["label"] == "c"
    assert records(tmp_path / "a.csv", LINES) == records(tmp_path / "a.jsonl", LINES)
    with pytest.raises(ValueError, match="format must be"):
        list(read(tmp_path / "a.csv", format="xml"))


def test_a_long_cell_is_read(tmp_path):
    cell = "x" * 500_000  # Python's own limit is 131,072
    assert records(tmp_path / "a.csv", f"text\n{cell}\n".encode()) == [(1, {"text": cell})]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (b"1,2,3\n", ":3: 3 cells, the header has 2"),
        (b"1\n", ":3: 1 cells, the header has 2"),
        (b'1,"\xff"\n', ":3: not UTF-8: byte 0xff at byte offset 15 of the file"),
        (b'1,"a"b\n', ":3: not CSV: ',' expected after '\"'"),
    ],
)
def test_a_bad_row_is_rejected_alone(tmp_path, bad, message):
    path = tmp_path / "train.csv"
    content = b"id,text\na,b\n" + bad + b"c,d\n"
    assert error(path, content).startswith(message)
    rejected = []
    kept = records(path, content, on_error=lambda what, raw: rejected.append(raw))
    assert [id for id, _ in kept] == ["a", "c"]
    assert rejected == [bad]


def test_a_csv_cell_that_never_closes_is_an_error(tmp_path):
    path = tmp_path / "train.csv"
    assert error(path, b'id,text\na,"b\nc,d\n').startswith(":2: not CSV: unexpected end of data")


def test_a_csv_row_that_lost_a_line_is_rejected(tmp_path):
    rejected = []
    content = b'id,text\na,"b\n' + b"x" * 100 + b'\nc"\nd,e\n'
    kept = records(
        tmp_path / "a.csv",
        content,
        max_line_bytes=50,
        on_error=lambda what, raw: rejected.append(str(what)),
    )
    assert [id for id, _ in kept] == ["d"]
    assert ":2: a line of this row is too long" in rejected[1]


def test_a_csv_header_with_a_name_twice_is_an_error(tmp_path):
    assert "a name stands twice in the header" in error(tmp_path / "a.csv", b"a,b,a\n1,2,3\n")


def test_parquet_is_told_by_content(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    path = tmp_path / "train.data"
    rows = [{"id": f"d{n}", "text": "é" * n, "clauses": {"a b": n % 2 == 0}} for n in range(200)]
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=50)
    found = list(read(path))
    assert [example.fields for example in found] == rows
    assert found[99].where == f"{path}:100"
    assert field(found[3], "clauses.a b") is False
    content = path.read_bytes()
    assert ": damaged Parquet: " in error(path, content[:-100])
    assert ":1: " not in error(path, content[:-100])


def test_an_error_of_the_callers_callback_is_not_taken_for_damage(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    def full(*_):
        raise OSError("disk full")

    pq.write_table(pa.table({"id": [1.5]}), tmp_path / "a.parquet")
    with pytest.raises(OSError, match="disk full"):
        list(read(tmp_path / "a.parquet", on_error=full))


# the hub


def test_a_hub_set_that_cannot_be_reached_is_one_line():
    with pytest.raises(
        DataError, match=r"^hf:nobody/nothing:dev: cannot be read \(offline, or "
    ) as e:
        next(read("hf:nobody/nothing:dev"))
    assert "\n" not in str(e.value)


def test_a_hub_set_is_streamed(monkeypatch):
    import datasets

    asked = []

    def load_dataset(name, **options):
        asked.append((name, options))
        return iter([{"id": "a"}, {"text": "x"}])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    found = [(example.id, example.where) for example in read("hf:owner/name:dev")]
    assert found == [("a", "hf:owner/name:dev:1"), (2, "hf:owner/name:dev:2")]
    list(read("hf:owner/name"))
    assert asked[0] == ("owner/name", {"split": "dev", "streaming": True})
    assert asked[1][1]["split"] == "train"


def test_no_other_source_asks_the_hub(monkeypatch, file):
    monkeypatch.setattr("ldt.io.tables.hub_rows", None)
    assert len(records(file, LINES)) == 2


# fields


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("text", "x"),
        ("clauses.Audit Rights", True),
        ("a.b", "exact"),
        ("a.c", 1),
        ("d.e.f", 2),  # the key "d.e" holds "f"
        ("d.g.h", 3),  # d holds the key "g.h"
    ],
)
def test_a_dotted_path_finds_a_field_and_an_exact_key_wins(path, value):
    fields = {
        "text": "x",
        "clauses": {"Audit Rights": True},
        "a.b": "exact",
        "a": {"b": "inside", "c": 1},
        "d.e": {"f": 2},
        "d": {"g.h": 3},
    }
    assert field(Example(fields, 1, "f:1"), path) == value


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (
            "clauses.Audit Right",
            "f:1: no field 'clauses.Audit Right'; did you mean 'clauses.Audit ",
        ),
        ("txt", "f:1: no field 'txt'; did you mean 'text'?"),
        ("qqq", "f:1: no field 'qqq'; it has 'text', 'clauses', 'clauses.Audit Rights'"),
        ("text.more", "f:1: no field 'text.more'; "),
    ],
)
def test_a_missing_field_names_the_nearest(path, message):
    item = Example({"text": "x", "clauses": {"Audit Rights": True}}, 1, "f:1")
    with pytest.raises(DataError) as caught:
        field(item, path)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("value", "name"),
    [(None, "null"), (3, "a number"), (False, "false"), (["a"], "a list"), ({}, "an object")],
)
def test_text_that_is_none_says_what_it_is(value, name):
    assert kind(value) == name
    with pytest.raises(DataError, match=f"^f:1: field 'text' is {name}, expected text$"):
        text(Example({"text": value}, 1, "f:1"), "text")


def test_empty_text_is_text():
    assert text(Example({"text": ""}, 1, "f:1"), "text") == ""


# real files


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.txt"])
def test_a_byte_order_mark_begins_any_line_but_of_a_text(tmp_path, name):
    rows = {"a.csv": ["text", "x", "y"], "a.txt": ["x", "y"]}.get(
        name, ['{"text": "x"}', '{"text": "y"}']
    )
    (tmp_path / name).write_bytes("".join(f"\ufeff{row}\n" for row in rows).encode())
    if name == "a.txt":  # a part of the text, whose places count it
        from ldt.io import text_files

        (found,) = text_files.read(str(tmp_path / name), "text", max_bytes=99)
        assert found.fields["text"] == "x\n\ufeffy\n"
    else:
        assert [each.fields["text"] for each in read(tmp_path / name)] == ["x", "y"]


def test_a_field_of_ids_that_is_named_must_be_there(file):
    file.write_text('{"id": 1, "text": "x"}\n{"text": "y", "nr": null}\n')
    assert [each.id for each in read(file)] == [1, 2]
    with pytest.raises(DataError, match=":1: no field 'nr'"):
        list(read(file, id_field="nr"))
