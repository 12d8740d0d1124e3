"""benchmarks/mlm.py runs as a whole, a step each on a little text."""

import importlib.util
import json
from pathlib import Path

import pytest

from ldt import cli

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "mlm.py"


@pytest.mark.slow
def test_the_table_of_pretraining_has_its_five_rows(text_place, monkeypatch, capsys):
    monkeypatch.syspath_prepend(SCRIPT.parent)
    spec = importlib.util.spec_from_file_location("benchmark_mlm", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    commands = []

    def ldt(folder, *arguments):
        commands.append(arguments[0])
        with pytest.raises(SystemExit) as stop:
            cli.main([str(argument) for argument in arguments])
        assert not stop.value.code, capsys.readouterr().err

    monkeypatch.setattr(module.commands, "ldt", ldt)
    for part in ("train", "dev"):
        rows = [{"text": f"{part} {line}"} for line in Path("train.txt").read_text().splitlines()]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (text_place / f"sotu.{part}.jsonl").write_text(text)
    file = text_place / "mlm.json"
    module.main([str(text_place), "--steps", "1", "--json", str(file)])
    assert commands == ["pretrain", "convert", "convert", "pretrain", "pretrain"]
    found = json.loads(file.read_text())
    assert list(found["rows"]) == list(module.PAPER)
    assert len({row["masked"] for row in found["rows"].values()}) == 1
    assert 0 < found["xz_bits_per_byte"] < 8
    assert {row["length"] for row in found["rows"].values()} == {512, 4096}
    commands.clear()
    module.main([str(text_place), "--steps", "1", "--json", str(file)])
    assert not commands
    assert json.loads(file.read_text())["rows"] == found["rows"]
