"""The log of a run, ``metrics.jsonl``: a JSON line for each log of its training."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ldt.files import write_whole

METRICS = "metrics.jsonl"


def rows(path: Path) -> list[dict[str, Any]]:
    """The lines of a log, each with a whole number of its ``step``; others are left out, such as
    one that is being written. Empty where there is no log.

    Raises:
        OSError: it is there and cannot be read.
    """
    return [row for row, _ in _lines(path)]


def values(log: Iterable[Mapping[str, Any]], key: str) -> list[tuple[int, float | None]]:
    """Steps and values of a key, of the lines that have it; None where it is no finite number."""
    found: list[tuple[int, float | None]] = []
    for row in log:
        if key in row:
            found.append((row["step"], number(row[key])))
    return found


def number(value: Any) -> float | None:
    """A value of a log as a finite number, None of anything else."""
    is_finite = isinstance(value, int | float) and math.isfinite(value)
    return float(value) if is_finite else None


def cut_log(path: Path, step: int) -> None:
    """Drop the lines of a log that were written after a checkpoint, and a last line cut short."""
    if path.exists():
        # train_loss comes with the end.
        kept = [
            line for row, line in _lines(path) if row["step"] <= step and "train_loss" not in row
        ]
        write_whole(path, "".join(f"{line}\n" for line in kept))


def is_metric(name: str) -> bool:
    """True for a number of an evaluation that is about the model, not about its speed."""
    return name.startswith("eval_") and not name.endswith(
        ("_runtime", "_per_second", "_preparation_time")
    )


def evaluated(metric: Any) -> str:
    """The name in the log of a metric, which recipes have with or without ``eval_``."""
    return f"eval_{str(metric).removeprefix('eval_')}"


def _lines(path: Path) -> list[tuple[dict[str, Any], str]]:
    """The lines that are whole, read and as they are."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    found = []
    for line in text.split("\n"):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            found.append((row, line))
    return found
