"""The gradient of an optimizer step, however its inputs are laid out in batches."""

import os
import random
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from longformers import SEP, ldt_model
from rich.console import Console
from transformers import TrainerCallback, TrainingArguments

from ldt.data.collate import Collator
from ldt.model import LdtCausalConfig, LdtForCausalLM
from ldt.training.progress import ProgressReport
from ldt.training.trainer import Trainer

INPUTS = 13  # a step of 8 and one of 5


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
    return [feature(rng, number, **more) for _ in range(rng.randrange(1, 4))]


def choices(rng, number):
    chunks, label = rng.randrange(1, 3), rng.choice([0, 1, 1, -100])
    return [
        feature(rng, number, labels=label, choices=choice)
        for choice in (0, 1, 2)
        for _ in range(chunks)
    ]


TASKS = {  # head, its changes of the config, and what makes an item
    "one class": (
        "ForSequenceClassification",
        {},
        lambda rng, n: feature(rng, n, labels=rng.choice([0, 1, 2, -100])),
    ),
    "several classes": (
        "ForSequenceClassification",
        {},
        lambda rng, n: feature(rng, n, labels=[rng.choice([0.0, 1.0]) for _ in range(3)]),
    ),
    "regression": (
        "ForSequenceClassification",
        {"num_labels": 1},
        lambda rng, n: feature(rng, n, labels=rng.random()),
    ),
    "token classification": (
        "ForTokenClassification",
        {},
        lambda rng, n: feature(rng, n, labels=of_tokens(rng, 3)),
    ),
    "squad": ("ForQuestionAnswering", {}, spans),
    "triviaqa": (
        "ForQuestionAnswering",
        {},
        lambda rng, n: [spans(rng, n) for _ in range(rng.randrange(1, 4))],
    ),
    "hotpotqa": ("ForEvidenceAnswering", {"evidence_weights": {"paragraphs": 2.0}}, evidence),
    "wikihop": ("ForCandidateRanking", {}, candidates),
    "multiple choice": ("ForMultipleChoice", {}, choices),
    "mlm": ("ForMaskedLM", {}, lambda rng, n: feature(rng, n, labels=of_tokens(rng, 40))),
    "charlm": (None, {}, lambda rng, n: feature(rng, n, labels=of_tokens(rng, 40))),
}


class Gradients(TrainerCallback):
    """Keeps those of each step."""

    def __init__(self):
        self.steps = []

    def on_pre_optimizer_step(self, args, state, control, model, **kwargs):
        self.steps.append([weight.grad.clone() for weight in model.parameters()])


def made_of(task):
    """Model in float64 and items of a task."""
    head, changes, item = TASKS[task]
    torch.manual_seed(0)
    rng = random.Random(0)
    items = [item(rng, number) for number in range(INPUTS)]
    if head:
        return ldt_model(head, **changes).double(), items
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
    return LdtForCausalLM(config).double(), items


def gradients(folder, task, size, batches):
    """Those of each step of an epoch, and the sum of the losses that the steps logged."""
    model, items = made_of(task)
    seen = Gradients()
    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=size,
        gradient_accumulation_steps=batches,
        num_train_epochs=1,
        learning_rate=0.0,
        max_grad_norm=0.0,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        remove_unused_columns=False,
        logging_nan_inf_filter=False,
        average_tokens_across_devices=True,
        ddp_find_unused_parameters=False,
    )
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=items,
        data_collator=Collator(1, type(model)),
        callbacks=[seen],
        tokenizer=None,
        ids=list(range(INPUTS)),
        progress=ProgressReport(Console(quiet=True), folder),
    )
    trainer.run()
    return seen.steps, [row["loss"] for row in trainer.state.log_history if "loss" in row]


@pytest.mark.parametrize("task", TASKS)
def test_a_step_has_one_gradient_however_its_inputs_lie_in_batches(tmp_path, task):
    wanted, losses = gradients(tmp_path, task, 8, 1)
    assert len(wanted) == 2
    for size, batches in ((4, 2), (1, 8)):
        found, other_losses = gradients(tmp_path, task, size, batches)
        assert other_losses == pytest.approx(losses, rel=1e-6)
        assert_same(found, wanted)


def assert_same(found, wanted):
    for step, other in zip(found, wanted, strict=True):
        largest = max(weight.abs().max() for weight in other)
        assert largest > 0
        for one, same in zip(step, other, strict=True):
            assert (one - same).abs().max() < 1e-9 * largest


# What two processes take at a time, of which the last step has 5 inputs: 4 and 1; 2 and 2, 1 and
# none.
OF_TWO = [(4, 1), (2, 2)]


def test_two_processes_have_the_gradients_of_one(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    where = ["--nproc-per-node", "2", "--master-port", port]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "torch.distributed.run", *where, __file__, str(tmp_path)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    for task in TASKS:
        wanted, losses = gradients(tmp_path, task, 8, 1)
        for layout in OF_TWO:
            found, other_losses = torch.load(tmp_path / f"{task} {layout}.pt")
            assert other_losses == pytest.approx(losses, rel=1e-6)
            assert_same(found, wanted)


if __name__ == "__main__":  # one of the two processes
    for task in TASKS:
        for layout in OF_TWO:
            found = gradients(Path(sys.argv[1]), task, *layout)
            if os.environ["RANK"] == "0":
                torch.save(found, Path(sys.argv[1]) / f"{task} {layout}.pt")
    torch.distributed.destroy_process_group()
