"""The gradient of an optimizer step, however its inputs are laid out in batches."""

import os
import random
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from longformers import SEP, ldt_model
from packaging.version import Version
from rich.console import Console
from transformers import TrainerCallback, TrainingArguments
from transformers.trainer_pt_utils import LabelSmoother

from ldt import tasks
from ldt.data.collate import Collator
from ldt.model import LdtCausalConfig, LdtForCausalLM
from ldt.training.loop import leave_process_group
from ldt.training.progress import ProgressReport
from ldt.training.trainer import Trainer

INPUTS = 13  # a step of 8 and one of 5
RESUMES = Version(transformers.__version__) >= Version("5.18")
WHY_NOT = "transformers before 5.18 cannot load an optimizer in several CPU processes"


def feature(rng, number, **more):
    """8 to 20 tokens, the fifth a separator, the first two global."""
    ids = [rng.randrange(3, 40) for _ in range(rng.randrange(8, 21))]
    ids[4] = SEP
    is_global = [1, 1] + [0] * (len(ids) - 2)
    made = {"input_ids": ids, "global_attention_mask": is_global, "document": number}
    return made | {
        key: value(len(ids)) if callable(value) else value for key, value in more.items()
    }


def some_of(rng, values):
    """As many of the values as it happens, at times none."""
    return [value for value in values if rng.random() < 0.4]


def of_tokens(rng, high):
    return lambda size: [rng.randrange(high) if rng.random() < 0.3 else -100 for _ in range(size)]


def spans(rng, number):
    sides = {f"{side}_positions": some_of(rng, range(8)) for side in ("start", "end")}
    return feature(rng, number, **sides)


def several_spans(rng, number):
    return [spans(rng, number) for _ in range(3 - number % 3)]


def evidence(rng, number):
    count = rng.randrange(1, 4)
    return spans(rng, number) | {
        "paragraph_positions": [2, 3, 5][:count],
        "sentence_positions": [6, 7],
        "paragraph_labels": [rng.choice([0, 1, -100]) for _ in range(count)],
        "sentence_labels": [rng.choice([0, 1, -100]) for _ in range(2)],
        "labels": rng.choice([0, 1, 2, -100]),
    }


def candidates(rng, number):
    more = {"positions": [1, 2, 3], "labels": rng.choice([0, 1, 2, -100])}
    return [feature(rng, number, **more) for _ in range(3 - number % 3)]


def choices(rng, number):
    chunks, label = 2 - number % 2, rng.choice([0, 1, 1, -100])
    return [
        feature(rng, number, labels=label, choices=choice)
        for choice in (0, 1, 2)
        for _ in range(chunks)
    ]


TASKS = {  # task and variation: head, its changes of the config, and what makes an item
    "classification": (
        "ForSequenceClassification",
        {},
        lambda rng, n: feature(rng, n, labels=rng.choice([0, 1, 2, -100])),
    ),
    "classification, pooled": (
        "ForSequenceClassification",
        {"classifier_pooling": "mean"},
        lambda rng, n: feature(rng, n, labels=rng.choice([0, 1, 2, -100])),
    ),
    "classification, several labels": (
        "ForSequenceClassification",
        {},
        lambda rng, n: feature(rng, n, labels=[rng.choice([0.0, 1.0]) for _ in range(3)]),
    ),
    "classification, regression": (
        "ForSequenceClassification",
        {"num_labels": 1},
        lambda rng, n: feature(rng, n, labels=rng.random()),
    ),
    "token_classification": (
        "ForTokenClassification",
        {},
        lambda rng, n: feature(rng, n, labels=of_tokens(rng, 3)),
    ),
    "squad": ("ForQuestionAnswering", {}, spans),
    "triviaqa": ("ForQuestionAnswering", {}, several_spans),
    "hotpotqa": ("ForEvidenceAnswering", {"evidence_weights": {"paragraphs": 2.0}}, evidence),
    "wikihop": ("ForCandidateRanking", {}, candidates),
    "wikihop, sums": ("ForCandidateRanking", {"window_merge": "sum"}, candidates),
    "multiple_choice": ("ForMultipleChoice", {}, choices),
    "mlm": ("ForMaskedLM", {}, lambda rng, n: feature(rng, n, labels=of_tokens(rng, 40))),
    "charlm": (None, {}, lambda rng, n: feature(rng, n, labels=of_tokens(rng, 40))),
}
OF_ROWS = ("triviaqa", "wikihop", "multiple_choice")  # whose items are several rows


class Gradients(TrainerCallback):
    """Keeps those of each step."""

    def __init__(self):
        self.steps = []

    def on_pre_optimizer_step(self, args, state, control, model, **kwargs):
        gradients = ((weight, weight.grad) for weight in model.parameters())
        self.steps.append(
            [
                torch.zeros_like(x) if gradient is None else gradient.clone()
                for x, gradient in gradients
            ]
        )


class Answers:
    """The metrics of an evaluation: none; it keeps what they would be made of."""

    def __call__(self, prediction):
        self.prediction = prediction
        return {}


def made_of(task, dtype=torch.float64):
    """Model and items of a task."""
    head, changes, item = TASKS[task]
    torch.manual_seed(0)
    rng = random.Random(0)
    items = [item(rng, number) for number in range(INPUTS)]
    if head:
        return ldt_model(head, **changes).to(dtype), items
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LdtCausalConfig(
        vocab_size=40,
        intermediate_size=24,
        attention_window=8,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        **sizes,
    )
    for made in items:
        del made["global_attention_mask"]
    return LdtForCausalLM(config).to(dtype), items


def trainer(folder, task, size, batches, dtype=torch.float64, callbacks=(), **changes):
    """Of an epoch of a task; the weights stay as they are unless changed otherwise."""
    model, items = made_of(task, dtype)
    arguments = {
        "output_dir": str(folder),
        "per_device_train_batch_size": size,
        "gradient_accumulation_steps": batches,
        "num_train_epochs": 1,
        "learning_rate": 0.0,
        "max_grad_norm": 0.0,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "logging_nan_inf_filter": False,
        "average_tokens_across_devices": True,
        "ddp_find_unused_parameters": False,
        "restore_callback_states_from_checkpoint": True,
    }
    positions = ["start_positions", "end_positions"]
    names = positions if task in ("squad", "triviaqa") else ["labels"]
    return Trainer(
        model=model,
        args=TrainingArguments(**arguments | {"label_names": names} | changes),
        train_dataset=items,
        eval_dataset=items,
        data_collator=Collator(1, type(model)),
        compute_metrics=Answers(),
        callbacks=list(callbacks),
        tokenizer=None,
        ids=list(range(INPUTS)),
        progress=ProgressReport(Console(quiet=True), Path(folder)),
    )


def gradients(folder, task, size, batches, dtype=torch.float64, resume=None, **changes):
    """Those of each step of an epoch, and the losses that the steps logged."""
    seen = Gradients()
    made = trainer(folder, task, size, batches, dtype, [seen], **changes)
    made.run(resume)
    return seen.steps, [row["loss"] for row in made.state.log_history if "loss" in row]


def assert_same(found, wanted, bound=1e-9):
    for step, other in zip(found, wanted, strict=True):
        largest = max(weight.abs().max() for weight in other)
        assert largest > 0
        for one, same in zip(step, other, strict=True):
            assert (one - same).abs().max() < bound * largest


def test_all_tasks_are_here():
    assert {name.partition(",")[0] for name in TASKS} == set(tasks.TASKS)


BOUNDS = {torch.float64: 1e-9, torch.float32: 4e-5}


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("task", TASKS)
def test_a_step_has_one_gradient_however_its_inputs_lie_in_batches(tmp_path, task, dtype):
    wanted, losses = gradients(tmp_path, task, 8, 1, dtype)
    assert len(wanted) == 2
    for size, batches in ((4, 2), (1, 8)):
        found, other_losses = gradients(tmp_path, task, size, batches, dtype)
        assert other_losses == pytest.approx(losses, rel=1e-5)
        assert_same(found, wanted, BOUNDS[dtype])


@pytest.mark.parametrize("task", ["classification", "token_classification"])
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


def updates(folder, task, size, batches, **changes):
    """How the weights change in an epoch, in float32."""
    made = trainer(folder, task, size, batches, torch.float32, **changes)
    before = [weight.detach().clone() for weight in made.model.parameters()]
    made.run()
    return [
        (weight.detach() - old).double()
        for weight, old in zip(made.model.parameters(), before, strict=True)
    ]


@pytest.mark.parametrize("task", TASKS)
def test_the_input_of_a_process_that_has_no_other_counts_nothing(tmp_path, task):
    made = trainer(tmp_path, task, 8, 1, include_num_input_tokens_seen="non_padding")
    found = []
    for documents in ([], [0]):
        batch = made.data_collator(made.train_dataset[:1])
        count = made._items_of([batch], torch.device("cpu"))
        del batch["rows"]
        batch["document"] = torch.tensor(documents)
        before = made.state.num_input_tokens_seen
        made.training_step(made.model, batch, count)
        made._track_num_input_tokens(batch)
        largest = max(x.grad.abs().max() for x in made.model.parameters() if x.grad is not None)
        found.append((made.state.num_input_tokens_seen - before, largest > 0))
    assert found[0] == (0, False)
    assert found[1][0] > 0


@pytest.mark.parametrize("task", TASKS)
def test_an_epoch_of_sgd_changes_the_weights_alike(tmp_path, task):
    how = {"optim": "sgd", "learning_rate": 0.01, "lr_scheduler_type": "constant"}
    wanted = updates(tmp_path, task, 8, 1, **how)
    for layout in ((4, 2), (1, 8)):
        assert_same([updates(tmp_path, task, *layout, **how)], [wanted], 1e-4)


def test_an_epoch_of_adam_changes_the_weights_as_far(tmp_path):
    def length(*layout):
        found = updates(tmp_path, "squad", *layout, learning_rate=1e-3)
        return torch.stack([change.norm() for change in found]).norm().item()

    # Where a gradient is rounding alone, as of key.bias, its sign is all that Adam goes by.
    wanted = length(8, 1)
    assert [length(4, 2), length(1, 8)] == pytest.approx([wanted] * 2, rel=1e-2)


# -- evaluation


def evaluated(folder, task, size, **changes):
    """Predictions and labels of an evaluation, and the loss that it reports."""
    made = trainer(folder, task, 8, 1, per_device_eval_batch_size=size, **changes)
    loss = made.evaluate()["eval_loss"]
    answers = made.compute_metrics.prediction
    return answers.predictions, answers.label_ids, loss


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
                    assert values[row] == made["labels"]
            row += 1
    assert all(len(values) == row for values in (*parts, *labels))


@pytest.mark.parametrize("size", [4, 5, 13])
@pytest.mark.parametrize("task", OF_ROWS)
def test_an_evaluation_has_each_row_of_each_input(tmp_path, task, size):
    assert_evaluated(task, evaluated(tmp_path, task, size))


@pytest.mark.parametrize("task", ["classification, regression", *OF_ROWS])
def test_the_loss_of_an_evaluation_weighs_batches_by_their_inputs(tmp_path, task):
    model, items = made_of(task)
    total = 0
    for start in range(0, INPUTS, 4):
        batch = items[start : start + 4]
        with torch.no_grad():
            total += model(**Collator(1, type(model))(batch)).loss.item() * len(batch)
    assert evaluated(tmp_path, task, 4)[2] == pytest.approx(total / INPUTS)


def test_an_evaluation_drops_no_batch(tmp_path):
    assert_evaluated("wikihop", evaluated(tmp_path, "wikihop", 4, dataloader_drop_last=True))


# -- two processes

# What each takes at a time, of which the last step has 5 inputs: 4 and 1; 2 and 2, 1 and none.
OF_TWO = [(4, 1, torch.float64), (2, 2, torch.float64), (4, 1, torch.float32)]


@pytest.fixture(scope="module")
def of_two(tmp_path_factory):
    """Folder of what two processes make of all tasks."""
    folder = tmp_path_factory.mktemp("two")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    where = ["--nproc-per-node", "2", "--master-port", port]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "torch.distributed.run", *where, __file__, str(folder)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("task", TASKS)
def test_two_processes_have_the_gradients_of_one(tmp_path, of_two, task):
    for layout in OF_TWO:
        wanted, losses = gradients(tmp_path, task, 8, 1, layout[2])
        found, other_losses = torch.load(of_two / f"{task} {layout}.pt")
        assert other_losses == pytest.approx(losses, rel=1e-5)
        assert_same(found, wanted, BOUNDS[layout[2]])


@pytest.mark.skipif(not RESUMES, reason=WHY_NOT)
def test_two_processes_go_on_within_an_epoch_as_if_nothing_had_been(of_two):
    whole, _ = torch.load(of_two / f"triviaqa {OF_TWO[1]}.pt")
    rest, _ = torch.load(of_two / "resumed.pt")
    assert len(rest) == 1
    assert all(torch.equal(one, same) for one, same in zip(rest[0], whole[1], strict=True))


@pytest.mark.parametrize("task", OF_ROWS)
def test_two_processes_evaluate_as_one(tmp_path, of_two, task):
    for size in (2, 4):
        found = torch.load(of_two / f"evaluated {task} {size}.pt", weights_only=False)
        assert_evaluated(task, found)
        assert found[2] == pytest.approx(evaluated(tmp_path, task, size)[2])


def save(found, name):
    if os.environ["RANK"] == "0":
        torch.save(found, Path(sys.argv[1]) / f"{name}.pt")


def as_one_of_two(folder):
    """All that the tests of two processes compare."""
    for task in TASKS:
        for layout in OF_TWO:
            save(gradients(folder, task, *layout), f"{task} {layout}")
    for task in OF_ROWS:
        for size in (2, 4):
            save(evaluated(folder, task, size), f"evaluated {task} {size}")
    if RESUMES:
        gradients(folder, "triviaqa", *OF_TWO[1], save_strategy="steps", save_steps=1)
        shutil.rmtree(folder / "checkpoint-2", ignore_errors=True)
        found = gradients(folder, "triviaqa", *OF_TWO[1], resume=folder / "checkpoint-1")
        save(found, "resumed")


if __name__ == "__main__":
    as_one_of_two(Path(sys.argv[1]))
    leave_process_group()
    names = {name.read_text().strip() for name in Path("/proc/self/task").glob("*/comm")}
    assert "pt_gloo_runloop" not in names  # it may abort the interpreter at its end
