"""The suite's own ground: sockets are shut, the shared models are what the tests take them for."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import since
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


@pytest.mark.parametrize(
    ("path", "chosen", "left_out"),
    [
        ("ldt/serve/app.py", {"serve", "cli", "chaos"}, {"inference", "model", "training"}),
        ("tests/serve/test_app.py", {"serve/test_app.py"}, {"serve"}),
        ("recipes/squad.yaml", {"recipe"}, {"model"}),
        ("README.md", {"test_readme.py"}, {"serve"}),
    ],
)
def test_a_change_selects_its_tests(path, chosen, left_out):
    tests = since.selected([path])
    assert tests >= chosen | since.ALWAYS
    assert not tests & left_out
