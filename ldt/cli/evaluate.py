"""ldt evaluate: the published metric of a file of predictions."""

import logging
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table
from rich.text import Text

from ldt.cli import json_result
from ldt.cli.console import say, stdout
from ldt.errors import UserError, plain, plural
from ldt.metrics import METRICS, OWN

if TYPE_CHECKING:
    from ldt.metrics.result import Group, Result

log = logging.getLogger("ldt")

# Figures that are not from 0 to 100; names of others begin with those of classes.
_OWN_UNITS = ("ece", "brier", "nll", "mse", "mae", "pearson", "spearman")
_HEADS = {"average_precision": "AP", "roc_auc": "AUC"}  # shorter ones of columns
MOST = 10  # rows of a table, but for one a class

Format = Enum("Format", {name: name for name in (*OWN, *METRICS)})  # type: ignore[misc]

GoldOption = Annotated[
    list[str],
    typer.Option(
        metavar="FILE",
        help="Questions or documents with their answers, in the published layout or as data.eval "
        "names them; a pattern in quotes, or repeated, where that has shards.",
    ),
]
PredOption = Annotated[
    list[str],
    typer.Option(
        metavar="FILE",
        help="Predictions to score, in the published layout or as ldt predict writes them; - reads "
        "standard input.",
    ),
]
FormatOption = Annotated[
    Format | None,
    typer.Option(
        help="Kind of answers, which decides the metric: a published layout of the gold file "
        "(XQuAD has squad), or for your own labels classification, regression, "
        "token_classification or multiple_choice."
    ),
]
RecipeOption = Annotated[
    str | None,
    typer.Option(
        metavar="RECIPE",
        help="Recipe, or folder of a run, of any task, that says how the gold file is read and "
        "what is computed; by default the defaults of --format.",
    ),
]
KeysArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="Keys of a recipe that say how the gold file is read, such as data.label=class.",
        show_default=False,
    ),
]

# Options of one format alone.
DomainOption = Annotated[
    Literal["wikipedia", "web"] | None,
    typer.Option(
        help="Domain of a triviaqa file: wikipedia scores by question, web by page; by default "
        "the one in the gold file."
    ),
]
EvidenceOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Folder of the documents of a triviaqa file, for scores by length of document.",
    ),
]
NaProbOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Probabilities of no answer for squad2, as JSON: {id: probability}.",
    ),
]
TaskOption = Annotated[
    Literal["ecthr_a", "ecthr_b", "scotus", "eurlex"] | None,
    typer.Option(help="Part of lexglue; by default what the columns of a table of logits say."),
]
TextEvidenceOption = Annotated[
    bool,
    typer.Option(
        "--text-evidence-only",
        help="Leave tables and figures out of the evidence of a qasper file.",
    ),
]
NoStemmerOption = Annotated[
    bool,
    typer.Option(
        "--no-stemmer",
        help="Compare words of summaries as they are, not by their stems.",
    ),
]


def evaluate(
    gold: GoldOption,
    pred: PredOption,
    keys: KeysArgument = None,
    format: FormatOption = None,
    recipe: RecipeOption = None,
    passages: Annotated[
        bool,
        typer.Option(
            "--passages",
            help="Score the passages of ldt predict --passages, where the gold file has spans: "
            "lines with id and spans, a list of {start, end}.",
        ),
    ] = False,
    domain: DomainOption = None,
    evidence: EvidenceOption = None,
    na_prob: NaProbOption = None,
    task: TaskOption = None,
    text_evidence_only: TextEvidenceOption = False,
    no_stemmer: NoStemmerOption = False,
    json: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="File for all scores at full precision, as JSON; - prints JSON instead of the "
            "table.",
        ),
    ] = None,
) -> None:
    """Score a file of predictions.

    Published layouts have their published metric; answers of ldt predict, the figures of the
    training's evaluation, with confusions, calibration and the worst errors. No model is needed.
    Each score has a bootstrap interval and, beside it, what a trivial answer
    has, such as always the most frequent one; it is also given by length of the document and by
    place of the answer.

    Example: ldt evaluate --format squad --gold dev.json --pred answers.json
    """
    from ldt.io import files
    from ldt.metrics.result import as_json

    if json and json != "-":
        files.check_result(Path(json), "--json", (*gold, *pred, na_prob, recipe))
    options = {
        **{"domain": domain, "evidence": evidence, "na_prob": na_prob},
        **{"task": task, "text_evidence_only": text_evidence_only or None},
        "no_stemmer": no_stemmer or None,
    }
    own = {"recipe": recipe, "overrides": keys}
    result = _result(gold, pred, format, passages, options, own)
    json_result.tell(lambda: as_json(result), json, lambda: show(result))


def _result(
    gold: list[str],
    pred: list[str],
    format: Format | None,
    passages: bool,
    options: dict[str, Any],
    own: dict[str, Any],
) -> "Result":
    """The score of the predictions; what is odd about them is told."""
    from ldt import metrics
    from ldt.io.sources import only

    if passages and (format or any(options.values()) or any(own.values())):
        raise UserError(
            "--passages: both files are lines, which have no --format and none of its options"
        )
    if passages:
        result = metrics.evaluate_passages(only(gold, "gold spans"), only(pred, "passages"))
    elif format and format.value in OWN or (own["recipe"] and not format):
        from ldt.inference.evaluate import evaluate

        name = next((name for name, value in options.items() if value), None)
        if name:
            what = f"--{name.replace('_', '-')}"
            raise UserError(f"{what}: no option of answers in ldt's own layout")
        kind = format.value if format else None
        result = evaluate(
            gold, pred, format=kind, recipe=own["recipe"], overrides=own["overrides"] or ()
        )
    elif format:
        if own["recipe"]:
            raise UserError(
                f"--format {format.value}: its layout is published, so that no --recipe says how "
                "it is read; without --format that of the recipe is taken"
            )
        if own["overrides"]:
            from ldt.inference.evaluate import reading_of

            options["data"] = reading_of(format.value, own["overrides"])
        result = metrics.evaluate(gold, pred, format=format.value, **options)
    else:
        raise UserError("missing option '--format' (or '--passages'); see 'ldt evaluate --help'")
    for line in result.warnings:
        log.warning("%s", line)
    if own["recipe"] and Path(own["recipe"]).is_dir():
        from ldt.recipe.run import Run
        from ldt.tasks.decisions import chosen_on_these, in_words

        decisions = Run(own["recipe"]).decisions()
        if words := in_words(decisions):
            log.info("%s: decision in force: %s", own["recipe"], words)
        for line in chosen_on_these(decisions, gold):
            log.warning("%s", line)
    return result


def show(result: "Result") -> None:
    """Print metrics with their intervals, then groups, on standard output."""
    from ldt.metrics import result as results

    answered = len(result.items) - len(result.missing)
    counts = f"{plural(len(result.items), result.noun)}, {answered:,} predicted"
    scale = "from 0 to 100" if result.scale == "0 to 100" else result.scale
    say(f"{result.title}: {counts}; figures {scale}", console=stdout)
    _metrics(result)
    if result.intervals:
        say(
            f"intervals: {results.LEVEL:.0%}, {results.RESAMPLES:,} resamples of the "
            f"{result.units}, seed {results.SEED}",
            console=stdout,
        )
    else:
        say(f"no intervals: they take two different {result.units} at least", console=stdout)
    for heading, rows in result.tables.items():
        _rows(heading, rows)
    groups = results.by_length(result.items, result.derive, result.figures)
    _groups("words of the document", groups, result, result.no_length)
    _groups("where the answer stands", results.by_place(result.items), result, result.no_place)


def _metrics(result: "Result") -> None:
    rows = [(name, value, result.intervals.get(name)) for name, value in result.metrics.items()]
    for subset, metrics in result.subsets.items():
        for name, value in metrics.items():
            name = f"{subset} {name}"
            rows.append((name, value, result.intervals.get(name)))
    between = {
        name: f"{_value(name, pair[0])} to {_value(name, pair[1])}" if pair else ""
        for name, _, pair in rows
    }
    trivial = {
        name: f"{each.answer}: {_value(name, each.value)}"
        for name, each in result.baselines.items()
    }
    if stdout.is_terminal:
        table = Table()
        table.add_column("metric", overflow="fold")
        table.add_column("value", justify="right")
        table.add_column("interval")
        table.add_column("without reading")
        for name, value, _ in rows:
            cells = Text(plain(name)), _value(name, value), between[name]
            words = filter(None, (trivial.get(name), result.notes.get(name)))
            table.add_row(*cells, Text(plain("; ".join(words))))
        stdout.print(table)
        return
    for name, value, _ in rows:
        beside = f"({trivial[name]})" if name in trivial else ""
        beside += f" ({result.notes[name]})" if name in result.notes else ""
        line = f"{name} {_value(name, value)} {between[name]} {beside}"
        say(" ".join(line.split()), console=stdout)


def _rows(heading: str, rows: list[dict[str, Any]]) -> None:
    """A table: of classes all rows, else the first ones."""
    from ldt.cli.tables import table

    shown = rows if heading == "classes" else rows[:MOST]
    if not shown:
        return
    shown = [{_HEADS.get(name, name): value for name, value in row.items()} for row in shown]
    more = f", {len(shown)} of {len(rows):,}" if len(shown) < len(rows) else ""
    say(f"{heading.replace('_', ' ')}{more}:", console=stdout)
    stdout.print(table(shown))


def _groups(heading: str, groups: "list[Group]", result: "Result", why_not: str) -> None:
    from ldt.metrics.numbers import columns  # imports numpy

    if not groups:
        why_not = why_not or "the gold file tells it of no question"
        say(f"{heading}: not known; {why_not}", console=stdout)
        return
    names = result.shown or columns([group.metrics for group in groups])
    if stdout.is_terminal:
        table = Table(heading)
        for name in ("questions", *names):
            table.add_column(Text(plain(name)), justify="right")
        for group in groups:
            values = [_share(group, name) for name in names]
            table.add_row(Text(plain(group.label)), f"{group.questions:,}", *values)
        stdout.print(table)
        return
    for group in groups:
        scores = ", ".join(f"{name} {_share(group, name)}" for name in names)
        counts = plural(group.questions, result.noun)
        say(f"{heading}: {group.label}: {counts}, {scores}", console=stdout)


def _share(group: "Group", name: str) -> str:
    return _value(name, group.metrics[name]) if name in group.metrics else "-"


def _value(name: str, value: float) -> str:
    from ldt.metrics.numbers import metric_text  # imports numpy

    if name.endswith(("_thresh", "-threshold")):
        return f"{value:.6g}"
    return metric_text(name if name in _OWN_UNITS else "", value)
