"""The demo's contracts are fair, and its commands and table hold together."""

import os
import re
import shlex
import time

import demo
import numpy as np
import pytest
from contracts import ARTICLES, DECIDING, LABELS, contract, contracts

from ldt import cli


def words(text):
    return re.findall(r"\w+", text.lower())


def shingles(text):
    found = words(text)
    return {tuple(found[i : i + 8]) for i in range(len(found) - 7)}


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


def test_labels_are_balanced_and_their_order_is_mixed():
    labels = [document["label"] for document in contracts(range(40))]
    assert labels.count("court") == labels.count("arbitration") == 20
    changes = sum(a != b for a, b in zip(labels, labels[1:], strict=False))
    assert 10 < changes < 30


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


def test_contracts_are_no_near_copies_of_each_other():
    found = [shingles(document["text"]) for document in contracts(range(30))]
    overlaps = [len(a & b) / len(a | b) for i, a in enumerate(found) for b in found[:i]]
    assert max(overlaps) < 0.35


def test_no_word_of_the_deciding_clause_tells_the_label_by_itself():
    """Both kinds of contract speak of courts, tribunals, arbitration and awards."""
    documents = contracts(range(200))
    for stem in ("court", "tribunal", "arbitra", "award"):
        share = {
            label: np.mean([stem in d["text"].lower() for d in documents if d["label"] == label])
            for label in LABELS
        }
        assert min(share.values()) > 0.3, (stem, share)


def test_every_sentence_can_be_filled_in():
    draws = [contract(number, label) for number in range(150) for label in LABELS]
    text = "\n".join(document["text"] for document in draws)
    assert "{" not in text
    sentences = [s for some in ARTICLES.values() for s in some]
    sentences += [s for first, more in DECIDING.values() for s in first + more]
    for sentence in sentences:
        longest = max(re.split(r"\{\w+\}", sentence), key=len)
        assert longest in text


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
    demo.show(outcomes, 4, start)
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


@pytest.mark.parametrize(
    ("rates", "load", "named", "train", "threads", "words"),
    [
        ({2: 35_000, 1: 19_000}, 0.3, "minilm", 120, None, "some 4 minutes, if the machine"),
        ({2: 35_000, 1: 19_000}, 4.0, "small", 500, None, "a small model shows it, as MiniLM"),
        ({2: 5_300, 1: 24_700}, 4.0, "small", 500, "1", "LDT_THREADS=1: 2 threads are slower"),
        ({2: 1_000, 1: 3_500}, 9.0, "small", demo.FEWER, "1", "minutes"),
        ({}, 9.0, "minilm", 120, None, "not measured here"),
    ],
)
def test_the_demo_takes_what_ends_in_ten_minutes(
    rates, load, named, train, threads, words, monkeypatch, capsys
):
    for name in demo.system.VARIABLES:
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    monkeypatch.setattr(demo, "find_spec", lambda name: True)
    monkeypatch.setattr(demo, "speeds", lambda numbers, seconds: rates)
    monkeypatch.setattr(demo.system, "thread_count", lambda: 2)
    monkeypatch.setattr(demo.system, "processors", lambda: {0, 1})
    monkeypatch.setattr(demo.system, "load", lambda: load)
    start = demo.planned()
    assert (start.name, start.train) == (named, train)
    assert os.environ.get("LDT_THREADS") == threads
    assert words in capsys.readouterr().out
    if rates:
        assert demo.expected(start, max(rates.values())) < 600


def test_scores_are_those_of_the_labels():
    gold = ["court", "court", "arbitration", "arbitration"]
    assert demo.score(gold, gold) == (100.0, 100.0)
    accuracy, macro_f1 = demo.score(gold, ["court"] * 4)
    assert accuracy == 50
    assert macro_f1 == pytest.approx(100 / 3)
