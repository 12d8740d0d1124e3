"""The gradient of an optimizer step, however its inputs are laid out in batches."""

import gc
import os
import shutil
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path

import globals_on_one
import numpy as np
import pytest
import torch
import transformers
from packaging.version import Version
from small_steps import (
    COMPARED,
    INPUTS,
    OF_ROWS,
    TASKS,
    assert_same,
    gradients,
    made_of,
    trainer,
)
from transformers.trainer_pt_utils import LabelSmoother

from ldt import tasks
from ldt.data.features import Collator
from ldt.training.processes import leave_group

RESUMES = Version(transformers.__version__) >= Version("5.18")
WHY_NOT = "transformers before 5.18 cannot load an optimizer in several CPU processes"


def test_all_tasks_are_here():
    assert {name.partition(",")[0] for name in TASKS} == set(tasks.TASKS)


BOUNDS = {torch.float64: 1e-9, torch.float32: 4e-5}
EACH_ALONE = [  # batches of an input each, which take longest; an epoch has them in float32
    torch.float64,
    pytest.param(torch.float32, marks=pytest.mark.nightly),
]


@pytest.fixture(scope="module")
def at_once(tmp_path_factory):
    """`gradients` of a task and dtype, each step's inputs in a batch; trained once."""
    folder = tmp_path_factory.mktemp("once")
    return cache(lambda task, dtype: gradients(folder, task, 8, 1, dtype))


def assert_one_gradient(folder, at_once, task, dtype, size, batches):
    wanted, losses = at_once(task, dtype)
    assert len(wanted) == 2
    found, other_losses = gradients(folder, task, size, batches, dtype)
    assert other_losses == pytest.approx(losses, rel=1e-5)
    assert_same(found, wanted, BOUNDS[dtype])


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("task", TASKS)
def test_a_step_has_one_gradient_however_its_inputs_lie_in_batches(tmp_path, at_once, task, dtype):
    assert_one_gradient(tmp_path, at_once, task, dtype, 4, 2)


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", EACH_ALONE)
@pytest.mark.parametrize("task", TASKS)
def test_so_it_has_with_each_input_alone(tmp_path, at_once, task, dtype):
    assert_one_gradient(tmp_path, at_once, task, dtype, 1, 8)


@pytest.mark.parametrize("task", ["classification", "token_classification", "summarization"])
def test_so_it_is_with_smoothed_labels(tmp_path, task):
    smooth = {"label_smoothing_factor": 0.1}
    wanted, losses = gradients(tmp_path, task, 8, 1, **smooth)
    found, other_losses = gradients(tmp_path, task, 4, 2, **smooth)
    assert other_losses == pytest.approx(losses, rel=1e-5)
    assert_same(found, wanted)
    model, items = made_of(task)
    batch = Collator(1, type(model))(items)
    mean = LabelSmoother(0.1)(model(**batch), batch["labels"]).item()
    assert gradients(tmp_path, task, INPUTS, 1, **smooth)[1] == [pytest.approx(mean)]


def test_what_is_logged_is_the_mean_over_the_items(tmp_path):
    model, items = made_of("token_classification")
    losses = gradients(tmp_path, "token_classification", 1, 8)[1]
    total = count = 0
    for item in items:
        batch = Collator(1, type(model))([item])
        labels = batch["labels"][batch["labels"] != -100]
        logits = model(**batch).logits[batch["labels"] != -100]
        total += torch.nn.functional.cross_entropy(logits, labels, reduction="sum").item()
        count += len(labels)
    made = trainer(tmp_path, "token_classification", INPUTS, 1)
    made.run()
    logged = [row["loss"] for row in made.state.log_history if "loss" in row]
    assert logged == [pytest.approx(total / count)]
    assert losses != [pytest.approx(total / count)] * 2  # the steps are not alike


@pytest.mark.parametrize("task", TASKS)
def test_the_input_of_a_process_that_has_no_other_counts_nothing(tmp_path, task):
    made = trainer(tmp_path, task, 8, 1, include_num_input_tokens_seen="non_padding")
    found = []
    for documents in ([], [0]):
        batch = made.data_collator(made.train_dataset[:1])
        count = made.count_items([batch], torch.device("cpu"))
        batch["document"] = torch.tensor(documents)
        before = made.state.num_input_tokens_seen
        made.training_step(made.model, batch, count)
        made._track_num_input_tokens(batch)
        largest = max(x.grad.abs().max() for x in made.model.parameters() if x.grad is not None)
        found.append((made.state.num_input_tokens_seen - before, largest > 0))
    assert found[0] == (0, False)
    assert found[1][0] > 0


# -- evaluation


def evaluated(folder, task, size, **changes):
    """Predictions and labels of an evaluation, and the loss that it reports."""
    made = trainer(folder, task, 8, 1, per_device_eval_batch_size=size, **changes)
    loss = made.evaluate()["eval_loss"]
    answers = made.compute_metrics.prediction
    return answers.predictions, answers.label_ids, loss


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """`evaluated` of a task and size, by this process; evaluated once."""
    folder = tmp_path_factory.mktemp("alone")
    return cache(lambda task, size: evaluated(folder, task, size))


def assert_evaluated(task, found):
    """Predictions and labels are those of each item on its own, row by row and in order."""
    predictions, label_ids, _ = found
    model, items = made_of(task)
    parts = predictions if isinstance(predictions, tuple) else (predictions,)
    labels = label_ids if isinstance(label_ids, tuple) else (label_ids,)
    row = 0
    for item in items:
        rows = item if isinstance(item, list) else [item]
        batch = Collator(1, type(model))([item])
        with torch.no_grad():
            output = model(**batch).to_tuple()[1:]
        for number, made in enumerate(rows):
            for part, wanted in zip(parts, output, strict=True):
                there = wanted[number]  # of spans as many as tokens
                size = len(made["input_ids"]) if "start_positions" in made else len(there)
                found_there = torch.from_numpy(part[row][:size])
                assert torch.allclose(found_there, there[:size], atol=1e-9)
            for name, values in zip(("start_positions", "end_positions"), labels, strict=False):
                if name in made:
                    gold = batch[name][number]
                    assert values[row][: len(gold)].tolist() == gold.tolist()
                else:
                    gold = np.asarray(made["labels"])
                    assert np.array_equal(
                        values[row][: len(gold)] if gold.ndim else values[row], gold
                    )
            row += 1
    assert all(len(values) == row for values in (*parts, *labels))


@pytest.mark.parametrize("size", [4, 5, 13])
@pytest.mark.parametrize("task", [*OF_ROWS, "embedding"])
def test_an_evaluation_has_each_row_of_each_input(alone, task, size):
    assert_evaluated(task, alone(task, size))


@pytest.mark.parametrize("task", ["classification, regression", *OF_ROWS])
def test_the_loss_of_an_evaluation_weighs_batches_by_their_inputs(alone, task):
    model, items = made_of(task)
    total = 0
    for start in range(0, INPUTS, 4):
        batch = items[start : start + 4]
        with torch.no_grad():
            total += model(**Collator(1, type(model))(batch)).loss.item() * len(batch)
    assert alone(task, 4)[2] == pytest.approx(total / INPUTS)


def test_an_evaluation_drops_no_batch(tmp_path):
    assert_evaluated("wikihop", evaluated(tmp_path, "wikihop", 4, dataloader_drop_last=True))


# -- two processes

# What each takes at a time, of which the last step has 5 inputs: 4 and 1; 2 and 2, 1 and none.
OF_TWO = [(2, 2, torch.float64), (4, 1, torch.float32)]


@pytest.fixture(scope="module")
def of_two(tmp_path_factory):
    """Folder of what two processes make of all tasks."""
    return made_by_two(tmp_path_factory.mktemp("two"))


def made_by_two(folder):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    where = ["--nproc-per-node", "2", "--master-port", port, __file__, str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "torch.distributed.run", *where]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_two_processes_have_the_gradients_of_one(at_once, of_two, task):
    for layout in OF_TWO:
        wanted, losses = at_once(task, layout[2])
        found, other_losses = torch.load(of_two / f"{task} {layout}.pt")
        assert other_losses == pytest.approx(losses, rel=1e-5)
        assert_same(found, wanted, BOUNDS[layout[2]])


@pytest.mark.slow
@pytest.mark.parametrize("task", COMPARED)
def test_two_processes_compare_their_inputs_as_if_they_were_one(tmp_path, of_two, task):
    for size, batches, dtype in OF_TWO:
        wanted, losses = gradients(tmp_path, task, 2 * size, batches, dtype)
        found, other_losses = torch.load(of_two / f"{task} {(size, batches, dtype)}.pt")
        assert other_losses == pytest.approx(losses, rel=1e-5)
        assert_same(found, wanted, BOUNDS[dtype])


@pytest.mark.slow
@pytest.mark.skipif(not RESUMES, reason=WHY_NOT)
def test_two_processes_go_on_within_an_epoch_as_if_nothing_had_been(of_two):
    whole, _ = torch.load(of_two / f"triviaqa {OF_TWO[0]}.pt")
    rest, _ = torch.load(of_two / "resumed.pt")
    assert len(rest) == 1
    assert all(torch.equal(one, same) for one, same in zip(rest[0], whole[1], strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("task", OF_ROWS)
def test_two_processes_evaluate_as_one(alone, of_two, task):
    for size in (2, 4):
        found = torch.load(of_two / f"evaluated {task} {size}.pt", weights_only=False)
        assert_evaluated(task, found)
        assert found[2] == pytest.approx(alone(task, size)[2])


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_one_of_two_processes_may_have_no_global_tokens(of_two, kind):
    assert torch.load(of_two / f"globals on one, {kind}.pt")


def save(found, name):
    if os.environ["RANK"] == "0":
        torch.save(found, Path(sys.argv[1]) / f"{name}.pt")


def as_one_of_two(folder):
    """All that the tests of two processes compare."""
    for task in TASKS | COMPARED:
        for layout in OF_TWO:
            save(gradients(folder, task, *layout), f"{task} {layout}")
    for task in OF_ROWS:
        for size in (2, 4):
            save(evaluated(folder, task, size), f"evaluated {task} {size}")
    if RESUMES:
        gradients(folder, "triviaqa", *OF_TWO[0], save_strategy="steps", save_steps=1)
        shutil.rmtree(folder / "checkpoint-2", ignore_errors=True)
        found = gradients(folder, "triviaqa", *OF_TWO[0], resume=folder / "checkpoint-1")
        save(found, "resumed")
    for kind in ("ddp", "fsdp"):
        globals_on_one.check(kind)
        save(True, f"globals on one, {kind}")


if __name__ == "__main__":
    gc.freeze()  # each training searches for garbage
    as_one_of_two(Path(sys.argv[1]))
    leave_group()
    names = {name.read_text().strip() for name in Path("/proc/self/task").glob("*/comm")}
    assert "pt_gloo_runloop" not in names  # it may abort the interpreter at its end
