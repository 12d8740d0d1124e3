"""Names of data: a pattern, a list, and files that are read together."""

import gzip
import json

import pytest

from ldt.data.formats import read
from ldt.data.options import DataSection
from ldt.errors import DataError, UserError
from ldt.io.sources import digest, each, named, only
from ldt.recipe.recipe import load
from ldt.training.finetune import Finetuning
from ldt.training.labelled import documents, unique
from ldt.training.survey import same_files


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
    assert Finetuning(read_from).open({}, False).hashes == {
        "train": digest(read_from.data.train),
        "eval": digest(read_from.data.eval),
    }


def test_several_files_are_the_same_data_where_each_is(shards, tmp_path):
    (tmp_path / "copy").write_bytes((tmp_path / "d-02.jsonl").read_bytes())
    assert same_files(["d-00.jsonl", "d-02.jsonl"], ["d-00.jsonl", "copy"])
    assert not same_files(["d-00.jsonl", "d-02.jsonl"], ["d-00.jsonl"])


def test_messages_name_the_first_file_and_how_many_more(shards):
    assert named("a") == named(["a"]) == "a"
    assert named(["a", "b", "c"]) == "a and 2 more"
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
