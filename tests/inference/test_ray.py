"""Answers by Ray Data, by its own functions and by ldt predict --executor ray; Ray is apart."""

import json
import os
import sys
import time

import numpy as np
import psutil
import pytest
from classified import lines_of

import ldt
from ldt.errors import DataError, UserError
from ldt.inference import ray as ray_data
from ldt.inference.options import PredictOptions
from ldt.inference.ray import Predictor

NOTHING = {"address": None, "resume": False, "overwrite": False, "model": None}
NAMED = PredictOptions.of({"data": {"id": "name"}})
RECORDS = [json.loads(line) for line in lines_of(600)]
COLUMNS = {
    "name": np.array([record["name"] for record in RECORDS]),
    "text": np.array([record["body"]["text"] for record in RECORDS], dtype=object),
}


def test_a_batch_of_columns_keeps_its_ids_and_gets_answers(fine_tuned):
    batch = {name: column[:40] for name, column in COLUMNS.items()}
    found = Predictor(str(fine_tuned), ids="name", data={"text": "text"})(batch)
    assert found["name"] is batch["name"]
    assert list(map(json.loads, found["answer"])) == ldt.load(str(fine_tuned))(RECORDS[:40])


def test_a_row_that_cannot_be_used_has_an_error_for_an_answer(fine_tuned):
    batch = {"name": np.array(["a", "a"]), "text": np.array(["the party", "ends"])}
    found = Predictor(str(fine_tuned), ids="name", data={"text": "text"})(batch)
    assert json.loads(found["answer"][1]) == {
        "id": "a",
        "error": "document 2: id 'a' came before",
    }


def test_rows_without_ids_are_refused(fine_tuned):
    predictor = Predictor(str(fine_tuned), ids="name", data={"text": "text"})
    with pytest.raises(DataError, match="no column 'name' of ids; there are 'text', 'id'"):
        predictor({"text": np.array(["a"]), "id": np.array([1])})
    for missing in (None, "", float("nan")):
        ids = np.array(["a", missing], dtype=object)
        with pytest.raises(DataError, match="column 'name': a row has no id"):
            predictor({"text": np.array(["a", "b"]), "name": ids})


@pytest.mark.nightly
def test_every_row_is_answered_once_though_an_actor_is_killed(fine_tuned, tmp_path, monkeypatch):
    ray = pytest.importorskip("ray", reason="Ray is not installed; pip install 'ray[data]'")
    data = pytest.importorskip("ray.data")
    import pandas

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    (tmp_path / "docs").mkdir()
    for part in range(6):
        rows = {name: column[part::6] for name, column in COLUMNS.items()}
        pandas.DataFrame(rows).to_parquet(tmp_path / "docs" / f"{part}.parquet")
    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=200 << 20)
    try:
        context = data.DataContext.get_current()
        context.target_min_block_size, context.target_max_block_size = 1, 4000
        rows = data.read_parquet(str(tmp_path / "docs")).map_batches(
            Predictor,
            fn_constructor_kwargs={
                "folder": str(fine_tuned),
                "ids": "name",
                "data": {"text": "text"},
            },
            batch_size=20,
            compute=data.ActorPoolStrategy(size=2),
        )
        found, killed = [], False
        for row in rows.iter_rows():
            found.append(row)
            if len(found) == 50:
                killed = _kill_an_actor()
        assert killed
    finally:
        ray.shutdown()
    assert sorted(row["name"] for row in found) == sorted(COLUMNS["name"])
    expected = {each["id"]: each for each in ldt.load(str(fine_tuned))(RECORDS)}
    for row in found:
        answer = json.loads(row["answer"])
        assert answer["label"] == expected[row["name"]]["label"]
        assert answer["scores"] == pytest.approx(expected[row["name"]]["scores"], abs=2e-5)


def _kill_an_actor():
    for process in psutil.process_iter(["cmdline", "uids"]):
        words = " ".join(process.info["cmdline"] or [])
        if words.startswith("ray::MapWorker") and process.info["uids"].real == os.getuid():
            process.kill()
            time.sleep(0.5)
            return True
    return False


def test_without_ray_it_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"needs Ray: pip install 'ldt-toolkit\[ray\]'"):
        ray_data.predict(["a.jsonl"], "answers", **NOTHING, options=NAMED)


@pytest.mark.parametrize(
    ("names", "line"),
    [
        (["a.txt"], "a.txt: --executor ray reads .parquet, .jsonl, .json, .csv"),
        (["a.jsonl", "b.csv"], "files of one kind at a time, got "),
        (["no-*.jsonl"], "no file has such a name"),
    ],
)
def test_files_that_ray_does_not_read_are_refused(tmp_path, monkeypatch, names, line):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=line):
        ray_data._documents(names)


def test_a_folder_with_answers_stays_unless_it_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    target = str(tmp_path / "answers")
    for output in (None, "answers.jsonl"):
        with pytest.raises(UserError, match="a folder of Parquet files"):
            ray_data._target(output, False, False)
    with pytest.raises(UserError, match=r"nothing to resume, no answers\.answered"):
        ray_data._target("answers", True, False)
    assert ray_data._target("answers", False, False) == target
    (tmp_path / "answers").mkdir()
    with pytest.raises(UserError, match="is there already; --overwrite replaces it"):
        ray_data._target("answers", False, False)
    (tmp_path / "answers.answered").mkdir()
    with pytest.raises(UserError, match="--resume goes on with it, --overwrite replaces it"):
        ray_data._target("answers", False, False)
    assert ray_data._target("answers", True, False) == target
    assert (tmp_path / "answers").is_dir()
    assert ray_data._target("answers", False, True) == target
    assert list(tmp_path.iterdir()) == []


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
    reading = {"data": {"id": "name", "text": "text"}}
    options = NOTHING | {"model": str(fine_tuned), "options": PredictOptions.of(reading)}
    try:
        assert ray_data.predict(["docs.parquet"], "answers", **options) == 0
    finally:
        ray.shutdown()
    found = pandas.read_parquet("answers")
    expected = {each["id"]: each for each in ldt.load(str(fine_tuned))(records)}
    assert sorted(found["name"]) == sorted(expected)
    for name, answer in zip(found["name"], found["answer"], strict=True):
        assert json.loads(answer)["label"] == expected[name]["label"]
    assert not (tmp_path / "answers.answered").exists()
