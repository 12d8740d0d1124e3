"""Learning curves of runs, one chart a metric, from their logs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ldt.errors import UserError, did_you_mean
from ldt.report.terminal import Points
from ldt.training import run_folder
from ldt.training.log_file import METRICS, evaluated, is_metric, rows, values

Log = Sequence[Mapping[str, Any]]

_NO_CURVES = {"step", "epoch"}


def logs(runs: Sequence[str]) -> dict[str, Log]:
    """The logs of run folders by name; empty of a run that has logged nothing yet.

    Raises:
        UserError: a path that is no run folder, or whose log cannot be read.
    """
    found: dict[str, Log] = {}
    for name in runs:
        folder = Path(name).expanduser()
        log = folder / METRICS
        if not log.exists() and run_folder.read_run(folder) is None:
            what = f"no {METRICS} there" if folder.is_dir() else "no such folder"
            raise UserError(f"{name}: {what}; ldt curves takes run folders, which ldt runs lists")
        try:
            found[name] = rows(log)
        except OSError as error:
            raise UserError(f"{log}: {error.strerror}") from None
    return found


def goes_by(runs: Sequence[str]) -> list[str]:
    """The metrics that run folders go by, as their logs name them; none of older ones."""
    records = [run_folder.read_run(Path(name).expanduser()) or {} for name in runs]
    return [evaluated(record["metric"]) for record in records if record.get("metric")]


def charts(
    logs: Mapping[str, Log], metrics: Sequence[str] = (), first: Sequence[str] = ()
) -> dict[str, dict[str, Points]]:
    """The lines of each chart, by the name of the metric and that of the run.

    Args:
        metrics: names as metrics.jsonl has them, without ``eval_`` too; none are the loss of the
            steps, that of the evaluation, and one more.
        first: those of which the one more is taken, if one was logged; else it is the first.

    Raises:
        UserError: no run has logged such a metric.
    """
    names = list(dict.fromkeys(key for log in logs.values() for row in log for key in row))
    names = [name for name in names if name not in _NO_CURVES]
    wanted = [_found(metric, names) for metric in metrics] if names else []
    if not metrics:
        others = [name for name in (*first, *names) if is_metric(name) and name != "eval_loss"]
        others = [name for name in others if name in names][:1]
        wanted = [name for name in ("loss", "eval_loss", *others) if name in names]
    made: dict[str, dict[str, Points]] = {}
    for name in dict.fromkeys(wanted):
        lines = {run: values(log, name) for run, log in logs.items()}
        made[name] = {run: points for run, points in lines.items() if points}
    return made


def _found(metric: str, names: Sequence[str]) -> str:
    for name in (metric, f"eval_{metric}"):
        if name in names:
            return name
    hint = did_you_mean(metric, names)
    raise UserError(f"--metric {metric}: nothing of that name was logged{hint}")
