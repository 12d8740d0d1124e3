"""ldt compare: runs or answers side by side."""

import logging
from collections import Counter
from pathlib import Path
from string import ascii_uppercase
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ldt.cli import json_result
from ldt.cli.console import say, stdout
from ldt.cli.evaluate import RecipeOption
from ldt.cli.report import FormatOption, GoldOption
from ldt.errors import UserError, plural

if TYPE_CHECKING:
    from ldt.report.compare import Beside, Change, Comparison, Difference

log = logging.getLogger("ldt")

MOST = 10  # documents that are listed on a screen
LONGEST = 60  # characters of an answer
LONGEST_FACT = 24


def compare(
    subjects: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN|ANSWERS...",
            help="Folders of runs, or answers of ldt predict as JSON lines, two or more; and "
            "KEY=VALUE, keys of a recipe that say how the gold file is read.",
        ),
    ],
    gold: GoldOption = None,
    format: FormatOption = None,
    recipe: RecipeOption = None,
    json: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="File for everything at full precision, with all documents that changed, as JSON; "
            "- prints JSON instead of the tables.",
        ),
    ] = None,
) -> None:
    """Compare runs or answers on the same documents.

    The first one is what the others are compared with: what differs in how they were made, each
    metric with a bootstrap interval of the difference, for which the same documents are drawn for
    all, and the documents that are right in one and wrong in the other. The models of runs answer
    for the documents that they were evaluated on, or for those of --gold.

    Example: ldt compare runs/seed-1 runs/seed-2 --gold dev.jsonl
    """
    from ldt.io import files
    from ldt.report.compare import as_json
    from ldt.report.compare import compare as side_by_side
    from ldt.report.subject import subject

    names = [name for name in subjects if "=" not in name or Path(name).exists()]
    keys = [name for name in subjects if name not in names]
    if not 2 <= len(names) <= len(ascii_uppercase):
        raise UserError(f"compare takes 2 to 26 runs or files of answers, got {len(names)}")
    if json and json != "-":
        files.check_result(Path(json), "--json", (*names, *(gold or ()), recipe))
    for name in names:  # before any model answers
        _check(name, gold, keys)
    found = []
    for name in names:
        own = (None, None) if Path(name).is_dir() else (format, recipe)
        found.append(subject(name, gold=gold or (), format=own[0], recipe=own[1], overrides=keys))
        for line in found[-1].warnings:
            log.warning("%s: %s", name, line)
    made = side_by_side(found)
    for line in made.warnings:
        log.warning("%s", line)
    json_result.tell(lambda: as_json(made), json, lambda: show(made))


def _check(name: str, gold: list[str] | None, keys: list[str]) -> None:
    """Refuse what cannot be compared.

    Raises:
        UserError: answers without a gold file, a run whose model has nothing to answer for.
    """
    from ldt.recipe.run import Run
    from ldt.report.subject import evaluation_set

    missing = "" if gold else "--gold names the file of the right answers"
    if Path(name).is_dir():
        missing = evaluation_set(Run(name).describe(keys), gold or ())[1]
    if missing:
        raise UserError(f"{name}: nothing to compare: {missing}")


def show(made: "Comparison") -> None:
    """Print what differs, the metrics and the first documents that changed, on standard output."""
    from ldt.cli.tables import table
    from ldt.metrics.result import LEVEL, RESAMPLES, SEED

    letters = list(ascii_uppercase[: len(made.names)])
    for letter, name, decision in zip(letters, made.names, made.decisions, strict=True):
        say(f"{letter}: {name}{f'; decision: {decision}' if decision else ''}", console=stdout)
    if made.facts:
        say("what differs:", console=stdout)
        facts = made.facts.items()
        stdout.print(table([_fact(key, letters, row) for key, row in facts]))
    if made.only_decisions:
        say("only the decisions differ: this compares thresholds, not models", console=stdout)
    for letter, other in zip(letters[1:], made.others, strict=True):
        say(f"{letter} beside A, {plural(made.documents, made.noun)}:", console=stdout)
        stdout.print(table([_row(each, letter) for each in other.differences]))
        _changes(other, letter, made.noun)
    if any(each.interval for other in made.others for each in other.differences):
        say(
            f"intervals of the difference: {LEVEL:.0%}, {RESAMPLES:,} resamples of the "
            f"{made.units}, the same for all, seed {SEED}; above 0: the share of them in which the "
            "difference is",
            console=stdout,
        )
    else:
        say(f"no intervals: they take two different {made.units} at least", console=stdout)


def _fact(key: str, letters: list[str], values: list[str]) -> dict[str, str]:
    cells = [_short(value, LONGEST_FACT) for value in values]
    return {"key": key} | dict(zip(letters, cells, strict=True))


def _row(each: "Difference", letter: str) -> dict[str, Any]:
    """A metric as cells of text."""
    from ldt.metrics.numbers import metric_text

    def text(value: float | None, sign: str = "") -> str:
        if value is None:
            return "-"
        shown = metric_text(each.metric, value)
        return f"+{shown}" if sign and value > 0 else shown

    interval = each.interval and f"{text(each.interval[0], '+')} to {text(each.interval[1], '+')}"
    return {
        "metric": each.metric,
        "A": text(each.first),
        letter: text(each.value),
        f"{letter} - A": text(each.difference, "+"),
        "interval": interval or "-",
        "above 0": "-" if each.above is None else f"{each.above:.1%}",
    }


def _changes(other: "Beside", letter: str, noun: str) -> None:
    """The first documents that changed."""
    from ldt.cli.tables import table

    if not other.changes:
        others = f"; {plural(other.other_answers, noun)} with another answer" * bool(
            other.other_answers
        )
        say(f"no {noun} is right in one and wrong in the other{others}", console=stdout)
        return
    kinds = Counter(each.change for each in other.changes)
    order = sorted(kinds, key=lambda kind: (kind == "score", not kind.endswith("to right"), kind))
    told = [f"{kinds[kind]:,} {'by their score' if kind == 'score' else kind}" for kind in order]
    more = f", {MOST} of {len(other.changes):,}" if len(other.changes) > MOST else ""
    say(f"changed from A to {letter}: {', '.join(told)}{more}:", console=stdout)
    shown = [
        {"where": each.where, "id": each.id, "change": _told(each)}
        | {"gold": _short(each.gold), "A": _short(each.before), letter: _short(each.after)}
        for each in other.changes[:MOST]
    ]
    stdout.print(table(shown))


def _short(text: str | None, most: int = LONGEST) -> str:
    from ldt.report.escaping import cut

    return cut(" ".join((text or "").split()), most)


def _told(change: "Change") -> str:
    if change.change == "score":
        return f"{change.metric} {change.difference:+.2f}"
    return change.change
