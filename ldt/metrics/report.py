"""What is told about an evaluation: tables on a terminal, lines elsewhere, and JSON."""

from typing import Any

from rich.table import Table
from rich.text import Text

from ldt.cli.console import say, stdout
from ldt.errors import plain, plural
from ldt.metrics import result as results
from ldt.metrics.result import Group, Result

NAMED = 3  # ids of a warning


def as_json(result: Result) -> dict[str, Any]:
    """Everything, at full precision; metrics, intervals and groups from 0 to 100."""
    return {
        "format": result.title,
        "scale": "0 to 100",
        "metrics": result.metrics,
        "subsets": result.subsets,
        "interval": {
            "level": results.LEVEL,
            "resamples": results.RESAMPLES,
            "resampled": result.units,
            "seed": results.SEED,
            "metrics": {name: list(pair) for name, pair in result.intervals.items()},
        },
        "missing": {"count": len(result.missing), "first": result.missing[:NAMED]},
        "extra": {"count": len(result.extra), "first": result.extra[:NAMED]},
        "by_length": [
            _group(group, "words") for group in results.by_length(result.items, result.figures)
        ],
        "by_position": [_group(group, "part") for group in results.by_place(result.items)],
    }


def _group(group: Group, key: str) -> dict[str, Any]:
    return {
        "label": group.label,
        key: group.limits,
        "questions": group.questions,
        "metrics": group.metrics,
    }


def warnings(result: Result, predictions: str) -> list[str]:
    """Lines on ids that do not meet, and on what else the format found."""
    lines = []
    for ids, what in (
        (result.missing, "without a whole prediction; what lacks counts 0"),
        (result.extra, "predicted but not in the gold file, left out"),
    ):
        if ids:
            first = ", ".join(map(repr, ids[:NAMED])) + (", ..." if len(ids) > NAMED else "")
            lines.append(f"{predictions}: {plural(len(ids), result.noun)} {what}: {first}")
    return lines + result.warnings


def show(result: Result) -> None:
    """Metrics with their intervals, then groups, on standard output."""
    answered = len(result.items) - len(result.missing)
    counts = f"{plural(len(result.items), result.noun)}, {answered:,} predicted"
    say(f"{result.title}: {counts}; figures from 0 to 100", console=stdout)
    _metrics(result)
    if result.intervals:
        say(
            f"intervals: {results.LEVEL:.0%}, {results.RESAMPLES:,} resamples of the "
            f"{result.units}, seed {results.SEED}",
            console=stdout,
        )
    else:
        say(f"no intervals: they take two {result.units} at least", console=stdout)
    groups = results.by_length(result.items, result.figures)
    _groups("words of the document", groups, result, result.no_length)
    _groups("where the answer stands", results.by_place(result.items), result, result.no_place)


def _metrics(result):
    rows = [(name, value, result.intervals.get(name)) for name, value in result.metrics.items()]
    for subset, metrics in result.subsets.items():
        for name, value in metrics.items():
            name = f"{subset} {name}"
            rows.append((name, value, result.intervals.get(name)))
    between = {name: f"{pair[0]:.2f} to {pair[1]:.2f}" if pair else "" for name, _, pair in rows}
    if stdout.is_terminal:
        table = Table("metric")
        table.add_column("value", justify="right")
        table.add_column("interval")
        for name, value, _ in rows:
            table.add_row(name, _figure(name, value), between[name])
        stdout.print(table)
        return
    for name, value, _ in rows:
        say(f"{name} {_figure(name, value)} {between[name]}".rstrip(), console=stdout)


def _groups(heading, groups, result, why_not):
    if not groups:
        why_not = why_not or "the gold file tells it of no question"
        say(f"{heading}: not known; {why_not}", console=stdout)
        return
    names = result.shown or tuple(groups[0].metrics)
    if stdout.is_terminal:
        table = Table(heading)
        for name in ("questions", *names):
            table.add_column(name, justify="right")
        for group in groups:
            figures = [f"{group.metrics[name]:.2f}" for name in names]
            table.add_row(Text(plain(group.label)), f"{group.questions:,}", *figures)
        stdout.print(table)
        return
    for group in groups:
        figures = ", ".join(f"{name} {group.metrics[name]:.2f}" for name in names)
        counts = plural(group.questions, result.noun)
        say(f"{heading}: {group.label}: {counts}, {figures}", console=stdout)


def _figure(name: str, value: float) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.6g}" if name.endswith("_thresh") else f"{value:.2f}"
