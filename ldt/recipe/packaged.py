"""Recipes that come with ldt, found by name."""

from pathlib import Path

_PACKAGE = Path(__file__).parents[1]


def shipped() -> dict[str, Path]:
    """Name and file of every recipe that comes with ldt, as wikihop, by name.

    They lie in the package; of a checkout, beside it.
    """
    folders = (_PACKAGE / "recipes", _PACKAGE.parent / "recipes")
    return {file.stem: file for folder in folders for file in sorted(folder.glob("*.yaml"))}


def located(path: Path) -> Path:
    """The path itself; where there is no such file, the shipped recipe of that name, if any.

    ``wikihop``, ``wikihop.yaml`` and ``recipes/wikihop.yaml``, as the documentation calls it, name
    the shipped one.
    """
    if not path.is_file() and path.suffix in ("", ".yaml") and str(path.parent) in (".", "recipes"):
        return shipped().get(path.stem, path)
    return path
