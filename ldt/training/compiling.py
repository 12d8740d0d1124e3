"""`training.torch_compile`: each layer is compiled, and what is around the layers runs as it is.

A graph of the whole model, as accelerate makes one, keeps all padding in: it cannot know lengths.
"""

from __future__ import annotations

from torch import nn
from transformers import TrainingArguments

from ldt.errors import RecipeError
from ldt.model.layers import Encoder
from ldt.recipe.recipe import Recipe
from ldt.tasks.writing_task import WritingTask

_KEYS = ("torch_compile", "torch_compile_backend", "torch_compile_mode")  # each of them asks for it


def check_compile(recipe: Recipe) -> None:
    """Raise RecipeError where a training is to be compiled and its layers cannot be."""
    key = next((key for key in _KEYS if recipe.training.get(key)), None)
    if key is None:
        return
    where = recipe.where("training", key)
    if recipe.task.reads.kind == "characters":
        raise RecipeError(
            f"{where}: the relative positions of a character model are in no graph; leave it out"
        )
    if isinstance(recipe.task, WritingTask):
        raise RecipeError(
            f"{where}: the layers of an encoder-decoder are not compiled; leave it out"
        )
    for other in ("fsdp", "deepspeed"):
        if recipe.training.get(other):
            raise RecipeError(
                f"{where}: a compiled layer does not wait for the weights that training.{other} "
                "gathers; leave one of them out"
            )


def compile_layers(model: nn.Module, args: TrainingArguments) -> None:
    """Compile the layers of a model as ``args`` ask, which then ask accelerate for nothing."""
    if not args.torch_compile:
        return
    for module in model.modules():
        if isinstance(module, Encoder):
            module.compile_layers(backend=args.torch_compile_backend, mode=args.torch_compile_mode)
    args.torch_compile, args.torch_compile_backend, args.torch_compile_mode = False, None, None
