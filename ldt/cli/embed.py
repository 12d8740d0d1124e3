"""ldt embed: a vector for every document of a file, or for each part of it."""

import gc
from typing import Annotated, Literal

from ldt.cli.options import (
    Device,
    Documents,
    File,
    Merge,
    Model,
    Precision,
    Runtime,
    Shard,
    Workers,
    keyed,
    takes,
)
from ldt.cli.predict import merge_parts
from ldt.errors import UserError
from ldt.inference import options
from ldt.inference.options import VectorUnit


def embed(
    file: Documents = None,
    model: Model = None,
    output: File = None,
    unit: VectorUnit | None = None,
    unit_tokens: Annotated[int | None, "TOKENS"] = None,
    dimensions: Annotated[int | None, "NUMBER"] = None,
    dtype: Literal["float32", "float16", "int8"] = "float32",
    on_error: Literal["stop", "skip"] = "stop",
    resume: bool = False,
    overwrite: bool = False,
    batch_tokens: Annotated[int, "TOKENS"] = 16384,
    device: Device = "auto",
    precision: Precision = "auto",
    shard: Shard = None,
    merge: Merge = None,
    runtime: Runtime = "torch",
    workers: Workers = "1",
) -> int:
    """Turn every document of a file into a vector.

    With --unit each chunk, sentence or paragraph gets one, which is computed from the whole
    document; documents that are longer than an input of the model are read in parts that overlap.

    Example: ldt embed documents.jsonl --output vectors.parquet --unit chunk

    Args:
        output: File for the vectors, which appears when it is complete: .parquet, .npy with
            .ids.jsonl beside it, or .jsonl, here or in a store such as s3://; by default JSON lines
            on standard output.
        dtype: Type of the numbers; in int8 a vector has a scale beside it.
    """
    values = locals()
    with options.flags(FLAGS):
        files, keys = keyed(file or (), KEYS)
        if merge is not None:
            return merge_parts(merge, files, overwrite)
        if not files:
            raise UserError("missing argument 'FILE'; see 'ldt embed --help'")
        gc.set_threshold(50_000)  # what is made until the first answer are modules, which stay
        from ldt.inference.predict import predict

        return predict(
            files,
            model=model,
            output=output,
            resume=resume,
            overwrite=overwrite,
            shard=shard,
            dtype=dtype,
            options=options.PredictOptions.of({name: values[name] for name in FLAGS} | keys),
        )


_NOT = ("n_best", "passages", "chunks", "raw_scores", "label_sets")  # of answers of other tasks
KEYS = {name: x for name, x in options.meanings().items() if not name.startswith(_NOT)}
FLAGS = takes(embed, KEYS)
