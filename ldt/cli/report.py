"""ldt report: a page that shows a run, or answers, to people."""

import logging
from pathlib import Path
from typing import Annotated

import typer

from ldt.cli.console import say, stdout
from ldt.cli.evaluate import KeysArgument, RecipeOption
from ldt.errors import UserError

log = logging.getLogger("ldt")

GoldOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FILE",
        help="Documents with their right answers, as data.eval names them or in a published "
        "layout; a pattern in quotes, or repeated. By default those that the run was evaluated on.",
    ),
]
FormatOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Kind of answers, as of ldt evaluate, where neither a run nor --recipe says it.",
    ),
]
PAGE = "report.html"


def report(
    subject: Annotated[
        str,
        typer.Argument(
            metavar="RUN|ANSWERS",
            help="Folder of a run, or answers of ldt predict, lines or a table.",
        ),
    ],
    keys: KeysArgument = None,
    gold: GoldOption = None,
    documents: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Documents that the answers are for, where the gold file has no text or there is "
            "none.",
        ),
    ] = None,
    format: FormatOption = None,
    recipe: RecipeOption = None,
    answers: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Answers of the run's model that are there already; by default it answers now.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File for the page; by default report.html in the run's folder, or the name of "
            "the answers with .html.",
        ),
    ] = None,
) -> None:
    """Show a run or answers as one page of HTML.

    The page needs nothing else, no network either. Of a run it has the learning curves, its metrics
    and the documents that it was evaluated on, with the answers of its model; of answers with a
    gold file what is right and wrong and where; without one the answers and their passages.

    Example: ldt report runs/contracts --gold dev.jsonl
    """
    from ldt.io import files
    from ldt.report import build, charts, page
    from ldt.report.subject import PASSAGES
    from ldt.report.subject import subject as read

    charts.check()
    target = output or _beside(Path(subject))
    read_files = [subject, *(gold or ()), documents, answers, recipe]
    files.check_result(target, "--output", [name for name in read_files if name])
    if Path(subject).is_dir() and target.parent == Path(subject) and target.name in _files(subject):
        raise UserError(f"--output {target}: a file of the run; name another")
    found = read(
        subject,
        gold=gold or (),
        documents=documents,
        format=format,
        recipe=recipe,
        answers=answers,
        overrides=keys or (),
        passages=PASSAGES,
    )
    made = build.report(found)
    for line in made.warnings:
        log.warning("%s", line)
    files.write_result(target, page.render(made))
    say(str(target), console=stdout)
    say(made.sentence, console=stdout)


def _beside(subject: Path) -> Path:
    return subject / PAGE if subject.is_dir() else subject.with_suffix(".html")


def _files(run: str) -> set[str]:
    """Names of the files that a run folder consists of."""
    return {path.name for path in Path(run).iterdir()} - {PAGE}
