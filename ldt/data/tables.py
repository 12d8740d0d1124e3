"""Rows of binary tables, Parquet and Arrow, some in memory at a time."""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from ldt.data import remote, streams

AT_ONCE = 64  # rows that are made at a time


def rows(path: str, file: streams.Opened) -> Iterator[dict]:
    """Yield the rows of a file of Parquet or Arrow, or of a stream of Arrow.

    Args:
        path: of the file, here or in a store; of a stream it is not looked at.
        file: the same, opened; its stream is read where it is one of Arrow.
    """
    import pyarrow
    from pyarrow import parquet

    with contextlib.ExitStack() as stack:
        if file.compression == "arrow stream":
            batches: Iterable = pyarrow.ipc.open_stream(file.stream)
        else:
            if remote.is_remote(path):
                whole: Any = stack.enter_context(remote.opened(path))
            else:
                whole = stack.enter_context(pyarrow.memory_map(path))
            if file.compression == "parquet":
                table = stack.enter_context(parquet.ParquetFile(whole))
                batches = table.iter_batches(batch_size=AT_ONCE)
            else:
                arrow = pyarrow.ipc.open_file(whole)
                batches = map(arrow.get_batch, range(arrow.num_record_batches))
        for batch in batches:
            for start in range(0, len(batch), AT_ONCE):
                yield from batch.slice(start, AT_ONCE).to_pylist()
