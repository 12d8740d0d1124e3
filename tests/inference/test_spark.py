"""The page on many documents, on Spark, which is installed apart and takes Java."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
from classified import lines_of

import ldt

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"


@pytest.mark.nightly
def test_the_lines_on_the_page_answer_for_each_row(fine_tuned, tmp_path, monkeypatch):
    pytest.importorskip("pyspark", reason="Spark is not installed; pip install pyspark")
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java, which is not installed")
    import pandas
    from pyspark.sql import SparkSession

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("PYTHONPATH", ":".join(filter(None, sys.path)))
    records = [json.loads(line) for line in lines_of(120)]
    flat = [{"id": each["name"], "text": each["body"]["text"]} for each in records]
    pandas.DataFrame(flat).to_parquet("documents")
    Path("runs").mkdir()
    Path("runs/contracts").symlink_to(fine_tuned)
    (code,) = (
        block
        for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
        if "pyspark" in block
    )
    session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = session.getOrCreate()
    try:
        exec(compile(code, str(PAGE), "exec"), {"__name__": "page"})
    finally:
        spark.stop()
    found = pandas.read_parquet("answers")
    assert sorted(found["id"]) == sorted(row["id"] for row in flat)
    expected = {
        each["id"]: each
        for each in ldt.load(str(fine_tuned), data={"id": "id", "text": "text"})(flat)
    }
    for id, answer in zip(found["id"], found["answer"], strict=True):
        assert json.loads(answer)["label"] == expected[id]["label"]
