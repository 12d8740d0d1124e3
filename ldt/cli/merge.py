"""ldt merge: the answers of all shards of an input as one file."""

from typing import Annotated

import typer


def merge(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="File of answers, as --output named it for every shard."
        ),
    ],
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace FILE, which is there already.")
    ] = False,
) -> int:
    """Make one file of the answers that ldt predict --shard gave.

    All parts of FILE, such as FILE.1-of-4, stand beside it. Their answers go into FILE in the order
    of the documents, and the rejects of the parts into one file of rejects.

    Example: ldt merge answers.jsonl
    """
    from ldt.inference.merge import merge

    return merge(file, overwrite=overwrite)
