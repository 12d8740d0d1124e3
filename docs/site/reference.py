"""Reference pages generated from the code: keys of a recipe, commands, public names.

A key without a meaning, or an option without help, is an error: the site does not build.
"""

import inspect
import re
import types
from dataclasses import fields
from enum import Enum
from typing import Annotated, Literal, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, create_model
from pydantic_core import PydanticUndefined

from ldt.recipe.sections import meanings, summary, training_meanings


def cell(text):
    """Text as one cell of a table: one line, without bars, markup of reST as that of Markdown."""
    text = re.sub(r"\s+", " ", str(text)).strip().replace("``", "`").replace("|", "\\|")
    return re.sub(r"<(?=\w)(?![^`]*`)", "&lt;", text)


def table(headings, rows):
    """Lines of a Markdown table."""
    lines = [f"| {' | '.join(headings)} |", f"| {' | '.join('---' for _ in headings)} |"]
    return lines + [f"| {' | '.join(cell(value) for value in row)} |" for row in rows]


def first_line(item):
    """First paragraph of a docstring, on one line."""
    return cell(summary(item))


def type_name(annotation):
    """A type in the words of a recipe."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_name(inner[0])
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(type_name(part) for part in inner))
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in inner)
    if origin is list:
        one = type_name(inner[0])
        return f"list of {one}{'' if one == 'text' or one.startswith('`') else 's'}"
    if origin is dict:
        return "mapping"
    words = {str: "text", int: "whole number", float: "number", bool: "true or false"}
    words |= {type(None): "none"}
    return words.get(annotation) or spaced(getattr(annotation, "__name__", str(annotation)))


def spaced(name):
    """The words of the name of a class: "new tokenizer" for NewTokenizer."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()


def default(field):
    """Default of a field as a recipe writes it."""
    value = field.get_default(call_default_factory=True)
    return "required" if value is PydanticUndefined else in_yaml(value)


def in_yaml(value):
    """A value as a recipe writes it."""
    if value is None:
        return "none"
    if isinstance(value, BaseModel):
        value = value.model_dump(exclude_none=True)
    text = value if isinstance(value, str) else yaml.safe_dump(value, default_flow_style=True)
    return f"`{text.partition(chr(10))[0]}`"


def names(cls, key):
    """Names that a key of a section takes, where they are those of a table of ldt."""
    from ldt.attention import BACKENDS
    from ldt.benchmarks.formats import FORMATS
    from ldt.data.options import DataSection
    from ldt.recipe.sections import ModelSection

    if key == "attention" and issubclass(cls, ModelSection):
        return ("auto", *BACKENDS)
    if key == "format" and issubclass(cls, DataSection):
        return tuple(FORMATS)
    return ()


def sentence(meaning):
    """A meaning with its first letter large."""
    return meaning[0].upper() + meaning[1:]


def keys(cls, skip=()):
    """Table of the keys of a section.

    Raises:
        ValueError: a key has no meaning in the docstring of its class.
    """
    known, rows = meanings(cls), []
    for name, field in cls.model_fields.items():
        if name in skip:
            continue
        meaning = known.get(name) or field.description
        if not meaning:
            raise ValueError(f"{cls.__module__}.{cls.__name__}: no meaning of {name!r} in Args")
        kind = ", ".join(f"`{one}`" for one in names(cls, name)) or type_name(field.annotation)
        rows.append([f"`{name}`", kind, default(field), sentence(meaning)])
    return table(["key", "type", "default", "meaning"], rows)


def recipe_page():
    """Every key of a recipe: of each task, of `model:` and `data:` by kind, of `training:`."""
    from transformers import TrainingArguments

    from ldt.data.options import OPTIONS
    from ldt.recipe.sections import MODELS, OWN_TRAINING_KEYS, REFUSED, training_section
    from ldt.tasks import TASKS
    from ldt.training.arguments import DEFAULTS, FIXED, TOGETHER

    lines = [
        "# Recipe reference",
        "",
        "A recipe has four keys: `task`, `model`, `data` and `training`. This page is generated "
        "from the classes that check it. `key=value` behind a command replaces a value, as in "
        "`ldt finetune recipe.yaml data.max_length=2048`.",
        "",
    ]
    for name, task in sorted(
        TASKS.items(), key=lambda item: list(OPTIONS).index(item[1].reads.kind)
    ):
        lines += [f"## task: {name}", "", first_line(task), ""]
        lines += [*keys(task, skip=("name",)), ""]
        lines += [part for cls in nested(task) for part in nested_section(cls)]
    for title, classes in (("model", MODELS), ("data", OPTIONS)):
        for kind, cls in classes.items():
            tasks = ", ".join(
                f"`{name}`" for name, task in TASKS.items() if task.reads.kind == kind
            )
            lines += [f"## {title}, for {kind}", "", f"{first_line(cls)} For the tasks {tasks}."]
            lines += ["", *keys(cls), ""]
            lines += [part for inner in nested(cls) for part in nested_section(inner)]
    lines += [
        "## training",
        "",
        "The keys are the arguments of `transformers.TrainingArguments`, word for word. Where "
        "ldt's default is another one:",
        "",
    ]
    theirs = {field.name: field.default for field in fields(TrainingArguments)}
    rows = [
        [f"`{key}`", in_yaml(value), in_yaml(theirs[key])]
        for key, value in DEFAULTS.items()
        if value != theirs[key]
    ]
    lines += [*table(["key", "default in ldt", "default in transformers"], rows), ""]
    lines += [
        "`bf16` is `auto` on CUDA: true where the GPU has instructions for bfloat16 and `fp16` is "
        "not set. On a CPU it is false; `auto` is true there where the CPU has them.",
        "",
    ]
    lines += ["Keys that only ldt has:", ""]
    inner = create_model("Own", **{key: (kind, None) for key, kind in OWN_TRAINING_KEYS.items()})
    if missing := [key for key, field in inner.model_fields.items() if not field.description]:
        raise ValueError(f"no meaning of {missing[0]!r}")
    rows = [
        [f"`{key}`", type_name(OWN_TRAINING_KEYS[key]), sentence(str(field.description))]
        for key, field in inner.model_fields.items()
    ]
    lines += [*table(["key", "type", "meaning"], rows), ""]
    lines += [part for cls in nested(inner) for part in nested_section(cls)]
    lines += ["ldt's trainer relies on these; a recipe cannot set them to something else:", ""]
    rows = [[f"`{key}`", in_yaml(value)] for key, value in FIXED.items()]
    lines += [*table(["key", "value"], rows), ""]
    lines += ["These are refused, since no run heeds them; what does their job:", ""]
    rows = [[f"`{key}`", sentence(line) + "."] for key, line in REFUSED.items()]
    lines += [*table(["key", "in its place"], rows), ""]
    lines += ["These act beside another key alone, and are refused without it:", ""]
    rows = [
        [f"`{key}`", f"`{other}`" + (f": `{in_yaml(needed)}`" if needed else "")]
        for key, (other, needed) in TOGETHER.items()
    ]
    lines += [*table(["key", "acts with"], rows), ""]
    lines += ["All others act as transformers says:", ""]
    said = training_meanings()
    rows = [
        [f"`{key}`", sentence(said[key]) if key in said else ""]
        for key in training_section().model_fields
        if key not in (*FIXED, *OWN_TRAINING_KEYS)
    ]
    lines += table(["key", "meaning in transformers"], rows)
    return "\n".join(lines) + "\n"


def nested(cls):
    """Classes of the fields of a section that are sections themselves."""
    found = []
    for field in cls.model_fields.values():
        stack = [field.annotation]
        while stack:
            annotation = stack.pop()
            stack += get_args(annotation)
            if isinstance(annotation, type) and issubclass(annotation, BaseModel):
                found.append(annotation)
    return list(dict.fromkeys(found))


def nested_section(cls):
    """Heading and table of a section within a section."""
    return [f"### {spaced(cls.__name__).capitalize()}", "", first_line(cls), "", *keys(cls), ""]


def cli_page():
    """Every command with its arguments and options."""
    import typer

    from ldt import cli

    root = typer.main.get_command(cli.app)
    lines = ["# Command line reference", "", "This page is generated from the commands.", ""]
    for name, command in commands(root, "ldt"):
        lines += [f"## {name}", "", *described(command.help or ""), ""]
        rows = []
        for parameter in command.params:
            if parameter.name == "help":
                continue
            if not parameter.help:
                raise ValueError(f"{name}: no help for {parameter.name!r}")
            flags = [*parameter.opts, *parameter.secondary_opts]
            if parameter.param_type_name == "argument":
                flags = [parameter.metavar or parameter.name.upper()]
            value = parameter.default
            shown = "" if value in (None, False, ()) or callable(value) else f"`{value}`"
            shown = "required" if parameter.required else shown
            annotation = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
            values = ", ".join(f"`{value}`" for value in choices(annotation))
            named = ", ".join(f"`{flag}`" for flag in flags)
            rows.append([named, values, shown, parameter.help])
        if rows:
            headings = ["argument or option", "values", "default", "meaning"]
            lines += [*table(headings, rows), ""]
    return "\n".join(lines)


def choices(annotation):
    """Values that an annotation names, such as a and b of ``Literal["a", "b"] | None``."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return [member.value for member in annotation]
    return [value for part in get_args(annotation) for value in choices(part)]


def commands(command, name):
    """(full name, command) of all commands that are no groups."""
    if not hasattr(command, "commands"):
        yield name, command
        return
    for below in command.commands:
        yield from commands(command.get_command(None, below), f"{name} {below}")


def described(text):
    """Help of a command as Markdown; lines that begin with ``Example:`` or ``ldt`` are code."""
    lines = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        label, colon, example = paragraph.partition("Example:")
        if colon and not label.strip():
            lines += ["```console", f"$ {cell(example)}", "```", ""]
        else:
            lines += [cell(paragraph.replace("\b", "")), ""]
    return lines


def api_page():
    """Public names of `ldt.model` and `ldt.attention` with the first line of their docstrings."""
    import ldt.attention
    import ldt.model

    lines = ["# Python reference", "", "The docstrings have arguments, shapes and errors.", ""]
    for module in (ldt.model, ldt.attention):
        names = getattr(module, "__all__", None) or [n for n in vars(module) if n[0] != "_"]
        rows = []
        for name in sorted(names):
            item = getattr(module, name)
            ours = getattr(item, "__module__", "").startswith("ldt")
            if ours and (inspect.isclass(item) or inspect.isfunction(item)):
                rows.append([f"`{name}`", first_line(item)])
        lines += [f"## {module.__name__}", "", first_line(module), ""]
        lines += [*table(["name", "summary"], rows), ""]
    return "\n".join(lines)
