"""Arguments, options and keys that several commands share."""

import inspect
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from ldt.errors import UserError
from ldt.inference import runtimes
from ldt.inference.options import PredictOptions, bounds, parsed

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
_KEY = re.compile(r"([a-z]\w*(?:\.[\w-]+)*)=")


def files_and_keys(arguments: Iterable[str], plain: bool = False) -> tuple[list[str], list[str]]:
    """Part the FILE arguments of a command from its KEY=VALUE ones, both in their order.

    A key has a dot, as in ``data.text=body``, or is one of the data section, whose dotted name
    `ldt.recipe.recipe.reading` then suggests. What exists is a file whatever its name.

    Args:
        plain: True for a command that also has keys without a dot, so that any name is one.
    """
    from ldt.data.options import DataSection

    files: list[str] = []
    keys: list[str] = []
    for argument in arguments:
        match = _KEY.match(argument)
        is_key = match and (plain or "." in match[1] or match[1] in DataSection.model_fields)
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


def option(name: str, metavar: str | None = None, **settings: Any) -> Any:
    """An option of `ldt.inference.options.PredictOptions`, with its meaning and bounds."""
    field = PredictOptions.model_fields[name]
    if field.annotation is bool:
        return typer.Option(f"--{name.replace('_', '-')}", help=field.description, **settings)
    least, most = bounds(name)
    return typer.Option(min=least, max=most, metavar=metavar, help=field.description, **settings)


Documents = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="FILE [KEY=VALUE]",
        help="Documents to answer for: lines, a table, a text file or a folder of text files; "
        "several of them, or a pattern in quotes; - reads standard input. Then further "
        "options, such as data.text=body.",
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        metavar="FOLDER",
        help="Folder of the finished run whose model answers; by default runs/latest.",
    ),
]
ResumeOutput = Annotated[
    bool, typer.Option("--resume", help="Continue an output file that is unfinished.")
]
OverwriteOutput = Annotated[
    bool, typer.Option("--overwrite", help="Replace an output file that is there already.")
]
ShardOf = Annotated[
    str | None,
    typer.Option(
        "--shard",
        metavar="I/N",
        help="Share of the records to answer, as 1/4 to 4/4 on four machines; each makes a "
        "part of the output, and --merge the output of all parts.",
    ),
]
Merge = Annotated[
    str | None,
    typer.Option(
        metavar="OUTPUT",
        help="Output whose parts stand beside it, as --shard made them all; they become the "
        "one file, and nothing is answered.",
    ),
]
Device = Annotated[Literal["auto", "cpu", "cuda"], option("device")]
Precision = Annotated[Literal["auto", "fp32", "bf16", "int8"], option("precision")]
Runtime = Annotated[runtimes.Runtime, option("runtime")]
Workers = Annotated[str, option("workers", "NUMBER")]


def keyed(words: Iterable[str], keys: Iterable[str]) -> tuple[list[str], dict[str, Any]]:
    """The files among some arguments, and the values of those that are KEY=VALUE.

    Args:
        keys: names that there are.

    Raises:
        UserError: there is no such key, or its value cannot be read.
    """
    files, pairs = files_and_keys(words, plain=True)
    return files, parsed(pairs, keys)


def number(workers: str) -> int | str:
    """The number of ``--workers``, or the word in its place."""
    return int(workers) if re.fullmatch("[0-9]{1,9}", workers) else workers


def takes(command: Callable[..., Any], keys: Mapping[str, str]) -> frozenset[str]:
    """Note what a command takes as KEY=VALUE, for its help; the options of prediction that it has
    as --name."""
    flags = frozenset(inspect.signature(command).parameters) & PredictOptions.model_fields.keys()
    left = {name: meaning for name, meaning in keys.items() if name not in flags}
    command.keys = left  # type: ignore[attr-defined]
    return flags


class Command(TyperCommand):
    """A command whose help also lists what it takes as KEY=VALUE."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        super().format_options(ctx, formatter)
        if keys := getattr(self.callback, "keys", None):
            with formatter.section("Keys"):
                formatter.write_dl([(f"{name}=VALUE", text) for name, text in keys.items()])
