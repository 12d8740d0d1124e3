"""Answers by Ray Data, which is installed apart; what it calls has no Ray in it."""

import json
import os
import time

import numpy as np
import psutil
import pytest
from classified import lines_of

import ldt
from ldt.errors import DataError
from ldt.inference.ray import Predictor

RECORDS = [json.loads(line) for line in lines_of(600)]
COLUMNS = {
    "name": np.array([record["name"] for record in RECORDS]),
    "text": np.array([record["body"]["text"] for record in RECORDS], dtype=object),
}


def test_a_batch_of_columns_keeps_its_ids_and_gets_answers(fine_tuned):
    batch = {name: column[:40] for name, column in COLUMNS.items()}
    found = Predictor(str(fine_tuned), ids="name", text="text")(batch)
    assert found["name"] is batch["name"]
    assert list(map(json.loads, found["answer"])) == ldt.load(str(fine_tuned))(RECORDS[:40])


def test_a_row_that_cannot_be_used_has_an_error_for_an_answer(fine_tuned):
    batch = {"name": np.array(["a", "a"]), "text": np.array(["the party", "ends"])}
    found = Predictor(str(fine_tuned), ids="name", text="text")(batch)
    assert json.loads(found["answer"][1]) == {
        "id": "a",
        "error": "document 2: id 'a' came before",
    }


def test_rows_without_ids_are_refused(fine_tuned):
    predictor = Predictor(str(fine_tuned), ids="name", text="text")
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
            fn_constructor_kwargs={"folder": str(fine_tuned), "ids": "name", "text": "text"},
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
