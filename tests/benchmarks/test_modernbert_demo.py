"""benchmarks/modernbert_demo.py runs as a whole, a step each on a little text."""

import json

import pytest


@pytest.mark.nightly  # nine commands
def test_the_tables_have_all_their_rows(script, tmp_path, monkeypatch):
    module = script("modernbert_demo")
    monkeypatch.syspath_prepend(module.ROOT / "examples" / "demo")
    monkeypatch.setattr(module, "SCORED", (64, 128))
    monkeypatch.setattr(module, "GLOBALS", (0, 2))
    monkeypatch.setattr(module, "LENGTHS", {"a part": 64, "the whole": 128})
    monkeypatch.setattr(module, "CONTRACTS", {"train": range(12), "test": range(20, 24)})
    for key in ("data.max_length", "data.tokens_per_step"):
        monkeypatch.setitem(module.TRAINED_ON, key, 256)
    line = {"text": "This agreement ends when either party says so, and not before that. " * 60}
    for part in module.PARTS:
        for number, name in enumerate(("train", "dev")):
            text = json.dumps(line | {"id": f"{part} {number}"}) + "\n"
            (tmp_path / f"{part}.{name}.jsonl").write_text(text)
    file = tmp_path / "modernbert.json"
    options = [str(tmp_path), "--steps", "1", "--json", str(file)]
    module.main(options)
    found = json.loads(file.read_text())
    assert list(found["contracts"]) == ["a part", "the whole"]
    rows = found["masked"]["rows"]
    names = {(row["model"], row["trained on"]) for row in rows}
    assert names == {("source", False)} | {(name, on) for name in module.WHERE for on in (0, 1)}
    assert len({row["masked"] for row in rows}) == 1
    bits = {
        (row["model"], row["globals"]): row["bits_per_token"]
        for row in rows
        if row["length"] == 128 and not row["trained on"]
    }
    # Without a global token it is the same model, and where they are makes a difference.
    assert len({round(bits[name, 0], 6) for name in ("none", "full", "all", "all, clipped")}) == 1
    assert len({bits[name, 2] for name in ("full", "all", "all, clipped")}) == 3
    assert found["cpu_seconds"].keys() >= {"pretrain", "convert", "score", "long-all-clipped"}
    before = (tmp_path / "runs" / "long-all" / "metrics.json").stat().st_mtime_ns
    module.main(options)
    assert (tmp_path / "runs" / "long-all" / "metrics.json").stat().st_mtime_ns == before
    assert json.loads(file.read_text())["masked"] == found["masked"]
