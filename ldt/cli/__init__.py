"""The command line: a file a command. What a command needs is imported when it runs."""

import os
import sys
import warnings
from contextlib import suppress
from pkgutil import resolve_name
from typing import Annotated, Any, NoReturn, cast

import typer
from typer.core import TyperGroup
from typer.main import get_command

from ldt import __version__, errors
from ldt.cli.console import configure_streams, say
from ldt.cli.failures import explain
from ldt.cli.threads import thread_limited
from ldt.system import RaisedSignals

# Before torch or transformers are imported; a user's own settings win.
ENVIRONMENT = {
    "THP_MEM_ALLOC_ENABLE": "1",  # torch takes large tensors in huge pages
    # Sizes of batches for which torch and oneDNN keep code: 1,024 of them take hundreds of MB.
    "LRU_CACHE_CAPACITY": "64",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64",
    # Weights are in memory, or mapped, when transformers places them: threads gain nothing, take
    # memory for their stacks, and where one fails as it starts, Python waits for it for ever.
    "HF_DEACTIVATE_ASYNC_LOAD": "1",
    "TOKENIZERS_PARALLELISM": "false",  # threads do not survive the fork of a data worker
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "DATASETS_VERBOSITY": "error",
}

# Command -> its line in the help of all, which has them in this order. Its function, or a
# `typer.Typer` of several, is imported when it runs, or for its own help.
COMMANDS = {
    "convert": "Turn a short-input model into a long-input one.",
    "pretrain": "Train a masked LM or a character model on plain text.",
    "finetune": "Fine-tune a model as a recipe says, and evaluate it.",
    "predict": "Answer for every document of a file.",
    "evaluate": "Score a file of predictions, or a model.",
    "report": "Show a run or answers as a page, compare several, or list runs.",
    "embed": "Turn every document of a file into a vector.",
    "init": "Write a first recipe for your data, and say what to run next.",
    "check": "Look for faults in the data of a recipe, and tell the cost.",
    "recipes": "List, show or copy the recipes that come with ldt.",
    "labels": "Take answers to tools in which people correct labels.",
    "export": "Turn a run's model into a file that runs without ldt.",
    "serve": "Answer requests over HTTP, as ldt predict answers for files.",
    "bench": "Measure time and memory of an encoder, by length.",
    "doctor": "Report this machine, its speed, and what is slow on it.",
}
# Modules of commands that are not called as the command.
_MODULES = {"pretrain": "train", "finetune": "train", "embed": "predict"}
MAIN = tuple(COMMANDS)[:6]

# Those that compute with torch, whatever their arguments are.
COMPUTING = "convert check finetune pretrain predict embed export serve bench".split()


class Groups(TyperGroup):
    """Commands that are imported when they run; the help lists the main ones first, plainly."""

    def __init__(self, **settings: Any):
        super().__init__(**settings)
        self.commands: dict[str, Any] = dict.fromkeys(COMMANDS)

    def get_command(self, ctx: Any, name: str) -> Any:
        """Command of a name, imported at its first use; None if there is none."""
        if name in COMMANDS and self.commands[name] is None:
            self.commands[name] = _imported(name)
        return self.commands.get(name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write two sections to the formatter of the help, main commands and others: names, each
        with a line."""
        more = [name for name in COMMANDS if name not in MAIN]
        for title, names in (("Main commands", MAIN), ("More commands", more)):
            with formatter.section(title):
                formatter.write_dl([(name, COMMANDS[name]) for name in names])


def _imported(name: str) -> Any:
    from ldt.cli.options import Command, explained

    command = resolve_name(f"ldt.cli.{_MODULES.get(name, name)}:{name}")
    parent = typer.Typer(**PLAIN)
    parent.callback()(ldt)  # so that it is a group
    if isinstance(command, typer.Typer):
        for each in command.registered_commands:
            explained(cast(Any, each.callback))
        parent.add_typer(command, name=name)
    else:
        command = explained(command)
        parent.command(name, cls=Command)(thread_limited(command) if name in COMPUTING else command)
    return cast(TyperGroup, get_command(parent)).commands[name]


# Help that a narrow terminal and a pipe can show, and no traceback in colours.
PLAIN: dict[str, Any] = {"rich_markup_mode": None, "pretty_exceptions_enable": False}
app = typer.Typer(cls=Groups, context_settings={"help_option_names": ["-h", "--help"]}, **PLAIN)


@app.callback(invoke_without_command=True)
def ldt(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """NLP on long documents: make a short encoder long, fine-tune it, predict with it."""
    if version:
        print(f"ldt {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command of ``arguments`` (None: those of the process), say in a line what went wrong
    if anything did, and exit with its code."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    configure_streams()
    signals = RaisedSignals()
    try:
        with signals.handled():
            code = _run(arguments)
    except BaseException as error:
        code, prefix, text = explain(error)
        if text and not signals.number:
            with suppress(OSError, SystemExit):  # whoever read standard error has left
                say(text, prefix, "bold red")
    if signals.number:  # also where a library made another exception of it, or swallowed it
        code = 128 + signals.number
    _let_go(sys.stdout)
    _let_go(sys.stderr)
    sys.exit(code)


def _run(arguments):
    code = app(arguments, prog_name="ldt", standalone_mode=False) or errors.EXIT_OK
    if sys.stdout is not None:
        sys.stdout.flush()
    return code


def _let_go(stream):
    """Flush; what cannot be written must not fail once more when Python ends."""
    try:
        stream.flush()
    except (AttributeError, ValueError):  # no stream, or a closed one
        return
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
