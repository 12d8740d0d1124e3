"""List of run folders with their contents, read without loading models."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from ldt.errors import ModelError, UserError
from ldt.io import files
from ldt.metrics.baseline import is_better
from ldt.recipe.recipe import COMMANDS, RECIPE
from ldt.recipe.run import LOG, RESULTS, RUN, Run, eval_name, is_metric, number
from ldt.tasks import TASKS

FINISHED, RUNNING, STOPPED, DAMAGED = "finished", "running", "stopped", "damaged"


@dataclass(frozen=True)
class Summary:
    """Row of the list; None for values missing in the folder.

    Args:
        name: path of the folder, as found.
        date: end of the run, else the time of its last log line.
        task, model: names in its recipe; model is None for training from scratch.
        metric, value: main metric, or the loss without an evaluation; the last logged value for an
            unfinished run.
        length: longest input in tokens (characters or bytes for a character model).
        time: seconds of training over all sessions; None if unfinished.
        size: bytes on disk, with checkpoints.
        state: `FINISHED`, `RUNNING`, `STOPPED` (unfinished and not being trained) or `DAMAGED`.
        note: progress, how to continue, or the damage; empty for a finished run.
    """

    name: str
    date: datetime | None = None
    task: str | None = None
    model: str | None = None
    metric: str | None = None
    value: float | None = None
    length: int | None = None
    time: float | None = None
    size: int = 0
    state: str = DAMAGED
    note: str = ""

    def facts(self) -> dict[str, Any]:
        """The row as a dict for JSON, with the date in ISO 8601."""
        return asdict(self) | {"date": self.date.isoformat() if self.date else None}


# By which runs are sorted -> the key of a run: names from a to z, else the newest, best, largest
# first; runs that lack it come last.
SORTS: dict[str, Callable[[Summary], Any]] = {
    "name": lambda run: run.name,
    "date": lambda run: run.date and -run.date.timestamp(),
    "task": lambda run: run.task,
    "model": lambda run: run.model,
    "metric": lambda run: run.metric and (run.metric, _goodness(run)),
    "length": lambda run: run.length and -run.length,
    "time": lambda run: run.time and -run.time,
    "size": lambda run: -run.size,
    "state": lambda run: [RUNNING, STOPPED, FINISHED, DAMAGED].index(run.state),
}


def listed(folders: Iterable[str], sort: str = "date") -> list[Summary]:
    """Summaries of the runs in folders, each a run itself or a parent of runs (`Run.below`),
    without repetition.

    Args:
        folders: paths.
        sort: a key of `SORTS`; runs without a value for it come last.

    Raises:
        UserError: a path is not a folder or cannot be read.
    """
    runs: dict[str, Run] = {}
    for name in folders:
        folder = Path(name).expanduser()
        if not folder.is_dir():
            what = "a file" if folder.exists() else "no such folder"
            raise UserError(
                f"{name}: {what}; ldt report lists the runs of folders, by default runs"
            )
        try:
            for run in Run.below(folder):
                runs.setdefault(os.path.realpath(run.folder), run)
        except OSError as error:
            raise UserError(f"{error.filename or name}: {error.strerror}") from None
    key = SORTS[sort]
    rows = sorted(map(summary, runs.values()), key=lambda run: run.name)
    known = [run for run in rows if key(run) is not None]
    return sorted(known, key=key) + [run for run in rows if key(run) is None]


def summary(run: Run) -> Summary:
    """Summarise a run folder; damage to it is told by ``state`` and ``note``, not raised."""
    size = run.size()
    try:
        record = run.record()
    except ModelError:
        record = None
    if record is None:
        return Summary(str(run), size=size, note=f"{RUN} cannot be read")
    identity = record["identity"]
    facts: dict[str, Any] = {
        "name": str(run),
        "task": _typed(str, identity.get("task.name")),
        "model": _typed(str, identity.get("model.path")),
        "length": _typed(int, identity.get("data.max_length")),
        "size": size,
    }
    if record.get("finished"):
        return _finished(run, record, facts)
    try:
        log = run.log()
    except OSError as error:
        return Summary(**facts, note=f"{LOG}: {error.strerror}")
    facts |= _logged(log, record.get("metric"))
    facts["date"] = _changed(run.folder / LOG) or _changed(run.folder / RUN)
    if holder := files.holder(run.folder):
        last = log[-1] if log else {"step": 0}
        epoch = f", epoch {last['epoch']:.2f}" if number(last.get("epoch")) is not None else ""
        who = f"process {holder.get('pid', '?')} on {holder.get('host', '?')}"
        return Summary(**facts, state=RUNNING, note=f"{who}: step {last['step']:,}{epoch}")
    task = TASKS.get(facts["task"] or "")
    kind = task.reads.kind if task else "examples"
    # A phase of a staged training is gone on with by the recipe of all of them.
    recipe = "RECIPE" if kind == "characters" else run.folder / RECIPE
    note = f"{run.stopped()}; ldt {COMMANDS[kind]} {recipe} --resume goes on"
    return Summary(**facts, state=STOPPED, note=note)


def _finished(run: Run, record: dict[str, Any], facts: dict[str, Any]) -> Summary:
    names = [name for name in record.get("files", []) if isinstance(name, str)]
    missing = [name for name in names if not (run.folder / name).exists()]
    if missing:
        return Summary(**facts, note=f"{missing[0]} is missing")
    try:
        results = run.results()
        metrics = results["metrics"]
        facts["date"] = datetime.fromisoformat(results["finished"]).astimezone()
        facts["model"] = _typed(str, results.get("base_model")) or facts["model"]
        facts["length"] = _typed(int, results.get("max_length")) or facts["length"]
        facts["time"] = number(results["seconds"])
        metric = (results["metric"] or "train_loss").removeprefix("eval_")
        names = [eval_name(metric), metric]
        facts["value"] = next((number(metrics[name]) for name in names if name in metrics), None)
        facts["metric"] = metric
    except (ModelError, ValueError, LookupError, TypeError, AttributeError):
        return Summary(**facts, note=f"{RESULTS} cannot be read")
    return Summary(**facts, state=FINISHED)


def _logged(log: list[dict[str, Any]], metric: Any) -> dict[str, Any]:
    """Metric of the last evaluation, else the last loss; no value if it is not finite."""
    for row in reversed(log):
        if names := [name for name in row if is_metric(name)]:
            names.sort(key=lambda name: (name != eval_name(metric), name == "eval_loss"))
            return {"metric": names[0].removeprefix("eval_"), "value": number(row[names[0]])}
    losses = [row["loss"] for row in log if "loss" in row]
    return {"metric": "train_loss", "value": number(losses[-1])} if losses else {}


def _goodness(run: Summary) -> float:
    """Sort key, lower for better runs with a common metric."""
    if run.value is None:
        return math.inf
    metric = (run.metric or "").removeprefix("train_")
    return run.value if is_better(metric, 0.0, 1.0) else -run.value


def _changed(path: Path) -> datetime | None:
    try:
        return datetime.fromtimestamp(int(path.stat().st_mtime)).astimezone()
    except OSError:
        return None


def _typed(kind: type, value: Any) -> Any:
    """The value if it has the type, else None; a bool is not a number."""
    return value if type(value) is kind else None
