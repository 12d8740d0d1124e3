"""Which field of a data file holds labels, and how a task for classes reads them."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from ldt.data.labels import MOST_CODES
from ldt.data.options import DataSection
from ldt.data.yes_no import are_flags, flag_word
from ldt.errors import UserError, first_line, listed, shown
from ldt.io.records import Example
from ldt.tasks.classification import REGRESSION, Classification

MOST_CLASSES = 50  # a field of more different values holds no classes
_LONG = 60  # characters of a cell that is no class

# Ways to read labels, tried in this order: keys of `task:`, and of `data:` where it has them.
_READINGS: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({}, {}),
    ({"problem": "single_label"}, {}),  # of few whole numbers with a point
    ({"problem": "regression"}, {}),
    ({}, {"label_separator": "|"}),
    ({}, {"label_separator": ";"}),
)
_NAMES = "label labels class classes category categories target group topic sentiment y".split()
_SPLITS = {"train", "training", "dev", "valid", "validation", "val", "eval", "test"}
_DATE = re.compile(r"\d{4}-\d\d|\d\d?[./]\d\d?[./]\d")


@dataclass(frozen=True)
class Labels:
    """Labels of a file, and how they are read.

    Args:
        path: the field, or those of yes and no.
        task, data: keys of a recipe by which they are read, if it takes any.
        counts: records of each class; none of numbers.
        trouble: why they cannot be learned from as they are.
    """

    path: str | list[str]
    task: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    trouble: str | None = None

    def name(self) -> str:
        """The field, or all of them."""
        return self.path if isinstance(self.path, str) else listed(self.path, 8, str)

    def words(self) -> str:
        """Kind of the labels."""
        if not self.counts:
            return "numbers"
        counts = self.counts.most_common()
        shown = listed(counts, 6, lambda pair: f"{pair[0]} ({pair[1]:,})")
        return f"{len(counts):,} class{'es' if len(counts) > 1 else ''}: {shown}"


def labels(examples: Sequence[Example], path: str | list[str]) -> Labels:
    """Read labels as a classification does, in the first way that it takes."""
    trouble = None
    cells = [str(each.fields.get(path)) for each in examples] if isinstance(path, str) else [""]
    for task_keys, data_keys in _READINGS:
        mark = data_keys.get("label_separator", "")
        if not set(data_keys) <= set(DataSection.model_fields) or not any(
            mark in cell for cell in cells
        ):
            continue
        if task_keys.get("problem") == "single_label" and not _are_codes(cells):
            continue
        task = Classification(**task_keys)
        data = DataSection.model_validate({"label": path, **data_keys})
        try:
            config = SimpleNamespace(**task.learn(examples, data))
            golds = [task.gold(example, data, config) for example in examples]
        except UserError as error:
            trouble = trouble or first_line(error)
            continue
        if config.problem_type == REGRESSION:
            return Labels(path, task_keys, data_keys)
        lists = (gold if isinstance(gold, list) else [gold] for gold in golds)
        counts = Counter(str(name) for names in lists for name in names)
        return Labels(path, task_keys, data_keys, counts)
    return Labels(path, trouble=trouble)


def _are_codes(cells: Sequence[str]) -> bool:
    """True for the texts of a few whole numbers."""
    try:
        return len(set(cells)) <= MOST_CODES and all(float(cell) % 1 == 0 for cell in cells)
    except ValueError:
        return False


def label_fields(
    columns: dict[str, list[Any]], text: str | None, count: int
) -> list[str | list[str]]:
    """The fields that may hold the labels, the likeliest first: one of such a name, several of yes
    and no; where none has such a name those with few values, the fewest first.

    Args:
        columns: values by field.
        text: field of the documents.
        count: number of records; a field that some of them lack has no labels.
    """
    whole = {
        name: values for name, values in columns.items() if name != text and len(values) == count
    }
    full = {name: values for name, values in whole.items() if None not in values}
    named = {name.lower(): name for name in full}
    flags = [n for n, values in whole.items() if are_flags(values) and len(_words(values)) > 1]
    blank = any("" in _words(whole[name]) for name in flags)
    few = {name: len(_distinct(values)) for name, values in full.items()}
    most = min(MOST_CLASSES, count // 2)
    fits = [name for name, different in few.items() if 1 < different <= most]
    several: list[str | list[str]] = [flags] if len(flags) > 1 or blank else []
    called = [named[name] for name in _NAMES if name in named][:1]
    fits.sort(key=lambda name: (few[name], len(str(full[name]))))  # short texts first
    return [*called, *several, *([] if called else fits)]


def left_out(columns: dict[str, list[Any]], taken: Sequence[str], count: int) -> list[str]:
    """Lines that say which fields are no labels, and why.

    Args:
        columns: values by field.
        taken: fields that are the text, the id or labels.
        count: number of records.
    """
    why: dict[str, list[str]] = {}
    for name, values in columns.items():
        if name in taken:
            continue
        different = {"" if value is None else str(value).strip().lower() for value in values}
        if len(values) < count:
            reason = "not in every record"
        elif len(different) == 1:
            reason = f"always the same, {shown(values[0])}" if "" not in different else "blank"
        elif are_flags(values):
            reason = "yes and no, beside the label"
        elif max(map(len, different)) > _LONG:
            reason = "text, which a list in data.text joins"
        elif len(different) > min(MOST_CLASSES, count // 2):
            reason = "too many different values"
        else:
            reason = "few values, which data.label can name"
        why.setdefault(reason, []).append(name)
    return [f"left out, {reason}: {listed(names, 8, str)}" for reason, names in why.items()]


def _distinct(values: list[Any]) -> set[str | bool]:
    """The classes that values may be: texts but dates and splits, true, false, lists of texts."""
    lists = [value if isinstance(value, list) else [value] for value in values]
    items = [item for each in lists for item in each]
    if not all(isinstance(item, str | bool) and not _DATE.match(str(item)) for item in items):
        return set()
    return set() if set(items) <= _SPLITS else set(items)


def _words(values: list[Any]) -> set[str | None]:
    return {flag_word(value) for value in values}
