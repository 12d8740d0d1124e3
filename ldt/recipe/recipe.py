"""A recipe: one YAML file that describes one run by four keys: task, model, data, training.

`load` reads it, with overrides from the command line, and lists all that is wrong at once.
How values are read (``3e-5`` is a number, ``no`` and ``007`` are text) is in `ldt.recipe.yaml`.
"""

import glob
import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from ldt.data.formats import FORMATS, unread
from ldt.data.options import OPTIONS, DataOptions, DataSection, Section
from ldt.errors import UserError, did_you_mean, listed
from ldt.io.records import suffix
from ldt.io.sources import is_remote
from ldt.recipe import yaml
from ldt.recipe.habits import meant
from ldt.recipe.model import MODELS, ModelSection
from ldt.recipe.packaged import fit_evaluation, located, shipped
from ldt.recipe.problems import Place, Problems, explain, shown, word
from ldt.recipe.training import REFUSED, training_section

log = logging.getLogger("ldt")

RECIPE = "recipe.yaml"  # the resolved recipe in a run folder
SECTIONS = ("task", "model", "data", "training")

_PUNCTUATION = re.compile(r"\s*[|,;:/&+*#%<>=-]+\s*")

_Section = TypeVar("_Section", bound=Section)


@dataclass(frozen=True)
class Recipe:
    """One run; not changed once loaded.

    Args:
        task: a task of `ldt.tasks.TASKS`, with its fields.
        model: the section of the task's kind, a class of `ldt.recipe.model.MODELS`.
        data: the same of `ldt.data.options.OPTIONS`.
        training: keys of `transformers.TrainingArguments`, word for word, and ldt's own ones
            (`ldt.recipe.training.OWN_TRAINING_KEYS`).
        path: the file it came from.
        places: where each value was written, for messages.
    """

    task: Any
    model: Any = field(default_factory=ModelSection)
    data: Any = field(default_factory=DataSection)  # type: ignore[arg-type]  # has all defaults
    training: dict[str, Any] = field(default_factory=dict)
    path: Path | None = field(default=None, compare=False)
    places: dict[tuple, Place] = field(default_factory=dict, compare=False, repr=False)

    def where(self, *keys: str | int) -> str:
        """The beginning of a message about a key: ``recipes/x.yaml:12: data: train``."""
        return Problems(self.places).place(keys).say(keys)


# The command that trains a task, by its kind.
COMMANDS = {"examples": "finetune", "corpus": "pretrain", "characters": "pretrain"}
ITS_OWN = "its own"  # the command that trains the task of a recipe, for `load`

# Keys that a command needs beside the task's name.
NEEDS = {
    "finetune": {
        ("model", "path"): "a folder or the hub id of a model",
        ("data", "train"): "a file of training examples",
    },
    "pretrain": {("data", "train"): "files, folders or patterns of text"},
}

# Keys of the data section that say how documents without right answers are read.
READING = ("format", "text", "text_files", "fields", "id", "encoding", "evidence")

# Keys that hold paths.
_DATA = ("csv", "tsv", "jsonl", "parquet", "txt", "xlsx", "docx", "pdf")  # endings, lower case
FILES = {"model": ("path", "tokenizer"), "data": ("train", "eval", "test", "evidence", "cache")}


def load(
    path: str | Path,
    overrides: Iterable[str] = (),
    command: str | None = None,
    *,
    search: bool = True,
) -> Recipe:
    """Read a recipe.

    Args:
        path: the YAML file, or the name of a recipe that comes with ldt (`shipped`), where there is
            no such file. Relative paths in it (``data.train``, ``data.eval``, ``model.path``) are
            taken from the current directory, else from beside the recipe if they exist there;
            ``~`` is expanded, environment variables are not.
        overrides: ``key=value`` with a dotted key (``training.learning_rate=2e-5``); the value is
            read by the rules of the file and replaces what the file says.
        command: a name of `NEEDS`, whose keys must then be present and whose training section and
            ``model.config`` are checked, which imports transformers; `ITS_OWN` is that which
            trains the task. None leaves them unchecked.
        search: whether patterns are looked for beside the recipe too. Who reads no training data
            need not wait until a pattern has been through a disk.

    Raises:
        UserError: there is no such file.
        RecipeError: all that is wrong, one problem a line, each with its place.
    """
    written, path, overrides = Path(path), located(Path(path)), list(overrides)
    if path != written:
        log.info("%s: the recipe %s", written, path)
    tree = yaml.parse(_read(path))
    places = {keys: Place(f"{path}:{line}", 0, line) for keys, line in tree.lines.items()}
    places[()] = Place(str(path))
    problems = Problems(places)
    for keys, line, what in tree.problems:
        problems.add(keys, what, Place(f"{path}:{line}", 0, line) if line else Place(str(path)))
    # Without syntax or sections there is nothing more to say; all else is collected first.
    if not tree.complete:
        problems.stop()
    root = tree.value
    if not isinstance(root, dict):
        got = "an empty file" if root is None else shown(root)
        problems.add((), f"expected the keys {', '.join(SECTIONS)}, got {got}")
        problems.stop()
    _override(root, overrides, problems)
    fit_evaluation(path, root, overrides)
    task, model, data, training = _validate(root, problems)
    _check_data(data, task, problems)
    if command == ITS_OWN:
        command = task and COMMANDS[task.reads.kind]
    if command is not None:
        _check_command(root, task, command, problems)
        _check_model(root, problems)
        _check_training(training, problems)
    problems.stop()
    model, data = _with_paths(model, "model", path), _with_paths(data, "data", path, search)
    if isinstance(training.get("output_dir"), str):
        training = training | {"output_dir": os.path.expanduser(training["output_dir"])}
    return Recipe(task, model, data, training, path, places)


def of_keys(task: dict[str, Any], overrides: Iterable[str], label: str) -> Recipe:
    """A recipe without a file: the keys of a task, and overrides as of `load`.

    Args:
        label: what stands for the file in messages.

    Raises:
        RecipeError: all that is wrong, one problem a line.
    """
    root: dict[str, Any] = {"task": task}
    problems = Problems({(): Place(label)})
    _override(root, overrides, problems)
    found, model, data, training = _validate(root, problems)
    _check_data(data, found, problems)
    problems.stop()
    return Recipe(found, model, data, training, places=problems.places)


def values_of(overrides: Iterable[str], known: Sequence[str]) -> tuple[dict[str, Any], Problems]:
    """Values of ``key=value`` arguments without a recipe, as of `load`, and their places.

    Args:
        known: dotted keys that may be given, each with all below it.

    Raises:
        RecipeError: all that is wrong, one problem a line.
    """
    root: dict[str, Any] = {}
    problems = Problems({})
    _override(root, overrides, problems)
    for keys in list(problems.places):
        key = ".".join(keys)
        if not any(f"{key}.".startswith(f"{name}.") for name in known):
            dotted = {name.partition(".")[2]: name for name in known}
            near = did_you_mean(keys[-1], dotted, dotted.__getitem__)
            expected = f", expected one of {listed(known, show=str)}"
            problems.add(keys, f"not read here{near or expected}")
    problems.stop()
    return root, problems


def reading(overrides: Iterable[str], names: Sequence[str] = READING) -> DataSection:
    """The data section that ``data.text=body`` and the like make, without a recipe.

    Args:
        overrides: ``key=value`` as of `load`; what none of them names is not in the section's
            ``model_fields_set``.
        names: keys of the section that may be given, each with all below it.

    Raises:
        RecipeError: all that is wrong, one problem a line.
    """
    root, problems = values_of(overrides, [f"data.{name}" for name in names])
    data = _section(DataSection, root.get("data", {}), "data", root, problems)
    _check_data(data, None, problems)
    problems.stop()
    return data


def dump(recipe: Recipe) -> str:
    """YAML with every key of the recipe, defaults too; `load` of it gives an equal recipe."""
    parts = (recipe.task, recipe.model, recipe.data)
    values = [section.model_dump(mode="json") for section in parts]
    return yaml.dump(dict(zip(SECTIONS, [*values, recipe.training], strict=True)))


def check_training(training: dict[str, Any], places: dict[tuple, Place] | None = None) -> None:
    """Compare keys and types with `training_section`, which imports transformers.

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
    if path.is_dir():
        inside = path / RECIPE
        found = f"{inside} is the one of this run" if inside.is_file() else "ldt recipes lists some"
        raise UserError(f"{path}: a folder; a recipe is a YAML file, {found}")
    if path.is_file() and suffix(path.name) in _DATA:
        raise UserError(
            f"{path}: a file of data; a recipe is a YAML file that names it as data.train, "
            "ldt init writes one"
        )
    try:
        with open(path, "rb") as file:
            return file.read(yaml.MAX_BYTES + 1)
    except OSError as error:
        names = list(shipped())
        with suppress(OSError):
            names += [file.name for file in path.parent.iterdir() if file.is_file()]
        raise UserError(f"{path}: {error.strerror}{did_you_mean(path.name, names)}") from None


def _override(root, overrides, problems):
    """Put the overrides into the root, and their places into the places."""
    for number, text in enumerate(overrides):
        key, equals, written = text.partition("=")
        keys = tuple(key.strip().split("."))
        place = Place(word(text), len(keys), yaml.MAX_BYTES + number)  # after the file's lines
        if not equals or not all(keys):
            problems.add(keys, "expected key=value, as in training.seed=1", place)
            continue
        # Punctuation alone is text, as in data.label_separator=| where YAML has marks of its own.
        tree = yaml.Tree(written) if _PUNCTUATION.fullmatch(written) else yaml.parse(written)
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


def _validate(
    root: dict, problems: Problems
) -> tuple[Any, ModelSection, DataOptions, dict[str, Any]]:
    """The four sections: what is valid, defaults for what is not; problems are added."""
    values = {}
    for key, value in root.items():
        if key not in SECTIONS:
            problems.add((key,), f"unknown key{_meant(key, None, root)}")
        elif value is not None and not isinstance(value, dict):
            problems.add((key,), f"expected keys and values, got {shown(value)}")
        else:
            values[key] = value or {}
    model, data = _sections(root)
    unknown = _task_class(root) is None and "name" in values.get("task", {})

    def valid(cls, section):
        if unknown:
            return None  # what its sections may hold is not known either
        return _section(cls, values.get(section, {}), section, root, problems)

    return (
        _task(values.get("task", {}), root, problems),
        valid(model, "model") or model(),
        valid(data, "data") or data(),
        values.get("training", {}),
    )


def _task(values, root, problems):
    """The task, or None with problems added."""
    from ldt.tasks import TASKS

    cls = _task_class(root)
    if cls is not None:
        return _section(cls, values, "task", root, problems)
    if problems.clean(("task", "name")):
        names = ", ".join(TASKS)
        name = values.get("name")
        near = did_you_mean(str(name), TASKS) or f", expected one of {names}"
        what = f"missing, one of {names}" if name is None else f"unknown task {shown(name)}{near}"
        problems.add(("task", "name"), what)
    return None


def _check_data(data, task, problems):
    """Check names of other modules: those of formats, and of the fields that a task reads."""
    if not isinstance(data, DataSection):
        return
    if data.format is not None and data.format not in FORMATS:
        near = did_you_mean(data.format, FORMATS)
        what = f"expected one of {', '.join(FORMATS)}, got {data.format!r}{near}"
        problems.add(("data", "format"), what)
    named = {key for key, value in data if value != type(data).model_fields[key].default}
    why = unread(data.format) if problems.clean(("data", "format")) else {}
    if task is not None:
        keys = "label", "label_separator"
        if unlabelled := {*keys} - set(task.reads.label_keys):
            why |= dict.fromkeys(unlabelled, f"{task.name} has no labels of this kind")
        if not (data.text_files or task.reads.files):
            why["evidence"] = "data.text_files names no field of names of files"
    for key in sorted(named & why.keys()):
        problems.add(("data", key), f"not read, {why[key]}; leave it out")
    if task is not None and data.overflow not in task.inputs.overflows:
        names = " or ".join(task.inputs.overflows)
        given = "" if "overflow" in data.model_fields_set else ", the default"
        what = f"{task.name} has one input a document: expected {names}, got {data.overflow}{given}"
        problems.add(("data", "overflow"), what)
    for name in data.fields:
        if task is not None and name not in task.reads.fields:
            names = ", ".join(task.reads.fields) or "none"
            near = did_you_mean(name, task.reads.fields) or f"; {task.name} has {names}"
            problems.add(("data", "fields", name), f"no such field of the task{near}")


def _check_command(root, task, command, problems):
    """Check that a command trains this task, and has the keys that it needs."""
    trained_by = command if task is None else COMMANDS[task.reads.kind]
    if trained_by != command:
        problems.add(("task", "name"), f"{task.name} is trained by ldt {trained_by}")
        problems.stop()  # what another command needs is beside the point
    for (section, key), what in NEEDS[command].items():
        if problems.clean((section, key)) and (root.get(section) or {}).get(key) is None:
            problems.add((section, key), f"missing, {what}")


def backends(task: Any) -> tuple[str, ...]:
    """Names that ``model.attention`` of a class of tasks takes; imports torch."""
    from ldt.tasks.base import config_fields

    fields = config_fields(task.model_construct())
    return get_args(fields.model_fields["attention_backend"].annotation)


def _check_model(root, problems):
    """Check the name of the backend, and ``model.config`` by the fields of the task's config."""
    task, values = _task_class(root), root.get("model")
    if task is None or not isinstance(values, dict):
        return
    backend, config = values.get("attention"), values.get("config")
    if isinstance(backend, str) and backend != "auto":
        names = backends(task)
        if backend not in names:
            what = f"expected one of {', '.join(names)}, got {shown(backend)}"
            problems.add(("model", "attention"), what)
    if isinstance(config, dict) and "config" in MODELS[task.reads.kind].model_fields:
        from ldt.tasks.base import config_fields, model_types

        made, where = task.model_construct(), ("model", "config")
        chosen, kind = dict(config), None
        if names := model_types(made):
            kind = chosen.pop("model_type", None)
            if kind not in (None, *names):
                what = f"expected one of {', '.join(names)}, got {shown(kind)}"
                problems.add((*where, "model_type"), what)
                return
        _by_name(config_fields(made, kind), chosen, where, problems)


def _check_training(training, problems):
    for key in filter(REFUSED.get, training):
        problems.add(("training", key), REFUSED[key])
    if training:
        _by_name(training_section(), training, ("training",), problems)


def _by_name(cls, value, section, problems):
    """Check keys and values that have no other place in the recipe."""
    _instance(cls, value, section, problems, lambda key: meant(key, section[0], cls.model_fields))


def _section(cls, value, section, root, problems):
    """An instance of the section's class, or None with problems added."""
    return _instance(cls, value, (section,), problems, lambda key: _meant(key, section, root))


def _instance(
    cls: type[BaseModel], value: dict, section: tuple, problems: Problems, meant: Callable
) -> Any:
    """An instance of the class, or None with problems added; `meant` ends that of unknown keys."""
    try:
        return cls.model_validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        for keys, what in explain(error, value):
            if what is None:
                names = _inside(cls, keys[:-1])
                near = did_you_mean(str(keys[-1]), names) or f", expected {', '.join(names)}"
                what = f"unknown key{meant(keys[0]) if len(keys) == 1 else near}"
            if problems.clean((*section, *keys)):
                problems.add((*section, *keys), what)
        return None


def _inside(cls, keys):
    """Names of the keys of the section that stands at these keys of one."""
    for key in keys:
        if key in cls.model_fields:  # else it is the place in a list of sections
            hint = cls.model_fields[key].annotation
            hints = (hint, *get_args(hint))
            cls = next(h for h in hints if isinstance(h, type) and issubclass(h, BaseModel))
    return cls.model_fields


def _meant(key, section, root):
    """``, did you mean 'data.max_length'?`` for an unknown key, or the keys that there are."""
    model, data = _sections(root)
    fields = {
        "task": getattr(_task_class(root), "model_fields", ()),
        "model": model.model_fields,
        "data": data.model_fields,
    }
    own = fields.pop(section, SECTIONS)
    dotted = {name: f"{other}.{name}" for other, names in fields.items() for name in names}
    if key not in dotted:
        near = meant(key, section, own)
        if near:
            return near
        names = training_section().model_fields
        dotted |= {name: f"training.{name}" for name in names if name not in dotted}
    return did_you_mean(key, dotted, dotted.get) or f", expected one of {', '.join(own)}"


def _task_class(root):
    from ldt.tasks import TASKS

    values = root.get("task")
    name = values.get("name") if isinstance(values, dict) else None
    return TASKS.get(name) if isinstance(name, str) else None


def _sections(root):
    """Classes of the model and data sections; of an unknown task those of fine-tuning."""
    task = _task_class(root)
    kind = "examples" if task is None else task.reads.kind
    return MODELS[kind], OPTIONS[kind]


def _with_paths(section: _Section, name: str, path: Path, search: bool = True) -> _Section:
    """The section, with its paths as the current directory has them or the recipe's folder."""
    changed = {}
    for key in FILES[name]:
        value = getattr(section, key, None)
        if isinstance(value, list):
            changed[key] = [_path(each, path.parent, search) for each in value]
        elif isinstance(value, str):
            changed[key] = _path(value, path.parent, search)
    return section.model_copy(update=changed)


def _path(name, folder, search):
    """The path as the current directory has it, else beside the recipe if it is there."""
    if name == "-" or name.startswith("hf:") or is_remote(name):
        return name
    name = os.path.expanduser(name)
    beside = os.path.join(folder, name)
    return beside if not _exists(name, search) and _exists(beside, search) else name


def _exists(name, search):
    """True if a path names something, or where patterns are to be searched a pattern does."""
    return os.path.exists(name) or (search and any(glob.iglob(name, recursive=True)))
