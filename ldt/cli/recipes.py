"""ldt recipes: the recipes that come with ldt, from a checkout or an installed wheel."""

import re
from itertools import takewhile
from pathlib import Path
from typing import Annotated

import typer

from ldt.cli.console import say, stdout
from ldt.errors import UserError, did_you_mean

recipes = typer.Typer(invoke_without_command=True)

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of a recipe, as ldt recipes lists it.")
]


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
def show(name: Name) -> None:
    """Print a recipe.

    Example: ldt recipes show wikihop
    """
    say(_file(name).read_text("utf-8"), console=stdout)


@recipes.command()
def copy(
    name: Name,
    target: Annotated[
        Path | None,
        typer.Argument(
            metavar="TARGET",
            help="File or folder to copy the recipe to; by default NAME.yaml in the current "
            "directory.",
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace TARGET if it exists.")
    ] = False,
) -> None:
    """Copy a recipe, to change it.

    Example: ldt recipes copy wikihop my-recipe.yaml
    """
    from ldt.inference import result_file

    file = _file(name)
    target = Path(target or ".").expanduser()
    target = new_file(target / file.name if target.is_dir() else target, overwrite)
    result_file.write(target, file.read_text("utf-8"))
    say(f"{target}: written")


@recipes.command()
def schema(
    task: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Task of the recipes; by default every task."),
    ] = None,
) -> None:
    """Print the JSON Schema of recipes, by which editors complete keys and mark errors.

    A recipe that begins with `# yaml-language-server: $schema=recipe.schema.json` is checked by
    that file in editors that know YAML.

    Example: ldt recipes schema --task classification > recipe.schema.json
    """
    import json

    from ldt.recipe.schema import schema

    say(json.dumps(schema(task), indent=2), console=stdout)


def new_file(target: Path, overwrite: bool, other: str = "") -> Path:
    """The path of a recipe that is to be written.

    Args:
        other: further words on what would do where there is one.

    Raises:
        UserError: in a folder that is missing, or there is such a file and it is to stay.
    """
    target = target.expanduser()
    if not target.parent.is_dir():
        raise UserError(f"{target.parent}: no such folder; make it or name another file")
    if not overwrite and (target.exists() or target.is_symlink()):
        raise UserError(f"{target} exists already; --overwrite replaces it{other and f', {other}'}")
    return target


def summary(text: str) -> str:
    """The first sentence, or its first half, of the comment that a recipe begins with."""
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
