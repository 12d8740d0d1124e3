"""Training of a LoRA adapter (Hu et al. 2021, arXiv:2106.09685) and the head, by peft."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from ldt.errors import RecipeError, did_you_mean, first_line
from ldt.model.adapters import usual_targets
from ldt.model.loading import find_folder, read_config
from ldt.recipe.recipe import RECIPE, Recipe
from ldt.recipe.sections import Lora

FOLDER = "adapter"  # of the adapter alone, in the run folder


def filled(recipe: Recipe, training: dict[str, Any]) -> dict[str, Any]:
    """Return ``training.lora`` completed by defaults: a dict of r, alpha, dropout and targets, the
    names of linear layers.

    Args:
        recipe: recipe, for its task, its model and messages.
        training: the training section, with ``lora``.

    Raises:
        RecipeError: peft is not installed, or this training cannot use adapters.
        ModelError: the model cannot be read.
    """
    where = recipe.where("training", "lora")
    if recipe.task.reads.kind != "examples":
        raise RecipeError(f"{where}: is for ldt finetune; {recipe.task.name} trains all weights")
    for key in ("fsdp", "deepspeed"):
        if training.get(key):
            raise RecipeError(f"{where}: does not go with training.{key}; leave one of them out")
    if not find_spec("peft"):
        raise RecipeError(f"{where}: needs peft: pip install 'ldt-toolkit[lora]'")
    values = Lora.model_validate(training["lora"]).model_dump()
    if not values["targets"]:
        values["targets"] = usual_targets(read_config(find_folder(recipe.model.path)))
    return values


def adapt(model: PreTrainedModel, recipe: Recipe, lora: dict[str, Any], new: Sequence[int]) -> Any:
    """Wrap a model, which is changed, into a peft model that trains the adapter, the head and the
    embeddings of new tokens.

    Args:
        model: model to change.
        recipe: recipe; ``model.path`` is the base named by the adapter.
        lora: output of `filled`.
        new: ids of tokens that the base lacks.

    Raises:
        RecipeError: a target is not a linear layer of the encoder.
    """
    import peft  # takes a second

    where = recipe.where("training", "lora")
    _check_targets(model, lora["targets"], where)
    config = peft.LoraConfig(
        r=lora["r"],
        lora_alpha=lora["alpha"],
        lora_dropout=lora["dropout"],
        target_modules=lora["targets"],
        modules_to_save=head_modules(model),  # in them peft adapts nothing
        trainable_token_indices={_words(model): list(new)} if new else None,
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the library about transformers' newer names
            adapted = peft.get_peft_model(model, config)
    except ValueError as error:
        raise RecipeError(f"{where}: {first_line(error)}") from error
    base = Path(recipe.model.path).expanduser()
    name = str(base.resolve()) if base.is_dir() else recipe.model.path
    adapted.peft_config["default"].base_model_name_or_path = name
    return adapted


def _words(model: PreTrainedModel) -> str:
    words = model.get_input_embeddings()
    names = (name for name, module in model.named_modules() if module is words)
    return next(names).rpartition(".")[2]


def head_modules(model: PreTrainedModel) -> list[str]:
    """Names of the head's modules: the model's direct children outside the encoder that have
    weights of their own, and the encoder's pooler, if any."""
    encoder = model.base_model
    tied = {id(weight) for weight in encoder.parameters()}
    names = [
        name
        for name, child in model.named_children()
        if child is not encoder and any(id(weight) not in tied for weight in child.parameters())
    ]
    if getattr(encoder, "pooler", None) is not None:
        names.append(f"{model.base_model_prefix}.pooler")
    return names


def _check_targets(model: PreTrainedModel, targets: str | list[str], where: str) -> None:
    from torch import nn

    if isinstance(targets, str):
        return
    layers = [name for name, x in model.base_model.named_modules() if isinstance(x, nn.Linear)]
    for target in targets:
        if not any(f".{name}".endswith(f".{target}") for name in layers):
            known = sorted({name.rpartition(".")[2] for name in layers})
            near = did_you_mean(target, known) or f", expected some of {', '.join(known)}"
            raise RecipeError(f"{where}: targets: the encoder has no layer {target!r}{near}")


def is_adapted(model: Any) -> bool:
    """True for a model from `adapt`, by its attribute ``peft_config``."""
    return hasattr(model, "peft_config")


def save(model: Any, folder: Path) -> None:
    """Write the adapter of a model from `adapt` into a folder, with the head and the base model's
    config."""
    base = model.get_base_model()
    # Never whole embeddings, which peft would look for a reason for on the hub.
    model.save_pretrained(folder, save_embedding_layers=False)
    (folder / "README.md").unlink(missing_ok=True)  # with gaps for a person to fill
    base.config.architectures = [type(base).__name__]
    base.config.save_pretrained(folder)
    if base.can_generate():
        base.generation_config.save_pretrained(folder)


def merge(run: Path, folder: Path, tokenizer: Any, head: type[PreTrainedModel]) -> None:
    """Write the merged model, in float32, into ``folder``, from the adapter saved there.

    Args:
        run: run folder, whose recipe is copied to the adapter so that it can be used alone.
        folder: folder with the adapter in its subfolder `FOLDER`.
        tokenizer: tokenizer of the model, saved beside the adapter alone.
        head: class of the model.
    """
    adapter = folder / FOLDER
    tokenizer.save_pretrained(adapter)
    shutil.copyfile(run / RECIPE, adapter / RECIPE)
    head.from_pretrained(adapter, dtype="float32").save_pretrained(folder)
