"""ldt evaluate: scores of a file of predictions, or of a model."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ldt.benchmarks import METRICS
from ldt.cli import results
from ldt.cli.console import say, stdout
from ldt.cli.options import File, Files, files_and_keys, refuse
from ldt.cli.threads import limit_threads
from ldt.errors import UserError, listed, plural
from ldt.tasks import OWN

if TYPE_CHECKING:
    from ldt.metrics.result import Group, Result

log = logging.getLogger("ldt")

# Figures that are not from 0 to 100; names of others begin with those of classes.
_OWN_UNITS = ("ece", "brier", "nll", "mse", "mae", "pearson", "spearman")
_HEADS = {"average_precision": "AP", "roc_auc": "AUC"}  # shorter ones of columns
MOST = 10  # rows of a table, but for one a class

Format = Enum("Format", {name: name for name in (*OWN, *METRICS)})  # type: ignore[misc]

# Keys of the task that say how thresholds are chosen anew.
CHOSEN = ("threshold_target", "positive", "calibration", "abstain")


def evaluate(
    subject: Annotated[
        list[str] | None, typer.Argument(metavar="MODEL|KEY=VALUE", show_default=False)
    ] = None,
    gold: Files = None,
    pred: Files = None,
    format: Format | None = None,
    recipe: Annotated[str | None, "RECIPE"] = None,
    na_prob: File = None,
    task: Literal["ecthr_a", "ecthr_b", "scotus", "eurlex"] | None = None,
    text_evidence_only: bool = False,
    no_stemmer: bool = False,
    choose_thresholds: bool = False,
    undo_thresholds: bool = False,
    length: Annotated[list[int] | None, "TOKENS"] = None,
    step: Annotated[int | None, typer.Option(min=1, metavar="CHARACTERS")] = None,
    part: Literal["eval", "test"] | None = None,
    rankings: File = None,
    json: File = None,
) -> None:
    """Score a file of predictions, or a model.

    Published layouts are scored by their published metric, answers of ldt predict by the metrics of
    the training, with confusions, calibration and the worst errors. Each score has a bootstrap
    interval and a baseline, such as always the most frequent answer, and is also given by length of
    the document and by place of the answer.

    With MODEL that model answers first, or its thresholds are chosen; one that makes vectors
    searches a collection, beside BM25. A language model is measured by how well it predicts a text.

    Example: ldt evaluate --format squad --gold dev.json --pred answers.json

    Args:
        subject: MODEL, whose answers are scored in place of --pred: folder of a run, or folder or
            hub id of a language model. Then keys that say how the gold file is read, such as
            data.label=class, or how a collection is, such as unit=chunk.
        gold: Documents with their right answers, in the published layout or as data.eval has them;
            of several files a pattern in quotes, or repeat the option. For a language model a text,
            for a model of vectors also a collection in BEIR's layout. By default the documents that
            the training of MODEL was evaluated on.
        pred: Predictions to score, in the published layout or as ldt predict writes them; - reads
            standard input.
        format: Kind of answers, which decides the metric: a published layout of the gold file
            (XQuAD has squad), or for your own labels classification, regression,
            token_classification or multiple_choice; passages scores those of ldt predict
            --passages, where the gold file has lines with id and spans, a list of {start, end};
            trec scores rankings of documents, by judgements or a folder in BEIR's layout.
        recipe: Recipe, or folder of a run, whose task and data keys say how to read the gold file
            and what to compute; by default those of --format.
        na_prob: Probabilities of no answer for squad2, as JSON: {id: probability}.
        task: Part of lexglue that the predictions are for; by default recognised.
        text_evidence_only: Score the evidence of a qasper file without its tables and figures.
        no_stemmer: Compare words of summaries as they are, not by their stems.
        choose_thresholds: Choose thresholds, calibration and abstention of MODEL on the gold file,
            and store them in its folder for ldt predict. The keys task.threshold_target,
            task.positive, task.calibration and task.abstain say how; others stay.
        undo_thresholds: Undo the last --choose-thresholds: restore the files of MODEL.
        length: Length of the inputs of a language model, in tokens or characters; may be repeated;
            by default the longest of a masked LM, or that of the training.
        step: Number of characters to score at the end of each input of a character model but the
            first; by default half of it.
        part: Part of the text of a character model's recipe to score if there is no --gold.
        rankings: File to save the ranked documents of a collection in, as a TREC run.
        json: File to save all scores in at full precision, as JSON; - prints it instead of the
            table.
    """
    collection = _collection(gold) if not pred else None
    models, keys = files_and_keys(subject or (), plain=collection is not None)
    for option, target in (("--json", json), ("--rankings", rankings)):
        results.check(target, *(gold or ()), *(pred or ()), na_prob, recipe, option=option)
    options: dict[str, Any] = {"na_prob": na_prob, "task": task, "no_stemmer": no_stemmer or None}
    options["text_evidence_only"] = text_evidence_only or None
    of_answers = {"pred": pred, "format": format, "recipe": recipe, **options}
    of_text = {"length": length, "step": step, "part": part}
    of_runs = {"choose_thresholds": choose_thresholds, "undo_thresholds": undo_thresholds}
    if collection is None:
        refuse("a --gold that is no collection", rankings=rankings)
    if not models:
        refuse("a file of predictions; MODEL names a model", **of_runs, **of_text)
        if not (gold and pred):
            missing = "--pred" if gold else "--gold"
            raise UserError(f"missing option '{missing}', or MODEL; see 'ldt evaluate --help'")
        _tell(_of_predictions(gold, pred, format, recipe, keys, options), json)
        return
    model = _only(models)
    limit_threads()
    if collection:
        refuse("a collection", **of_answers, **of_text, **of_runs)
        _tell(_of_collection(model, collection, keys, rankings), json)
    elif any(of_runs.values()):
        refuse("a choice of thresholds", **of_answers, **of_text, json=json)
        _choose(model, keys, gold, **of_runs)
    elif _is_finetuned(model):
        refuse("a fine-tuned model", **of_answers, **of_text)
        _tell(_of_run(model, keys, gold or []), json)
    else:
        refuse("a language model", **of_answers)
        _language_model(model, keys, gold or [], json, **of_text)


def _only(models: list[str]) -> str:
    for name in models:
        if Path(name).is_file():
            raise UserError(f"{name}: a file; --gold and --pred name files, MODEL is a folder")
    if len(models) > 1:
        raise UserError(f"{listed(models)}: one model is evaluated; ldt report compares several")
    return models[0]


def _collection(gold: list[str] | None) -> str | None:
    """The collection of texts among the gold files, if it is one."""
    from ldt.benchmarks.retrieval import is_collection

    return gold[0] if gold and len(gold) == 1 and is_collection(gold[0]) else None


def _of_collection(model: str, gold: str, keys: list[str], rankings: str | None) -> "Result":
    from ldt.inference.options import parsed
    from ldt.inference.retrieval import evaluate

    return evaluate(model, gold, target=rankings, options=parsed(keys))


def _is_finetuned(model: str) -> bool:
    """True for a run of a task that has answers, False for a language model."""
    from ldt.recipe.recipe import RECIPE, load

    file = Path(model) / RECIPE
    return file.is_file() and load(file, search=False).task.reads.kind == "examples"


def _of_predictions(
    gold: list[str],
    pred: list[str],
    format: Format | None,
    recipe: str | None,
    keys: list[str],
    options: dict[str, Any],
) -> "Result":
    from ldt import benchmarks
    from ldt.inference import evaluate

    name = format.value if format else None
    if name in OWN or (recipe and not name):
        refuse("answers in ldt's own layout", **options)
        result = evaluate.evaluate(gold, pred, format=name, recipe=recipe, overrides=keys)
    elif name:
        refuse(f"--format {name}, whose layout is published", recipe=recipe)
        data = evaluate.reading_of(name, keys)
        result = benchmarks.evaluate(gold, pred, format=name, data=data, **options)
    else:
        raise UserError("missing option '--format', or '--recipe'; see 'ldt evaluate --help'")
    if recipe and Path(recipe).is_dir():
        _tell_decision(recipe, gold)
    return result


def _of_run(run: str, keys: list[str], gold: list[str]) -> "Result":
    from ldt.report.subject import subject

    answered = subject(run, gold=gold, overrides=keys)
    if answered.result is None:
        raise UserError(f"{run}: nothing to evaluate: {answered.missing}")
    _tell_decision(run, gold)
    return answered.result


def _tell_decision(run: str, gold: list[str]) -> None:
    """Tell by which decision a run has answered, and warn where gold chose it."""
    from ldt.recipe.run import Run
    from ldt.tasks.deciding import chosen_on_these, in_words

    decisions = Run(run).decisions()
    if words := in_words(decisions):
        log.info("%s: decision in force: %s", run, words)
    for line in chosen_on_these(decisions, gold):
        log.warning("%s", line)


def _tell(result: "Result", json: str | None) -> None:
    from ldt.metrics.result import as_json

    for line in result.warnings:
        log.warning("%s", line)
    results.tell(lambda: as_json(result), json, lambda: _show(result))


def _choose(
    run: str,
    keys: list[str],
    gold: list[str] | None,
    choose_thresholds: bool,
    undo_thresholds: bool,
) -> None:
    from ldt.inference.engine import read_recipe
    from ldt.recipe.recipe import values_of
    from ldt.recipe.run import Run
    from ldt.training.deciding import decide_anew, take_back

    folder = Run.find(run).folder
    if undo_thresholds:
        refuse("--undo-thresholds", *keys, gold=gold, choose_thresholds=choose_thresholds)
        say(f"decision: {take_back(folder) or 'none of its own'}", console=stdout)
        say(f"{folder}: as before the last change")
        return
    changes = values_of(keys, [f"task.{name}" for name in CHOSEN])[0].get("task", {})
    recipe = read_recipe(folder)
    if gold:
        documents = gold[0] if len(gold) == 1 else gold
        data = recipe.data.model_copy(update={"eval": documents, "eval_fraction": None})
        recipe = replace(recipe, data=data)
    decided = decide_anew(folder, recipe, **changes)
    results.show_metrics(decided.metrics, decided.table, decided.baselines)
    say(f"decision: {decided.decides or 'none of its own'}", console=stdout)
    say(
        f"{folder}: kept in config.json; --undo-thresholds takes it back; "
        f"ldt predict FILE --model {folder}"
    )


def _language_model(
    model: str, keys: list[str], gold: list[str], json: str | None, **options: Any
) -> None:
    from ldt.inference.perplexity import perplexity
    from ldt.recipe.recipe import reading

    text = reading(keys, ["text"]).text or "text"
    lengths = options.pop("length") or ()
    measured = perplexity(model, gold, lengths=lengths, text=text, **options)

    def show() -> None:
        stdout.print(measured.table())
        say(measured.note)

    results.tell(measured.as_json, json, show)


def _show(result: "Result") -> None:
    """Print metrics with their intervals, then groups."""
    from ldt.metrics import result as scores

    answered = len(result.items) - len(result.missing)
    counts = f"{plural(len(result.items), result.noun)}, {answered:,} predicted"
    scale = "from 0 to 100" if result.scale == "0 to 100" else result.scale
    intervals = f"no intervals: they take two different {result.units} at least"
    if result.intervals:
        of_units = f"{scores.RESAMPLES:,} resamples of the {result.units}"
        intervals = f"intervals: {scores.LEVEL:.0%}, {of_units}, seed {scores.SEED}"
    for line in (f"{result.title}: {counts}; figures {scale}", *_metrics(result), intervals):
        say(line, console=stdout)
    for heading, rows in result.tables.items():
        shown = rows if heading == "classes" else rows[:MOST]
        if shown:
            more = f", {len(shown)} of {len(rows):,}" if len(shown) < len(rows) else ""
            say(f"{heading.replace('_', ' ')}{more}:", console=stdout)
            named = [{_HEADS.get(name, name): row[name] for name in row} for row in shown]
            stdout.print(results.table(named))
    groups = scores.by_length(result.items, result.derive, result.figures)
    _groups("words of the document", groups, result, result.no_length)
    _groups("where the answer stands", scores.by_place(result.items), result, result.no_place)


def _metrics(result: "Result") -> Iterator[str]:
    metrics = {**result.metrics}
    for subset, each in result.subsets.items():
        metrics |= {f"{subset} {name}": value for name, value in each.items()}
    for name, value in metrics.items():
        words = [name, _value(name, value)]
        if name in result.intervals:
            words.append(" to ".join(_value(name, bound) for bound in result.intervals[name]))
        if name in result.baselines:
            answer, figure = result.baselines[name]
            words.append(f"({answer}: {_value(name, figure)})")
        if name in result.notes:
            words.append(f"({result.notes[name]})")
        yield " ".join(" ".join(words).split())


def _groups(heading: str, groups: "list[Group]", result: "Result", why_not: str) -> None:
    from ldt.metrics.numbers import columns  # imports numpy

    if not groups:
        why_not = why_not or "the gold file tells it of no question"
        say(f"{heading}: not known; {why_not}", console=stdout)
    names = result.shown or columns([group.metrics for group in groups])
    for group in groups:
        values = [
            f"{n} {_value(n, group.metrics[n]) if n in group.metrics else '-'}" for n in names
        ]
        counts = plural(group.questions, result.noun)
        say(f"{heading}: {group.label}: {counts}, {', '.join(values)}", console=stdout)


def _value(name: str, value: float) -> str:
    from ldt.metrics.numbers import metric_text  # imports numpy

    if name.endswith(("_thresh", "-threshold")):
        return f"{value:.6g}"
    return metric_text(name if name in _OWN_UNITS else "", value)
