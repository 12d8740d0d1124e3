"""Recipes that come with ldt, found by name."""

import glob
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from textwrap import indent
from typing import Any

from ldt.recipe import yaml

log = logging.getLogger("ldt")

SHARE = 0.1  # of the training data, to evaluate on
_PACKAGE = Path(__file__).parents[1]


def shipped() -> dict[str, Path]:
    """Name and file of every recipe that comes with ldt, as wikihop, by name.

    They lie in the package; of a checkout, which has a pyproject.toml, beside it. Beside an
    installed package a folder of that name is somebody else's.
    """
    checkout = (_PACKAGE.parent / "pyproject.toml").is_file()
    folder = (_PACKAGE.parent if checkout else _PACKAGE) / "recipes"
    return {file.stem: file for file in sorted(folder.glob("*.yaml"))}


def located(path: Path) -> Path:
    """The path itself; where there is no such file, the shipped recipe of that name, if any.

    ``wikihop``, ``wikihop.yaml`` and ``recipes/wikihop.yaml``, as the documentation calls it, name
    the shipped one.
    """
    if not path.is_file() and path.suffix in ("", ".yaml") and str(path.parent) in (".", "recipes"):
        return shipped().get(path.stem, path)
    return path


def with_values(text: str, values: Mapping[tuple[str, str], Any]) -> str:
    """A recipe with other values of keys that it has, each on a line; all other lines are kept.

    Args:
        text: the recipe.
        values: by section and key.
    """
    lines, numbers = text.splitlines(keepends=True), yaml.parse(text).lines
    for keys, value in values.items():
        lines[numbers[keys] - 1] = indent(yaml.dump({keys[-1]: value}), "  ")
    return "".join(lines)


def fit_evaluation(path: Path, root: dict[str, Any], overrides: Iterable[str]) -> None:
    """Evaluate on a share of data.train where that is the user's and the shipped data.eval is not
    there.

    Args:
        path: the recipe; one that is not shipped stays as it is.
        root: its content with the overrides, which is changed.
        overrides: ``key=value``.
    """
    keys = {text.partition("=")[0].strip() for text in overrides}
    data = root.get("data")
    if "data.train" not in keys or keys & {"data.eval", "data.eval_fraction"}:
        return
    if not isinstance(data, dict) or path not in shipped().values():
        return
    names = data.get("eval")
    names = [names] if isinstance(names, str) else names or []
    if names and not any(glob.glob(str(name), recursive=True) for name in names):
        data |= {"eval": None, "eval_fraction": SHARE}
        log.info(
            "data.eval: %s of the recipe is not there: data.eval_fraction=%s of data.train instead",
            *(names[0], SHARE),
        )
