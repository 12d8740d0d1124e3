"""ldt doctor: the machine, and what is slow on it."""

from typing import Annotated

import typer

from ldt.cli.console import say, stdout


def doctor(
    json: Annotated[
        bool, typer.Option("--json", help="Print the report as JSON, for programs.")
    ] = False,
) -> None:
    """Report this machine, its speed, and what is slow on it.

    The report is made to be pasted into an issue: it names no user, token or proxy.

    Example: ldt doctor --json > doctor.json
    """
    from ldt.bench.doctor import examine

    report = examine()
    if json:
        say(report.json(), console=stdout)
        return
    for line in report.lines():
        say(line, console=stdout)
