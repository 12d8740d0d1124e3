"""Keys of `training:` that do nothing beside others: refused, with what they go with."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import fields
from typing import Any

from transformers import SchedulerType, Trainer, TrainingArguments
from transformers.training_args import OptimizerNames

from ldt.errors import RecipeError
from ldt.recipe.problems import shown
from ldt.recipe.recipe import Recipe
from ldt.tasks.deciding import Deciding

# Key -> the other key and the value of that with which alone it acts; None: any but none.
TOGETHER: dict[str, tuple[str, Any]] = {
    "eval_steps": ("eval_strategy", "steps"),
    "save_steps": ("save_strategy", "steps"),
    "logging_steps": ("logging_strategy", "steps"),
    "early_stopping_threshold": ("early_stopping_patience", None),
    "gradient_checkpointing_kwargs": ("gradient_checkpointing", True),
    "fsdp_config": ("fsdp", None),
    "run_name": ("report_to", None),
    **dict.fromkeys(
        ("project", "trackio_space_id", "trackio_bucket_id", "trackio_static_space_id"),
        ("report_to", "trackio"),
    ),
    **dict.fromkeys(
        ("dataloader_in_order", "dataloader_multiprocessing_context"),
        ("dataloader_num_workers", None),
    ),
}


def check_together(recipe: Recipe, values: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Raise RecipeError for a key that does nothing beside the others.

    Args:
        values: the training section, with what ldt fills in.
        defaults: ldt's own, by key.
    """
    usual = {field.name: field.default for field in fields(TrainingArguments)} | dict(defaults)
    for key, (other, needed) in TOGETHER.items():
        value = values.get(other, getattr(usual.get(other), "value", usual.get(other)))
        names = value if isinstance(value, list) else [value]
        acts = needed in names if needed else any(n not in (None, 0, "", "none") for n in names)
        acts = acts or value == "no"  # as a strategy, which says it plainly
        if values.get(key) not in (None, usual.get(key)) and not acts:
            what = f"{other}: {shown(needed)}" if needed else other
            raise RecipeError(
                f"{recipe.where('training', key)}: acts with {what} alone, and {other} is "
                f"{shown(value)}; leave it out, or set that"
            )
    orders = [
        ("task.sample", isinstance(recipe.task, Deciding) and recipe.task.balanced),
        ("data.streaming", getattr(recipe.data, "streaming", False)),
    ]
    for key, random in (("train_sampling_strategy", "random"), ("data_seed", None)):
        for other, is_set in orders:
            if is_set and values.get(key) not in (None, random):
                raise RecipeError(
                    f"{recipe.where('training', key)}: {other} decides the order of the inputs; "
                    "leave one of them out"
                )


def check_schedule(recipe: Recipe, made: TrainingArguments, warmup: float) -> None:
    """Raise RecipeError for a key that schedule and optimizer do not read.

    Args:
        warmup: ldt's default of warmup_steps.
    """
    optim = OptimizerNames(made.optim).value
    if made.optim_target_modules is not None and not optim.startswith(("galore", "apollo")):
        raise RecipeError(
            f"{recipe.where('training', 'optim_target_modules')}: is for optimizers of GaLore and "
            f"APOLLO, as optim: galore_adamw; {optim} trains all weights"
        )
    name = SchedulerType(made.lr_scheduler_type).value
    idle = []
    if name in ("constant", "reduce_lr_on_plateau", "greedy"):
        idle += ["warmup_steps"] * (made.warmup_steps not in (0, warmup))
    if name in ("constant", "constant_with_warmup"):
        idle += ["lr_scheduler_kwargs"] * bool(made.lr_scheduler_kwargs)
    for key in idle:
        raise RecipeError(
            f"{recipe.where('training', key)}: lr_scheduler_type: {name} has no use for it; leave "
            "it out, or take another"
        )


def check_optimizer(recipe: Recipe, made: TrainingArguments, found: tuple, model: Any) -> None:
    """Raise RecipeError for a key that makes no difference to the optimizer.

    Args:
        found: its class and options.
        model: what it is of.
    """
    for key in ("adam_beta1", "adam_beta2", "adam_epsilon", "optim_args"):
        usual = TrainingArguments.__dataclass_fields__[key].default
        if getattr(made, key) == usual:
            continue
        without = copy(made)
        setattr(without, key, usual)
        if Trainer.get_optimizer_cls_and_kwargs(without, model) == found:
            raise RecipeError(
                f"{recipe.where('training', key)}: optim: {OptimizerNames(made.optim).value} has "
                "no use for it; leave it out"
            )
