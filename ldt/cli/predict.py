"""ldt predict: a fine-tuned model answers for every document of a file."""

import gc
from typing import Annotated, Any, Literal

import typer

from ldt import errors
from ldt.cli.options import Device, Library
from ldt.io.sources import is_remote


def predict(
    file: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE",
            help="Documents to answer for: lines, a table, a text file or a folder of text files; "
            "several of them, or a pattern in quotes; - reads standard input.",
        ),
    ] = None,
    source: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="FILE", help="Another way to name FILE; may be repeated."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder of the finished run whose model answers; by default runs/latest.",
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="File for the answers, which appears when it is complete: .jsonl, .csv, .tsv, "
            ".parquet, .arrow, .json, .jsonl.gz or .jsonl.zst, here or in a store such as s3://; "
            "by default JSON lines on standard output.",
        ),
    ] = None,
    layout: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Published layout to write the answers in, such as squad or cuad-nbest; by "
            "default that of the task where the output ends in .json.",
        ),
    ] = None,
    on_error: Annotated[
        Literal["stop", "skip"],
        typer.Option(
            help="Action at a record that cannot be used: stop, or skip it and put it into a file "
            "of rejects."
        ),
    ] = "stop",
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue an output file that is unfinished.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an output file that is there already.")
    ] = False,
    keep: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD,FIELD",
            help="Fields of a record to copy into its answer; NAME=FIELD gives one another name.",
        ),
    ] = None,
    batch_tokens: Annotated[
        int,
        typer.Option(
            min=1, metavar="TOKENS", help="Size of the largest batch, in tokens with padding."
        ),
    ] = 16384,
    max_line_bytes: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="BYTES",
            show_default="256 MiB",
            help="Length of the longest line that is accepted, in bytes.",
        ),
    ] = 256 << 20,
    format: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Layout of FILE: jsonl, csv, tsv, parquet, text, or a published one such as squad "
            "or triviaqa; by default that of the training if FILE begins like it, else one of the "
            "first five, by content and suffix.",
        ),
    ] = None,
    evidence: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder of the documents that a triviaqa file names; by default the one of the "
            "training.",
        ),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD",
            help="Field of a record that holds its text, or 'Title + Body' for several that are "
            "joined; by default as in the training.",
        ),
    ] = None,
    id: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD",
            help="Field of a record that holds its id; by default the one of the training.",
        ),
    ] = None,
    encoding: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Encoding of FILE, such as latin-1 or cp1252; by default that of the training, or "
            "UTF-8 where FILE shows it.",
        ),
    ] = None,
    n_best: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="NUMBER", help="Number of answers to give to a question, best first."
        ),
    ] = None,
    device: Device = "auto",
    precision: Annotated[
        Literal["auto", "fp32", "bf16", "int8"],
        typer.Option(
            help="Number format to compute in; bf16 and int8 (CPU only) are faster and less exact, "
            "and the first documents show by how much. By default bf16 on a GPU that has it, else "
            "fp32."
        ),
    ] = "auto",
    int8_bound: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            metavar="SHARE",
            help="Share of the first 200 answers that int8 may change against fp32 without being "
            "refused; 1 goes on all the same.",
        ),
    ] = 0.01,
    raw_scores: Annotated[
        bool,
        typer.Option(
            "--raw-scores",
            help="Give the logits of a classification as scores, in place of probabilities.",
        ),
    ] = False,
    label_sets: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="Add the set of classes that, with this probability, holds all the right ones; "
            "such as 0.9.",
        ),
    ] = None,
    passages: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="NUMBER",
            show_default=False,
            help="Number of passages to name with each answer as what it rests on, best first.",
        ),
    ] = 0,
    passages_by: Annotated[
        Literal["gradient", "occlusion", "chunks"],
        typer.Option(
            help="What makes a passage count: its gradient times input, the fall of the logit "
            "without it (slow), or the logit of a whole chunk."
        ),
    ] = "gradient",
    passages_of: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LABEL",
            help="Class to name passages of, in place of those of the answer; may be repeated.",
        ),
    ] = None,
    passages_unit: Annotated[
        Literal["sentence", "paragraph"],
        typer.Option(
            help="What a passage is: a sentence, or a paragraph between blank lines, bullets and "
            "numbers of clauses, of up to 2,000 characters."
        ),
    ] = "sentence",
    chunks: Annotated[
        bool,
        typer.Option("--chunks", help="List the chunks of each document, with the scores of each."),
    ] = False,
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="I/N",
            help="Share of the records to answer, as 1/4 to 4/4 on four machines; each makes a "
            "part of the output, and ldt merge the output of all parts.",
        ),
    ] = None,
    runtime: Library = "torch",
    workers: Annotated[
        str,
        typer.Option(
            metavar="NUMBER",
            help="Number of processes that answer, each with its share of the processors, or a GPU "
            "each; auto is one for each GPU, or for every four cores.",
        ),
    ] = "1",
    engine: Annotated[
        Literal["local", "ray"],
        typer.Option(
            help="What reads, answers and writes: this command, or a cluster with Ray Data, which "
            "reads Parquet, JSON lines and CSV and writes a folder of Parquet files."
        ),
    ] = "local",
    address: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Address of the Ray cluster, as ray://host:10001; by default RAY_ADDRESS, or this "
            "machine alone.",
        ),
    ] = None,
) -> int:
    """Answer for every document of a file.

    The answers are JSON lines in the order of the documents. An output file whose name ends in
    .csv, .tsv or .parquet gets a table, in .json the layout that the task's published evaluator
    reads; --layout names one of several.

    Example: ldt predict documents.jsonl --output answers.jsonl
    """
    documents = file or source
    if not documents:
        raise errors.UserError(
            "missing argument 'FILE' (or option '--input'); see 'ldt predict --help'"
        )
    if file and source:
        raise errors.UserError(
            f"FILE {file[0]!r} and --input {source[0]!r} both name the documents; give one of them"
        )
    options: dict[str, Any] = {
        "model": model,
        "text": text,
        "id": id,
        "n_best": n_best,
        "device": device,
        "precision": precision,
        "batch_tokens": batch_tokens,
        "raw_scores": raw_scores,
        "label_sets": label_sets,
        "passages": passages,
        "passages_by": passages_by,
        "passages_of": passages_of,
        "passages_unit": passages_unit,
        "chunks": chunks,
        "runtime": runtime,
        "resume": resume,
        "overwrite": overwrite,
    }
    if engine == "ray":
        from ldt.inference import cluster

        _check_alone(shard=shard, layout=layout, keep=keep, format=format, evidence=evidence)
        return cluster.predict(documents, output, address=address, **options)
    gc.set_threshold(50_000)  # what is made until the first answer are modules, which stay
    from ldt.cli.workers import seats
    from ldt.inference.predict import predict
    from ldt.inference.sending import sending

    if shard and output and is_remote(output):
        raise errors.UserError(f"--shard {shard}: parts are merged here; name a local --output")
    with sending(output, overwrite=overwrite, resume=resume) as target:
        return predict(
            documents,
            output=target,
            layout=layout,
            on_error=on_error,
            keep=keep.split(",") if keep is not None else (),
            max_line_bytes=max_line_bytes,
            format=format,
            evidence=evidence,
            encoding=encoding,
            int8_bound=int8_bound,
            shard=shard,
            workers=seats(workers, device),
            **options,
        )


def _check_alone(**given: str | None) -> None:
    """Raise UserError for an option that a cluster has no use for."""
    for name, value in given.items():
        if value is not None:
            raise errors.UserError(f"--{name} {value}: not with --engine ray, which writes rows")
