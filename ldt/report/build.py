"""Build a report from its subject: headline, facts, figures, charts, tables and documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ldt.errors import plural
from ldt.io.progress import duration
from ldt.metrics.baseline import Baseline, is_better
from ldt.metrics.meanings import HEADLINES, meaning
from ldt.metrics.numbers import columns, metric_text
from ldt.metrics.result import Result
from ldt.recipe.run import is_metric
from ldt.report.charts import of_result, of_training, reliability
from ldt.report.model import MISSING, SILENT, Figure, Report, Rows
from ldt.tasks.deciding import in_words

if TYPE_CHECKING:
    from ldt.recipe.run import Description
    from ldt.report.subject import Subject

TITLES = {"classes": "Classes", "confusion": "Right and wrong by class"}  # of tables


def report(subject: Subject) -> Report:
    """Gather the content of the page about a run or a file of answers: headline, facts, metrics,
    charts, tables and documents."""
    run, result, documents = subject.run, subject.result, subject.documents
    final = _of_run(run) if run else []
    figures = _of_result(result, subject) if result else final
    charts = of_training(run.log, _metric(run)) if run else []
    tables = []
    if result:
        charts += of_result(result, figures[0].name if figures else "")
        tables += _tables(result)
    if run and result and run.results:
        tables.append(Rows("Evaluation at the end of the training", list(map(_row, final))))
    if run and not result:
        calibration = run.results.get("decisions", {}).get("calibration", {})
        charts += reliability(calibration.get("reliability") or ())
        tables += [Rows("Classes", run.results["table"])] if run.results.get("table") else []
    names = [figure.name for figure in figures]
    names += [name for table in tables for name in columns(table.rows)]
    names += ["Confidence"] * any(each.confidence is not None for each in documents)
    names += ["Doubt"] * any(each.doubt is not None for each in documents)
    missing = [f"no documents on this page: {subject.missing}"] if subject.missing else []
    return Report(
        title=subject.name,
        sentence=_sentence(subject, figures),
        facts={name: value for name, value in _facts(subject).items() if value},
        figures=figures,
        meanings={name: line for name in names if (line := meaning(name))},
        scale=result.scale if result else "0 to 100",
        charts=charts,
        tables=tables,
        documents=documents,
        warnings=[*missing, *subject.warnings, *(result.warnings if result else ())],
    )


def _metric(run: Description) -> str | None:
    return (run.results.get("metric") or "").removeprefix("eval_") or None


def _of_result(result: Result, subject: Subject) -> list[Figure]:
    run = subject.run
    names = [name for name, value in result.metrics.items() if isinstance(value, float)]
    first = _metric(run) if run else next((name for name in HEADLINES if name in names), None)
    names.sort(key=lambda name: name != first)
    baselines = _baselines(run) if run and subject.evaluated else {}
    baselines |= result.baselines
    return [
        _figure(name, result.metrics[name], baselines, result.intervals.get(name)) for name in names
    ]


def _baselines(run: Description) -> dict[str, Baseline]:
    return {name: Baseline(**each) for name, each in run.results.get("baseline", {}).items()}


def _figure(
    name: str,
    value: float,
    baselines: Mapping[str, Baseline],
    interval: tuple[float, float] | None = None,
) -> Figure:
    trivial = baselines.get(name)
    return Figure(name, value, interval, *((trivial.value, trivial.answer) if trivial else ()))


def _of_run(run: Description) -> list[Figure]:
    """Metrics of metrics.json; for an unfinished run those of its last evaluation."""
    values = run.results.get("metrics")
    if values is None:
        values = next((row for row in reversed(run.log) if any(map(is_metric, row))), {})
    names = [name for name, value in values.items() if is_metric(name) and value is not None]
    names.sort(key=lambda name: name.removeprefix("eval_") != _metric(run))
    baselines = _baselines(run)
    return [_figure(name.removeprefix("eval_"), values[name], baselines) for name in names]


def _row(figure: Figure) -> dict[str, object]:
    return {
        "metric": figure.name,
        "value": metric_text(figure.name, figure.value),
        "without reading": _trivial(figure) if figure.baseline is not None else "",
    }


def _trivial(figure: Figure) -> str:
    assert figure.baseline is not None
    return f"{figure.baseline_answer}: {metric_text(figure.name, figure.baseline)}"


def _tables(result: Result) -> list[Rows]:
    """Tables of a result and its subsets, except those shown with documents or as charts."""
    tables = [
        Rows(TITLES.get(name, name.replace("_", " ")), rows)
        for name, rows in result.tables.items()
        if rows and name != "worst" and not (name == "confusion" and "gold" in rows[0])
    ]
    if result.subsets:
        rows: list[dict[str, object]] = [
            {"questions": name, **metrics} for name, metrics in result.subsets.items()
        ]
        tables.append(Rows("Some of the questions", rows))
    return tables


def _facts(subject: Subject) -> dict[str, str]:
    run, count = subject.run, len(subject.documents)
    if run is None:
        size = f"{count:,}" if count else ""
        return {"answers": subject.name, "gold": subject.gold, "documents": size}
    results, data = run.results, run.results.get("data", {})
    length = results.get("max_length") or run.recipe.data.max_length
    facts = {
        "task": run.recipe.task.name,
        "model": results.get("base_model") or str(getattr(run.recipe.model, "path", "") or ""),
        "parameters": f"{results['parameters']:,}" if "parameters" in results else "",
        "longest input": f"{length:,} tokens" if length else "",
        **{f"{name} data": _data(source) for name, source in data.items()},
    }
    if subject.gold and subject.gold != data.get("eval", {}).get("source"):
        facts["documents"] = f"{subject.gold}: {count:,}"
    if "steps" in results:
        facts["training"] = f"{results['steps']:,} steps in {duration(results['seconds'])}"
        facts["finished"] = results["finished"]
    else:
        step = max((row.get("step", 0) for row in run.log), default=0)
        facts["training"] = f"not finished, at step {step:,}"
    versions = results.get("versions", {})
    facts["decides by"] = in_words(run.decisions)
    facts["versions"] = ", ".join(f"{name} {value}" for name, value in versions.items())
    return facts


def _data(facts: Mapping[str, Any]) -> str:
    nouns = ("document", "token", "character", "byte")
    sizes = [plural(facts[f"{noun}s"], noun) for noun in nouns if f"{noun}s" in facts]
    return ": ".join([str(facts["source"]), *sizes[:1]])


def _sentence(subject: Subject, figures: Sequence[Figure]) -> str:
    """Headline: the share of correct answers, and a comparison with the baseline."""
    documents, result = subject.documents, subject.result
    if not figures:
        if subject.run:
            return "Nothing tells how well the model works: there is no evaluation set."
        return f"{plural(len(documents), 'answer')}; without gold nothing tells how many are right."
    parts = []
    judged = [each.right for each in documents if each.right is not None]
    silent = Counter(each.unanswered for each in documents if each.unanswered)
    if result and (judged or silent):
        are = "is" if len(judged) == 1 else "are"
        noun = f"answered {result.noun}" if silent else result.noun
        share = f"{sum(judged):,} of {plural(len(judged), noun)} {are}"
        others = "".join(f"; {silent[why]:,} {why}" for why in (SILENT, MISSING) if silent[why])
        parts.append(f"{share} right{others}." if silent else f"{share} answered rightly.")
    main = figures[0]
    value = f"Its {main.name} is {metric_text(main.name, main.value)}"
    if main.interval:
        low, high = (metric_text(main.name, end) for end in main.interval)
        value += f" (95 % interval {low} to {high})"
    if not result:
        value += " at the end of the training" if subject.run and subject.run.results else " so far"
    if main.baseline is not None:
        value += f"; {_trivial(main)} without reading, so the model is {_verdict(main)}"
    return " ".join([*parts, f"{value}."])


def _verdict(figure: Figure) -> str:
    assert figure.baseline is not None
    if not is_better(figure.name, figure.value, figure.baseline):
        return "no better than that"
    ends = [is_better(figure.name, end, figure.baseline) for end in figure.interval or ()]
    return "better than that" if all(ends) else "better than that, but it may be chance"
