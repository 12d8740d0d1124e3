"""The suite's own ground: sockets are shut, the shared models are what the tests take them for."""

import importlib.util
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import properties
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st


def test_the_network_is_out_of_reach():
    with pytest.raises(PermissionError, match="look-up"):
        socket.create_connection(("example.org", 80), timeout=1)
    with socket.socket() as sock, pytest.raises(PermissionError, match="connect"):
        sock.connect(("192.0.2.1", 80))


def test_this_machine_is_within_reach():
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname(), timeout=5).close()


def test_files_that_take_longest_begin_first(request):
    here = Path(__file__).parent
    plugins = request.config.pluginmanager.get_plugins()
    (own,) = (x for x in plugins if getattr(x, "__file__", None) == str(here / "conftest.py"))
    assert all((here / name).exists() for name in own.LONGEST)
    short = ["tests/a.py::one", "tests/b.py::one", "tests/b.py::two[::]", "tests/c.py::one"]
    first, second = (f"tests/{name}::one" for name in own.LONGEST[:2])
    items = [SimpleNamespace(nodeid=name) for name in (*short, second, first)]
    own.pytest_collection_modifyitems(items)
    found = [item.nodeid for item in items]
    assert found == [first, second, *short[1:3], short[0], short[3]]


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


def test_gloo_works_over_loopback():
    code = (
        "import torch, torch.distributed as dist; dist.init_process_group('gloo', rank=0,"
        " world_size=1, init_method='tcp://127.0.0.1:0'); dist.all_reduce(torch.ones(1));"
        " dist.destroy_process_group()"  # else its threads may end the process with an abort
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


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


def test_a_property_has_the_same_cases_whatever_else_its_process_has_loaded(tmp_path):
    found = []

    @properties.cases(100)
    @given(st.integers(0, 2**31))
    def draw(number):
        found.append((number, torch.rand(()).item()))

    def drawn():
        found.clear()
        draw()
        return list(found)

    first = drawn()
    (tmp_path / "another.py").write_text("NUMBERS = " + repr(list(range(1000, 2**31, 2**24))))
    spec = importlib.util.spec_from_file_location("another", tmp_path / "another.py")
    sys.modules["another"] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(sys.modules["another"])
        torch.rand(5)
        assert drawn() == first
    finally:
        del sys.modules["another"]


def test_properties_run_at_night_with_fresh_seeds_and_more_cases():
    class Item:
        def __init__(self, obj):
            self.obj, self.marks = obj, []
            self.add_marker = self.marks.append

    def config(expression):
        return SimpleNamespace(option=SimpleNamespace(markexpr=expression))

    drawn = {}
    before = settings.get_current_profile_name()
    try:
        for expression in ("not nightly", "nightly"):
            properties.pytest_configure(config(expression))

            @properties.cases(7)
            @given(st.integers(0, 2**62))
            def draw(number):
                drawn[expression][-1].append(number)  # noqa: B023

            drawn[expression] = []
            for _ in range(2):
                drawn[expression].append([])
                draw()
            items = [Item(draw), Item(print), SimpleNamespace()]
            properties.pytest_collection_modifyitems(config(expression), items)
            assert items[0].marks == (["nightly"] if expression == "nightly" else [])
            assert not items[1].marks
    finally:
        settings.load_profile(before)
    usual, fresh = drawn.values()
    assert [len(numbers) for numbers in usual + fresh] == [7, 7, 70, 70]
    assert usual[0] == usual[1]
    assert fresh[0] != fresh[1]


def test_a_case_that_failed_at_night_is_tried_by_day():
    tried = []

    @properties.cases(1, shrink=False)
    @example(-1)
    @given(st.integers(0, 5))
    def draw(number):
        tried.append(number)

    draw()
    assert tried[0] == -1


def test_the_nightly_tests_are_left_out_of_the_usual_run(pytestconfig):
    assert pytestconfig.getini("addopts")[-2:] == ["-m", "not nightly"]
