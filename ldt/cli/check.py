"""ldt check: what is wrong with the data of a recipe, and what would do."""

import textwrap
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ldt.cli import results
from ldt.cli.console import say, stdout
from ldt.cli.options import File, Overrides

if TYPE_CHECKING:
    from ldt.data.findings import Finding
    from ldt.training.check import CheckReport

WIDTH = 80


def check(
    recipe: Annotated[Path, "RECIPE"],
    overrides: Overrides = None,
    json: File = None,
    cost: Annotated[bool, typer.Option("--cost/--no-cost")] = True,
) -> int:
    """Look for faults in the data of a recipe, and tell the cost.

    Nothing is trained yet. Ends with 4 where a fault or a warning was found.

    Example: ldt check wikihop data.train=train.json

    Args:
        json: File for the report as JSON, besides its text on the screen; - prints JSON instead.
        cost: Measure a few steps, for the time and memory of the training.
    """
    from ldt.recipe.recipe import ITS_OWN, load
    from ldt.training.check import check

    loaded = load(recipe, overrides or (), command=ITS_OWN)
    results.check(json, recipe)
    report = check(loaded, cost=cost)
    results.tell(report.facts, json, lambda: _show(report))
    return report.exit_code


def _show(report: "CheckReport") -> None:
    """Print a report: findings by level, then lengths and cost."""
    for level, findings in groupby(report.findings, lambda finding: finding.level):
        for finding in findings:
            _show_finding(level, finding)
    counts = " and ".join(f"{count:,} {name}" for name, count in report.documents.items())
    if not report.findings:
        _say(f"nothing found in {counts} {report.noun}")
    for name, table in report.lengths.items():
        _show_lengths(f"{name}: {report.documents[name]:,} {report.noun}", table, report)
    for line in (*report.remarks, *report.cost):
        _say(line)


def _say(line: str) -> None:
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    for part in textwrap.wrap(
        line, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    ):
        say(part, console=stdout)


def _show_finding(level: str, finding: "Finding") -> None:
    if finding.about_all:
        amount = ""
    else:
        share = finding.count / max(finding.of, 1)
        amount = f"{finding.count:,} of {finding.of:,} ({_percent(share)}) "
    detail = f": {finding.detail}" if finding.detail else ""
    lines = [f"{level}: {finding.kind}: {finding.set}: {amount}{finding.what}{detail}"]
    if finding.where:
        lines.append(f"  at {', '.join(finding.where)}")
    lines.append(f"  {finding.would_do}")
    for line in lines:
        _say(line)


def _show_lengths(heading: str, table: dict[str, Any], report: "CheckReport") -> None:
    unit = report.unit
    _say(
        f"{heading}: {table['median']:,} {unit} in the median, {table['p95']:,} at the 95th "
        f"percentile, {table['longest']:,} in the longest"
    )
    if report.max_length:
        _say(
            f"  as the recipe reads them, up to {report.max_length:,} {unit} an input: "
            f"{_percent(table['read'])} of the text, {table['inputs']:,} inputs"
        )
    say(
        f"  {'max_length':>10} {'read whole':>11} {'text in one input':>18} {'inputs':>10}",
        console=stdout,
    )
    for row in table["by_max_length"]:
        say(
            f"  {row['max_length']:>10,} {_percent(row['whole']):>11} "
            f"{_percent(row['beginning']):>18} {row['inputs']:>10,}",
            console=stdout,
        )


def _percent(share: float) -> str:
    """``7 %``, ``0.3 %``, ``99.9 %``: not 0 or 100 where it is not that."""
    digits = 0 if share in (0, 1) or 0.01 <= share <= 0.99 else 1
    shown = f"{100 * share:.{digits}f}"
    if shown in ("0.0", "100.0"):
        return "under 0.1 %" if shown == "0.0" else "over 99.9 %"
    return f"{shown} %"
