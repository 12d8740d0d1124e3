"""Documents in remote stores, by fsspec's store in memory and a store that fails."""

import gzip
import io
import json

import fsspec
import pyarrow
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from pyarrow import parquet

from ldt.errors import DataError, UserError
from ldt.io import records, sources

ROWS = [{"id": f"d{number}", "text": f"party {number}"} for number in range(150)]


@pytest.fixture
def store():
    """The store in memory, empty; ``memory://bucket/NAME`` are its files."""
    system = fsspec.filesystem("memory")
    system.store.clear()
    system.pseudo_dirs[:] = [""]
    yield system
    system.store.clear()


def lines():
    return "".join(json.dumps(row) + "\n" for row in ROWS).encode()


def arrow(make):
    sink = pyarrow.BufferOutputStream()
    table = pyarrow.Table.from_pylist(ROWS)
    with make(sink, table.schema) as writer:
        for start in range(0, len(ROWS), 70):
            writer.write_table(table.slice(start, 70))
    return sink.getvalue().to_pybytes()


KINDS = {
    "a.jsonl": lines,
    "a.jsonl.gz": lambda: gzip.compress(lines()),
    "a.csv": lambda: "".join(
        f"{','.join(row.values())}\n" for row in [{"a": "id", "b": "text"}, *ROWS]
    ).encode(),
    "a.parquet": lambda: arrow(parquet.ParquetWriter),
    "a.arrow": lambda: arrow(pyarrow.ipc.new_file),
    "a.arrows": lambda: arrow(pyarrow.ipc.new_stream),
}


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_is_read_from_a_store_and_from_here(name, store, tmp_path):
    data = KINDS[name]()
    store.pipe_file(f"/bucket/{name}", data)
    (tmp_path / name).write_bytes(data)
    for source in (f"memory://bucket/{name}", str(tmp_path / name)):
        assert [example.fields for example in records.read(source)] == ROWS


def test_an_arrow_stream_is_read_from_standard_input_and_an_arrow_file_is_not(
    monkeypatch, tmp_path
):
    def pipe(kind):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(KINDS[kind]())))

    pipe("a.arrows")
    assert [example.fields for example in records.read("-")] == ROWS
    pipe("a.arrow")
    with pytest.raises(DataError, match="stdin: Arrow is read from its end; save it"):
        next(records.read("-"))


def test_arrow_that_is_cut_off_is_damaged(tmp_path):
    for kind in ("a.arrow", "a.arrows"):
        data = KINDS[kind]()
        (tmp_path / kind).write_bytes(data[: len(data) // 2])
        with pytest.raises(DataError, match=f"{kind}(:71)?: damaged Arrow"):
            list(records.read(tmp_path / kind))


def test_a_pattern_is_looked_up_in_the_store(store):
    for name in ("b-2.jsonl", "b-1.jsonl", "c.jsonl", "b-3/d.jsonl"):
        store.pipe_file(f"/bucket/{name}", lines())
    found = sources.each(["memory://bucket/b-*", "memory://bucket/c.jsonl"])
    assert found == [f"memory:///bucket/{name}" for name in ("b-1.jsonl", "b-2.jsonl")] + [
        "memory://bucket/c.jsonl"
    ]
    assert len(list(records.read(found[0]))) == len(ROWS)
    with pytest.raises(UserError, match=r"memory://bucket/z\*: no file has such a name"):
        sources.each("memory://bucket/z*")
    assert sources.digest("memory://bucket/c.jsonl") is None


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("memory://bucket/none.jsonl", "memory://bucket/none.jsonl: no such file"),
        ("memory://bucket", "memory://bucket: a folder, expected a file of documents"),
        ("s9://bucket/a.jsonl", "s9://bucket/a.jsonl: ValueError: Protocol not known: s9"),
        ("lacking://bucket/a.jsonl", "lacking://bucket/a.jsonl: Install lackfs (pip install)"),
    ],
)
def test_what_is_not_there_is_told_in_a_line(name, what, store):
    store.pipe_file("/bucket/a.jsonl", b"")
    fsspec.register_implementation(
        "lacking", "lackfs.Lacking", errtxt="Install lackfs", clobber=True
    )
    with pytest.raises(UserError) as error:
        list(records.read(name))
    assert str(error.value).startswith(what)


class Breaking(MemoryFileSystem):
    """A store whose connection ends after some kilobytes, and that lets nobody write."""

    protocol = "breaking"

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.replace("breaking://", "memory://"))

    def _open(self, path, mode="rb", **options):
        file = super()._open(path, mode, **options)
        read = file.read

        def some(size=-1):
            if file.tell() >= 2048:
                raise RuntimeError("connection reset\nby peer")
            return read(min(size, 1024))

        file.read = some
        return file

    def put_file(self, *args, **options):
        raise PermissionError("denied")


@pytest.fixture
def breaking(store):
    fsspec.register_implementation("breaking", Breaking, clobber=True)


def test_a_connection_that_ends_is_told_with_its_place(store, breaking):
    store.pipe_file("/bucket/a.jsonl", lines())
    with pytest.raises(DataError, match=r"a\.jsonl:\d+: cannot read on, .*connection reset"):
        list(records.read("breaking://bucket/a.jsonl"))


def test_a_file_is_put_whole_and_a_refusal_is_one_line(store, breaking, tmp_path):
    (tmp_path / "a").write_bytes(b"answers")
    sources.put_remote(tmp_path / "a", "memory://bucket/new/a.jsonl")
    assert store.find("/bucket") == ["/bucket/new/a.jsonl"]
    assert store.cat_file("/bucket/new/a.jsonl") == b"answers"
    with pytest.raises(UserError, match=r"b\.jsonl: no leave to use it \(denied\)"):
        sources.put_remote(tmp_path / "a", "breaking://bucket/b.jsonl")
    assert not sources.exists_remote("memory://bucket/b.jsonl")


def test_names_of_stores_are_told_from_paths_and_sets_of_the_hub():
    assert [
        name for name in ("a", "-", "C:\\a", "hf:o/n:train", "a/b://c") if sources.is_remote(name)
    ] == []
    assert sources.is_remote("hf://datasets/o/n/a.parquet")
    assert not sources.is_hub_set("hf://datasets/o/n/a.parquet")
    assert sources.is_hub_set("hf:o/n")
