"""ldt perplexity: how well a language model predicts a text, by length of its input."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from ldt.cli.console import say, stdout
from ldt.cli.options import Device

Lengths = Annotated[
    list[int] | None,
    typer.Option(
        metavar="TOKENS",
        help="Length of the inputs, in tokens; repeat the option for more lengths; by default "
        "the longest of the model.",
    ),
]


def perplexity(
    model: Annotated[
        str,
        typer.Option(
            metavar="FOLDER", help="Folder or hub id of a masked LM or of a character model."
        ),
    ],
    source: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="FILE",
            help="Text or table to predict; repeat the option for more files.",
        ),
    ] = None,
    length: Lengths = None,
    text: Annotated[
        str, typer.Option(metavar="FIELD", help="Field of a table that holds the text.")
    ] = "text",
    seed: Annotated[
        int, typer.Option(min=0, metavar="NUMBER", help="Seed of the random masks.")
    ] = 0,
    step: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="CHARACTERS",
            help="Characters that are scored in a character model's window; by default half of it.",
        ),
    ] = None,
    part: Annotated[
        Literal["eval", "test"] | None,
        typer.Option(
            help="Part of the text in a character model's recipe to predict, in place of --input."
        ),
    ] = None,
    device: Device = "auto",
    json: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File for the whole table at full precision, as JSON."),
    ] = None,
) -> None:
    """Measure how well a language model predicts a text.

    A masked LM is measured at several lengths of input, on the same text with the same words
    masked. A character model reads the text in overlapping windows; the last STEP characters of
    each are scored, in bits per character.

    Example: ldt perplexity --model roberta-4096 --input book.txt --length 512
    """
    from ldt.io import files

    if json:
        files.check_result(json, "--json", source or ())
    from ldt.inference.perplexity import perplexity

    measured = perplexity(
        model,
        source or (),
        lengths=length or (),
        text=text,
        seed=seed,
        step=step,
        part=part,
        device=device,
    )
    stdout.print(measured.table())
    say(measured.note)
    if json:
        files.write_result(json, measured.json())
