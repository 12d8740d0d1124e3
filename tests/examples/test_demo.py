"""The demo's contracts are fair, and its commands and table hold together."""

import re
import shlex
import time

import demo
import pytest
from contracts import LABELS, contract, contracts

from ldt import cli


def test_contracts_are_the_same_every_time_and_differ_by_number_and_seed():
    assert contracts(range(4)) == contracts(range(4))
    texts = [contract(number, "court", seed)["text"] for number in (1, 2) for seed in (0, 1)]
    assert len(set(texts)) == 4


def test_nothing_before_the_deciding_clause_tells_the_label():
    for number in range(20):
        one, other = (contract(number, label) for label in LABELS)
        assert one["clause"] == other["clause"]
        start = one["clause"]
        assert one["text"][:start] == other["text"][:start]
        assert one["text"][start:] != other["text"][start:]
        assert re.match(r"\d+\. Disputes\. ", one["text"][start:])


def test_the_deciding_clause_stands_far_behind_token_512(tmp_path):
    from transformers import AutoTokenizer

    documents = contracts(range(30))
    demo.make_small(tmp_path / "small", [document["text"] for document in documents], seed=0)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "small")
    _check_places(tokenizer, documents)


def test_the_deciding_clause_stands_far_behind_token_512_for_minilm(minilm):
    from transformers import AutoTokenizer

    _check_places(AutoTokenizer.from_pretrained(minilm), contracts(range(30)))


def _check_places(tokenizer, documents):
    for document in documents:
        clause = len(tokenizer(document["text"][: document["clause"]])["input_ids"])
        length = len(tokenizer(document["text"])["input_ids"])
        assert clause > 640
        assert 1100 < length < 2048


@pytest.fixture
def in_process(monkeypatch):
    """Commands of the demo run in this process, and are listed."""
    typed = []

    def run(folder, command):
        typed.append(command)
        start = time.monotonic()
        with monkeypatch.context() as patch:
            patch.chdir(folder)
            with pytest.raises(SystemExit) as stop:
                cli.main(shlex.split(command)[1:])
        assert stop.value.code == 0, command
        return time.monotonic() - start

    monkeypatch.setattr(demo, "run", run)
    return typed


@pytest.mark.slow
def test_the_demo_runs_the_main_job_twice_and_compares(in_process, tmp_path, capsys):
    settings = demo.SMALL.settings | {"epochs": 1}
    start = demo.SMALL._replace(train=8, settings=settings)
    outcomes = demo.demo(tmp_path / "demo", start, test=range(500, 504))
    assert [command.split()[1] for command in in_process] == [
        "convert",
        "finetune",
        "predict",
        "finetune",
        "predict",
    ]
    assert list(outcomes) == list(demo.LENGTHS)
    assert (tmp_path / "demo/runs/latest").resolve().name == "whole"
    capsys.readouterr()
    demo.show(outcomes, 4)
    shown = capsys.readouterr().out
    for name, outcome in outcomes.items():
        row = next(line for line in shown.splitlines() if name in line)
        assert f"{outcome.accuracy:.2f}" in row
    assert "activate" in shown  # ldt is not on the PATH otherwise
    by_hand = [line.strip() for line in shown.splitlines() if line.startswith("  ldt ")]
    assert [
        command.split()[1] for command in by_hand
    ] == "convert finetune finetune predict".split()
    for command in by_hand:  # no name is taken: neither the model's folder nor the run's
        demo.run(tmp_path / "demo", command)
