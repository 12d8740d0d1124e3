import json
import sys

import pytest


@pytest.mark.nightly  # it starts two servers and ldt predict
def test_the_server_is_measured_under_load(script, tmp_path, monkeypatch):
    for name in ("starlette", "uvicorn"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    file = tmp_path / "result.json"
    words = [
        "serve.py",
        "--documents",
        "8",
        "--rounds",
        "1",
        "--requests",
        "100",
        "--json",
        str(file),
    ]
    monkeypatch.setattr(sys, "argv", words)
    script("serve").main()
    result = json.loads(file.read_text("utf-8"))
    assert set(result["load"]) == {"1", "8", "64"}
    for each in result["load"].values():
        assert each["documents a second"] > 0
        assert sum(row["count"] for row in each["seconds"].values()) == 8
    assert result["overtaking"]["chunks"] > 90
    assert result["overtaking"]["short"]["count"] >= 4
    assert result["soak"]["codes"] == {"200": 98, "422": 2}
    assert result["soak"]["at the end"] > 50
