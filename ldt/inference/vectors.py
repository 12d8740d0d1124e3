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
    """Choose the function that turns an answer into lines of output; answers without vectors stay
    as they are.

    Args:
        task: task of the model.
        dtype: type of the vectors' numbers in the output.
        kept: True for a file, whose `layout_of` makes rows of one line for each answer.
    """
    if task.answers.kind != KIND:
        return partial(repeat, times=1)
    return (lambda answer: [packed(dtype, answer)]) if kept else partial(lines, dtype)


def packed(dtype: DType, answer: Answer) -> Answer:
    """Pack the array of an answer into its line as text, in a type for numbers.

    In int8 a vector is its numbers times its ``scale``, the largest of them divided by 127. That of
    a query with its documents, for ``ldt evaluate``, stays as it is.
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


def unpacked(line: Answer) -> tuple[list[Answer], np.ndarray]:
    """Unpack a line of `packed`: a row for each vector, and the vectors [n, size].

    Raises:
        UserError: it is that of a query with its documents.
    """
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


def lines(dtype: DType, answer: Answer) -> Iterator[Answer]:
    """Yield a JSON object for each vector of an answer, or of a line of `packed`; one object for a
    query with its documents."""
    if "vectors" not in answer:
        yield answer
        return
    line = answer if isinstance(answer["vectors"], str) else packed(dtype, answer)
    for row, vector in zip(*unpacked(line), strict=True):
        yield row | {"embedding": vector.tolist() if dtype == "int8" else vector}


def layout_of(output: Path) -> Callable[[Path, Path], None]:
    """Choose the writer by the ending of a file's name: a function (file of answer lines, new
    file); UserError for an unknown ending."""
    writers: dict[str, Callable[[Path, Path], None]] = {
        ".parquet": write_parquet,
        ".npy": partial(write_npy, output),
        ".jsonl": write_lines,
    }
    try:
        return writers[output.suffix.lower()]
    except KeyError:
        raise UserError(f"{output}: vectors are written as {', '.join(writers)}") from None


def write_lines(answers: Path, target: Path) -> None:
    """Write a JSON line for each vector in a file of `packed` answers."""
    with open(answers, "rb") as file, open(target, "xb") as out:
        for line in map(json.loads, file):
            out.writelines(map(json_line, lines(line.get("dtype", "float32"), line)))


def ids_of(output: Path) -> Path:
    """Path of the file beside an array that has the rows' ids."""
    return output.with_suffix(".ids.jsonl")


def write_npy(output: Path, answers: Path, target: Path) -> None:
    """Write the vectors of `packed` answers as an array [n, size], and a JSON line of each row to
    ``NAME.ids.jsonl``; ``output`` is the name that the array will have in the end."""
    count, size, dtype = 0, 0, np.dtype("float32")
    with open(answers, "rb") as file:
        for line in map(json.loads, file):
            rows, vectors = unpacked(line)
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


def write_parquet(answers: Path, target: Path) -> None:
    """Write a Parquet table of `packed` answers, whose column ``embedding`` has lists of
    one size."""
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
    """The rows and vectors of lines that are one `GROUP` together; a longer line is one alone."""
    group: list[Answer] = []
    parts: list[np.ndarray] = []
    size = 0
    with open(answers, "rb") as file:
        for line in file:
            if parts and (size + len(line) > GROUP[0] or len(group) >= GROUP[1]):
                yield group, np.concatenate(parts)
                group, parts, size = [], [], 0
            rows, vectors = unpacked(json.loads(line))
            group += rows
            parts.append(vectors)
            size += len(line)
    if parts:
        yield group, np.concatenate(parts)
