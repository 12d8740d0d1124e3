import bz2
import functools
import gzip
import io
import lzma
import os
import queue
import threading

import pyarrow
import pytest
from reads import LINES, error, records

from ldt.errors import DataError, UserError
from ldt.io.records import read

zstd = functools.partial(pyarrow.compress, codec="zstd", asbytes=True)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "train.jsonl"


# compression


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress, zstd])
@pytest.mark.parametrize("name", ["train.jsonl", "train.jsonl.gz", "train.xz"])
def test_compression_is_told_by_content(tmp_path, pack, name):
    assert [id for id, _ in records(tmp_path / name, pack(LINES))] == ["a", "b"]


def test_a_gz_that_is_not_gzip_is_read_as_what_it_is(tmp_path):
    assert [id for id, _ in records(tmp_path / "train.jsonl.gz", LINES)] == ["a", "b"]


@pytest.mark.parametrize("pack", [gzip.compress, zstd])
def test_all_members_of_a_compressed_file_are_read(file, pack):
    assert [id for id, _ in records(file, pack(LINES) * 3)] == ["a", "b"] * 3


@pytest.mark.parametrize(
    "pack", [gzip.compress, bz2.compress, functools.partial(lzma.compress, preset=0), zstd]
)
def test_cut_off_compression_is_an_error_after_the_records_before_it(file, pack):
    lines = [b'{"text": "%d"}\n' % n**9 for n in range(50_000)]  # more than a block of bz2
    packed = pack(b"".join(lines))
    file.write_bytes(packed[: len(packed) * 3 // 4])
    found = []
    with pytest.raises(DataError) as caught:
        found.extend(read(file, on_error=lambda *_: None))
    offset = sum(map(len, lines[: len(found)]))
    what = f"{file}:{len(found) + 1}: cannot read on, {offset:,} bytes into the lines: the "
    assert str(caught.value).startswith(what)
    assert 10_000 < len(found) < 49_000


def test_damaged_gzip_data_are_an_error(file):
    packed = bytearray(gzip.compress(LINES))
    packed[-8] ^= 1  # the checksum
    assert "the gzip data are damaged or cut off" in error(file, packed)
    for name, pack in (("gzip", gzip.compress), ("zstd", zstd)):
        assert f"the {name} data are damaged" in error(file, pack(LINES) + b"rubbish")


@pytest.mark.parametrize(
    ("name", "magic", "what"),
    [
        (
            "a.xlsx",
            b"PK\x03\x04",
            "an archive or a file of Office; unzip it",
        ),
        ("a.doc", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an archive or a file of Office; "),
        ("a.rtf", b"{\\rtf1", "an RTF document; soffice"),
        ("a.txt", b"%PDF-1.7", "a PDF; pdftotext FILE makes text"),
    ],
)
def test_files_of_office_and_print_have_a_line_of_their_own(tmp_path, name, magic, what):
    assert error(tmp_path / name, magic + b"....").startswith(f": {what}")


# standard input and paths


class _Stdin:
    def __init__(self, stream, terminal=False):
        self.buffer = stream
        self.isatty = lambda: terminal


def test_standard_input_is_read_and_left_open(monkeypatch):
    stream = io.BytesIO(gzip.compress(LINES))
    monkeypatch.setattr("sys.stdin", _Stdin(stream))
    assert [example.where for example in read("-")] == ["stdin:1", "stdin:2"]
    assert not stream.closed


def test_a_line_is_read_from_a_pipe_before_the_next_is_written(monkeypatch):
    source, sink = os.pipe()
    with open(source, "rb") as stream, open(sink, "wb", buffering=0) as writer:
        monkeypatch.setattr("sys.stdin", _Stdin(stream))
        got = queue.Queue()
        reader = threading.Thread(target=lambda: [got.put(item.id) for item in read("-")])
        reader.start()
        for number in (1, 2):
            writer.write(b'{"text": "%d"}\n' % number)
            assert got.get(timeout=10) == number
        writer.close()
        reader.join(timeout=10)


def test_a_terminal_as_standard_input_is_refused_with_a_hint(monkeypatch):
    monkeypatch.setattr("sys.stdin", _Stdin(io.BytesIO(), terminal=True))
    with pytest.raises(UserError, match="standard input is a terminal; pipe") as caught:
        next(read("-"))
    assert caught.value.exit_code == 2


def test_parquet_on_standard_input_is_refused(monkeypatch):
    monkeypatch.setattr("sys.stdin", _Stdin(io.BytesIO(b"PAR1....")))
    with pytest.raises(DataError, match="save it to a file first"):
        next(read("-"))


def test_a_path_that_cannot_be_read_is_a_usage_error(tmp_path):
    (tmp_path / "train.jsonl").touch()
    for name, message in (
        ("trian.jsonl", "no such file, did you mean 'train.jsonl'"),
        ("none/x.jsonl", "no such file$"),
        ("", "a folder, expected a file"),
        ("a\0b", "null byte"),
    ):
        with pytest.raises(UserError, match=message) as caught:
            next(read(f"{tmp_path}/{name}"))
        assert caught.value.exit_code == 2
