"""Which files, which documents, and what happens to text that cannot be read."""

import bz2
import gzip
import json
import lzma
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ldt.data.corpus import CorpusSource, Reader, drawn, sources, split
from ldt.data.near_duplicates import fingerprint
from ldt.data.options import CorpusSection
from ldt.errors import DataError, UserError


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def read(name, format="text", **how):
    reader = Reader(CorpusSource(name, format), CorpusSection(**how))
    return list(reader), reader


def test_a_folder_a_pattern_and_a_list_stand_for_their_text_files():
    for name in ("a/x.txt", "a/b/y.jsonl.gz", "a/z.parquet", "a/picture.png", "a/.hidden.txt"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).touch()
    everything = [("a/b/y.jsonl.gz", "jsonl"), ("a/x.txt", "text"), ("a/z.parquet", "parquet")]
    assert sources("a") == everything
    assert sources("a/*") == [("a/picture.png", "text"), *everything[1:]]
    assert sources(["a/x.txt", "a/**/*.txt", "hf:o/n"]) == [("a/x.txt", "text"), ("hf:o/n", None)]
    assert sources("a", "jsonl") == everything[:1]
    for wrong, what in (("a/*.md", "no file has such"), ("b", "no such file")):
        with pytest.raises(UserError, match=what):
            sources(wrong)
    Path("c").mkdir()
    with pytest.raises(UserError, match="no text in this folder"):
        sources("c")


@pytest.mark.parametrize("pack", [lambda raw: raw, gzip.compress, bz2.compress, lzma.compress])
def test_plain_text_is_parted_by_file_line_or_empty_line(pack):
    Path("x").write_bytes(pack("\ufeffone\r\ntwo\n \n\nthrée\n".encode()))
    assert read("x", document_unit="file")[0] == ["one\r\ntwo\n \n\nthrée\n"]
    assert read("x", document_unit="line")[0] == ["one", "two", "thrée"]
    assert read("x", document_unit="blank_line")[0] == ["one\r\ntwo", "thrée"]


def test_tables_give_their_text_field():
    rows = [{"meta": {"body": "one"}}, {"meta": {"body": " "}}, {"meta": {"body": "two"}}]
    Path("x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), "x.parquet")
    Path("x.csv").write_text('n,text\n1,"one, and"\n2,two\n')
    for name in ("x.jsonl", "x.parquet"):
        found, reader = read(name, sources(name)[0].format, text="meta.body")
        assert (found, reader.empty, reader.rejected) == (["one", "two"], 1, 0)
    assert read("x.csv", "csv")[0] == ["one, and", "two"]


BAD = {
    "not UTF-8": (b"good\nb\xffd\ngood\n", "line", 2, ["x:2: not UTF-8: byte 0xff at byte offset"]),
    "whole file": (b"good\nb\xffd\n", "file", 0, ["x:2: not UTF-8"]),
    "cut off gzip": (gzip.compress(b"good\n" * 9)[:-9], "line", 9, ["x:", "damaged or cut"]),
    "UTF-16": ("good".encode("utf-16"), "file", 0, ["x: looks like UTF-16"]),
    "empty": (b"", "line", 0, ["x: empty, there is no document in it"]),
    "long line": (b"good\n" + b"x" * 70_000 + b"\ngood\n", "line", 2, ["x:2: a line of 70,001"]),
    "long file": (b"long\n" * 14_000, "file", 0, ["x: a text of more than 65,536 bytes"]),
    "long part": (b"good\n\n" + b"long\n" * 14_000, "blank_line", 1, ["x:3: a document of more"]),
}


@pytest.mark.parametrize("name", BAD)
def test_text_that_cannot_be_read_is_an_error_with_its_place_or_is_counted(name):
    raw, documents, good, said = BAD[name]
    Path("x").write_bytes(raw)
    how = {"document_unit": documents, "max_document_bytes": 65_536}
    with pytest.raises(DataError) as raised:
        read("x", **how)
    assert all(part in str(raised.value) for part in said)
    assert "\n" not in str(raised.value)
    assert "data.on_error=skip" in str(raised.value)
    found, reader = read("x", **how, on_error="skip")
    assert found == ["good"] * good
    assert reader.rejected == 1
    assert said[0] in reader.messages[0]


def test_records_that_cannot_be_read_are_counted_too():
    Path("x.jsonl").write_text('{"text": "a"}\n{"text": 1}\n{"other": "b"}\n{"text": "c"\n')
    found, reader = read("x.jsonl", "jsonl", on_error="skip")
    assert (found, reader.rejected) == (["a"], 3)
    with pytest.raises(DataError, match=r"x.jsonl:2: field 'text' is a number"):
        read("x.jsonl", "jsonl")


@given(
    st.lists(st.integers(0, 2**64 - 1), min_size=2, max_size=40),
    st.floats(0.001, 0.999),
    st.integers(0, 9),
)
def test_a_split_has_both_sides_and_no_content_on_both(prints, fraction, seed):
    prints = np.array(prints, np.uint64)
    if len(np.unique(prints)) < 2:
        with pytest.raises(DataError, match="needs 2"):
            split(prints, fraction, seed, "x")
        return
    train, evaluation = split(prints, fraction, seed, "x")
    assert len(train)
    assert len(evaluation)
    assert sorted([*train, *evaluation]) == list(range(len(prints)))
    assert not set(prints[train].tolist()) & set(prints[evaluation].tolist())


def test_a_split_is_drawn_by_content_and_seed():
    prints = np.array([fingerprint(str(number)) for number in range(20_000)], np.uint64)
    first, again, other = (drawn(prints, 0.1, seed) for seed in (0, 0, 1))
    assert first.mean() == pytest.approx(0.1, abs=0.01)
    assert (first == again).all()
    assert (first & other).mean() == pytest.approx(0.01, abs=0.005)
    assert (drawn(prints[::-1], 0.1, 0)[::-1] == first).all()
