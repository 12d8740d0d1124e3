import json
import sys
from pathlib import Path

import pytest

from ldt.bench.measure import STATUS


@pytest.mark.slow
@pytest.mark.skipif(not STATUS.exists(), reason="memory is told by Linux alone")
def test_an_ldt_is_measured_beside_another_and_transformers(script, tmp_path, monkeypatch, capsys):
    file, sources = tmp_path / "result.json", Path(__file__).parents[2]
    words = ["loading.py", "--tiny", "--before", str(sources), "--json", str(file)]
    monkeypatch.setattr(sys, "argv", words)
    script("loading").main()
    result = json.loads(file.read_text("utf-8"))
    assert list(result["memory"]) == ["ldt", "ldt, mapped", "transformers", "before, ldt"]
    assert result["file_mb"] < 1
    names = ["import torch, transformers", "import PreTrainedModel", "ldt predict"]
    assert list(result["time"]) == [*names, "before, ldt predict"]
    assert all(row["cpu_seconds"] > 0.1 for row in result["time"].values())
    shown = capsys.readouterr().out
    assert "times the first" in shown
    assert "before, ldt predict" in shown
