"""The suite's own ground: sockets are shut, the shared models are what the tests take them for."""

import os
import socket
import subprocess
import sys

import pytest
import torch


def test_the_network_is_out_of_reach():
    with pytest.raises(PermissionError, match="look-up"):
        socket.create_connection(("example.org", 80), timeout=1)
    with socket.socket() as sock, pytest.raises(PermissionError, match="connect"):
        sock.connect(("192.0.2.1", 80))


def test_this_machine_is_within_reach():
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname(), timeout=5).close()


def test_gloo_works_over_loopback():
    code = (
        "import torch, torch.distributed as dist; dist.init_process_group('gloo', rank=0,"
        " world_size=1, init_method='tcp://127.0.0.1:0'); dist.all_reduce(torch.ones(1))"
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
