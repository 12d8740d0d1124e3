"""A subject to a report: the sentence, facts, figures, charts, tables and documents of a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ldt.errors import plural
from ldt.metrics.baseline import Baseline, is_better
from ldt.metrics.meanings import HEADLINES, meaning
from ldt.metrics.numbers import columns, metric_text
from ldt.metrics.result import Result
from ldt.recipe.run import is_metric
from ldt.report.charts import Chart, of_result, of_training, reliability
from ldt.report.model import MISSING, SILENT, Figure, Report, Rows
from ldt.tasks.decisions import in_words

if TYPE_CHECKING:
    from ldt.recipe.run import Description
    from ldt.report.subject import Subject


def report(subject: Subject) -> Report:
    """All that a page says of answers, or of a run."""
    run, result = subject.run, subject.result
    figures = _of_result(result, subject) if result else _of_run(run) if run else []
    drawn = of_training(run.log, _metric(run)) if run else []
    tables = []
    if result:
        drawn += of_result(result, figures[0].name if figures else "")
        tables += _tables(result)
    if run and result and run.results:
        tables.append(Rows("Evaluation at the end of the training", _final(run)))
    if run and not result:
        drawn += _kept_reliability(run)
        tables += [Rows("Classes", run.results["table"])] if run.results.get("table") else []
    missing = [f"no documents on this page: {subject.missing}"] if subject.missing else []
    return Report(
        title=subject.name,
        sentence=_sentence(subject, figures),
        facts=_facts(subject),
        figures=figures,
        meanings=_meanings(subject, figures, tables),
        scale=result.scale if result else "0 to 100",
        charts=drawn,
        tables=tables,
        documents=subject.documents,
        warnings=[*missing, *subject.warnings, *(result.warnings if result else ())],
    )


def _metric(run: Description) -> str | None:
    """The metric that a run goes by."""
    return (run.results.get("metric") or "").removeprefix("eval_") or None


def _of_result(result: Result, subject: Subject) -> list[Figure]:
    """The metrics that are no counts; first the one that the run goes by, or trainings do."""
    run = subject.run
    names = [name for name, value in result.metrics.items() if isinstance(value, float)]
    usual = next((name for name in HEADLINES if name in names), None)
    wanted = _metric(run) if run else usual
    names.sort(key=lambda name: name != wanted)
    baselines = result.baselines
    if run and subject.evaluated:
        baselines = _baselines(run) | baselines
    intervals = result.intervals
    return [_figure(name, result.metrics[name], baselines, intervals) for name in names]


def _baselines(run: Description) -> dict[str, Baseline]:
    known = run.results.get("baseline", {}).items()
    return {name: Baseline(**each) for name, each in known}


def _figure(
    name: str,
    value: float,
    baselines: Mapping[str, Baseline],
    intervals: Mapping[str, tuple[float, float]],
) -> Figure:
    trivial = baselines.get(name)
    baseline = (trivial.value, trivial.answer) if trivial else (None, "")
    return Figure(name, value, intervals.get(name), *baseline)


def _of_run(run: Description) -> list[Figure]:
    """The metrics of metrics.json; of a run that is not finished, those of its last evaluation."""
    values = run.results.get("metrics")
    if values is None:
        last = [row for row in run.log if any(map(is_metric, row))]
        values = last[-1] if last else {}
    wanted = _metric(run)
    names = [name for name, value in values.items() if is_metric(name) and value is not None]
    names.sort(key=lambda name: name.removeprefix("eval_") != wanted)
    baselines = _baselines(run)
    return [_figure(name.removeprefix("eval_"), values[name], baselines, {}) for name in names]


def _final(run: Description) -> list[dict[str, object]]:
    return [
        {
            "metric": figure.name,
            "value": metric_text(figure.name, figure.value),
            "without reading": _trivial(figure) if figure.baseline is not None else "",
        }
        for figure in _of_run(run)
    ]


def _trivial(figure: Figure) -> str:
    assert figure.baseline is not None
    return f"{figure.baseline_answer}: {metric_text(figure.name, figure.baseline)}"


def _kept_reliability(run: Description) -> list[Chart]:
    calibration = run.results.get("decisions", {}).get("calibration", {})
    return reliability(calibration.get("reliability") or ())


def _meanings(
    subject: Subject, figures: Sequence[Figure], tables: Sequence[Rows]
) -> dict[str, str]:
    """The meaning of each figure, column of a table and column of the documents, where known."""
    names = [figure.name for figure in figures]
    names += [name for table in tables for name in columns(table.rows)]
    names += ["Confidence"] * any(each.confidence is not None for each in subject.documents)
    names += ["Doubt"] * any(each.doubt is not None for each in subject.documents)
    lines = {name: meaning(name) for name in names}
    return {name: line for name, line in lines.items() if line}


def _tables(result: Result) -> list[Rows]:
    """The tables of a result, and its subsets; what the documents or a chart show is left out."""
    tables = []
    for name, rows in result.tables.items():
        if rows and name != "worst" and not (name == "confusion" and "gold" in rows[0]):
            tables.append(Rows(_TITLES.get(name, name.replace("_", " ")), rows))
    if result.subsets:
        rows = [{"questions": name} | metrics for name, metrics in result.subsets.items()]
        tables.append(Rows("Some of the questions", rows))
    return tables


_TITLES = {"classes": "Classes", "confusion": "Right and wrong by class"}


def _facts(subject: Subject) -> dict[str, str]:
    run = subject.run
    if run is None:
        facts = {"answers": subject.name, "gold": subject.gold}
        facts["documents"] = f"{len(subject.documents):,}" if subject.documents else ""
        return {name: value for name, value in facts.items() if value}
    results, data = run.results, run.results.get("data", {})
    facts = {"task": run.recipe.task.name, "model": results.get("base_model") or ""}
    facts["model"] = facts["model"] or str(getattr(run.recipe.model, "path", "") or "")
    if "parameters" in results:
        facts["parameters"] = f"{results['parameters']:,}"
    length = results.get("max_length") or run.recipe.data.max_length
    facts["longest input"] = f"{length:,} tokens" if length else ""
    facts |= {f"{name} data": _data(facts_of) for name, facts_of in data.items()}
    if subject.gold and subject.gold != data.get("eval", {}).get("source"):
        facts["documents"] = f"{subject.gold}: {len(subject.documents):,}"
    if "steps" in results:
        facts["training"] = f"{results['steps']:,} steps in {_duration(results['seconds'])}"
        facts["finished"] = results["finished"]
    else:
        step = max((row.get("step", 0) for row in run.log), default=0)
        facts["training"] = f"not finished, at step {step:,}"
    facts["decides by"] = in_words(run.decisions)
    versions = results.get("versions", {})
    facts["versions"] = ", ".join(f"{name} {value}" for name, value in versions.items())
    return {name: value for name, value in facts.items() if value}


def _data(facts: Mapping[str, Any]) -> str:
    """A set of data in words: its source and its size."""
    sizes = [
        plural(facts[f"{noun}s"], noun)
        for noun in ("document", "token", "character", "byte")
        if f"{noun}s" in facts
    ]
    return ": ".join([str(facts["source"]), *sizes[:1]])


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _sentence(subject: Subject, figures: Sequence[Figure]) -> str:
    """The headline: the share of right answers, and whether reading was of use."""
    documents, result = subject.documents, subject.result
    if not figures:
        if subject.run:
            return "Nothing tells how well the model works: there is no evaluation set."
        return f"{plural(len(documents), 'answer')}; without gold nothing tells how many are right."
    parts = []
    known = [each.right for each in documents if each.right is not None]
    silent = Counter(each.unanswered for each in documents if each.unanswered)
    if result and (known or silent):
        are = "is" if len(known) == 1 else "are"
        share = f"{sum(known):,} of {plural(len(known), f'answered {result.noun}')} {are} right"
        rest = "".join(f"; {silent[why]:,} {why}" for why in (SILENT, MISSING) if silent[why])
        whole = f"{sum(known):,} of {plural(len(known), result.noun)} {are} answered rightly"
        parts.append(f"{share}{rest}." if silent else f"{whole}.")
    main = figures[0]
    value = metric_text(main.name, main.value)
    told = f"Its {main.name} is {value}"
    if main.interval:
        low, high = (metric_text(main.name, end) for end in main.interval)
        told += f" (95 % interval {low} to {high})"
    if not result:
        told += " at the end of the training" if subject.run and subject.run.results else " so far"
    parts.append(told)
    if main.baseline is None:
        return " ".join(parts) + "."
    parts[-1] += f"; {_trivial(main)} without reading, so the model is {_verdict(main)}."
    return " ".join(parts)


def _verdict(figure: Figure) -> str:
    """Words on whether a metric is better than without reading, and whether that may be chance."""
    assert figure.baseline is not None
    if not is_better(figure.name, figure.value, figure.baseline):
        return "no better than that"
    if figure.interval is None:
        return "better than that"
    ends = [is_better(figure.name, end, figure.baseline) for end in figure.interval]
    return "better than that" if all(ends) else "better than that, but it may be chance"
