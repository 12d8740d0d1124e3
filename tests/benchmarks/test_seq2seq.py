import json
import sys


def test_both_are_timed_and_other_cases_stay(script, tmp_path, monkeypatch, capsys):
    file = tmp_path / "result.json"
    kept = {"seconds": {"ldt": 1.0, "transformers": 3.0}, "times_faster": 3.0}
    file.write_text(json.dumps({"cases": {"training-4096-256": kept}}))
    words = ["--only", "generate-4096", "--tiny", "--rounds", 1, "--what", "time", "--json", file]
    monkeypatch.setattr(sys, "argv", ["seq2seq.py", *map(str, words)])
    script("seq2seq").main()
    result = json.loads(file.read_text("utf-8"))
    assert result["machine"]["threads"]
    assert result["cases"]["training-4096-256"] == kept
    row = result["cases"]["generate-4096"]
    assert row["rounds"] == 1
    assert row["seconds"].keys() == {"ldt", "transformers"}
    assert row["times_faster"] == row["seconds"]["transformers"] / row["seconds"]["ldt"]
    shown = capsys.readouterr().out
    assert "training-4096-256" in shown
    assert f"{row['times_faster']:.2f} (2.5)" in shown
