import json

import pytest

from ldt.io.records import read


@pytest.mark.parametrize("kind", ["parquet", "arrow", "stream"])
def test_classes_have_the_names_that_the_file_has(tmp_path, caplog, kind):
    import pyarrow as pa
    import pyarrow.parquet as pq

    classes = {"names": ["O", "B-A"], "_type": "ClassLabel"}
    features = {
        "label": classes,
        "tags": {"feature": classes, "_type": "Sequence"},
        "old": [classes],
        "deep": {"a": classes, "n": {"dtype": "int64", "_type": "Value"}},
        "objects": {"feature": {"a": classes}, "_type": "Sequence"},
    }
    row = {"label": 1, "tags": [0, 1], "old": [1], "deep": {"a": 0, "n": 1}, "objects": {"a": [1]}}
    empty = {"label": -1, "tags": [], "old": None, "deep": None, "objects": None}
    about = {"huggingface": json.dumps({"info": {"features": features}})}
    table = pa.Table.from_pylist([row, empty]).replace_schema_metadata(about)
    file = tmp_path / "train"
    if kind == "parquet":
        pq.write_table(table, file)
    else:
        make = pa.ipc.new_file if kind == "arrow" else pa.ipc.new_stream
        with make(file, table.schema) as writer:
            writer.write_table(table)
    caplog.set_level("INFO", "ldt")
    first, second = read(file)
    named = {"label": "B-A", "tags": ["O", "B-A"], "old": ["B-A"], "deep": {"a": "O", "n": 1}}
    assert first.fields == named | {"objects": {"a": ["B-A"]}}
    assert second.fields == empty | {"label": None}
    assert "read by the names in the file: label (O, B-A), tags (O, B-A), old" in caplog.text
