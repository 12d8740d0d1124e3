"""ldt curves: learning curves of runs, drawn in the terminal."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from ldt.cli.console import say, stdout
from ldt.errors import UserError

if TYPE_CHECKING:
    from rich.text import Text

EVERY = 2.0  # seconds between two looks at the logs


def curves(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN", help="Folders of runs, finished or not; several overlie."),
    ],
    metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="What to draw, as metrics.jsonl calls it (grad_norm, eval_f1); may be repeated; "
            "by default the losses and the metric that the runs go by.",
        ),
    ] = None,
    follow: Annotated[
        bool,
        typer.Option("--follow", help="Draw anew while the runs train; Ctrl-C ends it."),
    ] = False,
) -> None:
    """Draw the learning curves of runs in the terminal.

    They are read from the logs of the runs, so a training that is under way shows how far it is.

    Example: ldt curves runs/seed-0 runs/seed-1 --metric macro_f1
    """
    if not follow:
        lines = _drawn(runs, metric or [])
        for line in lines:
            stdout.print(line, no_wrap=True, overflow="ignore", crop=False)
        return
    if not stdout.is_terminal:
        raise UserError("--follow draws on a terminal, and standard output is none")
    _follow(runs, metric or [])


def _follow(runs: list[str], metrics: list[str]) -> None:
    """Draw again and again, until no run trains any more."""
    from pathlib import Path

    from rich.console import Group
    from rich.live import Live

    from ldt import files

    with Live(console=stdout, auto_refresh=False, vertical_overflow="crop") as live:
        training = True
        while training:
            # Asked before the logs are read, or the last lines would be missing.
            training = any(files.holder(Path(run).expanduser()) for run in runs)
            live.update(Group(*_drawn(runs, metrics)), refresh=True)
            if training:
                time.sleep(EVERY)


def _drawn(runs: list[str], metrics: list[str]) -> "list[Text]":
    """The charts as lines; runs without a log are told."""
    from rich.text import Text

    from ldt.report.learning import charts, goes_by, logs
    from ldt.report.terminal import chart

    found = logs(runs)
    lines: list[Text] = []
    for name, series in charts(found, metrics, goes_by(runs)).items():
        drawn = chart(name, series, width=stdout.width, colour=_colour())
        if not drawn:
            drawn = [Text(f"{name}: no value is finite")]
        lines += [*([Text()] if lines else []), *drawn]
    for run, log in found.items():
        if not log:
            line = f"{run}: nothing is logged yet"
            lines.append(Text(line)) if stdout.is_terminal else say(line)
    return lines


def _colour() -> bool:
    return stdout.is_terminal and not stdout.no_color
