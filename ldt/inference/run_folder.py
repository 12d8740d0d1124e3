"""The folder of a fine-tuned model: found, and read as far as it can be before it is loaded."""

import hashlib
import json
import logging
import os
import re
from pathlib import Path

from ldt.errors import ModelError, UserError
from ldt.inference import PREDICTORS
from ldt.inference.runtimes import FORMATS, RUNTIMES, Runtime
from ldt.recipe import recipe as recipes
from ldt.recipe.recipe import RECIPE, Recipe

log = logging.getLogger("ldt")

LATEST = "runs/latest"
_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w.-]+")
_WEIGHTS = ("model*.safetensors", "pytorch_model*.bin", "adapter_model.*")
_DECISIVE = (
    "config.json",
    "generation_config.json",
    "adapter_config.json",
    "tokenizer*",
    "vocab*",
    "*.safetensors",
    "*.bin",
    *(file for format in FORMATS.values() for file in format.files),
)  # for the answers


def find_model(model: str | None) -> Path:
    """The folder of a fine-tuned model; None is the newest run of the current directory.

    Raises:
        ModelError: there is no such folder.
        UserError: it is a file.
    """
    folder = Path(model or LATEST).expanduser()
    if folder.is_file():
        what = ", such as a recipe" if folder.suffix in (".yaml", ".yml") else ""
        raise UserError(
            f"--model {folder}: a file{what}; --model takes the folder of a finished run, which "
            f"ldt finetune {'FILE' if what else 'RECIPE'} makes"
        )
    if model and _HUB_NAME.fullmatch(model) and not folder.parent.is_dir():
        raise ModelError(
            f"{model}: no such folder; a model of the hub has no answers unless it was fine-tuned "
            f"by ldt, then hf download {model} --local-dir FOLDER fetches it"
        )
    if not folder.is_dir():
        other = "--model FOLDER names another" if model is None else "--model takes its folder"
        raise ModelError(f"{folder}: no model there; ldt finetune RECIPE makes one, {other}")
    if model is None:
        log.info("model: %s -> %s", folder, os.path.relpath(os.path.realpath(folder)))
    return folder


def read_recipe(folder: Path, runtime: Runtime = "torch") -> Recipe:
    """The recipe that the model in ``folder`` was trained by; a checkpoint has that of its run.

    Args:
        runtime: what the model is to be run by.

    Raises:
        ModelError: there is no recipe, so the model is not fine-tuned, or no weights, or models
            of its task have no answers.
    """
    file = folder / RECIPE
    if not file.is_file() and folder.name.startswith("checkpoint-"):
        file = folder.parent / RECIPE
    if not file.is_file():
        raise ModelError(
            f"{folder}: no {RECIPE}, so this is not a fine-tuned model and has no answers; "
            f"ldt finetune RECIPE model.path={folder} trains it"
        )
    _check_weights(folder, runtime, file)
    recipe = recipes.load(file, search=False)
    if recipe.task.kind not in PREDICTORS:
        raise ModelError(
            f"{folder}: {recipe.task.name} has no answers; ldt finetune RECIPE "
            f"model.path={folder} trains a model that has"
        )
    return recipe


def _check_weights(folder: Path, runtime: Runtime, recipe: Path) -> None:
    """Refuse a folder without the weights that ``runtime`` runs."""
    asked = RUNTIMES.get(runtime)
    patterns = (asked.file,) if asked else _WEIGHTS
    if any(any(folder.glob(pattern)) for pattern in patterns):
        return
    for format in FORMATS.values():
        if (folder / format.file).is_file():
            raise ModelError(f"{folder}: an exported model; --runtime {format.runtime} runs it")
    if asked:
        raise ModelError(
            f"{folder}: no {asked.file}; ldt export {folder} TARGET --format {asked.name} makes a "
            "folder that has it"
        )
    raise ModelError(
        f"{folder}: no weights, this run is not finished; ldt finetune {recipe} --resume goes on "
        "with it"
    )


def classes_of(folder: Path) -> list[str] | None:
    """The classes in a model's config.json; None where they cannot be read, which loading tells."""
    try:
        labels = json.loads((folder / "config.json").read_bytes())["id2label"]
        return list(map(str, labels.values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def fingerprint(folder: Path, recipe: Recipe) -> str:
    """A hash of the files that decide what the model answers."""
    files = {file for pattern in _DECISIVE for file in folder.glob(pattern) if file.is_file()}
    total = hashlib.sha256()
    written = [] if recipe.path is None else [recipe.path]
    for file in [*written, *sorted(files)]:
        with open(file, "rb") as data:
            total.update(hashlib.file_digest(data, "sha256").digest())
    return total.hexdigest()
