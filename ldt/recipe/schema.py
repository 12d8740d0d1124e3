"""JSON Schema of recipes, made of the classes that check them: editors complete keys by it."""

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from ldt.data.formats import FORMATS
from ldt.data.options import OPTIONS, DataSection
from ldt.errors import UserError, did_you_mean
from ldt.recipe.recipe import COMMANDS, NEEDS, SECTIONS, backends
from ldt.recipe.sections import MODELS, meanings, summary, training_meanings, training_section
from ldt.tasks import TASKS
from ldt.tasks.base import AnyTask, config_class, config_fields, model_types

DRAFT = "https://json-schema.org/draft/2020-12/schema"


def schema(task: str | None = None) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of recipes; imports torch and transformers.

    It allows what `ldt.recipe.load` allows for the command that trains the task, key by key. It
    does not say what depends on several keys, on files, or on how a number is written.

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
    definitions: dict[str, Any] = {"Training": _training()}
    definitions |= definitions["Training"].pop("$defs", {})
    branches = [
        {
            "if": {"properties": {"task": {"properties": {"name": {"const": name}}}}},
            "then": {"properties": _sections(TASKS[name], definitions)},
        }
        for name in names
    ]
    name_of_task = {"enum": names, "description": "what is learned; the other keys go by it."}
    sections: dict[str, Any] = {key: {} for key in SECTIONS}
    sections["task"] = {"type": "object", "properties": {"name": name_of_task}}
    sections["task"]["required"] = ["name"]
    sections["training"] = {"$ref": "#/$defs/Training"}
    return {
        "$schema": DRAFT,
        "title": "ldt recipe",
        "description": "One run: what is learned, by which model, of which data, and how.",
        "type": "object",
        "properties": sections,
        "required": ["task", *_needed_sections(names)],
        "additionalProperties": False,
        "allOf": branches,
        "$defs": definitions,
    }


class _Described(GenerateJsonSchema):
    """Descriptions by the docstrings of the classes, and no titles, which repeat the names."""

    def field_title_should_be_set(self, schema):
        return False

    def model_schema(self, schema):
        made = super().model_schema(schema)
        cls = schema["cls"]
        made.pop("title", None)
        if cls.__doc__:
            made["description"] = summary(cls)
        _describe(made, meanings(cls))
        return made


def _sections(task: type[AnyTask], definitions: dict[str, Any]) -> dict[str, Any]:
    """Schemas of the sections of a task but training, by name; their classes go to definitions."""
    made = {
        "task": _schema(task, definitions),
        "model": _schema(MODELS[task.reads.kind], definitions),
        "data": _schema(OPTIONS[task.reads.kind], definitions),
    }
    roles = task.inputs.roles
    if roles:
        made["task"]["properties"]["global_attention"]["items"] = {"enum": list(roles)}
    model, data = made["model"]["properties"], made["data"]["properties"]
    _only(model["attention"], backends(task))
    if "config" in model:
        _configure(model["config"], task)
    if issubclass(OPTIONS[task.reads.kind], DataSection):
        _only(data["format"], (*FORMATS, None))
        data["fields"]["propertyNames"] = {"enum": list(task.reads.fields)}
    for section, key in NEEDS[COMMANDS[task.reads.kind]]:
        _need(made[section], key)
    for section in ("model", "data"):
        if "required" not in made[section]:
            made[section]["type"] = ["object", "null"]
    return made


def _training() -> dict[str, Any]:
    made = training_section().model_json_schema(schema_generator=_Described)
    made["description"] = "Arguments of transformers.TrainingArguments, word for word, and ldt's."
    made["type"] = ["object", "null"]
    _describe(made, training_meanings())
    for value in made["properties"].values():
        value.pop("default", None)  # what a run takes is known when the arguments are made
    return made


def _configure(value: dict[str, Any], task: type[AnyTask]) -> None:
    """Give ``model.config`` the fields of the config that the task's model has, of each kind that
    it names by ``model_type``."""
    of: dict[Any, list[str | None]] = {}  # config class -> its names; the first is what is left out
    for name in model_types(task.model_construct()) or (None,):
        of.setdefault(config_class(task.model_construct(), name), []).append(name)
    kinds = []
    for names in of.values():
        kinds.append(_fields(task, names[0]))
        if names[0] is not None:
            kinds[-1]["properties"] |= {"model_type": {"enum": names}}
            if len(kinds) > 1:
                kinds[-1]["required"] = ["model_type"]
    description = value.pop("description")
    value.clear()
    value |= {"description": description, "anyOf": [*kinds, {"type": "null"}]}


def _fields(task: type[AnyTask], model_type: str | None) -> dict[str, Any]:
    """Schema of the config of a task's models of a kind."""
    made = task.model_construct()
    fields = config_fields(made, model_type).model_json_schema(schema_generator=_Described)
    _describe(fields, meanings(config_class(made, model_type)))
    for each in fields["properties"].values():
        each.pop("default", None)
    return fields


def _schema(cls: type[BaseModel], definitions: dict[str, Any]) -> dict[str, Any]:
    made = cls.model_json_schema(schema_generator=_Described)
    definitions |= made.pop("$defs", {})
    return made


def _describe(made: dict[str, Any], known: dict[str, str]) -> None:
    for name, value in made.get("properties", {}).items():
        if name in known:
            value["description"] = known[name].replace("``", "`")


def _only(value: dict[str, Any], names: Iterable[str | None]) -> None:
    """Allow these names alone, whatever the field's type allows."""
    value.pop("anyOf", None)
    value.pop("type", None)
    value["enum"] = list(names)


def _need(section: dict[str, Any], key: str) -> None:
    """Require a key, and a value other than null."""
    section.setdefault("required", []).append(key)
    value = section["properties"][key]
    value["not"] = {"type": "null"}
    value.pop("default", None)


def _needed_sections(names: Iterable[str]) -> list[str]:
    """Sections that the commands of all these tasks need keys of."""
    needs = [{section for section, _ in NEEDS[COMMANDS[TASKS[name].reads.kind]]} for name in names]
    return sorted(set.intersection(*needs))
