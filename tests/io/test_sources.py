"""Names of data, files that are read together, and files of remote stores."""

import gzip
import io
import json

import fsspec
import pyarrow
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from pyarrow import parquet

from ldt.benchmarks.formats import read
from ldt.data.options import DataSection
from ldt.data.profile import same_files
from ldt.errors import DataError, UserError
from ldt.io import records, sources
from ldt.io.sources import brief, digest, each, only
from ldt.recipe.recipe import load
from ldt.training.finetune import Finetuning
from ldt.training.labelled import documents, unique


@pytest.fixture
def shards(tmp_path, monkeypatch):
    """Write three shards of a record each, out of order, one of them compressed."""
    monkeypatch.chdir(tmp_path)
    for number in (2, 0, 1):
        line = json.dumps({"id": f"r{number}", "text": str(number)}).encode()
        name = f"d-{number:02}.jsonl.gz" if number == 1 else f"d-{number:02}.jsonl"
        (tmp_path / name).write_bytes(gzip.compress(line) if number == 1 else line)


def ids(source, **data):
    return [example.id for example in read(source, DataSection(**data), document="text")]


def test_files_are_read_in_the_order_of_the_list_and_those_of_a_pattern_sorted(shards):
    assert ids("d-*") == ["r0", "r1", "r2"]
    assert ids(["d-02.jsonl", "d-*"]) == ["r2", "r0", "r1"]
    assert DataSection(train=["b", "a"]).train == ["b", "a"]


def test_a_pattern_that_nothing_matches_is_one_clear_line(shards):
    with pytest.raises(UserError, match=r"^e-\*: no file has such a name$"):
        each(["d-*", "e-*"])


def test_a_file_whose_name_looks_like_a_pattern_is_itself(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a[1].jsonl").write_text('{"id": "x", "text": ""}')
    assert ids("a[1].jsonl") == ["x"]


def test_ids_are_unique_over_all_files(shards, tmp_path):
    (tmp_path / "d-03.jsonl").write_text('{"id": "r0", "text": "again"}')
    with pytest.raises(DataError, match=r"d-03.jsonl:1: id 'r0' stands at d-00.jsonl:1 too"):
        unique(read("d-*", DataSection()))


def test_records_without_ids_have_their_places_as_ids_where_there_are_several_files(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text('{"text": "x"}\n{"text": "y", "id": 7}\n')
    assert ids(str(tmp_path / "a.jsonl")) == [1, 7]
    assert ids(str(tmp_path / "*"))[::2] == [f"{tmp_path}/{name}.jsonl:1" for name in "ab"]


def test_text_beside_records_is_refused(shards, tmp_path):
    (tmp_path / "e.txt").write_text("words")
    with pytest.raises(DataError, match=r"^e.txt: text, but d-00.jsonl is records; files that are"):
        ids(["d-00.jsonl", "e.txt"])


def test_the_hash_covers_all_files_and_their_order(shards, tmp_path):
    before = digest("d-*")
    assert before == digest(["d-00.jsonl", "d-01.jsonl.gz", "d-02.jsonl"])
    assert before != digest(["d-02.jsonl", "d-01.jsonl.gz", "d-00.jsonl"])
    (tmp_path / "d-02.jsonl").write_text('{"id": "r2", "text": "changed"}')
    assert digest("d-*") != before
    assert digest(["d-00.jsonl", "hf:o/n"]) is None


def test_a_recipe_takes_a_list_or_a_pattern_and_finds_both_beside_itself(shards, tmp_path):
    folder = tmp_path / "recipes"
    folder.mkdir()
    for shard in tmp_path.glob("d-*"):
        shard.rename(folder / shard.name)
    text = "task: {name: classification}\nmodel: {path: m}\ndata: {train: [d-02.jsonl, 'd-*']}\n"
    (folder / "r.yaml").write_text(text)
    read_from = load(folder / "r.yaml", ["data.eval=d-*"])
    train, evaluation = documents(read_from, 0)
    assert [example.id for example in train] == ["r2", "r0", "r1"]
    assert [example.id for example in evaluation] == ["r0", "r1", "r2"]
    assert Finetuning(read_from).open({}, None).hashes == {
        "train": digest(read_from.data.train),
        "eval": digest(read_from.data.eval),
    }


def test_several_files_are_the_same_data_where_each_is(shards, tmp_path):
    (tmp_path / "copy").write_bytes((tmp_path / "d-02.jsonl").read_bytes())
    assert same_files(["d-00.jsonl", "d-02.jsonl"], ["d-00.jsonl", "copy"])
    assert not same_files(["d-00.jsonl", "d-02.jsonl"], ["d-00.jsonl"])


def test_messages_name_the_first_file_and_how_many_more(shards):
    assert brief("a") == brief(["a"]) == "a"
    assert brief(["a", "b", "c"]) == "a and 2 more"
    with pytest.raises(UserError, match=r"^predictions are one file, got 3: d-00.jsonl and 2 more"):
        only("d-*", "predictions")


def test_a_folder_that_datasets_saved_is_its_files(tmp_path):
    for name in ("b.arrow", "a.arrow"):
        (tmp_path / "set").mkdir(exist_ok=True)
        (tmp_path / "set" / name).touch()
    files = [{"filename": "b.arrow"}, {"filename": "a.arrow"}]
    (tmp_path / "set" / "state.json").write_text(json.dumps({"_data_files": files}))
    assert each(str(tmp_path / "set")) == [
        str(tmp_path / "set" / name) for name in ("b.arrow", "a.arrow")
    ]
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["set", "test"]}')
    with pytest.raises(UserError, match="sets of datasets, set, test; .*set is one of them"):
        each(str(tmp_path))


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
