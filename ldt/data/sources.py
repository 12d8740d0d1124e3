"""Names of data as people write them to files: a file, a pattern, or several of them."""

import glob
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from ldt import files
from ldt.data import remote
from ldt.data.remote import is_hub_set
from ldt.errors import UserError

Names = str | Sequence[str]


def matches(name: str) -> list[str]:
    """The files that a pattern stands for, sorted, or a folder that ``save_to_disk`` of the library
    `datasets` has made; any other name is itself, there or not.

    Raises:
        UserError: no file matches the pattern; a folder of several sets.
    """
    if (noted := Path(name, "state.json")).is_file():
        files = [str(Path(name, file)) for file in _noted(noted, "_data_files")]
        return files or [name]
    if (noted := Path(name, "dataset_dict.json")).is_file():
        splits = _noted(noted, "splits")
        one = Path(name, splits[0] if splits else "train")
        raise UserError(f"{name}: sets of datasets, {', '.join(splits)}; {one} is one of them")
    if name == "-" or is_hub_set(name) or os.path.exists(name) or not glob.has_magic(name):
        return [name]
    if remote.is_remote(name):
        found = remote.matches(name)
    else:
        found = sorted(file for file in glob.glob(name, recursive=True) if os.path.isfile(file))
    if not found:
        raise UserError(f"{name}: no file has such a name")
    return found


def _noted(file: Path, key: str) -> list[str]:
    """Names in a list of a JSON file of `datasets`; none where there is no such list."""
    try:
        listed = json.loads(file.read_text("utf-8")).get(key, ())
        return [item["filename"] if isinstance(item, dict) else str(item) for item in listed]
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        return []


def each(names: Names) -> list[str]:
    """The files of one name or of several, in their order, those of a pattern sorted; each once.

    Raises:
        UserError: a pattern that no file matches.
    """
    listed = [names] if isinstance(names, str) else names
    return list(dict.fromkeys(file for name in listed for file in matches(name)))


def only(names: Names, what: str) -> str:
    """The one file that the names stand for.

    Args:
        what: it is, in words: "predictions of squad".

    Raises:
        UserError: there are several.
    """
    found = each(names)
    if len(found) > 1:
        raise UserError(f"{what} are one file, got {len(found):,}: {named(found)}")
    return found[0]


def named(names: Names) -> str:
    """``a.jsonl``, or of several ``a.jsonl and 4 more``, for messages."""
    if isinstance(names, str):
        return names
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1:,} more"


def digest(names: Names) -> str | None:
    """sha256 of a file, or of the hexadecimal ones of several, in their order.

    None where one is not a file here, as a set of the hub.
    """
    paths = [Path(name) for name in each(names)]
    if not all(path.is_file() for path in paths):
        return None
    found = [files.digest(path) for path in paths]
    return found[0] if len(found) == 1 else hashlib.sha256("".join(found).encode()).hexdigest()
