"""Answers for a remote store."""

import json
from pathlib import Path

import fsspec
import pytest
from classified import lines_of
from fsspec.implementations.memory import MemoryFileSystem

from ldt import cli
from ldt.errors import EXIT_DATA, EXIT_OK, EXIT_REJECTS, EXIT_RESOURCES, EXIT_USAGE

SOURCE, TARGET = "memory://bucket/docs.jsonl", "memory://bucket/out/a.jsonl"


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    system = fsspec.filesystem("memory")
    system.store.clear()
    system.pipe_file("/bucket/docs.jsonl", "\n".join(lines_of(20)).encode())
    yield system
    system.store.clear()


@pytest.fixture
def run(fine_tuned, store, one_library):
    def run(*options, source=SOURCE, target=TARGET):
        with pytest.raises(SystemExit) as ended:
            cli.main(["predict", source, "--output", target, "--model", str(fine_tuned), *options])
        return ended.value.code

    return run


def rows(store, path):
    return [json.loads(line) for line in store.cat_file(path).splitlines()]


def test_answers_appear_in_the_store_and_nothing_stays_here(run, store, tmp_path):
    assert run() == EXIT_OK
    assert run(target="here.jsonl") == EXIT_OK
    assert store.cat_file("/bucket/out/a.jsonl") == Path("here.jsonl").read_bytes()
    assert store.find("/bucket/out") == ["/bucket/out/a.jsonl"]
    assert {path.name for path in tmp_path.iterdir()} == {"here.jsonl", ".here.jsonl.run.json"}


def test_the_ending_decides_and_rejects_go_along(run, store, tmp_path):
    store.pipe_file("/bucket/docs.jsonl", "\n".join([*lines_of(5), "{"]).encode())
    assert run("--on-error", "skip", target="memory://bucket/out/a.parquet") == EXIT_REJECTS
    names = ["/bucket/out/a.parquet", "/bucket/out/a.parquet.rejects.jsonl"]
    assert store.find("/bucket/out") == names
    assert store.cat_file(names[0])[:4] == b"PAR1"
    assert len(rows(store, names[1])) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_there_is_left_unless_it_is_to_be_replaced(run, store, capsys):
    store.pipe_file("/bucket/out/a.jsonl", b"old")
    assert run() == EXIT_USAGE
    assert f"{TARGET}: exists already; --overwrite replaces it" in capsys.readouterr().err
    assert store.cat_file("/bucket/out/a.jsonl") == b"old"
    assert run("--overwrite") == EXIT_OK
    assert len(rows(store, "/bucket/out/a.jsonl")) == 20


def test_a_run_that_fails_sends_nothing_and_goes_on(run, store, capsys):
    whole = store.cat_file("/bucket/docs.jsonl")
    store.pipe_file("/bucket/docs.jsonl", whole + b"\n{")
    assert run("--batch-tokens", "100") == EXIT_DATA
    assert store.find("/bucket/out") == []
    store.pipe_file("/bucket/docs.jsonl", whole)
    assert run("--batch-tokens", "100") == EXIT_USAGE  # there are answers
    assert run("--batch-tokens", "100", "--resume") == EXIT_OK
    assert len(rows(store, "/bucket/out/a.jsonl")) == 20
    assert not Path("ldt-unsent").exists()


class Closed(MemoryFileSystem):
    """A store that lets nobody write."""

    protocol = "closed"

    def put_file(self, *args, **options):
        raise PermissionError("denied")


def test_answers_that_cannot_be_sent_stay_and_are_sent_later(run, store, capsys, monkeypatch):
    fsspec.register_implementation("closed", Closed, clobber=True)
    target = TARGET.replace("memory", "closed")
    assert run(target=target) == EXIT_RESOURCES
    told = capsys.readouterr().err.strip().splitlines()[-1]
    (kept,) = Path("ldt-unsent").glob("*/a.jsonl")
    assert told == (
        f"error: {target}: no leave to use it (denied); the answers are in {kept}, --resume sends "
        "them"
    )
    assert run(target=target) == EXIT_USAGE
    assert "that were not sent; --resume sends them" in capsys.readouterr().err
    monkeypatch.undo()
    monkeypatch.setattr(Closed, "put_file", MemoryFileSystem.put_file)


def test_a_shard_is_written_here(run, store, capsys):
    assert run("--shard", "1/2") == EXIT_USAGE
    assert "--shard 1/2: parts are merged here; name a local --output" in capsys.readouterr().err
