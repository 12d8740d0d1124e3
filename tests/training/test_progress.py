import json
import logging
import math
import time
from types import SimpleNamespace

import torch

from ldt.recipe.run import Run
from ldt.training.progress import ProgressReport

ARGS = SimpleNamespace(device=torch.device("cpu"))
LOSS = {"loss": 0.5, "learning_rate": 1e-4, "grad_norm": 2.0, "epoch": 0.5}
EVAL = {"eval_loss": 0.25, "eval_macro_f1": 75.0, "eval_runtime": 3.0, "epoch": 0.5}


def report(folder, caplog, steps=1, logs=(LOSS, EVAL)):
    """A training of that many steps of 100 tokens and 20 ms; what was logged."""
    with caplog.at_level(logging.INFO, "ldt"):
        go_on(ProgressReport(Run(folder)), steps, logs)
    return caplog.messages


def go_on(made, steps, logs):
    state = SimpleNamespace(
        global_step=4,
        max_steps=10,
        epoch=0.4,
        num_input_tokens_seen=1000,
        is_world_process_zero=True,
    )
    made.on_train_begin(ARGS, state, None)
    for _ in range(steps):
        made.on_step_begin(ARGS, state, None)
        time.sleep(0.02)
        state.global_step += 1
        state.num_input_tokens_seen += 100
        made.on_step_end(ARGS, state, None)
    for log in logs:
        made.on_log(ARGS, state, None, model=torch.nn.Identity(), logs=log)
        if "eval_loss" in log:
            made.on_prediction_step(ARGS, state, None, eval_dataloader=range(3))
            made.on_evaluate(ARGS, state, None)


def rows(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_log_is_one_plain_line(tmp_path, caplog):
    first, second = report(tmp_path, caplog)
    assert first.startswith("step 5/10  epoch 0.40  lr 1.00e-04  gradient 2  loss 0.5000  ")
    assert " tokens/s  " in first
    assert " GiB  ETA 0:00" in first
    assert second == "eval at step 5  loss 0.2500  macro_f1 75.00"


def test_the_log_file_has_a_line_for_each_log(tmp_path, caplog):
    report(tmp_path, caplog, steps=2)
    train, evaluation = rows(tmp_path)
    assert train.items() >= {"step": 6, **LOSS}.items()
    assert 500 < train["tokens_per_second"] <= 5000  # 200 tokens in 40 ms or more
    assert train["memory"] > 1e6
    assert evaluation == {"step": 6, **EVAL}


def test_numbers_that_json_does_not_have_become_null(tmp_path, caplog):
    report(tmp_path, caplog, logs=[LOSS | {"grad_norm": math.nan, "loss": torch.tensor(2.0)}])
    assert (rows(tmp_path)[0]["grad_norm"], rows(tmp_path)[0]["loss"]) == (None, 2.0)


def test_a_log_that_cannot_be_written_is_a_warning(tmp_path, caplog):
    (tmp_path / "metrics.jsonl").mkdir()
    report(tmp_path, caplog)
    assert caplog.text.count("not written from step 5 on") == 1


def test_cutting_the_log_keeps_what_came_before_the_checkpoint(tmp_path):
    path = tmp_path / "metrics.jsonl"
    Run(tmp_path).cut_log(5)  # there is none
    lines = ['{"step": 3}', '{"step": 5, "train_loss": 1}', '{"step": 5}', '{"step": 6}', '{"st']
    path.write_text("\n".join(lines))
    Run(tmp_path).cut_log(5)
    assert path.read_text() == '{"step": 3}\n{"step": 5}\n'


def test_a_step_is_a_line_where_half_a_minute_had_none(tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "ldt")
    now = [1000.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr("ldt.training.progress.time", clock)
    monkeypatch.setattr("ldt.io.progress.time", clock)
    made = ProgressReport(Run(tmp_path))
    state = SimpleNamespace(
        global_step=0, max_steps=100, epoch=0.5, num_input_tokens_seen=0, is_world_process_zero=True
    )
    made.on_train_begin(ARGS, state, None)
    for _ in range(10):  # 70 s: after 35 s and 70 s
        made.on_step_begin(ARGS, state, None)
        now[0] += 7
        state.global_step += 1
        state.num_input_tokens_seen += 700
        made.on_step_end(ARGS, state, None)
    first, second = caplog.messages
    assert first.startswith("step 5/100  epoch 0.50  100 tokens/s  ")
    assert second.startswith("step 10/100  epoch 0.50  ")
    assert second.endswith("ETA 10:30")
    assert not (tmp_path / "metrics.jsonl").exists()

    caplog.clear()
    for _ in range(2):  # evaluations, of 7 batches each
        for _ in range(7):
            now[0] += 10
            made.on_prediction_step(ARGS, state, None, eval_dataloader=range(7))
        made.on_evaluate(ARGS, state, None)
    lines = ["evaluating: 4 of 7 batches, ETA 0:22", "evaluating: 7 of 7 batches, ETA 0:00"]
    assert caplog.messages == lines * 2
