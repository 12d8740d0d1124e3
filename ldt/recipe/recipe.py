"""Recipe: one YAML file that describes one run by four keys: task, model, data, training.

`load` reads it, with overrides from the command line, and lists all that is wrong at once. How
values are read (``3e-5`` is a number, ``no`` and ``007`` are text) is in `ldt.recipe.yaml`.
"""

import glob
import json
import logging
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from ldt.benchmarks.formats import FORMATS, unread
from ldt.data.options import OPTIONS, DataOptions, DataSection, Section
from ldt.errors import UserError, did_you_mean, listed
from ldt.io.records import suffix
from ldt.io.sources import is_remote
from ldt.recipe import yaml
from ldt.recipe.problems import Place, Problems, explain, quote, word
from ldt.recipe.sections import MODELS, REFUSED, ModelSection, meant, training_section

log = logging.getLogger("ldt")

RECIPE = "recipe.yaml"  # the resolved recipe in a run folder
SECTIONS = ("task", "model", "data", "training")

SHARE = 0.1  # of the training data, to evaluate on where data.eval of a shipped recipe is not there
_PACKAGE = Path(__file__).parents[1]
_PUNCTUATION = re.compile(r"\s*[|,;:/&+*#%<>=-]+\s*")

_Section = TypeVar("_Section", bound=Section)


@dataclass(frozen=True)
class Recipe:
    """Checked content of a recipe; not changed once loaded.

    Args:
        task: a task of `ldt.tasks.TASKS`, with its fields.
        model: the section of the task's kind, a class of `ldt.recipe.sections.MODELS`.
        data: the data section of the task's kind, a class of `ldt.data.options.OPTIONS`.
        training: keys of `transformers.TrainingArguments`, word for word, and ldt's own ones
            (`ldt.recipe.sections.OWN_TRAINING_KEYS`).
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
        """Beginning of a message about a key: ``recipes/x.yaml:12: data: train``."""
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


def shipped() -> dict[str, Path]:
    """Find the recipes that come with ldt: {name, such as wikihop: file}, sorted by name.

    They lie in the package; of a checkout, which has a pyproject.toml, beside it. Beside an
    installed package a folder of that name is somebody else's.
    """
    checkout = (_PACKAGE.parent / "pyproject.toml").is_file()
    folder = (_PACKAGE.parent if checkout else _PACKAGE) / "recipes"
    return {file.stem: file for file in sorted(folder.glob("*.yaml"))}


def load(
    path: str | Path,
    overrides: Iterable[str] = (),
    command: str | None = None,
    *,
    search: bool = True,
) -> Recipe:
    """Read and check a recipe.

    Args:
        path: the YAML file, or the name of a recipe that comes with ldt (`shipped`), if there is no
            such file. Relative paths in it (``data.train``, ``data.eval``, ``model.path``) are
            taken from the current directory, else from beside the recipe if they exist there; ``~``
            is expanded, environment variables are not.
        overrides: ``key=value`` with a dotted key (``training.learning_rate=2e-5``); the value is
            read by the rules of the file and replaces the file's value.
        command: a name of `NEEDS`, whose keys must then be present and whose training section and
            ``model.config`` are checked, which imports transformers; `ITS_OWN` is that which trains
            the task. None leaves them unchecked.
        search: True to look for patterns beside the recipe too; False if no training data is read,
            so that nobody waits until a pattern has been through a disk.

    Raises:
        UserError: there is no such file, or it is a folder or a file of data.
        RecipeError: all that is wrong, one problem a line, each with its place.
    """
    written, path, overrides = Path(path), _located(Path(path)), list(overrides)
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
    if not isinstance(tree.value, dict):
        got = "an empty file" if tree.value is None else quote(tree.value)
        problems.add((), f"expected the keys {', '.join(SECTIONS)}, got {got}")
        problems.stop()
    reader = _Reader(tree.value, problems)
    reader.override(overrides)
    _fit_evaluation(path, tree.value, overrides)
    task, model, data, training = reader.sections()
    if command == ITS_OWN:
        command = task and COMMANDS[task.reads.kind]
    if command is not None:
        reader.check_command(task, command)
    problems.stop()
    model, data = _with_paths(model, "model", path), _with_paths(data, "data", path, search)
    if isinstance(training.get("output_dir"), str):
        training = training | {"output_dir": os.path.expanduser(training["output_dir"])}
    return Recipe(task, model, data, training, path, places)


def of_keys(task: dict[str, Any], overrides: Iterable[str], label: str) -> Recipe:
    """Make a recipe without a file, from a task and overrides.

    Args:
        task: the task section, such as {"name": "squad"}.
        overrides: ``key=value`` as of `load`.
        label: name that stands for the file in messages.

    Raises:
        RecipeError: all that is wrong, one problem a line.
    """
    reader = _Reader({"task": task}, Problems({(): Place(label)}))
    reader.override(overrides)
    sections = reader.sections()
    reader.problems.stop()
    return Recipe(*sections, places=reader.problems.places)


def values_of(overrides: Iterable[str], known: Sequence[str]) -> tuple[dict[str, Any], Problems]:
    """Read ``key=value`` arguments without a recipe, such as ``data.text=body``.

    Args:
        overrides: the arguments.
        known: dotted keys that may be given, each with all below it.

    Returns:
        The values as nested dicts, {"data": {"text": "body"}}, and a `Problems` without problems
            that knows their places.

    Raises:
        RecipeError: all that is wrong, one problem a line.
    """
    reader = _Reader({}, Problems({}))
    reader.override(overrides)
    problems = reader.problems
    for keys in list(problems.places):
        key = ".".join(keys)
        if not any(f"{key}.".startswith(f"{name}.") for name in known):
            dotted = {name.partition(".")[2]: name for name in known}
            near = did_you_mean(keys[-1], dotted, dotted.__getitem__)
            expected = f", expected one of {listed(known, show=str)}"
            problems.add(keys, f"not read here{near or expected}")
    problems.stop()
    return reader.root, problems


def reading(overrides: Iterable[str], names: Sequence[str] = READING) -> DataSection:
    """Make a data section from overrides such as ``data.text=body``, without a recipe.

    Args:
        overrides: ``key=value`` as of `load`; keys that none of them names are not in the section's
            ``model_fields_set``.
        names: keys that may be given, such as "text", each with all below it; by default those that
            say how documents are read.

    Raises:
        RecipeError: all that is wrong, one problem a line.
    """
    reader = _Reader(*values_of(overrides, [f"data.{name}" for name in names]))
    data = reader.section(DataSection, "data")
    reader.check_data(data, None)
    reader.problems.stop()
    return data


def dump(recipe: Recipe) -> str:
    """YAML text of every key of the recipe, defaults too; `load` of it gives an equal recipe."""
    parts = (recipe.task, recipe.model, recipe.data)
    values = [section.model_dump(mode="json") for section in parts]
    return yaml.dump(dict(zip(SECTIONS, [*values, recipe.training], strict=True)))


def check_training(training: dict[str, Any], places: dict[tuple, Place] | None = None) -> None:
    """Check keys and types of a training section against `training_section`; imports transformers.

    Args:
        training: the section.
        places: place of each key in the recipe.

    Raises:
        RecipeError: all that is wrong, one problem a line.
    """
    reader = _Reader({"training": training}, Problems(places or {}))
    reader.check_training()
    reader.problems.stop()


def backends(task: type[Any]) -> tuple[str, ...]:
    """Names that ``model.attention`` can have for ``task``, a class of tasks; imports torch."""
    from ldt.tasks.base import config_fields

    fields = config_fields(task.model_construct())
    return get_args(fields.model_fields["attention_backend"].annotation)


class _Reader:
    """Values as a person wrote them, read section by section; problems are collected."""

    def __init__(self, root: dict[str, Any], problems: Problems):
        self.root, self.problems = root, problems

    def override(self, overrides: Iterable[str]) -> None:
        """Replace values, and their places, by those of arguments."""
        problems = self.problems
        for number, text in enumerate(overrides):
            key, equals, written = text.partition("=")
            keys = tuple(key.strip().split("."))
            place = Place(word(text), len(keys), yaml.MAX_BYTES + number)  # after the file's lines
            if not equals or not all(keys):
                problems.add(keys, "expected key=value, as in training.seed=1", place)
                continue
            # Punctuation alone is text, as in data.label_separator=| where YAML has its own marks.
            plain = _PUNCTUATION.fullmatch(written)
            tree = yaml.Tree(written) if plain else yaml.parse(written)
            for below, _, what in tree.problems:
                problems.add((*keys, *below), what, place)
            inside = self.root
            for step in keys[:-1]:
                if inside.get(step) is None:
                    inside[step] = {}
                if not isinstance(inside[step], dict):
                    problems.add(keys, f"{step} is {quote(inside[step])} and has no keys", place)
                    break
                inside = inside[step]
            else:
                inside[keys[-1]] = tree.value
            for old in [old for old in problems.places if old[: len(keys)] == keys]:
                del problems.places[old]
            problems.places[keys] = place

    @property
    def task_class(self) -> Any:
        """Class of the named task; None if no or an unknown one is named."""
        from ldt.tasks import TASKS

        values = self.root.get("task")
        name = values.get("name") if isinstance(values, dict) else None
        return TASKS.get(name) if isinstance(name, str) else None

    @property
    def _kind(self) -> str:
        task = self.task_class
        return "examples" if task is None else task.reads.kind

    def sections(self) -> tuple[Any, ModelSection, DataOptions, dict[str, Any]]:
        """The four sections: what is valid, and defaults for what is not."""
        for key, value in self.root.items():
            if key not in SECTIONS:
                self.problems.add((key,), self._unknown((key,), SECTIONS))
            elif value is not None and not isinstance(value, dict):
                self.problems.add((key,), f"expected keys and values, got {quote(value)}")
        task = self._task()
        both: list[Any] = []
        for name, cls in (("model", MODELS[self._kind]), ("data", OPTIONS[self._kind])):
            # What the sections of an unknown task may hold is not known either.
            known = self.task_class is not None or "name" not in self._values("task")
            both.append((known and self.section(cls, name)) or cls())
        self.check_data(both[1], task)
        return task, both[0], both[1], self._values("training")

    def _values(self, section: str) -> dict[str, Any]:
        values = self.root.get(section)
        return values if isinstance(values, dict) else {}

    def _task(self) -> Any:
        from ldt.tasks import TASKS

        cls = self.task_class
        if cls is not None:
            return self.section(cls, "task")
        if self.problems.clean(("task", "name")):
            names, name = ", ".join(TASKS), self._values("task").get("name")
            near = did_you_mean(str(name), TASKS) or f", expected one of {names}"
            missing, unknown = f"missing, one of {names}", f"unknown task {quote(name)}{near}"
            self.problems.add(("task", "name"), missing if name is None else unknown)
        return None

    def section(self, cls: type[BaseModel], name: str) -> Any:
        """An instance of the section's class, or None with problems added."""
        return self._instance(cls, self._values(name), (name,))

    def _instance(self, cls: type[BaseModel], value: dict, section: tuple) -> Any:
        try:
            return cls.model_validate_json(json.dumps(value), strict=True)
        except ValidationError as error:
            for keys, what in explain(error, value):
                place = (*section, *keys)
                if self.problems.clean(place):
                    what = what or self._unknown(place, _inside(cls, keys[:-1]))
                    self.problems.add(place, what)
            return None

    def _unknown(self, keys: tuple, names: Iterable[str]) -> str:
        """``unknown key, did you mean 'data.max_length'?``, of the names that may stand there, or
        of the keys of other sections."""
        *above, key = map(str, keys)
        sections = {
            "task": getattr(self.task_class, "model_fields", ()),
            "model": MODELS[self._kind].model_fields,
            "data": OPTIONS[self._kind].model_fields,
            "training": training_section().model_fields,
        }
        dotted: dict[str, str] = {}
        for section, fields in sections.items() if len(above) < 2 else ():
            for name in fields if [section] != above else ():
                dotted.setdefault(name, f"{section}.{name}")
        near = "" if key in dotted else meant(key, names)
        near = near or did_you_mean(key, dotted, dotted.__getitem__)
        return f"unknown key{near or f', expected one of {listed(names, show=str)}'}"

    # -- what depends on other modules

    def check_data(self, data: Any, task: Any) -> None:
        if not isinstance(data, DataSection):
            return
        problems = self.problems
        if data.format is not None and data.format not in FORMATS:
            near = did_you_mean(data.format, FORMATS)
            what = f"expected one of {', '.join(FORMATS)}, got {data.format!r}{near}"
            problems.add(("data", "format"), what)
        why = unread(data.format) if problems.clean(("data", "format")) else {}
        if task is not None:
            for key in {"label", "label_separator"} - set(task.reads.label_keys):
                why[key] = f"{task.name} has no labels of this kind"
            if not (data.text_files or task.reads.files):
                why["evidence"] = "data.text_files names no field of names of files"
        named = {key for key, value in data if value != type(data).model_fields[key].default}
        for key in sorted(named & why.keys()):
            problems.add(("data", key), f"not read, {why[key]}; leave it out")
        if task is None:
            return
        if data.overflow not in task.inputs.overflows:
            names = " or ".join(task.inputs.overflows)
            default = "" if "overflow" in data.model_fields_set else ", the default"
            what = f"expected {names}, got {data.overflow}{default}"
            problems.add(("data", "overflow"), f"{task.name} has one input a document: {what}")
        for name in data.fields.keys() - set(task.reads.fields):
            names = ", ".join(task.reads.fields) or "none"
            near = did_you_mean(name, task.reads.fields) or f"; {task.name} has {names}"
            problems.add(("data", "fields", name), f"no such field of the task{near}")

    def check_command(self, task: Any, command: str) -> None:
        """Check that a command trains this task and has the keys that it needs, and these."""
        trained_by = command if task is None else COMMANDS[task.reads.kind]
        if trained_by != command:
            self.problems.add(("task", "name"), f"{task.name} is trained by ldt {trained_by}")
            self.problems.stop()  # what another command needs is beside the point
        for keys, what in NEEDS[command].items():
            if self.problems.clean(keys) and self._values(keys[0]).get(keys[1]) is None:
                self.problems.add(keys, f"missing, {what}")
        if self.task_class is not None:
            self._check_model(self.task_class)
        self.check_training()

    def _check_model(self, task: Any) -> None:
        from ldt.tasks.base import config_fields, model_types

        values = self._values("model")
        backend, config = values.get("attention"), values.get("config")
        if isinstance(backend, str) and backend != "auto" and backend not in backends(task):
            what = f"expected one of {', '.join(backends(task))}, got {quote(backend)}"
            self.problems.add(("model", "attention"), what)
        if not isinstance(config, dict) or "config" not in MODELS[self._kind].model_fields:
            return
        instance, fields, model_type = task.model_construct(), dict(config), None
        if names := model_types(instance):
            model_type = fields.pop("model_type", None)
            if model_type not in (None, *names):
                what = f"expected one of {', '.join(names)}, got {quote(model_type)}"
                self.problems.add(("model", "config", "model_type"), what)
                return
        self._instance(config_fields(instance, model_type), fields, ("model", "config"))

    def check_training(self) -> None:
        training = self._values("training")
        for key in filter(REFUSED.get, training):
            self.problems.add(("training", key), REFUSED[key])
        if training:
            self._instance(training_section(), training, ("training",))


def _inside(cls: Any, keys: Iterable[Any]) -> Iterable[str]:
    for key in keys:
        if key in cls.model_fields:  # else it is the place in a list of sections
            hint = cls.model_fields[key].annotation
            hints = (hint, *get_args(hint))
            cls = next(h for h in hints if isinstance(h, type) and issubclass(h, BaseModel))
    return cls.model_fields


# -- files


def _located(path: Path) -> Path:
    """The path itself; where there is no such file, the shipped recipe that it names (``wikihop``,
    ``wikihop.yaml`` or ``recipes/wikihop.yaml``), if any."""
    if not path.is_file() and path.suffix in ("", ".yaml") and str(path.parent) in (".", "recipes"):
        return shipped().get(path.stem, path)
    return path


def _read(path: Path) -> bytes:
    if path.is_dir() or (path.is_file() and suffix(path.name) in _DATA):
        kind = "a folder" if path.is_dir() else "a file of data"
        run = f", {path / RECIPE} is the one of this run" if (path / RECIPE).is_file() else ""
        raise UserError(f"{path}: {kind}; a recipe is a YAML file{run or ', ldt init writes one'}")
    try:
        with open(path, "rb") as file:
            return file.read(yaml.MAX_BYTES + 1)
    except OSError as error:
        names = list(shipped())
        with suppress(OSError):
            names += [file.name for file in path.parent.iterdir() if file.is_file()]
        raise UserError(f"{path}: {error.strerror}{did_you_mean(path.name, names)}") from None


def _fit_evaluation(path: Path, root: dict[str, Any], overrides: Iterable[str]) -> None:
    """Evaluate on a share of the user's data.train if the recipe's data.eval is not there."""
    keys = {text.partition("=")[0].strip() for text in overrides}
    data, mine = root.get("data"), "data.train" in keys and path in shipped().values()
    if not mine or keys & {"data.eval", "data.eval_fraction"} or not isinstance(data, dict):
        return
    names = data.get("eval")
    names = [names] if isinstance(names, str) else names or []
    if names and not any(glob.glob(str(name), recursive=True) for name in names):
        data |= {"eval": None, "eval_fraction": SHARE}
        what = "of the recipe is not there: data.eval_fraction=%s of data.train instead"
        log.info(f"data.eval: %s {what}", names[0], SHARE)


def _with_paths(section: _Section, name: str, path: Path, search: bool = True) -> _Section:
    changed: dict[str, Any] = {}
    for key in FILES[name]:
        match getattr(section, key, None):
            case list(names):
                changed[key] = [_path(each, path.parent, search) for each in names]
            case str(single):
                changed[key] = _path(single, path.parent, search)
    return section.model_copy(update=changed)


def _path(name: str, folder: Path, search: bool) -> str:
    """The path as the current directory has it, else beside the recipe if it is there."""
    if name == "-" or name.startswith("hf:") or is_remote(name):
        return name
    name = os.path.expanduser(name)
    beside = os.path.join(folder, name)

    def there(path: str) -> bool:  # where patterns are to be searched, also what one finds
        return os.path.exists(path) or (search and any(glob.iglob(path, recursive=True)))

    return beside if not there(name) and there(beside) else name
