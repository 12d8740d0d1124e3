import datetime
import json

import pyarrow
import pyarrow.parquet
import pytest
from classified import lines_of, read, write

from ldt.errors import DataError, UserError
from ldt.inference import engine
from ldt.inference.predict import predict


def test_kept_fields_are_copied_as_they_are(fine_tuned, tmp_path):
    lines = lines_of(3)
    records = [json.loads(line) | {"label": "no", "x": 0.123456789} for line in lines]
    source = write(tmp_path / "docs.jsonl", map(json.dumps, records))
    keep = ["body.text", "gold=label", "x"]
    output = tmp_path / "a.jsonl"
    assert predict(source, model=str(fine_tuned), output=str(output), keep=keep) == 0
    for answer, record in zip(read(output), records, strict=True):
        assert answer["body.text"] == record["body"]["text"]
        assert (answer["gold"], answer["x"]) == ("no", 0.123456789)
        assert answer["label"] in answer["scores"]


def test_a_record_without_a_kept_field_is_told_or_rejected(fine_tuned, tmp_path, monkeypatch):
    source = write(tmp_path / "docs.jsonl", lines_of(2))
    options = {"model": str(fine_tuned), "output": str(tmp_path / "a.jsonl"), "keep": ["nam"]}
    with monkeypatch.context() as patched:  # before the model is loaded
        patched.setattr(engine, "PREDICTORS", {"examples": "not:loaded"})
        what = r"docs.jsonl:1: no field 'nam'; did you mean 'name'\?"
        with pytest.raises(DataError, match=what):
            predict(source, **options)
    assert predict(source, **options, on_error="skip") == 7
    assert len(read(tmp_path / "a.jsonl.rejects.jsonl")) == 2


def test_a_run_is_resumed_with_the_same_kept_fields(fine_tuned, tmp_path):
    source = write(tmp_path / "docs.jsonl", [*lines_of(2), "{"])
    options = {"model": str(fine_tuned), "output": str(tmp_path / "a.jsonl"), "resume": True}
    with pytest.raises(DataError):
        predict(source, **options, keep=["name"])
    with pytest.raises(UserError, match="made with another --keep; use the same"):
        predict(source, **options)
    write(tmp_path / "docs.jsonl", lines_of(3))
    assert predict(source, **options, keep=["name"]) == 0
    assert [each["name"] for each in read(tmp_path / "a.jsonl")] == ["doc-0", "doc-1", "doc-2"]


def test_what_json_lacks_is_kept_as_text_or_null(fine_tuned, tmp_path):
    row = {
        "name": "a",
        "body": {"text": "the party"},
        "day": datetime.date(2024, 5, 1),
        "odd": [float("nan"), 1.5],
    }
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "docs.parquet")
    output = tmp_path / "a.jsonl"
    options = {"model": str(fine_tuned), "output": str(output), "keep": ["day", "odd"]}
    assert predict(str(tmp_path / "docs.parquet"), **options) == 0
    (answer,) = read(output)
    assert (answer["day"], answer["odd"]) == ("2024-05-01", [None, 1.5])
