import logging
import os
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import EarlyStoppingCallback, TrainerCallback, TrainingArguments

from ldt.errors import EXIT_DIVERGED, Interrupted, TrainingDiverged
from ldt.recipe.run import Run
from ldt.training import checkpoints
from ldt.training.progress import ProgressReport
from ldt.training.trainer import Trainer


class Model(torch.nn.Module):
    """Mean of embeddings with dropout, two classes; `fault` gets each step's loss."""

    whole_batch_loss = False

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.words = torch.nn.Embedding(50, 8)
        self.dropout = torch.nn.Dropout(0.3)
        self.out = torch.nn.Linear(8, 2)
        self.fault = lambda loss: loss

    def loss_items(self, labels, **inputs):
        return torch.tensor(len(labels))

    def forward(self, input_ids, attention_mask, labels=None, num_items_in_batch=None):
        words = self.dropout(self.words(input_ids)) * attention_mask[..., None]
        logits = self.out(words.sum(1) / attention_mask.sum(1, keepdim=True))
        loss = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
        loss = loss / (len(labels) if num_items_in_batch is None else num_items_in_batch)
        return {"loss": self.fault(loss) if self.training else loss, "logits": logits}


def examples(count, seed):
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(count):
        size = int(torch.randint(3, 12, (), generator=generator))
        ids = torch.randint(50, (size,), generator=generator).tolist()
        rows.append({"input_ids": ids, "labels": int(sum(ids) % 2), "document": len(rows)})
    return rows


def collate(rows):
    size = max(len(row["input_ids"]) for row in rows)
    padded = [(row, size - len(row["input_ids"])) for row in rows]
    return {
        "input_ids": torch.tensor([row["input_ids"] + [0] * n for row, n in padded]),
        "attention_mask": torch.tensor([[1] * (size - n) + [0] * n for _, n in padded]),
        "labels": torch.tensor([row["labels"] for row in rows]),
    }


def accuracy(prediction):
    return {"accuracy": float((prediction.predictions.argmax(1) == prediction.label_ids).mean())}


class At(TrainerCallback):
    """Does something in the middle of a step."""

    def __init__(self, step, action):
        self.step, self.action = step, action

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        if state.global_step == self.step - 1:
            self.action()


def trainer(folder, callbacks=(), **changes):
    """30 examples in batches of 2 x 2: 8 steps an epoch, 24 in all."""
    folder = Path(folder)
    folder.mkdir(exist_ok=True)
    arguments = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "num_train_epochs": 3,
        "learning_rate": 0.05,
        "logging_steps": 3,
        "save_strategy": "steps",
        "save_steps": 5,
        "save_total_limit": 2,
        "eval_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "logging_nan_inf_filter": False,
        "include_num_input_tokens_seen": "non_padding",
        "restore_callback_states_from_checkpoint": True,
        "label_names": ["labels"],
        **changes,
    }
    return Trainer(
        model=Model(),
        args=TrainingArguments(**arguments),
        train_dataset=examples(30, 0),
        eval_dataset=examples(11, 1),
        data_collator=collate,
        compute_metrics=accuracy,
        callbacks=list(callbacks),
        tokenizer=None,
        ids=[f"doc-{index}" for index in range(30)],
        progress=ProgressReport(Run(folder)),
    )


def weights(made):
    return {name: value.clone() for name, value in made.model.state_dict().items()}


def history(made):
    timed = ("runtime", "per_second", "preparation_time")
    return [
        {key: value for key, value in row.items() if not key.endswith(timed)}
        for row in made.state.log_history
    ]


def assert_same(one, other):
    assert one.state.global_step == other.state.global_step
    assert history(one) == history(other)
    for name, value in weights(one).items():
        assert torch.equal(value, weights(other)[name]), name


BY_EPOCH = {
    "save_strategy": "epoch",
    "eval_strategy": "epoch",
    "load_best_model_at_end": True,
    "metric_for_best_model": "accuracy",
}
BY_STEPS = BY_EPOCH | {"save_strategy": "steps", "eval_strategy": "steps", "eval_steps": 4}


def send(number):
    return lambda: os.kill(os.getpid(), number)


@pytest.mark.parametrize(
    ("step", "changes"),
    [
        (7, {}),  # inside an epoch, inside a logging interval
        (8, {}),  # the last step of an epoch
        (13, BY_EPOCH),
        (16, BY_EPOCH),  # its evaluation comes before the checkpoint
        (24, BY_EPOCH),  # the last step of all
        (8, BY_STEPS | {"save_steps": 8}),
        (13, {"train_sampling_strategy": "group_by_length"}),  # draws its order from torch's state
    ],
)
def test_a_stopped_and_resumed_run_equals_an_uninterrupted_one(tmp_path, step, changes):
    whole = trainer(tmp_path / "whole", **changes)
    whole.run()
    first = trainer(tmp_path / "cut", callbacks=[At(step, send(signal.SIGTERM))], **changes)
    with pytest.raises(Interrupted) as raised:
        first.run()
    assert raised.value.code == 143
    newest = checkpoints.newest_valid(Run(tmp_path / "cut"))
    assert newest.name == f"checkpoint-{step}"
    second = trainer(tmp_path / "cut", **changes)
    second.run(newest)
    assert_same(whole, second)
    assert second.train_loss == whole.train_loss


def test_a_resumed_run_in_a_folder_that_moved_still_finds_its_best(tmp_path):
    whole = trainer(tmp_path / "whole", **BY_EPOCH)
    whole.run()
    first = trainer(tmp_path / "old", callbacks=[At(13, send(signal.SIGTERM))], **BY_EPOCH)
    with pytest.raises(Interrupted):
        first.run()
    (tmp_path / "old").rename(tmp_path / "new")
    second = trainer(tmp_path / "new", **BY_EPOCH)
    second.run(checkpoints.newest_valid(Run(tmp_path / "new")))
    assert_same(whole, second)


def test_a_second_signal_stops_at_once_and_leaves_the_last_checkpoint(tmp_path):
    def twice():
        send(signal.SIGINT)()
        send(signal.SIGINT)()

    with pytest.raises(Interrupted) as raised:
        trainer(tmp_path, callbacks=[At(8, twice)]).run()
    assert raised.value.code == 130
    assert checkpoints.newest_valid(Run(tmp_path)).name == "checkpoint-5"


def test_a_signal_during_an_evaluation_is_heeded_after_it(tmp_path):
    class Evaluating(TrainerCallback):
        def on_prediction_step(self, args, state, control, **kwargs):
            send(signal.SIGTERM)() if not made.signals.number else None

    made = trainer(tmp_path, callbacks=[Evaluating()], **BY_STEPS | {"save_steps": 100})
    with pytest.raises(Interrupted):
        made.run()
    assert list(Run(tmp_path).checkpoints()) == [4]


def from_step(step, fault):
    """A loss that a fault changes from that step on; a step has two batches."""
    batches = iter(range(1000))
    return lambda loss: fault(loss) if next(batches) >= 2 * (step - 1) else loss


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_ends_the_run_with_where_it_was(tmp_path, value):
    made = trainer(tmp_path)
    made.model.fault = from_step(7, lambda loss: loss * value)
    with pytest.raises(TrainingDiverged) as raised:
        made.run()
    assert raised.value.exit_code == EXIT_DIVERGED
    message = str(raised.value)
    assert f"diverged at step 7: the loss is {value}" in message
    assert "learning rate 0.0375, last finite gradient norm 0." in message
    assert "documents doc-" in message
    assert "the last checkpoint is step 5" in message
    assert checkpoints.newest_valid(Run(tmp_path)).name == "checkpoint-5"


def broken_gradient(loss):
    """The same loss; its derivative is 0 / 0."""
    return loss + (loss - loss).sqrt() * 0


def test_a_step_without_a_finite_gradient_is_skipped_and_counted(tmp_path, caplog):
    made = trainer(tmp_path, num_train_epochs=1)
    moments = iter([*[0] * 6, 1, 1, *[0] * 8])  # both batches of step 4
    made.model.fault = lambda loss: broken_gradient(loss) if next(moments) else loss
    seen = {}

    class Watch(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            seen[state.global_step] = made.model.out.weight.detach().clone()

    made.add_callback(Watch())
    with caplog.at_level(logging.WARNING, "ldt"):
        made.run()
    assert torch.equal(seen[4], seen[3])
    assert not torch.equal(seen[5], seen[4])
    assert (made.skipped, made.skipped_in_a_row) == (1, 0)
    assert "step 4 skipped: its gradient is not finite (1 in a row); documents doc-" in caplog.text


def test_more_than_ten_skipped_steps_in_a_row_end_the_run(tmp_path):
    made = trainer(tmp_path)
    made.model.fault = from_step(7, broken_gradient)
    with pytest.raises(TrainingDiverged, match="step 17: 11 gradients in a row are not finite"):
        made.run()


def test_weights_that_are_not_finite_are_never_saved(tmp_path):
    def spoil():
        made.model.out.bias.data[0] = float("nan")

    made = trainer(tmp_path, callbacks=[At(10, spoil)])
    with pytest.raises(TrainingDiverged, match="weights are not finite"):
        made.run()
    assert list(Run(tmp_path).checkpoints()) == [5]


def test_the_best_weights_are_saved_when_found_and_loaded_at_the_end(tmp_path):
    scores = iter([0.5, 0.6, 0.9, 0.8, 0.7, 0.6])
    made = trainer(tmp_path, **BY_STEPS | {"save_steps": 8})
    made.compute_metrics = lambda prediction: {"accuracy": next(scores)}
    made.run()
    assert made.weights_step == 12
    assert list(Run(tmp_path).checkpoints()) == [12, 16, 24]
    best = load_file(tmp_path / "checkpoint-12" / "model.safetensors")
    assert all(torch.equal(best[name], value) for name, value in weights(made).items())


def test_a_damaged_best_checkpoint_leaves_the_last_weights_with_a_warning(tmp_path, caplog):
    scores = iter([0.9, 0.8, 0.7])

    def damage():
        os.truncate(tmp_path / "checkpoint-8" / "model.safetensors", 9)

    made = trainer(tmp_path, callbacks=[At(20, damage)], **BY_EPOCH)
    made.compute_metrics = lambda prediction: {"accuracy": next(scores)}
    made.run()
    assert made.weights_step == 24
    assert "checkpoint-8 is damaged: model.safetensors has 9 bytes" in caplog.text


def test_early_stopping_remembers_its_patience_over_a_resume(tmp_path):
    def stubborn(folder, *callbacks):
        changes = BY_EPOCH | {"num_train_epochs": 6, "learning_rate": 0.0}
        return trainer(folder, callbacks=[EarlyStoppingCallback(2), *callbacks], **changes)

    whole = stubborn(tmp_path / "whole")
    whole.run()
    assert whole.state.global_step == 24  # the second evaluation without a better one
    with pytest.raises(Interrupted):
        stubborn(tmp_path / "cut", At(18, send(signal.SIGTERM))).run()
    second = stubborn(tmp_path / "cut")
    second.run(checkpoints.newest_valid(Run(tmp_path / "cut")))
    assert_same(whole, second)
    again = stubborn(tmp_path / "cut")
    again.run(checkpoints.newest_valid(Run(tmp_path / "cut")))  # stopped early: nothing is trained
    assert_same(whole, again)


def test_a_checkpoint_has_no_pickle_but_tensors(tmp_path):
    trainer(tmp_path, max_steps=5).run()
    for path in (tmp_path / "checkpoint-5").glob("*.pt*"):
        if path.name != "rng_state.pth":  # holds numpy's state, which transformers allows by name
            torch.load(path, weights_only=True)
    assert not (tmp_path / "checkpoint-5" / "training_args.bin").exists()


def test_evaluation_is_in_the_order_of_the_documents_whatever_the_sampling(tmp_path):
    made = trainer(tmp_path, train_sampling_strategy="group_by_length")
    rows = [row for batch in made.get_eval_dataloader() for row in batch["input_ids"].tolist()]
    for row, example in zip(rows, examples(11, 1), strict=True):
        assert row[: len(example["input_ids"])] == example["input_ids"]
