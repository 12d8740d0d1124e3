"""ldt recipes: the recipes that come with ldt, from a checkout or an installed wheel."""

import os
import re
import shlex
from itertools import takewhile
from pathlib import Path
from textwrap import indent
from typing import Annotated

import typer

from ldt.cli.console import say, stdout
from ldt.cli.options import Name
from ldt.errors import UserError, did_you_mean

recipes = typer.Typer(invoke_without_command=True)


@recipes.callback()
def _list(context: typer.Context) -> None:
    """List, show or copy the recipes that come with ldt.

    Without a command it lists them: the name, and the recipe in a line. finetune and pretrain take
    such a name in place of a file.

    Example: ldt recipes copy wikihop
    """
    from ldt.recipe import shipped

    if context.invoked_subcommand is None:
        files = shipped()
        width = max(map(len, files), default=0)
        for name, file in files.items():
            say(f"{name:<{width}}  {summary(file.read_text('utf-8'))}", console=stdout)


@recipes.command()
def show(name: Annotated[str, "NAME"]) -> None:
    """Print a recipe.

    Example: ldt recipes show wikihop

    Args:
        name: Name of a recipe, as ldt recipes lists it.
    """
    say(_file(name).read_text("utf-8"), console=stdout)


@recipes.command()
def copy(
    name: Annotated[str, "NAME"],
    target: Annotated[Path | None, typer.Argument(metavar="TARGET")] = None,
    model: Annotated[str | None, "MODEL"] = None,
    overwrite: bool = False,
) -> None:
    """Copy a recipe to a file here, to change it.

    Example: ldt recipes copy squad --model answerdotai/ModernBERT-base

    Args:
        name: Name of a recipe, as ldt recipes lists it.
        target: File or folder to copy the recipe to; by default NAME.yaml in the current directory.
        model: Model to train instead: a folder or hub id. The copy trains it, at its length at
            most; of a short model, the long one that the printed ldt convert makes. Run folders get
            its name.
        overwrite: Replace TARGET if it exists.
    """
    from ldt.io import files

    file = _file(name)
    target = Path(target or ".").expanduser()
    target = new_file(target / file.name if target.is_dir() else target, overwrite)
    text = file.read_text("utf-8")
    commands: list[str] = []
    if model is not None:
        text, commands = _with_model(name, text, model, shlex.quote(str(target)))
    files.write_result(target, text)
    say(f"{target}: written{'; next:' if commands else ''}")
    for command in commands:
        say(f"  {command}")


@recipes.command()
def schema(task: Name = None) -> None:
    """Print the JSON Schema of recipes, for editors.

    By it they complete keys and mark errors: a recipe that begins with `# yaml-language-server:
    $schema=recipe.schema.json` is checked by that file.

    Example: ldt recipes schema --task classification > recipe.schema.json

    Args:
        task: Task of the recipes; by default every task.
    """
    import json

    from ldt.recipe.schema import schema

    say(json.dumps(schema(task), indent=2), console=stdout)


def _with_model(name: str, text: str, model: str, target: str) -> tuple[str, list[str]]:
    """The text of a recipe with another model, and the commands to run next.

    A recipe that reads as much as its own model can (the number that its name ends with, else
    4,096) reads as much as the other can; a shorter length stays if the other reads as much.
    """
    from ldt.convert.kinds import candidate
    from ldt.recipe import draft, yaml
    from ldt.tasks import TASKS
    from ldt.tasks.writing import WritingTask

    recipe = yaml.parse(text).value
    task, original = TASKS[recipe["task"]["name"]], recipe["model"].get("path")
    if original is None:
        raise UserError(f"{name} makes a new model by model.config; --model has no place there")
    known = candidate(model, issubclass(task, WritingTask))
    asked = recipe["data"].get("max_length")
    ending = original.rpartition("-")[2]
    most = int(ending) if ending.isdecimal() else draft.USUAL
    path, read = model, known.length
    commands: list[str] = []
    if read is None:
        read = max(asked or most, known.shortest)
        path, commands = conversion(model, read)
    if known.width is None:
        guess = "a short model, to be converted first" if commands else f"one of {read:,} tokens"
        say(f"{model}: not on this machine; by its name taken for {guess}")
    values: dict[tuple[str, str], str | int] = {
        ("model", "path"): path,
        ("training", "output_dir"): f"{recipe['training']['output_dir']}-{_last(path)}",
    }
    if asked is not None:
        values["data", "max_length"] = read if asked == most else min(asked, read)
    commands += draft.commands(recipe["task"]["name"], target)
    head = [f"{name} of ldt, with {model}:", *commands, f"With {original}, as ldt brings it:"]
    lines, numbers = text.splitlines(keepends=True), yaml.parse(text).lines
    for keys, value in values.items():
        lines[numbers[keys] - 1] = indent(yaml.dump({keys[-1]: value}), "  ")
    return "".join([*(f"# {line}\n" for line in head), *lines]), commands


def conversion(model: str, length: int) -> tuple[str, list[str]]:
    """Return the folder that a model is converted to for inputs of ``length`` tokens, and the ``ldt
    convert`` command for it."""
    name = f"{_last(model)}-{length}".lstrip("-")
    arguments = f"{shlex.quote(model)} {shlex.quote(name)} --max-length {length}"
    return f"./{name}", [f"ldt convert {arguments}"]


def _last(model: str) -> str:
    """The last part of a model's folder or hub id, or the one before where that is ``model``."""
    path = Path(os.path.abspath(model))
    return path.parent.name if path.name == "model" else path.name


def new_file(target: Path, overwrite: bool, other: str = "") -> Path:
    """Check that a recipe can be written to a path, and return the path, with ``~`` expanded.

    Args:
        target: the path.
        overwrite: True allows for a file that exists.
        other: further remedies for the message if the file exists.

    Raises:
        UserError: its folder does not exist, or the file does.
    """
    target = target.expanduser()
    if not target.parent.is_dir():
        raise UserError(f"{target.parent}: no such folder; make it or name another file")
    if not overwrite and (target.exists() or target.is_symlink()):
        raise UserError(f"{target} exists already; --overwrite replaces it{other and f', {other}'}")
    return target


def summary(text: str) -> str:
    """First sentence of the comment that the text of a recipe begins with, or its first half."""
    comment = takewhile(lambda line: line.startswith("#"), text.splitlines())
    words = " ".join(line.removeprefix("#").strip() for line in comment)
    return re.split(r"(?<!\bal)\.(?: |$)|[:;] |(?<=\?) ", words)[0]


def _file(name: str) -> Path:
    from ldt.recipe import shipped

    files = shipped()
    if name not in files:
        hint = did_you_mean(name, files)
        raise UserError(f"no recipe is called {name!r}{hint}; ldt recipes lists them")
    return files[name]
