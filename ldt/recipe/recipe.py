"""A recipe: one YAML file that describes one run by four keys: task, model, data, training.

`load` reads it, with overrides from the command line, and lists all that is wrong at once.
How values are read (``3e-5`` is a number, ``no`` and ``007`` are text) is in `ldt.recipe.yaml`.
"""

import glob
import json
import os
import typing
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError

from ldt.data.options import CorpusSection, DataSection
from ldt.errors import UserError, did_you_mean
from ldt.recipe import model as sections
from ldt.recipe import yaml
from ldt.recipe.model import ModelSection
from ldt.recipe.problems import Place, Problems, explain, shown, word

SECTIONS = ("task", "model", "data", "training")


@dataclass
class Recipe:
    """One run.

    Args:
        task: a task of `ldt.tasks.TASKS`, with its fields.
        model, data: the sections (`ldt.recipe.model`) of the command that runs the task.
        training: keys of `transformers.TrainingArguments`, word for word, and ldt's own ones
            (`OWN_TRAINING_KEYS`).
        path: the file it came from.
        places: where each value was written, for messages.
    """

    task: Any
    model: ModelSection = field(default_factory=ModelSection)
    data: DataSection | CorpusSection = field(default_factory=DataSection)
    training: dict[str, Any] = field(default_factory=dict)
    path: Path | None = field(default=None, compare=False)
    places: dict[tuple, Place] = field(default_factory=dict, compare=False, repr=False)

    def where(self, *keys: str) -> str:
        """The beginning of a message about a key: ``recipes/x.yaml:12: data: train``."""
        return Problems(self.places).place(keys).say(keys)


# What a command cannot do without, beside the task's name.
NEEDS = {
    "finetune": {
        ("model", "path"): "a folder or the hub id of a model",
        ("data", "train"): "a file of training examples",
    },
    "pretrain": {("data", "train"): "files, folders or patterns of text"},
}

# Keys that hold paths.
FILES = {"model": ("path", "tokenizer"), "data": ("train", "eval", "test", "evidence", "cache")}

OWN_TRAINING_KEYS = {
    "early_stopping_patience": Annotated[int, Field(ge=1)] | None,
    "early_stopping_threshold": Annotated[float, Field(ge=0)],
}

# Further values than the annotations of TrainingArguments have.
WIDER_TYPES = {
    "bf16": bool | Literal["auto"],  # see `ldt.training.arguments`
    "fsdp": bool | str | None,  # true is what its documentation says
}


def load(path: str | Path, overrides: Iterable[str] = (), command: str | None = None) -> Recipe:
    """Read a recipe.

    Args:
        path: the YAML file. Relative paths in it (``data.train``, ``data.eval``, ``model.path``)
            are taken from the current directory, else from beside the recipe if they exist there;
            ``~`` is expanded, environment variables are not.
        overrides: ``key=value`` with a dotted key (``training.learning_rate=2e-5``); the value is
            read by the rules of the file and replaces what the file says.
        command: a name of `NEEDS`, whose keys must then be present and whose training section is
            checked, which imports transformers. None leaves both unchecked.

    Raises:
        UserError: there is no such file.
        RecipeError: all that is wrong, one problem a line, each with its place.
    """
    path = Path(path)
    tree = yaml.parse(_read(path))
    places = {keys: Place(f"{path}:{line}", 0, line) for keys, line in tree.lines.items()}
    places[()] = Place(str(path))
    problems = Problems(places)
    for keys, line, what in tree.problems:
        problems.add(keys, what, Place(f"{path}:{line}", 0, line) if line else Place(str(path)))
    if not tree.complete:
        problems.stop()
    root = tree.value
    if not isinstance(root, dict):
        found = "an empty file" if root is None else shown(root)
        problems.add((), f"expected the keys {', '.join(SECTIONS)}, got {found}")
        problems.stop()
    _override(root, overrides, problems)
    recipe = _validate(root, problems)
    recipe.path, recipe.places = path, places
    _check_fields(recipe, problems)
    if command is not None:
        if _command(recipe.task) != command and problems.clean(("task", "name")):
            what = f"{recipe.task.name} is trained by ldt {_command(recipe.task)}"
            problems.add(("task", "name"), what)
            problems.stop()
        for (section, key), what in NEEDS[command].items():
            if problems.clean((section, key)) and (root.get(section) or {}).get(key) is None:
                problems.add((section, key), f"missing, {what}")
        _check_training(recipe.training, problems)
    problems.stop()
    for section, keys in FILES.items():
        values = getattr(recipe, section)
        for key in keys:
            name = getattr(values, key, None)
            if isinstance(name, list):
                setattr(values, key, [_found(each, path.parent) for each in name])
            elif isinstance(name, str):
                setattr(values, key, _found(name, path.parent))
    if isinstance(recipe.training.get("output_dir"), str):
        recipe.training["output_dir"] = os.path.expanduser(recipe.training["output_dir"])
    return recipe


def dump(recipe: Recipe) -> str:
    """YAML with every key of the recipe, defaults too; `load` of it gives an equal recipe."""
    parts = (recipe.task, recipe.model, recipe.data)
    values = [section.model_dump(mode="json") for section in parts]
    return yaml.dump(dict(zip(SECTIONS, [*values, recipe.training], strict=True)))


def check_training(training: dict[str, Any], places: dict[tuple, Place] | None = None) -> None:
    """Compare keys and types with `transformers.TrainingArguments` and `OWN_TRAINING_KEYS`.

    Args:
        training: the section.
        places: those of the recipe.

    Raises:
        RecipeError: all that is wrong, one problem a line.
    """
    problems = Problems(places or {})
    _check_training(training, problems)
    problems.stop()


def _read(path):
    try:
        with open(path, "rb") as file:
            return file.read(yaml.MAX_BYTES + 1)
    except OSError as error:
        near = ""
        with suppress(OSError):
            near = did_you_mean(path.name, [file.name for file in path.parent.iterdir()])
        raise UserError(f"{path}: {error.strerror}{near}") from None


def _override(root, overrides, problems):
    """Put the overrides into the root, and their places into the places."""
    for number, text in enumerate(overrides):
        key, equals, written = text.partition("=")
        keys = tuple(key.strip().split("."))
        place = Place(word(text), len(keys), yaml.MAX_BYTES + number)  # after the file's lines
        if not equals or not all(keys):
            problems.add(keys, "expected key=value, as in training.seed=1", place)
            continue
        tree = yaml.parse(written)
        for below, _, what in tree.problems:
            problems.add((*keys, *below), what, place)
        inside = root
        for step in keys[:-1]:
            if inside.get(step) is None:
                inside[step] = {}
            if not isinstance(inside[step], dict):
                problems.add(keys, f"{step} is {shown(inside[step])} and has no keys", place)
                break
            inside = inside[step]
        else:
            inside[keys[-1]] = tree.value
        for old in [old for old in problems.places if old[: len(keys)] == keys]:
            del problems.places[old]
        problems.places[keys] = place


def _validate(root, problems):
    """A recipe of what is valid, defaults for what is not; problems are added."""
    values = {}
    for key, value in root.items():
        if key not in SECTIONS:
            problems.add((key,), f"unknown key{_meant(key, None, root)}")
        elif value is not None and not isinstance(value, dict):
            problems.add((key,), f"expected keys and values, got {shown(value)}")
        else:
            values[key] = value or {}
    model, data = sections.of(_task_class(root))
    return Recipe(
        task=_validate_task(values.get("task", {}), root, problems),
        model=_section(model, values, "model", root, problems) or model(),
        data=_section(data, values, "data", root, problems) or data(),
        training=values.get("training", {}),
    )


def _validate_task(values, root, problems):
    from ldt.tasks import TASKS

    cls = _task_class(root)
    if cls is not None:
        return _section(cls, {"task": values}, "task", root, problems)
    if problems.clean(("task", "name")):
        names = ", ".join(TASKS)
        name = values.get("name")
        near = did_you_mean(str(name), TASKS) or f", expected one of {names}"
        what = f"missing, one of {names}" if name is None else f"unknown task {shown(name)}{near}"
        problems.add(("task", "name"), what)
    return None


def _command(task):
    """The command that trains a task; that of an unknown one does not matter."""
    return getattr(task, "command", "finetune")


def _check_fields(recipe, problems):
    """data.fields renames what the task reads."""
    own = getattr(recipe.task, "fields", ())
    for name in getattr(recipe.data, "fields", ()):
        if recipe.task is not None and name not in own:
            near = did_you_mean(name, own) or f"; {recipe.task.name} has {', '.join(own) or 'none'}"
            problems.add(("data", "fields", name), f"no such field of the task{near}")


def _section(cls, values, section, root, problems):
    """An instance of the section's class, or None with problems added."""
    value = values.get(section, {})
    try:
        return cls.model_validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        for keys, what in explain(error, value):
            if what is None:
                what = f"unknown key{_meant(keys[0], section, root) if len(keys) == 1 else ''}"
            if problems.clean((section, *keys)):
                problems.add((section, *keys), what)
        return None


def _meant(key, section, root):
    """``, did you mean 'data.max_length'?`` for an unknown key, or what would do."""
    task = _task_class(root)
    model, data = sections.of(task)
    fields = {
        "task": getattr(task, "model_fields", ()),
        "model": model.model_fields,
        "data": data.model_fields,
    }
    own = fields.pop(section, SECTIONS)
    dotted = {name: f"{other}.{name}" for other, names in fields.items() for name in names}
    if key not in dotted:
        near = did_you_mean(key, own)
        if near:
            return near
        dotted |= {name: f"training.{name}" for name in _training_types() if name not in dotted}
    return did_you_mean(key, dotted, dotted.get) or f", expected one of {', '.join(own)}"


def _task_class(root):
    from ldt.tasks import TASKS

    values = root.get("task")
    name = values.get("name") if isinstance(values, dict) else None
    return TASKS.get(name) if isinstance(name, str) else None


def _found(name, folder):
    """The path as the current directory has it, else beside the recipe if it is there."""
    if name == "-" or name.startswith("hf:"):
        return name
    name = os.path.expanduser(name)
    beside = os.path.join(folder, name)
    return beside if not _exists(name) and _exists(beside) else name


def _exists(name):
    """Whether a path or pattern names something."""
    return os.path.exists(name) or any(True for _ in glob.iglob(name, recursive=True))


def _training_types():
    """The type of every training key; of ``Enum | str``, the Enum."""
    from dataclasses import fields

    from transformers import TrainingArguments

    hints = typing.get_type_hints(TrainingArguments)
    types = {item.name: hints[item.name] for item in fields(TrainingArguments) if item.init}
    for name, hint in types.items():
        branches = typing.get_args(hint)
        if any(isinstance(branch, type) and issubclass(branch, Enum) for branch in branches):
            types[name] = typing.Union[tuple(b for b in branches if b is not str)]  # noqa: UP007
    return types | WIDER_TYPES | OWN_TRAINING_KEYS


def _check_training(training, problems):
    if not training:
        return
    types = _training_types()
    for key, value in training.items():
        if key not in types:
            problems.add(("training", key), f"unknown key{did_you_mean(key, types)}")
            continue
        try:
            adapter = TypeAdapter(types[key])
        except PydanticSchemaGenerationError:
            continue  # a type that only transformers can check
        try:
            adapter.validate_json(json.dumps(value), strict=True)
        except ValidationError as error:
            for keys, what in explain(error, value):
                if problems.clean(("training", key, *keys)):
                    problems.add(("training", key, *keys), what)
