"""The command line: a file a command. What a command needs is imported when it runs."""

import os
import sys
import warnings
from contextlib import suppress
from pkgutil import resolve_name
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from ldt import __version__, errors
from ldt.cli.console import say, settle
from ldt.cli.failures import explain
from ldt.cli.options import Command
from ldt.cli.threads import settled
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

# A command is a function, or a `typer.Typer` of several; the help has them in this order.
COMMANDS = {
    "convert": "ldt.cli.convert:convert",
    "pretrain": "ldt.cli.pretrain:pretrain",
    "finetune": "ldt.cli.finetune:finetune",
    "predict": "ldt.cli.predict:predict",
    "evaluate": "ldt.cli.evaluate:evaluate",
    "report": "ldt.cli.report:report",
    "init": "ldt.cli.init:init",
    "check": "ldt.cli.check:check",
    "recipes": "ldt.cli.recipes:recipes",
    "labels": "ldt.cli.labels:labels",
    "export": "ldt.cli.export:export",
    "serve": "ldt.cli.serve:serve",
    "bench": "ldt.cli.bench:bench",
    "doctor": "ldt.cli.doctor:doctor",
}
MAIN = tuple(COMMANDS)[:6]

# Those that compute with torch, whatever their arguments are.
COMPUTING = ("convert", "check", "finetune", "pretrain", "predict", "export", "serve", "bench")


class Groups(TyperGroup):
    """Commands whose help lists the main ones first, without boxes or colours."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        more = [name for name in COMMANDS if name not in MAIN]
        width = formatter.width - 6 - max(map(len, COMMANDS))
        for title, names in (("Main commands", MAIN), ("More commands", more)):
            with formatter.section(title):
                commands = {name: self.commands[name] for name in names}
                formatter.write_dl(
                    [(name, each.get_short_help_str(width)) for name, each in commands.items()]
                )


app = typer.Typer(
    cls=Groups,
    rich_markup_mode=None,  # help that a narrow terminal and a pipe can show
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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


for _name, _place in COMMANDS.items():
    _command = resolve_name(_place)
    if isinstance(_command, typer.Typer):
        app.add_typer(_command, name=_name)
    else:
        app.command(_name, cls=Command)(settled(_command) if _name in COMPUTING else _command)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run a command, say in a line what went wrong if anything did, and exit with its code."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    settle()
    signals = RaisedSignals()
    try:
        with signals.handled():
            code = _run(arguments)
    except BaseException as error:
        code, prefix, text = explain(error, sys.argv[1:] if arguments is None else arguments)
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
