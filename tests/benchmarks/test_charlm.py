"""The comparison of windows over the layers: what it trains and what it says."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest


@pytest.fixture
def module():
    path = Path(__file__).parents[2] / "benchmarks" / "charlm.py"
    spec = importlib.util.spec_from_file_location("charlm_benchmark", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_every_row_is_trained_once_a_seed_and_compared(module, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "text").write_text("the party of the first part\n" * 80, "utf-8")
    changes = module.SIZES["cpu"][1]
    monkeypatch.setitem(changes["model.config"], "hidden_size", 8)
    monkeypatch.setitem(changes, "training.save_strategy", "no")
    arguments = ["charlm.py", str(folder), "--seeds", "2", "--steps", "1", "--json", "found.json"]
    monkeypatch.setattr(sys, "argv", arguments)
    module.main()
    found = json.loads(Path("found.json").read_text("utf-8"))
    assert set(found["rows"]) == set(module.PAPER)
    seeds = [row["bits_per_character"] for row in found["rows"].values()]
    assert all(len(own) == 2 and own[0] != own[1] for own in seeds)
    assert len({own[0] for own in seeds}) == 4
    assert len(list((folder / "runs").glob("*/metrics.json"))) == 8
    assert found["steps"] == 1
    assert len(found["verdict"]) == 3
    assert "from increasing" in capsys.readouterr().out


def test_the_rows_see_as_much_in_another_order(module):
    made = module.rows([8, 16, 32, 64], 1)
    assert made["decreasing"][0] == [64, 32, 16, 8]
    assert made["fixed"][0] == 30
    paper = module.rows(*module.SIZES["paper"][3:])
    assert paper["fixed"][0] == 230  # as printed


def test_a_difference_shows_where_pairs_of_seeds_agree(module):
    bits = {
        "decreasing": [2.30, 2.41],
        "fixed": [2.10, 2.32],
        "increasing": [2.20, 2.30],
        "increasing, two heads dilated": [2.09, 2.20],
    }
    found = module.compared(bits)
    assert found["decreasing"]["difference"] == pytest.approx(0.105)
    assert found["decreasing"]["difference_error"] == pytest.approx(0.005)
    words = [line.rpartition(": ")[2] for line in module.verdict(found)]
    assert words == ["worse", "no difference shows", "better"]
