"""Rows of Parquet, Arrow and sets of the hub, some in memory at a time."""

import contextlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ldt.data import remote, streams
from ldt.errors import DataError, first_line, listed

AT_ONCE = 64  # rows that are made at a time
Tree = list[str] | dict[str, Any] | None  # names of classes, by field where there are several


def rows(path: str, file: streams.Opened) -> Iterator[dict]:
    """Yield the rows of a file of Parquet or Arrow, or of a stream of Arrow.

    Classes that are numbers there have the names that the library `datasets` wrote into the file.

    Args:
        path: of the file, here or in a store; of a stream it is not looked at.
        file: the same, opened; its stream is read where it is one of Arrow.
    """
    import pyarrow
    from pyarrow import parquet

    with contextlib.ExitStack() as stack:
        if file.compression == "arrow stream":
            batches: Any = pyarrow.ipc.open_stream(file.stream)
            schema = batches.schema
        else:
            if remote.is_remote(path):
                whole: Any = stack.enter_context(remote.opened(path))
            else:
                whole = stack.enter_context(pyarrow.memory_map(path))
            if file.compression == "parquet":
                table = stack.enter_context(parquet.ParquetFile(whole))
                batches, schema = table.iter_batches(batch_size=AT_ONCE), table.schema_arrow
            else:
                arrow = pyarrow.ipc.open_file(whole)
                batches = map(arrow.get_batch, range(arrow.num_record_batches))
                schema = arrow.schema
        parts = (
            batch.slice(start, AT_ONCE).to_pylist()
            for batch in batches
            for start in range(0, len(batch), AT_ONCE)
        )
        yield from named(itertools.chain.from_iterable(parts), _features(schema), file.name)


def named(rows: Iterable[dict], features: Mapping[str, Any], name: str) -> Iterator[dict]:
    """Yield the rows with the names of their classes, which are told.

    Args:
        features: of the columns, as ``datasets.Features.to_dict`` has them; may be empty.
        name: of the file, for messages.
    """
    trees = {column: tree for column, feature in features.items() if (tree := _tree(feature))}
    if trees:
        told = listed(
            (f"{column} ({listed(_first(trees[column]), 4, str)})" for column in trees), show=str
        )
        streams.tell(name, f"{name}: numbers of classes are read by the names in the file: {told}")
    for row in rows:
        yield row | {key: _put(row[key], tree) for key, tree in trees.items() if key in row}


def _features(schema: Any) -> dict[str, Any]:
    """The features that `datasets` has noted in a schema; none where it did not write it."""
    try:
        return dict(json.loads(schema.metadata[b"huggingface"])["info"]["features"])
    except (KeyError, TypeError, ValueError):
        return {}


def _tree(feature: Any) -> Tree:
    """The names of the classes in a feature, lists of which are as one; None where it has none."""
    if isinstance(feature, list) and len(feature) == 1:  # of old versions
        return _tree(feature[0])
    if not isinstance(feature, dict):
        return None
    kind = feature.get("_type")
    if kind == "ClassLabel":
        return feature.get("names")
    if kind in ("Sequence", "List", "LargeList"):
        return _tree(feature.get("feature"))
    parts = {} if isinstance(kind, str) else feature
    return {key: tree for key, part in parts.items() if (tree := _tree(part))} or None


def _put(value: Any, tree: Tree) -> Any:
    """The value with names in the place of the numbers of classes.

    Raises:
        ValueError: a number that no class has.
    """
    if isinstance(value, list):
        return [_put(item, tree) for item in value]
    if isinstance(tree, dict) and isinstance(value, dict):
        return value | {key: _put(value[key], part) for key, part in tree.items() if key in value}
    if not isinstance(tree, list) or not isinstance(value, int):
        return value
    if not -1 <= value < len(tree):
        raise ValueError(f"class {value}; the file has names of {len(tree):,}, from 0")
    return tree[value] if value >= 0 else None  # -1 is no label, as in a test set


def _first(tree: Tree) -> list[str]:
    """The names of the first classes."""
    return tree if isinstance(tree, list) else _first(next(iter((tree or {"": []}).values())))


def hub_rows(source: str) -> Iterator[dict]:
    """Yield the rows of a set of the hub, "hf:owner/name[:split]"."""
    import datasets

    name, _, split = source.removeprefix("hf:").partition(":")
    rows = datasets.load_dataset(name, split=split or "train", streaming=True)
    features = getattr(rows, "features", None)
    yield from named(rows, features.to_dict() if features else {}, source)


def numbered(rows: Iterator[dict], source: str, what: str) -> Iterator[tuple[int, dict]]:
    """Count rows from 1; whatever goes wrong in getting one is a DataError of one line.

    The libraries below raise dozens of unrelated classes, so all are caught.
    """
    for number in itertools.count(1):
        try:
            row = next(rows)
        except StopIteration:
            return
        except Exception as error:
            place = f"{source}:{number}" if number > 1 else source
            raise DataError(f"{place}: {what}: {first_line(error)}") from error
        yield number, row
