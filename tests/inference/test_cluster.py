"""ldt predict --engine ray; Ray itself is installed apart."""

import json
import sys

import pytest
from classified import lines_of

import ldt
from ldt.errors import UserError
from ldt.inference import cluster

NOTHING = {"address": None, "resume": False, "overwrite": False, "model": None, "id": "name"}


def test_without_ray_it_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"needs Ray: pip install 'ldt-toolkit\[ray\]'"):
        cluster.predict(["a.jsonl"], "answers", **NOTHING)


@pytest.mark.parametrize(
    ("names", "line"),
    [
        (["a.txt"], "a.txt: --engine ray reads .parquet, .jsonl, .json, .csv"),
        (["a.jsonl", "b.csv"], "files of one kind at a time, got "),
        (["no-*.jsonl"], "no file has such a name"),
    ],
)
def test_files_that_ray_does_not_read_are_refused(tmp_path, monkeypatch, names, line):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=line):
        cluster._documents(names)


def test_files_of_one_kind_have_a_reader(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("b.jsonl", "a.jsonl.gz"):
        (tmp_path / name).touch()
    paths = [str(tmp_path / name) for name in ("a.jsonl.gz", "b.jsonl")]
    assert cluster._documents(["*.jsonl*"]) == (paths, "read_json")
    assert cluster._documents(["s3://b/c.parquet"]) == (["s3://b/c.parquet"], "read_parquet")


def test_a_folder_with_answers_stays_unless_it_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    target = str(tmp_path / "answers")
    for output in (None, "answers.jsonl"):
        with pytest.raises(UserError, match="a folder of Parquet files"):
            cluster._target(output, False, False)
    with pytest.raises(UserError, match=r"nothing to resume, no answers\.answered"):
        cluster._target("answers", True, False)
    assert cluster._target("answers", False, False) == target
    (tmp_path / "answers").mkdir()
    with pytest.raises(UserError, match="is there already; --overwrite replaces it"):
        cluster._target("answers", False, False)
    (tmp_path / "answers.answered").mkdir()
    with pytest.raises(UserError, match="--resume goes on with it, --overwrite replaces it"):
        cluster._target("answers", False, False)
    assert cluster._target("answers", True, False) == target
    assert (tmp_path / "answers").is_dir()
    assert cluster._target("answers", False, True) == target
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("machines", "pool"),
    [
        ({"CPU": 2.0}, (1, {"num_cpus": 1})),
        ({"CPU": 1.0}, (1, {"num_cpus": 1})),
        ({"CPU": 33.0}, (8, {"num_cpus": 4})),
        ({"CPU": 64.0, "GPU": 4.0}, (4, {"num_gpus": 1})),
    ],
)
def test_actors_leave_room_for_reading(machines, pool):
    assert cluster._pool(machines) == pool


@pytest.mark.nightly
def test_a_cluster_of_this_machine_answers_for_each_row_once(fine_tuned, tmp_path, monkeypatch):
    ray = pytest.importorskip("ray", reason="Ray is not installed; pip install 'ray[data]'")
    import pandas

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.chdir(tmp_path)
    lines = lines_of(200)
    (tmp_path / "docs.jsonl").write_text("".join(f"{line}\n" for line in lines))
    records = [json.loads(line) for line in lines]
    flat = [{"name": each["name"], "text": each["body"]["text"]} for each in records]
    pandas.DataFrame(flat).to_parquet("docs.parquet")
    ray.init(num_cpus=3, include_dashboard=False, object_store_memory=200 << 20)
    options = NOTHING | {"model": str(fine_tuned), "text": "text"}
    try:
        assert cluster.predict(["docs.parquet"], "answers", **options) == 0
    finally:
        ray.shutdown()
    found = pandas.read_parquet("answers")
    expected = {each["id"]: each for each in ldt.load(str(fine_tuned))(records)}
    assert sorted(found["name"]) == sorted(expected)
    for name, answer in zip(found["name"], found["answer"], strict=True):
        assert json.loads(answer)["label"] == expected[name]["label"]
    assert not (tmp_path / "answers.answered").exists()
