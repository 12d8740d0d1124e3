import json
import sys

import pytest

from ldt.bench.measure import STATUS


@pytest.mark.nightly  # a minute: it starts seven commands
@pytest.mark.skipif(not STATUS.exists(), reason="memory is told by Linux alone")
def test_starts_epoch_encoding_and_stores_are_measured(script, tmp_path, monkeypatch):
    file = tmp_path / "result.json"
    words = ["training_data.py", "--documents", "400", "--few", "200", "--json", str(file)]
    monkeypatch.setattr(sys, "argv", words)
    monkeypatch.chdir(tmp_path)
    script("training_data").main()
    result = json.loads(file.read_text("utf-8"))
    assert [each["documents"] for each in result["starts"]] == [200, 400]
    assert all(each[start]["mb"] > 50 for each in result["starts"] for start in ("first", "second"))
    assert result["epoch"]["inputs"] == result["stores"]["inputs"] == 400
    assert result["epoch"]["tokens"] == result["encoding"]["tokens"]
    assert {len(result["stores"][name]["read"]) for name in ("ldt", "arrow")} == {3}
