"""Types of arguments and options that several commands share."""

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ldt.errors import UserError
from ldt.inference.runtimes import Runtime

Recipe = Annotated[
    Path,
    typer.Argument(
        metavar="RECIPE",
        help="Recipe of the run: a YAML file, or a name that ldt recipes lists.",
        show_default=False,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE", help="Keys of the recipe to change, such as training.seed=1."
    ),
]
ReadingKeys = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="Keys of a recipe that say how the documents are read: data.format, data.text, "
        "data.text_files, data.fields, data.id, data.encoding and data.evidence.",
        show_default=False,
    ),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Continue the run from its newest checkpoint.")
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace what the run folder holds already.")
]
KeepCheckpoints = Annotated[
    bool,
    typer.Option("--keep-checkpoints", help="Keep the checkpoints when the run is finished."),
]
Device = Annotated[
    Literal["auto", "cpu", "cuda"],
    typer.Option(help="Device to compute on; auto takes the GPU if there is one."),
]
Library = Annotated[
    Runtime,
    typer.Option(
        help="What runs the model: torch, for a folder that ldt export wrote onnx, openvino or pt2."
    ),
]

_KEY = re.compile(r"(\w+(?:\.\w+)*)=")


def files_and_keys(arguments: Iterable[str]) -> tuple[list[str], list[str]]:
    """Part the FILE arguments of a command from its KEY=VALUE ones, both in their order.

    A key has a dot, as in ``data.text=body``, or is one of the data section, whose dotted name
    `ldt.recipe.recipe.reading` then suggests. What exists is a file whatever its name.
    """
    from ldt.data.options import DataSection

    files: list[str] = []
    keys: list[str] = []
    for argument in arguments:
        match = _KEY.match(argument)
        is_key = match and ("." in match[1] or match[1] in DataSection.model_fields)
        (keys if is_key and not os.path.exists(argument) else files).append(argument)
    return files, keys


def refuse(what: str, *keys: str, **options: Any) -> None:
    """Refuse options and KEY=VALUE arguments that a command has no use for.

    Args:
        what: thing that is asked for without them, for the message.
        keys: the arguments.
        options: values by name; None, False and empty ones are not given.

    Raises:
        UserError: one is given.
    """
    names = [*keys, *(f"--{name.replace('_', '-')}" for name, value in options.items() if value)]
    if names:
        raise UserError(f"{names[0]}: no option of {what}")
