import json
import sys

import pytest

from ldt.bench.measure import STATUS


@pytest.mark.nightly  # minutes: it starts a dozen commands
@pytest.mark.skipif(not STATUS.exists(), reason="memory is told by Linux alone")
def test_workers_are_measured_beside_one_process(script, tmp_path, monkeypatch):
    file = tmp_path / "result.json"
    words = ["workers.py", "--tiny", "--documents", "900", "--json", str(file)]
    monkeypatch.setattr(sys, "argv", words)
    script("workers").main()
    result = json.loads(file.read_text("utf-8"))
    assert result["documents"] == 900
    assert len(result["seconds"]) == 4
    assert len(set(result["sha256"])) == 1
    assert {len(each) for each in result["memory_mb"].values()} == {2}
    assert all(mb > 50 for each in result["memory_mb"].values() for mb in each.values())
    faster = result["scaling"]["times faster"]
    assert faster["1"] == 1 <= faster["2"] <= 2
