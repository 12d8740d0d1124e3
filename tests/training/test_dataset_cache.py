"""Large labelled sets: kept for later runs, and encoded by several processes."""

import os
from pathlib import Path

import numpy as np
import pytest

from ldt.data.features import Features
from ldt.errors import DataError
from ldt.training import dataset_cache, labelled
from ldt.training.arguments import settings
from ldt.training.dataset_cache import Examples
from ldt.training.finetune import Finetuning


@pytest.fixture(autouse=True)
def large(monkeypatch):
    """Lets every set be a large one."""
    monkeypatch.setattr(dataset_cache, "LARGE", 1)


@pytest.fixture
def prepared(recipe):
    """Prepares a run with some changes of its recipe."""

    def make(*changes, dry=None):
        job = Finetuning(recipe("data.workers=1", *changes))
        return job.prepare(job.open(settings(job.recipe), dry), None)

    return make


@pytest.fixture
def seen(monkeypatch):
    """The documents that were read, and those that were encoded."""
    read, encoded = [], []
    real_read, real_encode = labelled.read, labelled.DocumentEncoder.__call__

    def reading(*args, **kwargs):
        for example in real_read(*args, **kwargs):
            read.append(example.id)
            yield example

    def encoding_one(self, example, **options):
        encoded.append(example.where)
        return real_encode(self, example, **options)

    monkeypatch.setattr(labelled, "read", reading)
    monkeypatch.setattr(labelled.DocumentEncoder, "__call__", encoding_one)
    return read, encoded


def folders():
    return sorted(Path(".ldt/examples").glob("classification-*"))


def plain(items):
    return [
        {key: np.asarray(value).tolist() for key, value in item.items() if key != "flags"}
        for item in items
    ]


def assert_alike(one, other):
    for name in ("train_items", "eval_items"):
        assert plain(getattr(one, name)) == plain(getattr(other, name))
    assert list(one.names) == list(other.names)
    assert one.facts == other.facts
    assert one.baselines == other.baselines
    assert [(n.text, n.level) for n in one.notices] == [(n.text, n.level) for n in other.notices]
    assert one.model.config.to_dict() == other.model.config.to_dict()
    assert [e.fields for e in one.measure.examples] == [e.fields for e in other.measure.examples]
    assert one.measure.golds == other.measure.golds


def test_a_second_run_reads_and_encodes_nothing_and_gets_the_same(prepared, seen):
    read, encoded = seen
    first = prepared()
    count = len(read)
    assert count == len(encoded) > 12
    assert_alike(first, prepared())
    assert len(read) == len(encoded) == count
    assert len(folders()) == 1


@pytest.mark.parametrize("change", ["training.seed=7", "data.max_length=64", "model.window=8"])
def test_what_the_sets_depend_on_gives_them_a_folder_of_their_own(prepared, seen, change):
    prepared()
    count = len(seen[0])
    prepared(change)
    assert len(folders()) == 2
    assert len(seen[0]) == 2 * count


def test_parts_of_one_file_and_thinned_inputs_come_back_as_they_were(prepared, seen):
    changes = ["data.eval=null", "data.eval_fraction=0.3"]
    first = prepared(*changes)
    count = len(seen[0])
    assert_alike(first, prepared(*changes))
    assert len(seen[0]) == count
    assert 0 < len(first.measure.examples) < count


def test_what_a_killed_run_has_encoded_is_not_encoded_again(prepared, seen, monkeypatch):
    wanted = prepared("data.cache=other")
    encoded = seen[1]
    encoded.clear()
    real = labelled.DocumentEncoder.__call__

    def killed(self, example, **options):
        if len(encoded) == 8:
            raise KeyboardInterrupt
        return real(self, example, **options)

    monkeypatch.setattr(labelled.DocumentEncoder, "__call__", killed)
    with pytest.raises(KeyboardInterrupt):
        prepared()
    done, found = list(encoded), Features.reopen(folders()[0] / "train-inputs")
    assert found.documents.tolist() == list(range(8))
    monkeypatch.setattr(labelled.DocumentEncoder, "__call__", real)
    encoded.clear()
    assert_alike(prepared(), wanted)
    assert encoded[0] == done[-1]  # the last one may have lacked some of its inputs
    assert not set(done[:-1]) & set(encoded)


def remove_rows(folder):
    (folder / "train-inputs.rows").unlink()


def cut_rows(folder):
    os.truncate(folder / "train-inputs.rows", 100)


def change_sets(folder):
    content = (folder / dataset_cache.WHOLE).read_bytes()
    (folder / dataset_cache.WHOLE).write_bytes(content[:-9] + b"123456789")


def remove_sets(folder):
    (folder / dataset_cache.WHOLE).unlink()


@pytest.mark.parametrize("damage", [remove_rows, cut_rows, change_sets, remove_sets])
def test_sets_that_are_damaged_are_made_again(prepared, damage, caplog):
    caplog.set_level("INFO", "ldt")
    wanted = prepared("data.cache=other")
    prepared()
    damage(folders()[0])
    assert_alike(prepared(), wanted)
    assert ("damaged" in caplog.text) == (damage in (cut_rows, change_sets))
    caplog.clear()
    prepared()
    assert "by an earlier run" in caplog.text


def test_code_in_a_file_of_sets_is_not_run(prepared, caplog):
    first = prepared("data.cache=other")
    prepared()
    content = b"cos\nmkdir\n(Vrun\ntR."
    check = dataset_cache.zlib.crc32(content).to_bytes(4, "little")
    (folders()[0] / dataset_cache.WHOLE).write_bytes(check + content)
    assert_alike(first, prepared())
    assert "os.mkdir is no value" in caplog.text.replace("posix", "os")
    assert not Path("run").exists()


def test_a_dry_run_and_small_sets_leave_nothing(prepared, tmp_path, monkeypatch):
    prepared(dry=tmp_path)
    assert not folders()
    monkeypatch.setattr(dataset_cache, "LARGE", 1 << 20)
    prepared()
    assert not folders()


def test_a_fault_of_the_data_is_told_again_by_the_next_run(prepared):
    with Path("train.jsonl").open("a") as file:
        file.write('{"id": "broken", "text": 5, "label": "a"}\n')
    for _ in range(2):
        with pytest.raises(DataError, match=r"train.jsonl:13: .*text"):
            prepared()


@pytest.mark.slow
def test_several_processes_encode_the_same(prepared, monkeypatch):
    monkeypatch.setattr(labelled, "AT_ONCE", 2)
    wanted = prepared("data.cache=other")
    assert_alike(prepared("data.workers=2"), wanted)
    one, other = (next(Path(name).glob("c*")) for name in (".ldt/examples", "other"))
    for file in ("train.rows", "train-inputs.rows", "train-inputs.index", "eval-inputs.rows"):
        assert (one / file).read_bytes() == (other / file).read_bytes()


def test_an_empty_set_is_kept_too(prepared):
    first = prepared("data.eval=null")
    second = prepared("data.eval=null")
    assert first.measure is second.measure is None
    assert plain(first.train_items) == plain(second.train_items)
    assert isinstance(second.names.examples, Examples)
