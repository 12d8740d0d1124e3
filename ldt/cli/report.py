"""ldt report: a page that shows a run or answers, several side by side, or a list of runs."""

import logging
from collections import Counter
from pathlib import Path
from string import ascii_uppercase
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ldt.cli import results
from ldt.cli.console import say, stdout
from ldt.cli.options import File, Files, Name, files_and_keys, refuse
from ldt.errors import UserError, plural, without_controls

if TYPE_CHECKING:
    from ldt.report.compare import Beside, Comparison, Difference
    from ldt.report.runs import Summary

log = logging.getLogger("ldt")

PAGE = "report.html"
RUNS = "runs"  # the folder whose runs are listed where none is named

COLUMNS = ("name", "date", "task", "model", "metric", "length", "time", "size", "state")
MOST = 10  # documents that are listed on a screen
LONGEST, LONGEST_FACT = 60, 24  # characters of an answer, and of a fact of a run
ENDLESS = 10_000  # columns of a table that nobody reads on a terminal


def report(
    subjects: Annotated[
        list[str] | None, typer.Argument(metavar="RUN|ANSWERS|KEY=VALUE", show_default=False)
    ] = None,
    gold: Files = None,
    documents: File = None,
    format: Name = None,
    recipe: Annotated[str | None, "RECIPE"] = None,
    answers: File = None,
    output: Annotated[Path | None, "FILE"] = None,
    all_texts: Annotated[bool, typer.Option("--all")] = False,
    sort: Literal[COLUMNS] | None = None,  # type: ignore[valid-type]
    json: File = None,
) -> None:
    """Show a run or answers as a page, compare several, or list runs.

    One run, or file of answers, becomes a page of HTML that needs no network and no other file:
    learning curves, metrics, and each document with its answer and, from a gold file, the right
    one.

    Several are compared on the same documents: settings, each metric with a bootstrap interval of
    the difference, and the documents that are right in one and wrong in the other. Models of runs
    answer for --gold, by default for the documents that they were evaluated on.

    Without any the runs in the folder runs are listed: task, model, metric, length, time, size and
    state, with the command that resumes a stopped one.

    Example: ldt report runs/contracts --gold dev.jsonl

    Args:
        subjects: Folders of runs, or answers of ldt predict, lines or a table; without any, or of
            folders that hold runs, the runs are listed. Keys of a recipe say how the gold file is
            read, such as data.label=class.
        gold: Documents with their right answers, as data.eval names them or in a published layout;
            a pattern in quotes, or repeated. By default those that the run was evaluated on.
        documents: Documents that were answered for; needed if there is no gold file, or it has no
            texts.
        format: Kind of answers, one of those of ldt evaluate; needed without a run or --recipe.
        recipe: Recipe, or folder of a run, whose task and data keys say how to read the gold file
            and what to compute; by default those of --format.
        answers: Existing answers of the run's model; by default it answers now.
        output: File for the page; by default report.html in the run's folder, or the name of the
            answers with .html.
        all_texts: Put the texts of all documents in the page; by default those of the worst errors
            and a sample.
        sort: Column to sort a list of runs by: names from a to z, else the newest or best first; by
            default the date.
        json: File to save the comparison (with all documents that changed) or the list of runs in,
            as JSON; - prints it instead of the tables.
    """
    names, keys = files_and_keys(subjects or ())
    asked: dict[str, Any] = {"gold": gold, "format": format, "recipe": recipe}
    of_one: dict[str, Any] = {"documents": documents, "answers": answers, "output": output}
    of_one["all"] = all_texts
    if all(map(_holds_runs, names)):
        why = f"; {names[0]} is no run" if names else ""
        refuse(f"a list of runs{why}", *keys, **asked, **of_one)
        _list(names or [RUNS], sort or "date", json)
    elif len(names) == 1:
        refuse("a page", sort=sort, json=json)
        _page(names[0], keys, **asked, **of_one)
    else:
        refuse("a comparison", sort=sort, **of_one)
        _compare(names, keys, json, **asked)


def _holds_runs(name: str) -> bool:
    """True for a folder that is no run itself."""
    from ldt.recipe.recipe import RECIPE
    from ldt.recipe.run import RUN

    folder = Path(name).expanduser()
    return folder.is_dir() and not any((folder / name).exists() for name in (RECIPE, RUN))


def _page(
    name: str, keys: list[str], *, output: Path | None, all: bool = False, **asked: Any
) -> None:
    from ldt.io import files
    from ldt.report import build, charts, page
    from ldt.report.subject import PASSAGES, subject

    charts.require_matplotlib()
    path = Path(name)
    beside = path / PAGE if path.is_dir() else path.with_suffix(".html")
    target, asked["gold"] = output or beside, asked["gold"] or ()
    inputs = (asked[key] for key in ("documents", "answers", "recipe"))
    results.check(target, name, *asked["gold"], *inputs, option="--output")
    if path.is_dir() and target.parent == path and target != beside and target.exists():
        raise UserError(f"--output {target}: a file of the run; name another")
    content = build.report(subject(name, overrides=keys, passages=PASSAGES, **asked))
    for line in content.warnings:
        log.warning("%s", line)
    files.write_result(target, page.render(content, all_texts=all))
    say(str(target), console=stdout)
    say(content.sentence, console=stdout)


def _compare(names: list[str], keys: list[str], json: str | None, **asked: Any) -> None:
    from ldt.recipe.run import Run
    from ldt.report.compare import as_json, compare
    from ldt.report.subject import evaluation_set, subject

    gold = asked.pop("gold") or ()
    if len(names) > len(ascii_uppercase):
        raise UserError(f"{len(names)} runs or files of answers: at most 26 are compared")
    results.check(json, *names, *gold, asked["recipe"])
    for name in names:  # before any model answers
        missing = "" if gold else "--gold names the file of the right answers"
        if Path(name).is_dir():
            missing = evaluation_set(Run(name).describe(keys), gold)[1]
        if missing:
            raise UserError(f"{name}: nothing to compare: {missing}")
    subjects = []
    for name in names:
        options = {} if Path(name).is_dir() else asked
        subjects.append(subject(name, gold=gold, overrides=keys, **options))
        for line in subjects[-1].warnings:
            log.warning("%s: %s", name, line)
    comparison = compare(subjects)
    for line in comparison.warnings:
        log.warning("%s", line)
    results.tell(lambda: as_json(comparison), json, lambda: _show_comparison(comparison))


def _show_comparison(made: "Comparison") -> None:
    from ldt.metrics.result import LEVEL, RESAMPLES, SEED

    letters = ascii_uppercase[: len(made.names)]
    for letter, name, decision in zip(letters, made.names, made.decisions, strict=True):
        say(f"{letter}: {name}{f'; decision: {decision}' if decision else ''}", console=stdout)
    if made.facts:
        say("what differs:", console=stdout)
        facts = {
            key: [_short(each, LONGEST_FACT) for each in row] for key, row in made.facts.items()
        }
        rows = [{"key": key} | dict(zip(letters, row, strict=True)) for key, row in facts.items()]
        stdout.print(results.table(rows))
    for letter, other in zip(letters[1:], made.others, strict=True):
        say(f"{letter} beside A, {plural(made.documents, made.noun)}:", console=stdout)
        stdout.print(results.table([_row(each, letter) for each in other.differences]))
        _changes(other, letter, made.noun)
    line = f"no intervals: they take two different {made.units} at least"
    if any(each.interval for other in made.others for each in other.differences):
        line = (
            f"intervals of the difference: {LEVEL:.0%}, {RESAMPLES:,} resamples of the "
            f"{made.units}, the same for all, seed {SEED}; above 0: the share of them in which the "
            "difference is"
        )
    say(line, console=stdout)


def _row(each: "Difference", letter: str) -> dict[str, Any]:
    from ldt.metrics.numbers import metric_text

    def text(value: float | None, sign: str = "") -> str:
        shown = "-" if value is None else metric_text(each.metric, value)
        return f"+{shown}" if sign and value and value > 0 else shown

    return {
        **{"metric": each.metric, "A": text(each.first), letter: text(each.value)},
        f"{letter} - A": text(each.difference, "+"),
        "interval": " to ".join(text(end, "+") for end in each.interval or ()) or "-",
        "above 0": "-" if each.above is None else f"{each.above:.1%}",
    }


def _changes(other: "Beside", letter: str, noun: str) -> None:
    if not other.changes:
        say(f"no {noun} is right in one and wrong in the other", console=stdout)
        return
    kinds = Counter(each.change for each in other.changes)
    order = sorted(kinds, key=lambda kind: (kind == "score", not kind.endswith("to right"), kind))
    counts = [f"{kinds[kind]:,} {'by their score' if kind == 'score' else kind}" for kind in order]
    more = f", {MOST} of {len(other.changes):,}" if len(other.changes) > MOST else ""
    say(f"changed from A to {letter}: {', '.join(counts)}{more}:", console=stdout)
    rows = [
        {
            **{"where": each.where, "id": each.id},
            "change": each.change.replace("score", f"{each.metric} {each.difference:+.2f}"),
            **{"gold": _short(each.gold), "A": _short(each.before), letter: _short(each.after)},
        }
        for each in other.changes[:MOST]
    ]
    stdout.print(results.table(rows))


def _short(text: str | None, most: int = LONGEST) -> str:
    from ldt.report.html import cut

    return cut(" ".join((text or "").split()), most)


def _list(folders: list[str], sort: str, json: str | None) -> None:
    from ldt.report.runs import listed

    results.check(json)
    runs = listed(folders, sort)
    results.tell(lambda: [run.facts() for run in runs], json, lambda: _show_runs(runs, folders))


def _show_runs(runs: "list[Summary]", places: list[str]) -> None:
    """A line a run on standard output; what there is to say about one on standard error."""
    from rich.console import Console

    if not runs:
        say(f"no runs in {', '.join(places)}; ldt finetune RECIPE makes one")
        return
    console = stdout
    if not stdout.is_terminal:  # a program reads lines
        console = Console(width=ENDLESS, highlight=False, emoji=False)
    console.print(results.table([_cells(run) for run in runs]))
    for run in runs:
        if run.note:
            say(f"{run.name}: {run.note}")


def _cells(run: "Summary") -> dict[str, str]:
    """A run as text, a dash where something is not known."""
    from rich.filesize import decimal

    from ldt.io.progress import duration
    from ldt.metrics.numbers import metric_text

    value = "-" if run.value is None else metric_text(run.metric or "", run.value)
    cells = (
        run.name,
        run.date.astimezone().strftime("%Y-%m-%d %H:%M") if run.date else None,
        run.task,
        run.model,
        run.metric and f"{run.metric} {value}",
        None if run.length is None else f"{run.length:,}",
        None if run.time is None else duration(run.time),
        decimal(run.size),
        run.state,
    )
    pairs = zip(COLUMNS, cells, strict=True)
    return {column: " ".join(without_controls(cell or "-").split()) for column, cell in pairs}
