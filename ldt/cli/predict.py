"""ldt predict and ldt embed: answers or vectors for every document of a file."""

import gc
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import typer

from ldt import errors
from ldt.cli.options import (
    Device,
    Documents,
    File,
    Merge,
    Model,
    Name,
    Precision,
    Runtime,
    Shard,
    Workers,
    keyed,
    takes,
)
from ldt.inference import options
from ldt.inference.options import VectorUnit

ADDRESS = (
    "Address of the Ray cluster, as ray://host:10001; by default RAY_ADDRESS, or this machine."
)


def predict(
    file: Documents = None,
    source: Annotated[list[str] | None, typer.Option("--input", metavar="FILE")] = None,
    model: Model = None,
    output: File = None,
    output_format: Name = None,
    on_error: Literal["stop", "skip"] = "stop",
    resume: bool = False,
    overwrite: bool = False,
    keep: Annotated[str | None, "FIELD,FIELD"] = None,
    batch_tokens: Annotated[int, "TOKENS"] = 16384,
    n_best: Annotated[int | None, "NUMBER"] = None,
    device: Device = "auto",
    precision: Precision = "auto",
    passages: Annotated[int, typer.Option(metavar="NUMBER", show_default=False)] = 0,
    chunks: bool = False,
    shard: Shard = None,
    merge: Merge = None,
    runtime: Runtime = "torch",
    workers: Workers = "1",
    executor: Literal["local", "ray"] = "local",
) -> int:
    """Answer for every document of a file.

    The answers are JSON lines in the order of the documents. An output file whose name ends in
    .csv, .tsv or .parquet gets a table, in .json the layout that the task's published evaluator
    reads; --output-format names one of several.

    Example: ldt predict documents.jsonl --output answers.jsonl

    Args:
        source: Another way to name FILE; may be repeated.
        output: File for the answers, which appears when it is complete: .jsonl, .csv, .tsv,
            .parquet, .arrow, .json, .jsonl.gz or .jsonl.zst, here or in a store such as s3://; by
            default JSON lines on standard output.
        output_format: Published layout to write the answers in, such as squad or cuad-nbest; by
            default that of the task where the output ends in .json.
        keep: Fields of a record to copy into its answer, which has its id anyway; NEW=FIELD renames
            one.
        executor: Place where documents are read, answered and written: this machine, or a cluster
            with Ray Data, which reads Parquet, JSON lines and CSV with ids and writes a folder of
            Parquet files.
    """
    values = locals()
    with options.flags(FLAGS):
        files, keys = keyed(file or (), KEYS)
        if merge is not None:
            return _merge_parts(merge, files or source or (), overwrite)
        documents = files or source
        if not documents:
            raise errors.UserError(
                "missing argument 'FILE' (or option '--input'); see 'ldt predict --help'"
            )
        if files and source:
            raise errors.UserError(
                f"FILE {files[0]!r} and --input {source[0]!r} both name the documents; give one"
            )
        address = keys.pop("address", None)
        asked = options.PredictOptions.of({name: values[name] for name in FLAGS} | keys)
        if executor == "ray":
            from ldt.inference import ray

            unused = {"--shard": shard, "--output-format": output_format, "--keep": keep}
            _check_unused("--executor ray", unused)
            return ray.predict(
                documents,
                output,
                address=address,
                resume=resume,
                overwrite=overwrite,
                model=model,
                options=asked,
            )
        return _answers(
            documents,
            model=model,
            output=output,
            layout=output_format,
            resume=resume,
            overwrite=overwrite,
            keep=keep.split(",") if keep is not None else (),
            shard=shard,
            options=asked,
        )


KEYS = options.meanings() | {"address": ADDRESS}
FLAGS = takes(predict, KEYS)


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
    with options.flags(VECTOR_FLAGS):
        files, keys = keyed(file or (), VECTOR_KEYS)
        if merge is not None:
            return _merge_parts(merge, files, overwrite)
        if not files:
            raise errors.UserError("missing argument 'FILE'; see 'ldt embed --help'")
        return _answers(
            files,
            model=model,
            output=output,
            resume=resume,
            overwrite=overwrite,
            shard=shard,
            dtype=dtype,
            options=options.PredictOptions.of({name: values[name] for name in VECTOR_FLAGS} | keys),
        )


_NOT = ("n_best", "passages", "chunks", "raw_scores", "label_sets", "resolved")  # of others
VECTOR_KEYS = {name: x for name, x in options.meanings().items() if not name.startswith(_NOT)}
VECTOR_FLAGS = takes(embed, VECTOR_KEYS)


def _answers(documents: Sequence[str], **keywords: Any) -> int:
    gc.set_threshold(50_000)  # what is made until the first answer are modules, which stay
    from ldt.inference.predict import predict

    return predict(documents, **keywords)


def _merge_parts(output: str, files: Sequence[str], overwrite: bool) -> int:
    """Make one output of the parts that ``--shard`` made; there are no files to answer for."""
    _check_unused("--merge", {"FILE": next(iter(files), None)})
    from ldt.inference.merge import merge

    return merge(output, overwrite=overwrite)


def _check_unused(where: str, given: dict[str, Any]) -> None:
    for name, value in given.items():
        if value is not None:
            raise errors.UserError(f"{name} {value}: not with {where}")
