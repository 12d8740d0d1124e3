"""The charts of a report: what a training logged, and what a result shows beside its metrics."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ldt.errors import plural
from ldt.metrics.numbers import is_defined, metric_text
from ldt.metrics.result import Group, Result, by_length, by_place
from ldt.recipe.run import number
from ldt.report.model import Bars, Chart, Lines, Matrix

CLASSES = 20  # of a confusion; those beyond are counted together
BARS = 30
CURVES = 8  # lines of a chart
POINTS = 400  # of a line; a longer log is shown as means of as many parts
OTHER, NONE = "other", "none"

Points = list[tuple[float, float]]


def of_training(log: Sequence[Mapping[str, Any]], metric: str | None) -> list[Chart]:
    """Loss, evaluation metric and learning rate by step.

    Args:
        log: the lines of metrics.jsonl.
        metric: that the run goes by; None without an evaluation.
    """
    losses = {"training": _logged(log, "loss"), "evaluation": _logged(log, "eval_loss")}
    losses = {name: points for name, points in losses.items() if points}
    charts: list[Chart] = []
    if losses:
        told = [f"the {name} loss {_course(points)}" for name, points in losses.items()]
        says = f"T{', and '.join(told)[1:]}."
        charts.append(Lines("Loss", "step", "loss", losses, says))
    points = _logged(log, f"eval_{metric}") if metric != "loss" else []
    if len(points) > 1:
        says = f"On the evaluation set {metric} {_course(points)}."
        series = {f"eval_{metric}": points}
        charts.append(Lines(f"Evaluation: {metric}", "step", str(metric), series, says))
    if len(rates := _logged(log, "learning_rate")) > 1:
        step, most = max(rates, key=lambda point: point[1])
        says = f"The learning rate is highest at step {step:,.0f}, {most:.3g}, and ends at "
        says += f"{rates[-1][1]:.3g}."
        series = {"learning rate": rates}
        charts.append(Lines("Learning rate", "step", "learning rate", series, says))
    return charts


def _logged(log: Sequence[Mapping[str, Any]], key: str) -> Points:
    """The values of a key by step, those that are finite."""
    points = [(float(row["step"]), number(row.get(key))) for row in log]
    return _thinned([(step, value) for step, value in points if value is not None])


def _thinned(points: Points) -> Points:
    """The points, or the means of `POINTS` parts of them."""
    if len(points) <= POINTS:
        return points
    edges = [number * len(points) // POINTS for number in range(POINTS + 1)]
    parts = [points[start:end] for start, end in zip(edges, edges[1:], strict=False)]
    return [(part[-1][0], sum(value for _, value in part) / len(part)) for part in parts]


def _course(points: Points) -> str:
    """The course of values in words."""
    first, last = points[0], points[-1]
    if len(points) == 1:
        return f"is {first[1]:.4g} at step {first[0]:,.0f}"
    steps = f"from step {first[0]:,.0f} to {last[0]:,.0f}"
    if first[1] == last[1]:
        return f"ends where it began, at {last[1]:.4g}, {steps}"
    way = "falls" if last[1] < first[1] else "rises"
    return f"{way} from {first[1]:.4g} to {last[1]:.4g} {steps}"


def of_result(result: Result, metric: str) -> list[Chart]:
    """Charts of errors, ranking, calibration, and of scores by length and by place.

    Args:
        metric: of the bars by length and place.
    """
    charts = [*_confusion(result), *_classes(result)]
    curves = result.curves.get("precision_at_recall") or {}
    if curves:
        support = {row["class"]: row["support"] for row in result.tables.get("classes", ())}
        names = sorted(curves, key=lambda name: -support.get(name, 0))[:CURVES]
        series = {name: [(100 * recall, value) for recall, value in curves[name]] for name in names}
        at_half = {name: _at(points, 50.0) for name, points in series.items()}
        best, worst = max(at_half, key=at_half.__getitem__), min(at_half, key=at_half.__getitem__)
        says = f"Where half of those of a class are found, {at_half[best]:.0f} % of what is found "
        says += f"is right in {best!r}"
        says += f", {at_half[worst]:.0f} % in {worst!r}." if worst != best else "."
        title = "Precision by recall"
        if len(curves) > len(names):
            title += f", the {len(names)} most frequent of {len(curves):,} classes"
        charts.append(Lines(title, "recall (%)", "precision (%)", series, says))
    charts += reliability(result.curves.get("reliability") or ())
    lengths = by_length(result.items, result.derive, result.figures) if result.items else []
    charts += _groups("Score by length of the document", "words", lengths, metric)
    places = by_place(result.items) if result.figures is None else []
    title = "Score by where in the document the answer stands"
    return charts + _groups(title, "part of the document", places, metric)


def _at(points: Points, x: float) -> float:
    return min(points, key=lambda point: abs(point[0] - x))[1]


def _confusion(result: Result) -> list[Chart]:
    """Gold by answer, the most frequent classes each, of rows with both."""
    rows = [row for row in result.tables.get("confusion", ()) if "gold" in row]
    if not rows:
        return []
    (noun,) = rows[0].keys() - {"gold", "answer"}
    frequent: Counter[str] = Counter()
    for row in rows:
        frequent[row["gold"]] += row[noun]
        frequent[row["answer"]] += 0
    empty = frequent.pop(NONE, None) is not None
    names = [name for name, _ in frequent.most_common()]
    kept = names if len(names) <= CLASSES else names[: CLASSES - 1]
    shown = [*kept, *[OTHER] * (len(names) > len(kept)), *[NONE] * empty]
    known = {*kept, NONE}
    counts: Counter[tuple[str, str]] = Counter()
    for row in rows:
        pair = [row[side] if row[side] in known else OTHER for side in ("gold", "answer")]
        counts[pair[0], pair[1]] += row[noun]
    has = {side: {row[side] for row in rows} for side in ("gold", "answer")}
    gold = [name for name in shown if name != NONE or NONE in has["gold"]]
    answers = [name for name in shown if name != NONE or NONE in has["answer"]]
    right = sum(row[noun] for row in rows if row["gold"] == row["answer"])
    total = sum(row[noun] for row in rows)
    says = f"{right:,} of {total:,} {noun} have the right class"
    wrong = next((row for row in rows if row["gold"] != row["answer"]), None)
    if wrong:
        says += f"; {wrong['answer']!r} in place of {wrong['gold']!r} is the most frequent error "
        says += f"({wrong[noun]:,})"
    table = [[counts[a, b] for b in answers] for a in gold]
    title = "Confusion: right class by row, answer by column"
    return [Matrix(title, gold, answers, table, f"{says}.")]


def _classes(result: Result) -> list[Chart]:
    """F1 of each class where a document can have several."""
    confusion = result.tables.get("confusion") or [{}]
    rows = [row for row in result.tables.get("classes", ()) if is_defined(row["f1"])]
    rows = sorted(rows, key=lambda row: -row["support"])[:BARS]
    if "class" not in confusion[0] or not rows:
        return []
    bars = {row["class"]: row["f1"] for row in rows}
    counts = {row["class"]: row["support"] for row in rows}
    says = _best_and_worst("F1", bars, [name for name in bars if counts[name]] or [*bars])
    return [Bars("F1 of each class", "class", "F1", bars, counts, says)]


def reliability(rows: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """The points of a reliability diagram, beside the diagonal."""
    if not rows:
        return []
    points = [(100 * row["probability"], 100 * row["right"]) for row in rows]
    answers = sum(row["answers"] for row in rows)
    apart = [row["answers"] * (y - x) / answers for row, (x, y) in zip(rows, points, strict=True)]
    distance = sum(map(abs, apart))
    says = f"Over {plural(answers, 'answer')} probability and share that is right are "
    says += f"{distance:.1f} points apart on the mean"
    if distance >= 0.05 and abs(sum(apart)) == distance:
        says += f", the model being always {'too sure' if sum(apart) < 0 else 'not sure enough'}"
    says += "; answers below the diagonal are right less often than their probability says."
    title = "Reliability: how often answers of a probability are right"
    axes = ("probability (%)", "right (%)")
    return [Lines(title, *axes, {"answers": points}, says, points=True, diagonal=True)]


def _groups(title: str, x: str, groups: Sequence[Group], metric: str) -> list[Chart]:
    """Bars of groups, where there are two at least."""
    groups = [group for group in groups if metric in group.metrics]
    if len(groups) < 2:
        return []
    bars = {group.label: group.metrics[metric] for group in groups}
    counts = {group.label: group.questions for group in groups}
    return [Bars(title, x, metric, bars, counts, _best_and_worst(metric, bars, [*bars]))]


def _best_and_worst(metric: str, bars: Mapping[str, float], names: Sequence[str]) -> str:
    high, low = max(names, key=bars.__getitem__), min(names, key=bars.__getitem__)
    if bars[high] == bars[low]:
        return f"{metric} is {metric_text(metric, bars[high])} in all."
    return (
        f"{metric} is highest in {high!r}, {metric_text(metric, bars[high])}, and lowest in "
        f"{low!r}, {metric_text(metric, bars[low])}."
    )
