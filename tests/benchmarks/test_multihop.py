import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "multihop.py"


@pytest.fixture
def multihop(monkeypatch):
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("multihop", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "multihop", module)
    spec.loader.exec_module(module)
    return module


def facts(row, module):
    """Place of the first name -> the two names, of each fact in a row of ids."""
    places = [
        place for place, name in enumerate(row) if place > module.HEAD and name > module.FIRST - 1
    ]
    return {place: (row[place], row[place + 1]) for place in places[::2]}


def test_answers_follow_from_facts_that_no_window_brings_together(multihop):
    ids, labels, hops = multihop.questions(200, np.random.default_rng(0), 0.5)
    assert 60 < (hops == 2).sum() < 140
    reach = multihop.LAYERS * multihop.WINDOW // 2
    for row, label, count in zip(ids.tolist(), labels.tolist(), hops.tolist(), strict=True):
        found = facts(row, multihop)
        partner = dict(found.values())
        assert len(partner) == 2 * multihop.NAMES
        answer = row[1]
        for _ in range(count):
            answer = partner[answer]
        assert row[2 + label] == answer
        starts = sorted(found)
        ends = [multihop.HEAD - 1, *(start + 1 for start in starts)]
        assert all(after - before > reach for before, after in zip(ends, starts, strict=False))
    assert len(set(labels.tolist())) == multihop.NAMES


@pytest.mark.slow
def test_settings_begin_alike_and_shared_projections_are_one_module(multihop):
    models = {name: multihop.model_of(name, seed=3) for name in multihop.SETTINGS}
    first = models["separate"].state_dict()
    for model in models.values():
        assert all(torch.equal(first[name], value) for name, value in model.state_dict().items())
    ids, labels, _ = multihop.questions(4, np.random.default_rng(0), 0.5)
    for name, model in models.items():
        attention = model.longformer.encoder.layer[0].attention.self
        assert (attention.query is attention.query_global) is (name == "shared")
        multihop.run(model, name, ids, labels).loss.backward()
        gradient = attention.value_global.weight.grad
        assert (gradient is not None and gradient.abs().sum() > 0) == (name != "off")


@pytest.mark.slow
def test_the_script_trains_each_setting_and_writes_its_figures(multihop, tmp_path, monkeypatch):
    file = tmp_path / "out.json"
    options = ["--steps", "2", "--seeds", "1", "--json", str(file)]
    monkeypatch.setattr(sys, "argv", ["multihop.py", *options])
    multihop.main()
    runs = json.loads(file.read_text())["runs"]
    assert [run["setting"] for run in runs] == list(multihop.SETTINGS)
    assert all(0 <= run[key] <= 100 for run in runs for key in ("one_hop", "two_hops"))
    separate, shared, _ = (run["parameters"] for run in runs)
    assert separate > shared
