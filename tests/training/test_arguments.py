from dataclasses import replace

import pytest
import torch

from ldt.errors import RecipeError
from ldt.training.arguments import settings


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
    ],
)
def test_settings_that_cannot_work_are_named(recipe, training, without, what):
    made = recipe()
    made = replace(made, training=training)
    if without:
        made = replace(made, data=made.data.model_copy(update={"eval": None}))
    with pytest.raises(RecipeError, match=what):
        settings(made)


@pytest.mark.parametrize(
    ("gpu", "cpu", "use_cpu", "found"),
    [
        (None, True, None, True),
        (None, False, None, False),
        (True, False, None, True),
        (False, True, None, False),
        (True, False, True, False),
    ],
)
def test_bf16_auto_is_what_the_device_has_instructions_for(
    recipe, monkeypatch, gpu, cpu, use_cpu, found
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu is not None)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: gpu)
    monkeypatch.setattr("ldt.training.arguments.has_bfloat16", lambda: cpu)
    made = recipe()
    made = replace(
        made, training={"bf16": "auto"} | ({} if use_cpu is None else {"use_cpu": use_cpu})
    )
    assert settings(made)["bf16"] is found
    made = replace(made, training={"bf16": True})
    assert settings(made)["bf16"] is True
