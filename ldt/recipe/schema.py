"""JSON Schema of recipes, made from the classes that check them, for completion in editors."""

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from ldt.benchmarks.formats import FORMATS
from ldt.data.options import OPTIONS, DataSection
from ldt.errors import UserError, did_you_mean
from ldt.recipe.recipe import COMMANDS, NEEDS, backends
from ldt.recipe.sections import MODELS, meanings, summary, training_meanings, training_section
from ldt.tasks import TASKS
from ldt.tasks.base import AnyTask, config_class, config_fields, model_types

DRAFT = "https://json-schema.org/draft/2020-12/schema"
_TRAINING = "Arguments of transformers.TrainingArguments, word for word, and ldt's."


def schema(task: str | None = None) -> dict[str, Any]:
    """Make the JSON Schema (draft 2020-12) of recipes; imports torch and transformers.

    It allows what `ldt.recipe.load` allows for the command that trains the task, key by key. It
    cannot express what depends on several keys, on files, or on how a number is written.

    Args:
        task: name of the only task that it allows; None for all of them, where the sections go by
            the task's name.

    Raises:
        UserError: there is no such task.
    """
    if task is not None and task not in TASKS:
        near = did_you_mean(task, TASKS) or f"; there are {', '.join(TASKS)}"
        raise UserError(f"unknown task {task!r}{near}")
    names = list(TASKS) if task is None else [task]
    section = _without_defaults(training_section(), training_meanings())
    section |= {"description": _TRAINING, "type": ["object", "null"]}
    definitions: dict[str, Any] = section.pop("$defs", {}) | {"Training": section}
    branches = [
        {
            "if": {"properties": {"task": {"properties": {"name": {"const": name}}}}},
            "then": {"properties": _sections(TASKS[name], definitions)},
        }
        for name in names
    ]
    # Sections that the commands of all these tasks need keys of.
    needed = [{section for section, _ in NEEDS[COMMANDS[TASKS[name].reads.kind]]} for name in names]
    of_task = {"enum": names, "description": "what is learned; the other keys go by it."}
    task_keys = {"type": "object", "properties": {"name": of_task}, "required": ["name"]}
    training = {"$ref": "#/$defs/Training"}
    return {
        "$schema": DRAFT,
        "title": "ldt recipe",
        "description": "One run: what is learned, by which model, of which data, and how.",
        "type": "object",
        "properties": {"task": task_keys, "model": {}, "data": {}, "training": training},
        "required": ["task", *sorted(set.intersection(*needed))],
        "additionalProperties": False,
        "allOf": branches,
        "$defs": definitions,
    }


class _Described(GenerateJsonSchema):
    """Descriptions by the docstrings of the classes, without titles."""

    def field_title_should_be_set(self, schema):
        return False

    def model_schema(self, schema):
        description, cls = super().model_schema(schema), schema["cls"]
        description.pop("title", None)
        if cls.__doc__:
            description["description"] = summary(cls)
        _describe(description, meanings(cls))
        return description


def _sections(task: type[AnyTask], definitions: dict[str, Any]) -> dict[str, Any]:
    """Schemas of the sections of a task but training, by name; their classes go to definitions."""
    kind = task.reads.kind
    sections = {}
    for name, cls in (("task", task), ("model", MODELS[kind]), ("data", OPTIONS[kind])):
        sections[name] = cls.model_json_schema(schema_generator=_Described)
        definitions |= sections[name].pop("$defs", {})
    keys = {name: section["properties"] for name, section in sections.items()}
    if task.inputs.roles:
        keys["task"]["global_attention"]["items"] = {"enum": list(task.inputs.roles)}
    _only(keys["model"]["attention"], backends(task))
    if "config" in keys["model"]:
        _configure(keys["model"]["config"], task)
    if issubclass(OPTIONS[kind], DataSection):
        _only(keys["data"]["format"], (*FORMATS, None))
        keys["data"]["fields"]["propertyNames"] = {"enum": list(task.reads.fields)}
    for name, key in NEEDS[COMMANDS[kind]]:
        sections[name].setdefault("required", []).append(key)
        keys[name][key]["not"] = {"type": "null"}
        keys[name][key].pop("default", None)
    for name in ("model", "data"):
        if "required" not in sections[name]:
            sections[name]["type"] = ["object", "null"]
    return sections


def _configure(value: dict[str, Any], task: type[AnyTask]) -> None:
    """Give ``model.config`` the fields of the configs that the task's model can have."""
    instance = task.model_construct()
    names_of: dict[Any, list[str | None]] = {}  # by class; the first is what is left out
    for name in model_types(instance) or (None,):
        names_of.setdefault(config_class(instance, name), []).append(name)
    kinds = []
    for cls, names in names_of.items():
        kinds.append(_without_defaults(config_fields(instance, names[0]), meanings(cls)))
        if names[0] is not None:
            kinds[-1]["properties"] |= {"model_type": {"enum": names}}
            if len(kinds) > 1:
                kinds[-1]["required"] = ["model_type"]
    description = value.pop("description")
    value.clear()
    value |= {"description": description, "anyOf": [*kinds, {"type": "null"}]}


def _without_defaults(cls: type[BaseModel], known: dict[str, str]) -> dict[str, Any]:
    section = cls.model_json_schema(schema_generator=_Described)
    _describe(section, known)
    for value in section["properties"].values():
        value.pop("default", None)
    return section


def _describe(section: dict[str, Any], known: dict[str, str]) -> None:
    for name, value in section.get("properties", {}).items():
        if name in known:
            value["description"] = known[name].replace("``", "`")


def _only(value: dict[str, Any], names: Iterable[str | None]) -> None:
    value.pop("anyOf", None)
    value.pop("type", None)
    value["enum"] = list(names)
