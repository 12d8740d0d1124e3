"""The suite's own ground: sockets are shut, the shared models are what the tests take them for."""

import json
import os
import socket
import subprocess
import sys
from itertools import combinations, product
from pathlib import Path
from types import SimpleNamespace

import pytest
import since
import tiers
import torch


def test_the_network_is_out_of_reach():
    with pytest.raises(PermissionError, match="look-up"):
        socket.create_connection(("example.org", 80), timeout=1)
    with socket.socket() as sock, pytest.raises(PermissionError, match="connect"):
        sock.connect(("192.0.2.1", 80))


def test_this_machine_is_within_reach():
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname(), timeout=5).close()


@pytest.mark.slow
def test_a_failure_is_in_its_file_before_the_run_ends(tmp_path):
    code = "import os\ndef test_a(): assert 1 == 2\ndef test_b(): os._exit(9)\n"
    (tmp_path / "test_two.py").write_text(code)
    tests, out = Path(__file__).parent, tmp_path / "failures"
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "--rootdir", tmp_path, tmp_path]
    environment = {key: x for key, x in os.environ.items() if not key.startswith("PYTEST_")}
    environment |= {"LDT_TEST_FAILURES": str(out), "PYTHONPATH": f"{tests}:{tests / 'helpers'}"}
    assert subprocess.run(command, env=environment, capture_output=True).returncode == 9
    (row,) = map(json.loads, out.read_text().splitlines())
    assert (row["test"], row["when"]) == ("test_two.py::test_a", "call")
    assert "assert 1 == 2" in row["failed"]


def test_the_hub_is_switched_off_here_and_in_subprocesses():
    from huggingface_hub.constants import HF_HUB_OFFLINE

    assert HF_HUB_OFFLINE
    assert os.environ["TRANSFORMERS_OFFLINE"] == "1"


def test_the_tiny_longformer_reads_text(tiny_longformer):
    from transformers import AutoTokenizer, LongformerModel

    tokenizer = AutoTokenizer.from_pretrained(tiny_longformer)
    assert tokenizer.is_fast
    assert tokenizer.all_special_tokens == ["<s>", "</s>", "<unk>", "<pad>", "<mask>"]
    batch = tokenizer("The other party agrees.", return_tensors="pt")
    assert batch.input_ids[0, [0, -1]].tolist() == [0, 2]
    assert batch.input_ids.shape[1] < len("The other party agrees.")
    out = LongformerModel.from_pretrained(tiny_longformer).eval()(**batch)
    assert torch.isfinite(out.last_hidden_state).all()


def test_usual_runs_are_of_the_fast_tier(pytestconfig):
    assert pytestconfig.getini("addopts")[-2:] == ["-m", "not slow and not nightly"]


def test_a_covering_array_has_each_pair_of_values():
    cases = [dict(zip("abc", place, strict=True)) for place in product(range(3), repeat=3)]
    kept = [cases[place] for place in tiers.covering(cases, 2)]
    assert len(kept) < 15
    for first, second in combinations("abc", 2):
        assert len({(case[first], case[second]) for case in kept}) == 9


def items_of_a_test(name, mark, cases):
    """Items as pytest has them, with one mark; ``marks`` has those that are added."""
    items = []
    for number, params in enumerate(cases):
        item = SimpleNamespace(nodeid=f"{name}[{number}]", marks=[])
        item.callspec = SimpleNamespace(params=params, id=str(number))
        item.get_closest_marker = lambda asked: mark if mark and mark.name == asked else None
        item.add_marker = item.marks.append
        items.append(item)
    return items


def test_marks_leave_the_fast_tier_some_cases():
    cases = [dict(zip("abc", place, strict=True)) for place in product(range(3), repeat=3)]
    marks = pytest.mark.covering(2).mark, pytest.mark.fast("4", "7").mark, None
    tests = [items_of_a_test(str(mark), mark, cases) for mark in marks]
    config = SimpleNamespace(args=["tests"])
    tiers.pytest_collection_modifyitems(config, sum(tests, []))
    pairs, fast, all_cases = [[item for item in test if not item.marks] for test in tests]
    assert len(pairs) == len(tiers.covering(cases, 2))
    assert [item.callspec.id for item in fast] == ["4", "7"]
    assert len(all_cases) == len(cases)
    with pytest.raises(pytest.UsageError, match="no case is called"):
        tiers.pytest_collection_modifyitems(config, tests[1][:4])
    config.args = ["tests/test_a.py::test[1]"]
    tiers.pytest_collection_modifyitems(config, tests[1][:4])


@pytest.mark.parametrize(
    ("path", "chosen", "left_out"),
    [
        ("ldt/serve/app.py", {"serve", "cli", "chaos"}, {"inference", "model", "training"}),
        (
            "ldt/model/config.py",
            {"model", "training", "inference", "cli"},
            {"attention", "metrics"},
        ),
        ("ldt/io/files.py", {"io", "data", "cli"}, {"attention"}),
        ("tests/serve/test_app.py", {"serve/test_app.py"}, {"serve"}),
        ("tests/serve/conftest.py", {"serve"}, {"cli"}),
        ("recipes/squad.yaml", {"recipe"}, {"model"}),
        ("README.md", {"test_readme.py"}, {"serve"}),
    ],
)
def test_a_change_selects_its_tests(path, chosen, left_out):
    tests = since.selected([path])
    assert tests >= chosen | since.ALWAYS
    assert not tests & left_out


@pytest.mark.parametrize("path", ["tests/helpers/dense.py", "pyproject.toml", "ldt/__init__.py"])
def test_what_all_tests_use_selects_all_tests(path):
    assert since.selected([path, "README.md"]) is None


def test_a_commit_that_is_none_is_refused():
    with pytest.raises(pytest.UsageError, match=r"--since nowhere: .*nowhere"):
        since.changed("nowhere")
