"""Arguments, options and keys that several commands share."""

import inspect
import os
import re
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand
from typer.models import ParameterInfo

from ldt.errors import UserError, documented
from ldt.inference import runtimes
from ldt.inference.options import PredictOptions, bounds, parsed


def _number(workers: str) -> int | str:
    """The number of ``--workers``, or the word in its place."""
    return int(workers) if re.fullmatch("[0-9]{1,9}", workers) else workers


# Kinds of options, each with its metavar; see `explained`.
File = Annotated[str | None, "FILE"]
Files = Annotated[list[str] | None, "FILE"]
Name = Annotated[str | None, "NAME"]
Overrides = Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE")]
Documents = Annotated[list[str] | None, typer.Argument(metavar="FILE [KEY=VALUE]")]
Model = Annotated[str | None, "FOLDER"]
Shard = Annotated[str | None, "I/N"]
Merge = Annotated[str | None, "OUTPUT"]
Device = Literal["auto", "cpu", "cuda"]
Precision = Literal["auto", "fp32", "bf16", "int8"]
Runtime = runtimes.Runtime
Workers = Annotated[Any, typer.Option(metavar="NUMBER", parser=_number)]

# Help of options of several commands.
_SHARED = documented(
    """Options of several commands.

    Args:
        recipe: Recipe of the run: a YAML file, or a name that ldt recipes lists.
        overrides: Keys of the recipe to change, such as training.seed=1.
        keep_checkpoints: Keep the checkpoints when the run is finished; by default they are
            deleted.
        file: Documents to read: JSON lines, a table, a text file or a folder of text files; several
            of them, or a pattern in quotes; - reads standard input. Then keys, such as
            data.text=body.
        model: Folder of the finished run whose model answers; by default runs/latest.
        resume: Go on with the unfinished answers of an output file, OUTPUT.partial.
        overwrite: Replace an output file that exists already.
        shard: Share of the records to answer: 1/4 to 4/4 on four machines. Each writes a part,
            OUTPUT.1-of-4; --merge OUTPUT joins those beside OUTPUT.
        merge: The --output of commands with --shard: join their parts into that file, and answer
            nothing.
    """
)


def explained(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator that gives the parameters of a command, in place, their help, and cuts ``Args:``
    off its docstring.

    The help is that of typer's own mark, else of ``Args:``, else of the options that several
    commands share; a key of `PredictOptions` that ``Args:`` lacks has its description and bounds
    from there. A text beside a type is its metavar; a parameter without a default is an argument,
    or a required option if keyword-only, and a bool a flag, unless typer's own mark says otherwise.
    KeyError for a parameter without any help.
    """
    text = inspect.getdoc(command) or ""
    parameters, meanings = inspect.signature(command).parameters, documented(text)
    for name, hint in get_type_hints(command, include_extras=True).items():
        kind, *marks = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        if name == "return" or kind is typer.Context:
            continue
        place = parameters[name]
        argument = place.default is place.empty and place.kind is not place.KEYWORD_ONLY
        info = next((copy(mark) for mark in marks if isinstance(mark, ParameterInfo)), None)
        info = info or (typer.Argument() if argument else typer.Option())
        info.metavar = info.metavar or next((m for m in marks if isinstance(m, str)), None)
        if name in PredictOptions.model_fields and name not in meanings:
            info.help = PredictOptions.model_fields[name].description
            info.min, info.max = bounds(name)
        else:
            info.help = info.help or meanings.get(name) or _SHARED[name]
        if kind is bool and info.default is ...:
            info.default = f"--{name.replace('_', '-')}"
        command.__annotations__[name] = Annotated[kind, info]
    command.__doc__ = text.partition("\n\nArgs:\n")[0]
    return command


_KEY = re.compile(r"([a-z]\w*(?:\.[\w-]+)*)=")


def files_and_keys(arguments: Iterable[str], plain: bool = False) -> tuple[list[str], list[str]]:
    """Separate the FILE arguments of a command from its KEY=VALUE ones, both in their order.

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
    """Raise a UserError for options and KEY=VALUE arguments that a command cannot use.

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


def keyed(words: Iterable[str], keys: Iterable[str]) -> tuple[list[str], dict[str, Any]]:
    """Separate arguments into files, and values of KEY=VALUE by key.

    Args:
        words: the arguments.
        keys: names that there are.

    Raises:
        UserError: there is no such key, or its value cannot be read.
    """
    files, pairs = files_and_keys(words, plain=True)
    return files, parsed(pairs, keys)


def takes(command: Callable[..., Any], keys: Mapping[str, str]) -> frozenset[str]:
    """Set ``command.keys``, the KEY=VALUE arguments that its help lists: ``keys``, meanings by
    name, without those that it has as --name. Return these: names of `PredictOptions`."""
    flags = frozenset(inspect.signature(command).parameters) & PredictOptions.model_fields.keys()
    left = {name: meaning for name, meaning in keys.items() if name not in flags}
    command.keys = left  # type: ignore[attr-defined]
    return flags


class Command(TyperCommand):
    """Command whose help also lists its KEY=VALUE arguments."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options, and a section of keys (`takes`), to the formatter of the help."""
        super().format_options(ctx, formatter)
        if keys := getattr(self.callback, "keys", None):
            with formatter.section("Keys"):
                formatter.write_dl([(f"{name}=VALUE", text) for name, text in keys.items()])
