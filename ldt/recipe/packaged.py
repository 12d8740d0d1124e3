"""Recipes that come with ldt, found by name."""

from pathlib import Path

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
