"""The training section of a recipe with ldt's defaults, as transformers' TrainingArguments."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

from transformers import TrainingArguments

from ldt.attention.matmul import has_bfloat16
from ldt.errors import RecipeError
from ldt.recipe.recipe import Recipe, check_training
from ldt.recipe.training import OWN_TRAINING_KEYS

DOCUMENTS_A_STEP = 8  # where the recipe does not say how many batches make a step
LINES = 50  # of progress in a run, where the recipe does not say how often

# Where ldt's defaults are not those of transformers' TrainingArguments. A recipe may set each.
# Further ones depend on the recipe, see `settings`.
DEFAULTS = {
    "per_device_train_batch_size": 1,  # long documents fill a device one by one
    "per_device_eval_batch_size": 4,
    "num_train_epochs": 3,
    "learning_rate": 3e-5,
    "warmup_steps": 0.1,  # below 1: a share of all steps
    "weight_decay": 0.01,
    "save_total_limit": 2,  # and the best one besides
    "report_to": "none",
    "seed": 42,
}

# What ldt's Trainer relies on; a recipe cannot set these to something else.
FIXED = {
    "remove_unused_columns": False,
    "disable_tqdm": True,
    "logging_nan_inf_filter": False,
    "include_num_input_tokens_seen": "non_padding",
    "restore_callback_states_from_checkpoint": True,
    "average_tokens_across_devices": True,
}


def settings(recipe: Recipe) -> dict[str, Any]:
    """The training section with ldt's defaults filled in; settings of settings are the same.

    Besides `DEFAULTS`: 8 inputs a step over all processes; evaluation and saving go together,
    after each epoch or however one of them is set; the best weights are loaded at the end; bf16
    "auto" is true where the device has instructions for it.

    Raises:
        RecipeError: keys that are wrong, or ask for evaluation where there is nothing to evaluate.
    """
    given = recipe.training
    check_training(given, recipe.places)
    for key, value in _fixed(recipe).items():
        if given.get(key, value) != value:
            raise RecipeError(f"{recipe.where('training', key)}: is always {value!r}; leave it out")
    found = DEFAULTS | given
    if found.get("bf16") == "auto":
        found["bf16"] = _multiplies_bfloat16(found)
    together = found["per_device_train_batch_size"] * int(os.environ.get("WORLD_SIZE", "1"))
    wanted = _accumulation(recipe, together)
    if found.setdefault("gradient_accumulation_steps", wanted) != wanted and _tokens_a_step(recipe):
        raise RecipeError(
            f"{recipe.where('training', 'gradient_accumulation_steps')}: data.tokens_per_step "
            f"makes it {wanted}; leave one of them out"
        )
    if getattr(recipe.data, "streaming", False):
        if found.get("max_steps", -1) < 1:
            where = recipe.where("training", "max_steps")
            raise RecipeError(f"{where}: missing; a stream has no end of its own")
        found.setdefault("save_strategy", "steps")
    if not (recipe.data.eval or recipe.data.eval_fraction):
        for key in ("eval_strategy", "load_best_model_at_end", "early_stopping_patience"):
            if found.setdefault(key, None) not in (None, False, "no"):
                raise RecipeError(
                    f"{recipe.where('training', key)}: needs data.eval or data.eval_fraction"
                )
            del found[key]
        found.setdefault("save_strategy", "epoch")
        return found
    asked = [found.get(key) for key in ("eval_strategy", "save_strategy")]
    strategy = next((item for item in asked if item in ("epoch", "steps")), "epoch")
    found.setdefault("eval_strategy", strategy)
    found.setdefault("save_strategy", strategy)
    if found["eval_strategy"] == found["save_strategy"] == "steps":
        every = found.get("eval_steps") or found.get("save_steps") or 500
        found.setdefault("eval_steps", every)
        found.setdefault("save_steps", every)
    both = found["eval_strategy"] != "no" and found["save_strategy"] in (strategy, "best")
    found.setdefault("load_best_model_at_end", both)
    if found.get("early_stopping_patience") and not found["load_best_model_at_end"]:
        where = recipe.where("training", "early_stopping_patience")
        raise RecipeError(f"{where}: needs load_best_model_at_end and evaluation")
    return found


def arguments(
    recipe: Recipe, training: dict[str, Any], run: Path, inputs: int, metric: str | None
) -> TrainingArguments:
    """What the Trainer gets.

    Args:
        recipe: for its task and for messages.
        training: its `settings`.
        run: the run folder.
        inputs: of the training set, for the number of steps between two lines of progress.
        metric: by which the best weights are chosen where the recipe does not say; None without
            an evaluation set.

    Raises:
        RecipeError: transformers refuses a value or a combination.
    """
    import torch

    values = {key: value for key, value in training.items() if key not in OWN_TRAINING_KEYS}
    values |= _fixed(recipe) | {"output_dir": str(run)}
    values.setdefault("use_cpu", not torch.cuda.is_available())
    values.setdefault("ddp_find_unused_parameters", False)  # ldt's models leave none unused
    if metric:
        metric = values.get("metric_for_best_model") or metric
        values["metric_for_best_model"] = metric
        lower = metric.removeprefix("eval_") in recipe.task.lower_is_better
        values.setdefault("greater_is_better", not lower)
    batch = values["per_device_train_batch_size"] * int(os.environ.get("WORLD_SIZE", "1"))
    steps = math.ceil(math.ceil(inputs / batch) / values["gradient_accumulation_steps"])
    steps = max(values.get("max_steps", 0), 0) or math.ceil(steps * values["num_train_epochs"])
    values.setdefault("logging_steps", max(1, steps // LINES))
    try:
        return TrainingArguments(**values)
    except (ValueError, TypeError, ImportError) as error:
        what = str(error).strip().split("\n")[0]
        raise RecipeError(f"{recipe.where('training')}: {what}") from error


def _multiplies_bfloat16(training: dict[str, Any]) -> bool:
    """Whether the device of a training has instructions for bfloat16."""
    import torch

    if torch.cuda.is_available() and not training.get("use_cpu"):
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return has_bfloat16()


def _fixed(recipe: Recipe) -> dict[str, Any]:
    return FIXED | {"label_names": list(recipe.task.label_names)}


def _tokens_a_step(recipe: Recipe) -> int | None:
    return getattr(recipe.data, "tokens_per_step", None)


def _accumulation(recipe: Recipe, together: int) -> int:
    """Batches a step, of ``together`` inputs each."""
    tokens = _tokens_a_step(recipe)
    if tokens is None:
        return max(1, DOCUMENTS_A_STEP // together)
    return max(1, round(tokens / (together * recipe.data.max_length)))
