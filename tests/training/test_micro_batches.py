"""Memory that ends in the middle of a training."""

import pytest
import torch
from small_steps import OF_ROWS, TASKS, assert_same, gradients, made_of

from ldt.data.collate import Collator
from ldt.training.flow import NamingDocuments
from ldt.training.micro_batches import micro_batches
from ldt.training.whole_steps import WholeSteps

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
        real = WholeSteps.training_step

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

        monkeypatch.setattr(WholeSteps, "training_step", training_step)
        return sizes

    return make


@pytest.mark.parametrize("task", [name for name in TASKS if name != "multiple_choice"])
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
    real, calls = WholeSteps.training_step, []

    def training_step(self, model, inputs, items=None):
        calls.append(len(inputs["input_ids"]))
        loss = real(self, model, inputs, items)
        if len(calls) == 2:
            raise error
        return loss

    monkeypatch.setattr(WholeSteps, "training_step", training_step)
    found, other_losses = gradients(tmp_path, "squad", 4, 2)
    assert calls == [4, 4, 2, 2, 2, 2, 2, 2, 1]
    assert other_losses == pytest.approx(losses, abs=1e-6)
    assert_same(found, wanted)


@pytest.mark.parametrize("task", OF_ROWS)
def test_a_batch_is_cut_between_inputs(task):
    model, items = made_of(task)
    whole = NamingDocuments(Collator(1, type(model)))(items[:5])
    del whole["document"]
    count = whole.pop("rows")
    parts = list(micro_batches(whole, count, 2))
    assert [len(part["example_ids"].unique()) for part in parts] == [2, 2, 1]
    for name, value in whole.items():
        assert torch.equal(torch.cat([part[name] for part in parts]), value)
