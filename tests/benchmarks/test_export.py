import json
import sys

import pytest

WORDS = "the parties of this agreement meet before a court and not before arbitrators".split()


@pytest.mark.nightly  # it exports four models
def test_an_exported_model_is_measured_beside_ldt(script, tmp_path, monkeypatch, capsys):
    for name in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    import gzip

    for name in ("train", "dev"):
        with gzip.open(tmp_path / f"cuad.{name}.jsonl.gz", "wt") as file:
            for number in range(8):
                line = {"id": f"{name}{number}", "text": " ".join(WORDS[number:] * 3)}
                file.write(json.dumps(line | {"group": "one" if number % 2 else "two"}) + "\n")
    file = tmp_path / "result.json"
    words = ["export.py", "--tiny", "--rounds", "1", "--cuad", str(tmp_path), "--json", str(file)]
    monkeypatch.setattr(sys, "argv", words)
    monkeypatch.syspath_prepend(script("loading").HERE / "examples" / "demo")
    script("export").main()
    result = json.loads(file.read_text("utf-8"))
    assert {row["tokens"] for row in result["time"]} == {64, 128}
    assert all(row["onnx"] > 0 for row in result["time"])
    assert [row["what"] for row in result["int8"]] == ["demo", "cuad"]
    for row in result["int8"]:
        assert row["documents"] == 8
        low, high = row["interval"]
        assert low <= row["equal"] <= high
        assert row["size"] < 1
    if "memory" in result:
        assert [row["tokens"] for row in result["memory"]] == [64, 128]
    assert "answers in int8 beside those in fp32" in capsys.readouterr().out
