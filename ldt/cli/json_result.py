"""The option --json of commands that show a result: a file for all of it, or JSON in its place."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from ldt.cli.console import stdout
from ldt.errors import escaped

log = logging.getLogger("ldt")


def tell(facts: Callable[[], Any], target: str | None, show: Callable[[], None]) -> None:
    """Show a result and write it into a file, or print it as JSON in place of that.

    Args:
        facts: makes all there is to say of the result, as JSON has it.
        target: the file; "-" for JSON on standard output, None for neither.
        show: prints the result for people.

    Raises:
        UserError: the file cannot be written.
    """
    from ldt.io import files

    text = json.dumps(facts(), ensure_ascii=False, indent=2) if target else ""
    if target == "-":
        typer.echo(escaped(text) if stdout.is_terminal else text)
        return
    show()
    if target:
        files.write_result(Path(target), f"{text}\n")
        log.info("%s: written", target)
