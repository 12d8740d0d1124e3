"""Vectors of documents as rows of a file: Parquet, NumPy's own format, and JSON lines.

The answer of a model of vectors has ``vectors``, an array [n, size] in float32, and ``spans``,
the characters of each in the document. While answers are written the array is text in its line,
exactly; the rows are made of the lines at the end, some at a time.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ldt.errors import UserError
from ldt.io.files import remove, temporary
from ldt.io.strict_json import json_line
from ldt.tasks.base import AnyTask

Answer = dict[str, Any]
DType = Literal["float32", "float16", "int8"]

KIND = "vectors"  # of the answers (`ldt.tasks.base.TaskAnswers`)
GROUP = 8 << 20, 1 << 13  # bytes of lines, or rows, that are written at a time


def lines_for(task: AnyTask, dtype: DType, kept: bool) -> Callable[[Answer], Iterable[Answer]]:
    """Choose the function from an answer to its lines of output; answers without vectors stay as
    they are.

    Args:
        task: task of the model.
        dtype: type of the vectors' numbers in the output.
        kept: True: one line per answer, of which `layout_of` makes rows; False: one per vector.
    """
    if task.answers.kind != KIND:
        return partial(repeat, times=1)
    return (lambda answer: [_packed(dtype, answer)]) if kept else partial(_lines, dtype)


def _packed(dtype: DType, answer: Answer) -> Answer:
    """Pack the array of an answer, if it has one, into its line as text, in a type for numbers.

    In int8 a vector is its numbers times its ``scale``.
    """
    if "vectors" not in answer:
        return answer
    vectors = answer["vectors"]
    line = answer | {"size": vectors.shape[1], "dtype": dtype}
    if dtype == "int8":
        scales = np.abs(vectors).max(1, initial=0) / 127
        vectors = np.rint(vectors / np.where(scales, scales, 1)[:, None])
        line["scales"] = scales.tolist()
    data = np.ascontiguousarray(vectors, np.dtype(dtype).newbyteorder("<"))
    return line | {"vectors": b64encode(data.tobytes()).decode()}


def _unpacked(line: Answer) -> tuple[list[Answer], np.ndarray]:
    """Unpack a line of `_packed`: a row for each vector, and the vectors [n, size]."""
    if "vectors" not in line:
        raise UserError(f"{line['id']}: vectors of a query with its documents go to JSON lines")
    dtype = np.dtype(line["dtype"]).newbyteorder("<")
    vectors = np.frombuffer(b64decode(line["vectors"]), dtype).reshape(-1, line["size"])
    scales = line.get("scales")
    rows = []
    for number, (start, end) in enumerate(line["spans"]):
        name = str(line["id"])
        row: Answer = {"id": f"{name}#{number}" if "unit" in line else name, "document": name}
        row |= {"number": number, "start": start, "end": end}
        row |= {} if scales is None else {"scale": scales[number]}
        rows.append(row | {"unread_tokens": line.get("unread_tokens", 0)})
    return rows, vectors


def _lines(dtype: DType, answer: Answer) -> Iterator[Answer]:
    """Yield a JSON object for each vector of an answer, or of a line of `_packed`."""
    if "vectors" not in answer:
        yield answer
        return
    line = answer if isinstance(answer["vectors"], str) else _packed(dtype, answer)
    for row, vector in zip(*_unpacked(line), strict=True):
        yield row | {"embedding": vector.tolist() if dtype == "int8" else vector}


def layout_of(output: Path) -> Callable[[Path, Path], None]:
    """Function (file of answer lines, new file) that writes vectors as the ending of ``output``
    says: .parquet, .npy (with the file `ids_of`) or .jsonl; UserError for another."""
    writers: dict[str, Callable[[Path, Path], None]] = {
        ".parquet": _write_parquet,
        ".npy": partial(_write_npy, output),
        ".jsonl": _write_lines,
    }
    try:
        return writers[output.suffix.lower()]
    except KeyError:
        raise UserError(f"{output}: vectors are written as {', '.join(writers)}") from None


def _write_lines(answers: Path, target: Path) -> None:
    with open(answers, "rb") as file, open(target, "xb") as out:
        for line in map(json.loads, file):
            out.writelines(map(json_line, _lines(line.get("dtype", "float32"), line)))


def ids_of(output: Path) -> Path:
    """Path of the file of the rows' ids beside an array: "a.ids.jsonl" of "a.npy"."""
    return output.with_suffix(".ids.jsonl")


def _write_npy(output: Path, answers: Path, target: Path) -> None:
    """Write an array [n, size], and a JSON line of each row to ``NAME.ids.jsonl``."""
    count, size, dtype = 0, 0, np.dtype("float32")
    with open(answers, "rb") as file:
        for line in map(json.loads, file):
            rows, vectors = _unpacked(line)
            count, size, dtype = count + len(rows), vectors.shape[1], vectors.dtype
    header = {"descr": dtype.newbyteorder("<").str, "fortran_order": False, "shape": (count, size)}
    ids = ids_of(output)
    unfinished = temporary(ids)
    try:
        with open(target, "xb") as out, open(unfinished, "xb") as beside:
            np.lib.format.write_array_header_1_0(out, header)
            for rows, vectors in _groups(answers):
                out.write(vectors.tobytes())
                beside.writelines(map(json_line, rows))
        unfinished.replace(ids)
    finally:
        remove(unfinished)


def _write_parquet(answers: Path, target: Path) -> None:
    import pyarrow
    from pyarrow.parquet import ParquetWriter

    writer = None
    with open(target, "xb") as out:
        for rows, vectors in _groups(answers):
            flat = pyarrow.array(vectors.ravel())
            column = pyarrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
            table = pyarrow.Table.from_pylist(rows).append_column("embedding", column)
            if writer is None:
                writer = ParquetWriter(out, table.schema)
            writer.write_table(table)
        if writer is None:
            writer = ParquetWriter(out, pyarrow.schema({"id": pyarrow.string()}))
        writer.close()


def _groups(answers: Path) -> Iterator[tuple[list[Answer], np.ndarray]]:
    """Rows and vectors of lines that are one `GROUP` together."""
    group: list[Answer] = []
    parts: list[np.ndarray] = []
    size = 0
    with open(answers, "rb") as file:
        for line in file:
            if parts and (size + len(line) > GROUP[0] or len(group) >= GROUP[1]):
                yield group, np.concatenate(parts)
                group, parts, size = [], [], 0
            rows, vectors = _unpacked(json.loads(line))
            group += rows
            parts.append(vectors)
            size += len(line)
    if parts:
        yield group, np.concatenate(parts)
