import dataclasses
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from training_runs import LABELS, documents, train
from transformers import TrainingArguments

from ldt.errors import RecipeError
from ldt.recipe.sections import training_section
from ldt.tasks import TASKS
from ldt.training.arguments import arguments, settings


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True}),
        ({"eval_strategy": "steps", "eval_steps": 7}, {"save_strategy": "steps", "save_steps": 7}),
        ({"save_strategy": "no"}, {"eval_strategy": "epoch", "load_best_model_at_end": False}),
        ({"eval_strategy": "no"}, {"save_strategy": "epoch", "load_best_model_at_end": False}),
        ({"save_strategy": "best"}, {"eval_strategy": "epoch", "load_best_model_at_end": True}),
        ({"per_device_train_batch_size": 4}, {"gradient_accumulation_steps": 2}),
        ({"per_device_train_batch_size": 16}, {"gradient_accumulation_steps": 1}),
        ({"seed": 3, "learning_rate": 0.5}, {"seed": 3, "learning_rate": 0.5}),
        ({"activation_checkpointing": True}, {"gradient_checkpointing": True}),
        (
            {"gradient_checkpointing": True, "activation_checkpointing": True},
            {"gradient_checkpointing": True},
        ),
        (
            {
                "activation_checkpointing": True,
                "activation_checkpointing_kwargs": {"use_reentrant": False},
            },
            {"gradient_checkpointing_kwargs": {"use_reentrant": False}},
        ),
    ],
)
def test_settings_fit_to_what_the_recipe_sets(recipe, given, found):
    made = recipe()
    made = replace(made, training=given)
    full = settings(made)
    assert full | found == full
    made = replace(made, training=full)
    assert settings(made) == full


@pytest.mark.parametrize(
    ("training", "without", "what"),
    [
        ({"remove_unused_columns": True}, False, "is always false; leave it out"),
        ({"eval_strategy": "epoch"}, True, "needs data.eval or data.eval_fraction"),
        ({"early_stopping_patience": 1}, True, "needs data.eval or data.eval_fraction"),
        (
            {"early_stopping_patience": 1, "load_best_model_at_end": False},
            False,
            "needs load_best_model_at_end",
        ),
        ({"learning_rat": 1.0}, False, "did you mean 'learning_rate'"),
        (
            {"gradient_checkpointing": True, "activation_checkpointing": False},
            False,
            "activation_checkpointing: gradient_checkpointing is true; leave one of them out",
        ),
        ({"activation_checkpointing": "maybe"}, False, "activation_checkpointing: expected"),
        (
            {"train_batch_tokens": 4096, "fsdp": "full_shard"},
            False,
            "train_batch_tokens: does not go with fsdp",
        ),
        (
            {"train_batch_tokens": 4096, "deepspeed": "zero.json"},
            False,
            "train_batch_tokens: does not go with deepspeed",
        ),
    ],
)
def test_settings_that_cannot_work_are_named(recipe, training, without, what):
    made = recipe()
    made = replace(made, training=training)
    if without:
        made = replace(made, data=made.data.model_copy(update={"eval": None}))
    with pytest.raises(RecipeError, match=what):
        settings(made)


@pytest.fixture
def pretended(monkeypatch):
    """Has torch tell of a GPU, and of bfloat16 on it and on the CPU."""

    def device(gpu, cpu=False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu is not None)
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: gpu)
        monkeypatch.setattr("ldt.training.arguments.has_bfloat16", lambda: cpu)

    return device


@pytest.mark.parametrize(
    ("gpu", "cpu", "training", "found"),
    [
        (None, True, {"bf16": "auto"}, True),
        (None, False, {"bf16": "auto"}, False),
        (None, True, {}, False),  # the CPU trains in float32 unless it is asked
        (True, False, {}, True),
        (False, True, {}, False),
        (True, False, {"bf16": False}, False),
        (True, False, {"fp16": True}, False),
        (True, False, {"fp16": True, "bf16": "auto"}, False),
        (True, False, {"use_cpu": True}, False),
        (True, False, {"use_cpu": True, "bf16": "auto"}, False),
        (False, False, {"bf16": True}, True),
    ],
)
def test_bf16_is_auto_on_cuda_and_auto_is_what_the_device_has(
    recipe, pretended, gpu, cpu, training, found
):
    pretended(gpu, cpu)
    assert settings(replace(recipe(), training=training))["bf16"] is found


@pytest.mark.parametrize(
    ("gpu", "overrides", "line"),
    [
        (True, [], "bf16; training.bf16=false trains in float32"),
        (True, ["training.bf16=false"], "float32; training.bf16=true is faster here"),
        (False, [], "float32"),
        (None, [], "float32"),
    ],
)
def test_a_training_says_in_which_numbers_it_computes(
    recipe, pretended, monkeypatch, caplog, gpu, overrides, line
):
    monkeypatch.setattr("ldt.training.arguments.on_cuda", lambda training: gpu is not None)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: gpu)
    monkeypatch.setattr("ldt.training.arguments.has_bfloat16", lambda: False)
    train(recipe(*overrides), dry_run=True)
    assert f"precision: {line}" in caplog.messages


@dataclasses.dataclass
class Older(TrainingArguments):
    """TrainingArguments of transformers 5.17, which has one name for it."""

    def __post_init__(self):
        self.activation_checkpointing = self.activation_checkpointing_kwargs = None
        super().__post_init__()


for name in ("activation_checkpointing", "activation_checkpointing_kwargs"):
    Older.__dataclass_fields__.pop(name, None)


@pytest.mark.filterwarnings("ignore:.gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize("name", ["gradient_checkpointing", "activation_checkpointing"])
@pytest.mark.parametrize("cls", [TrainingArguments, Older])
def test_recomputing_activations_has_two_names_in_any_transformers(recipe, monkeypatch, name, cls):
    monkeypatch.setattr("ldt.training.arguments.TrainingArguments", cls)
    made = recipe(f"training.{name}=true")
    with warnings.catch_warnings():
        if cls is TrainingArguments:
            warnings.simplefilter("error")  # such as that of an older name
        found = arguments(made, settings(made), Path("runs/r"), 12, None)
    assert found.gradient_checkpointing is True
    assert name in training_section().model_fields
    assert getattr(found, "activation_checkpointing", None) in (None, True)


@pytest.mark.parametrize("key", ["dispatch_batches=true", "even_batches=false"])
def test_processes_always_take_equally_many_whole_inputs(recipe, key):
    made = recipe(f"training.accelerator_config.{key}")
    with pytest.raises(RecipeError, match=f"{key.partition('=')[0]} is always"):
        arguments(made, settings(made), Path("runs/r"), 12, None)


SMOOTH = "training.label_smoothing_factor=0.1"
NOT_ONE = r"training.label_smoothing_factor.*: is for labels of one class each, .* and this {} has"


@pytest.mark.parametrize("name", TASKS)
def test_labels_are_smoothed_where_each_is_a_class(recipe, name):
    made = replace(recipe(SMOOTH), task=TASKS[name].model_construct(name=name))
    if name in ("classification", "summarization", "token_classification"):
        assert settings(made)["label_smoothing_factor"] == 0.1
        return
    with pytest.raises(RecipeError, match=NOT_ONE.format(name)):
        settings(made)
    assert settings(replace(made, training={"label_smoothing_factor": 0.0}))


@pytest.mark.parametrize("label", LABELS)
def test_what_labels_are_may_show_in_the_data(recipe, label):
    for name, count in (("train", 12), ("dev", 7)):
        documents(f"{name}.jsonl", count, 0, label)
    # Two different numbers could be classes, so a recipe says what they are.
    kind = ["task.problem=regression"] if label == "number" else []
    made = recipe(SMOOTH, "training.max_steps=2", *kind)
    if label == "classes":
        assert train(made)["eval_loss"] > 0
        return
    with pytest.raises(RecipeError, match=NOT_ONE.format("classification")):
        train(made)
    assert not Path("runs/r").exists()
