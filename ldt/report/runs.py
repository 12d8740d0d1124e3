"""Run folders side by side: what each holds, read without its model."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from ldt import files
from ldt.errors import ModelError, UserError
from ldt.metrics.baseline import is_better
from ldt.recipe.recipe import RECIPE
from ldt.tasks import TASKS
from ldt.training import checkpoints, run_folder
from ldt.training.log_file import METRICS, evaluated, is_metric, number, rows

DEPTH = 3  # folders below one that is looked through
FINISHED, RUNNING, STOPPED, DAMAGED = "finished", "running", "stopped", "damaged"


@dataclass(frozen=True)
class Run:
    """What a run folder holds; None is what nobody wrote there.

    Args:
        name: the path of the folder, as it was found.
        date: when the run was finished, else when it wrote its last line.
        task, model: the names in its recipe; the model None where it began from scratch.
        metric, value: what the run goes by and what it has, without an evaluation the loss; of a
            run that is not finished as it was logged last.
        length: longest input, in tokens (a character model: characters or bytes).
        time: seconds of the training, over all sessions; None before it is finished.
        size: bytes on disk, with checkpoints.
        state: `FINISHED`, `RUNNING`, `STOPPED` (not finished, and nobody trains it) or `DAMAGED`.
        note: how far it is, how it goes on, or what is damaged; "" of a finished one.
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
        """The same as JSON has it, the date as ISO 8601."""
        return asdict(self) | {"date": self.date.isoformat() if self.date else None}


# By which runs are sorted -> the key of a run: names from a to z, else the newest, best, largest
# first; runs that lack it come last.
SORTS: dict[str, Callable[[Run], Any]] = {
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


def listed(folders: Iterable[str], sort: str = "date") -> list[Run]:
    """The runs of folders: a run itself, or those that lie in it, up to `DEPTH` deep.

    Links in a folder are not followed, so that no run is there twice; one that is named is.

    Args:
        folders: paths.
        sort: a key of `SORTS`.

    Raises:
        UserError: a path that is no folder, or cannot be read.
    """
    found: dict[str, Path] = {}
    for name in folders:
        folder = Path(name).expanduser()
        if not folder.is_dir():
            what = "a file" if folder.exists() else "no such folder"
            raise UserError(f"{name}: {what}; ldt runs takes folders of runs, by default runs")
        try:
            for path in _below(folder, DEPTH):
                found.setdefault(os.path.realpath(path), path)
        except OSError as error:
            raise UserError(f"{error.filename or name}: {error.strerror}") from None
    key = SORTS[sort]
    runs = sorted(map(read, found.values()), key=lambda run: run.name)
    known = [run for run in runs if key(run) is not None]
    return sorted(known, key=key) + [run for run in runs if key(run) is None]


def _below(folder: Path, depth: int) -> Iterator[Path]:
    """Run folders in a folder, itself included: a phase of a staged training lies in its run."""
    if os.path.lexists(folder / run_folder.RUN):
        yield folder
    if depth:
        with os.scandir(folder) as entries:
            inside = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        for name in inside:
            if not name.startswith((".", "checkpoint-")) and ".tmp-" not in name:
                yield from _below(folder / name, depth - 1)


def read(folder: Path) -> Run:
    """What a run folder holds; one that is damaged says so in its state."""
    size = _size(folder)
    try:
        record = run_folder.read_run(folder)
    except ModelError:
        record = None
    if record is None:
        return Run(str(folder), size=size, note=f"{run_folder.RUN} cannot be read")
    identity = record["identity"]
    run: dict[str, Any] = {
        "name": str(folder),
        "task": _text(identity.get("task.name")),
        "model": _text(identity.get("model.path")),
        "length": _whole(identity.get("data.max_length")),
        "size": size,
    }
    if record.get("finished"):
        return _finished(folder, record, run)
    try:
        log = rows(folder / METRICS)
    except OSError as error:
        return Run(**run, note=f"{METRICS}: {error.strerror}")
    run |= _logged(log, record.get("metric"))
    run["date"] = _changed(folder / METRICS) or _changed(folder / run_folder.RUN)
    if holder := files.holder(folder):
        last = log[-1] if log else {"step": 0}
        epoch = f", epoch {last['epoch']:.2f}" if number(last.get("epoch")) is not None else ""
        who = f"process {holder.get('pid', '?')} on {holder.get('host', '?')}"
        return Run(**run, state=RUNNING, note=f"{who}: step {last['step']:,}{epoch}")
    steps = list(checkpoints.checkpoints(folder))
    where = f"after step {steps[-1]:,}" if steps else "before its first checkpoint"
    return Run(**run, state=STOPPED, note=f"stopped {where}; {_resuming(folder, run['task'])}")


def _finished(folder: Path, record: dict[str, Any], run: dict[str, Any]) -> Run:
    """A run that says of itself that it is finished."""
    names = [name for name in record.get("files", []) if isinstance(name, str)]
    missing = [name for name in names if not (folder / name).exists()]
    if missing:
        return Run(**run, note=f"{missing[0]} is missing")
    try:
        results = run_folder.read_results(folder)
        metrics = results["metrics"]
        run["date"] = datetime.fromisoformat(results["finished"]).astimezone()
        run["model"] = _text(results.get("base_model")) or run["model"]
        run["length"] = _whole(results.get("max_length")) or run["length"]
        run["time"] = number(results["seconds"])
        metric = (results["metric"] or "train_loss").removeprefix("eval_")
        names = [evaluated(metric), metric]
        run["value"] = next((number(metrics[name]) for name in names if name in metrics), None)
        run["metric"] = metric
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return Run(**run, note=f"{run_folder.RESULTS} cannot be read")
    return Run(**run, state=FINISHED)


def _logged(log: list[dict[str, Any]], metric: Any) -> dict[str, Any]:
    """The metric of the last evaluation, else the last loss; no value if it is not finite."""
    wanted = evaluated(metric)
    for row in reversed(log):
        names = [name for name in row if is_metric(name)]
        if names:
            others = [name for name in names if name != "eval_loss"]
            name = wanted if wanted in names else (others or names)[0]
            return {"metric": name.removeprefix("eval_"), "value": number(row[name])}
    losses = [row["loss"] for row in log if "loss" in row]
    return {"metric": "train_loss", "value": number(losses[-1])} if losses else {}


def _resuming(folder: Path, task: str | None) -> str:
    """The command that goes on with a run."""
    known = TASKS.get(task or "")
    kind = known.kind if known else "examples"
    command = "finetune" if kind == "examples" else "pretrain"
    # A phase of a staged training is gone on with by the recipe of all of them.
    recipe = "RECIPE" if kind == "characters" else folder / RECIPE
    return f"ldt {command} {recipe} --resume goes on"


def _goodness(run: Run) -> float:
    """Lower of better runs, by a metric that they share."""
    if run.value is None:
        return math.inf
    metric, known = run.metric or "", TASKS.get(run.task or "")
    lower = known.lower_is_better if known else frozenset()
    return run.value if is_better(metric.removeprefix("train_"), 0.0, 1.0, lower) else -run.value


def _size(folder: Path) -> int:
    """Bytes of the files in a folder, as far as they can be seen; links are not followed."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(path, name)).st_size
            except OSError:  # gone meanwhile, as those of a training are
                continue
    return total


def _changed(path: Path) -> datetime | None:
    try:
        return datetime.fromtimestamp(int(path.stat().st_mtime)).astimezone()
    except OSError:
        return None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
