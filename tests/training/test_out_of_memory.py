"""Memory that ends in the middle of a training."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from small_steps import (
    COMPARED,
    INPUTS,
    OF_ROWS,
    Gradients,
    assert_same,
    gradients,
    made_of,
    trainer,
)
from training_runs import rows, train, weights

from ldt.data.features import Collator
from ldt.errors import EXIT_RESOURCES, ResourceError
from ldt.training.steps import DocumentIdCollator, ItemTrainer, micro_batches


class Stop(Exception):
    """What a test interrupts a run with."""


NO_MEMORY = {
    "a GPU": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
    "the CPU": RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9"),
    "Python": MemoryError(),
}


@pytest.fixture
def room(monkeypatch):
    """Lets memory end, from a step on, where more inputs are run at a time than so many; the sizes
    of what is run are listed."""
    sizes = []

    def make(most, error, step=1, backward=True):
        real = transformers.Trainer.training_step

        def training_step(self, model, inputs, items=None):
            size = len(inputs["example_ids"].unique()) if "example_ids" in inputs else None
            sizes.append(size or len(inputs["input_ids"]))
            ends = sizes[-1] > most and self.state.global_step + 1 >= step
            if ends and not backward:
                raise error
            loss = real(self, model, inputs, items)
            if ends:  # with the gradients of this pass left behind
                raise error
            return loss

        monkeypatch.setattr(transformers.Trainer, "training_step", training_step)
        return sizes

    return make


@pytest.mark.parametrize("task", ["squad", "wikihop", "mlm"])
def test_a_step_that_is_repeated_with_less_at_a_time_has_its_gradient(tmp_path, task, room):
    wanted, losses = gradients(tmp_path, task, 4, 2)
    sizes = room(2, NO_MEMORY["a GPU"])
    found, other_losses = gradients(tmp_path, task, 4, 2)
    assert sizes[:4] == [4, 2, 2, 2]
    assert max(sizes[1:]) == 2
    assert other_losses == pytest.approx(losses, abs=1e-6)
    assert_same(found, wanted)


@pytest.mark.parametrize("error", NO_MEMORY.values(), ids=NO_MEMORY)
def test_the_batches_before_in_the_same_step_are_run_again(tmp_path, monkeypatch, error):
    wanted, losses = gradients(tmp_path, "squad", 4, 2)
    real, calls = transformers.Trainer.training_step, []

    def training_step(self, model, inputs, items=None):
        calls.append(len(inputs["input_ids"]))
        loss = real(self, model, inputs, items)
        if len(calls) == 2:
            raise error
        return loss

    monkeypatch.setattr(transformers.Trainer, "training_step", training_step)
    found, other_losses = gradients(tmp_path, "squad", 4, 2)
    assert calls == [4, 4, 2, 2, 2, 2, 2, 2, 1]
    assert other_losses == pytest.approx(losses, abs=1e-6)
    assert_same(found, wanted)


@pytest.mark.parametrize("task", OF_ROWS)
def test_a_batch_is_cut_between_inputs(task):
    model, items = made_of(task)
    whole = DocumentIdCollator(Collator(1, type(model)))(items[:5])
    del whole["document"]
    count = whole.pop("rows")
    parts = list(micro_batches(whole, count, 2))
    assert [len(part["example_ids"].unique()) for part in parts] == [2, 2, 1]
    for name, value in whole.items():
        assert torch.equal(torch.cat([part[name] for part in parts]), value)


BY_LENGTH = ("classification", "token_classification", "passage_qa", "summarization", "charlm")


@pytest.mark.fast("classification", "wikihop")
@pytest.mark.parametrize("task", [*BY_LENGTH, *OF_ROWS])
def test_parts_by_length_have_the_gradient_of_the_step(tmp_path, monkeypatch, task):
    wanted, losses = gradients(tmp_path, task, 4, 2)
    real, shapes = transformers.Trainer.training_step, []

    def training_step(self, model, inputs, items=None):
        shapes.append(inputs["input_ids"].shape)
        return real(self, model, inputs, items)

    monkeypatch.setattr(transformers.Trainer, "training_step", training_step)
    parted = Gradients()
    made = trainer(tmp_path, task, 4, 2, callbacks=[parted])
    made.micro_batch_tokens = 40
    made.run()
    found = parted.steps
    other_losses = [row["loss"] for row in made.state.log_history if "loss" in row]
    assert other_losses == pytest.approx(losses, abs=1e-6)
    assert_same(found, wanted)
    assert len(shapes) > 4  # batches of up to 4
    if task not in OF_ROWS:  # of which an input may have more
        assert max(rows * width for rows, width in shapes) <= 40
        assert sum(rows for rows, _ in shapes) == INPUTS


@pytest.mark.parametrize("task", [*BY_LENGTH, *OF_ROWS])
def test_parts_by_length_have_every_row_once_the_longest_first(task):
    model, items = made_of(task)
    whole = DocumentIdCollator(Collator(1, type(model)))(items[:7])
    del whole["document"]
    count = whole.pop("rows")
    parts = list(micro_batches(whole, count, None, 60))
    widths = [part["input_ids"].shape[1] for part in parts]
    assert widths == sorted(widths, reverse=True)
    ids = [row for part in parts for row in part["input_ids"].tolist()]
    assert sorted(strip(row) for row in ids) == sorted(map(strip, whole["input_ids"].tolist()))
    for part in parts:
        assert part["attention_mask"][:, -1].any()  # no column fills up all rows
        for name, value in part.items():
            assert len(value) == len(part["input_ids"])
            if name == "labels" and task == "token_classification":
                assert value.shape == part["input_ids"].shape
    if task in OF_ROWS:  # the rows of an input stay together
        seen = [set(part["example_ids"].tolist()) for part in parts]
        assert sum(map(len, seen)) == len(set.union(*seen)) == 7
    assert [len(part["input_ids"]) for part in micro_batches(whole, count, 1, 60)] == sorted_rows(
        whole, count
    )


def strip(row):
    """Without the padding."""
    return tuple(number for number in row if number != 1)


def sorted_rows(whole, count):
    """The rows of each input, the longest input first."""
    lengths = whole["attention_mask"].sum(1)
    inputs = list(zip(lengths.split(count.tolist()), count.tolist(), strict=True))
    return [rows for _, rows in sorted(inputs, key=lambda each: -int(each[0].max()))]


@pytest.mark.fast("embedding, contrastive")
@pytest.mark.parametrize("task", COMPARED)
def test_a_batch_whose_inputs_are_compared_is_run_in_parts_and_stays_one(
    tmp_path, monkeypatch, task
):
    wanted, losses = gradients(tmp_path, task, 4, 2)
    real, parts, most = transformers.Trainer.training_step, [], 0

    def training_step(self, model, inputs, items=None):
        lengths = inputs["attention_mask"].sum(1)
        tokens = [int(lengths[rows].sum()) for rows in inputs["groups"]]
        assert sorted(sum(inputs["groups"], [])) == [*range(len(lengths))]
        assert max(tokens) <= max(self.micro_batch_tokens or 999, int(lengths.max()))
        parts.append(len(tokens))
        if len(tokens) > 1 or not most:
            return real(self, model, inputs, items)
        raise NO_MEMORY["a GPU"]

    def found(tokens):
        monkeypatch.setattr(transformers.Trainer, "training_step", training_step)
        seen = Gradients()
        made = trainer(tmp_path, task, 4, 2, callbacks=[seen])
        made.micro_batch_tokens = tokens
        made.run()
        logged = [row["loss"] for row in made.state.log_history if "loss" in row]
        assert logged == pytest.approx(losses, abs=1e-6)
        return seen.steps

    assert_same(found(40), wanted)
    assert min(parts) > 1
    parts.clear()
    assert_same(found(None), wanted)
    assert parts == [1] * 4
    parts.clear()
    most = 1
    assert_same(found(None), wanted)  # memory ends in a batch that is run at once
    assert parts[0] == 1
    assert parts.count(1) == 2  # of the last batch, which has one input


# -- a run, of batches of 4


@pytest.fixture
def of_four(recipe, tiny_longformer):
    """Makes a recipe of 6 steps without dropout, each of 4 documents at a time."""

    def make(name, *changes):
        sizes = ["per_device_train_batch_size=4", "gradient_accumulation_steps=1", "save_steps=1"]
        sizes += ["logging_steps=1", f"output_dir=runs/{name}", *changes]
        model = f"model.path={without_dropout(tiny_longformer)}"
        return recipe(model, *(f"training.{change}" for change in sizes))

    return make


def without_dropout(source):
    folder = Path("no-dropout")
    if not folder.exists():
        shutil.copytree(source, folder)
        file = folder / "config.json"
        none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        file.write_text(json.dumps(json.loads(file.read_text()) | none))
    return str(folder)


def losses(name):
    return [row["loss"] for row in rows(f"runs/{name}") if "loss" in row]


def assert_trained_alike(name, other):
    assert losses(name) == pytest.approx(losses(other), abs=1e-6)
    found, wanted = weights(f"runs/{name}"), weights(f"runs/{other}")
    assert all(torch.allclose(found[key], wanted[key], atol=1e-5) for key in wanted)


def test_a_run_goes_on_with_half_the_batch_also_after_a_kill(of_four, room, at_step, capsys):
    train(of_four("whole"))
    sizes = room(2, NO_MEMORY["the CPU"], step=3)
    train(of_four("halved"))
    assert sizes == [4, 4, 4, *[2] * 8]
    said = " ".join(capsys.readouterr().err.split())
    assert said.count("out of memory") == 1
    assert (
        "out of memory at step 3 with 4 inputs at a time: from here on it is 2 at a time, and a "
        "step has the same inputs as before"
    ) in said
    assert_trained_alike("halved", "whole")

    def die(model):
        raise Stop

    at_step(5, die)
    with pytest.raises(Stop):
        train(of_four("killed"))
    at_step(0, None)
    sizes.clear()
    train(of_four("killed"), resume=True)
    assert sizes == [2] * 4  # never 4 again
    assert_trained_alike("killed", "whole")
    assert rows("runs/killed")[-1]["step"] == 6


def test_too_little_memory_for_one_input_ends_the_run(of_four, room):
    sizes = room(0, NO_MEMORY["a GPU"], step=2)
    with pytest.raises(
        ResourceError, match="step 2 with one input at a time: .* --resume"
    ) as ended:
        train(of_four("ended"))
    assert sizes == [4, 4, 2, 1]
    assert ended.value.exit_code == EXIT_RESOURCES


def test_too_little_memory_in_an_evaluation_names_its_batch(of_four, monkeypatch):
    def prediction_step(self, model, *inputs, **options):
        if self.state.global_step:
            raise NO_MEMORY["a GPU"]
        return real(self, model, *inputs, **options)

    real = ItemTrainer.prediction_step
    monkeypatch.setattr(ItemTrainer, "prediction_step", prediction_step)
    with pytest.raises(
        ResourceError, match="in the evaluation at step 1: .*per_device_eval_batch_size"
    ):
        train(of_four("ended", "eval_steps=1"))
