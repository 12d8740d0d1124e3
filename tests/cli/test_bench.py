"""ldt bench: figures of both encoders by length, and a reason for each that is missing."""

import json
import re

import pytest
import torch
from torch.nn.modules.module import register_module_forward_hook
from transformers import PreTrainedModel
from typed import typed

from ldt import errors
from ldt.inference import measure


@pytest.fixture
def small(monkeypatch):
    """One layer, timed once and in this process."""
    monkeypatch.setattr(measure, "fresh", lambda call, *arguments: call(*arguments))
    monkeypatch.setattr(measure, "LAYERS", {"cpu": 1})
    monkeypatch.setattr(measure, "SECONDS", 0.0)


@pytest.mark.parametrize("option", ["", "--training"])
def test_time_and_memory_of_both_are_shown_by_length_and_written(option, small, tmp_path, capfd):
    file = tmp_path / "found.json"
    options = f"--length 40 --length 24 --device cpu --json {file} {option}"
    code, out, _ = typed(capfd, "bench", *options.split())
    assert code == errors.EXIT_OK
    shown = out.splitlines()
    assert re.fullmatch(r".+, \d+ threads?; torch \d+\..*", shown[0])
    assert shown[1] == "attention: blocked: the fast one on cpu"
    way = "forward and backward" if option else "forward"
    assert shown[2] == f"{way} through 1 layers in float32"
    assert shown[3].split("  ")[-1].strip() == "RoBERTa, MiB"
    for line, tokens in zip(shown[4:], ("24", "40"), strict=True):
        assert re.fullmatch(rf" +{tokens}( +[\d.,]+){{4}}", line)
    found = json.loads(file.read_text())
    assert (found["backend"], found["dtype"], found["pass"]) == ("blocked", "float32", way)
    assert found["machine"]["torch"] == torch.__version__
    rows = found["rows"]
    assert [(row["encoder"], row["tokens"]) for row in rows] == [
        *(("ldt", 24), ("roberta", 24), ("ldt", 40), ("roberta", 40))
    ]
    assert all(row["seconds"] > 0 and row["error"] is None for row in rows)


def test_an_encoder_that_fails_is_a_line_and_the_others_go_on(small, monkeypatch, capfd):
    def fails(call, name, *arguments):
        if name == "roberta":
            raise RuntimeError("out of memory")
        return call(name, *arguments)

    monkeypatch.setattr(measure, "fresh", fails)
    code, out, err = typed(capfd, "bench", *"--length 1024 --device cpu --json -".split())
    assert code == errors.EXIT_OK
    ours, theirs = json.loads(out)["rows"]
    assert ours["seconds"] > 0
    assert (theirs["seconds"], theirs["mib"], theirs["error"]) == (None, None, "out of memory")
    assert err.splitlines()[-1] == "RoBERTa, 1,024 tokens: out of memory"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("--json nowhere/a.json", "nowhere: no such folder"),
        ("--length 0", "invalid value for '--length'"),
        ("--device tpu", "invalid value for '--device'"),
    ],
)
def test_what_cannot_work_is_one_line_and_exit_code_2(arguments, line, capfd, monkeypatch):
    monkeypatch.setattr(measure, "compare", None)
    code, _, err = typed(capfd, "bench", *arguments.split())
    assert code == errors.EXIT_USAGE
    assert f"error: {line}" in err.splitlines()[-1]


def test_both_encoders_have_equal_shapes_and_ldt_has_windows():
    seen = []

    def note(module, *_):
        if isinstance(module, PreTrainedModel):
            seen.append(module.config)

    hook = register_module_forward_hook(note)
    try:
        for name in measure.ENCODERS:
            measure.load(name, 20, "cpu", layers=3, heads=2, vocabulary=50)()
    finally:
        hook.remove()
    ours, theirs = seen
    assert ours.attention_window == measure.WINDOW
    assert theirs._attn_implementation == "sdpa"
    for field in ("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size"):
        assert getattr(ours, field) == getattr(theirs, field)
    assert (ours.model_type, theirs.model_type) == ("ldt", "roberta")
