"""ldt convert: a short-input model becomes a long-input one."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from ldt.cli.console import say, stdout

Positions = Annotated[
    Literal["tile", "interpolate", "random"],
    typer.Option(
        help="Way to fill the longer table of positions: tile repeats the source's, "
        "interpolate stretches it, random initialises it anew."
    ),
]

Window = Annotated[
    int | None,
    typer.Option(
        min=2,
        metavar="TOKENS",
        help="Attention window, in tokens, both sides together; by default 512, of a BART 1024 "
        "(128 with poolingformer), and a Longformer or LED keeps its own. The full layers of a "
        "ModernBERT get one only if it is given.",
    ),
]


RopeTheta = Annotated[
    float | None,
    typer.Option(
        min=1,
        metavar="NUMBER",
        help="Base of the rotary angles in the full layers of a ModernBERT; by default its own, "
        "160000 as published. A model is to be trained on with another one.",
    ),
]

RopeScaling = Annotated[
    str | None,
    typer.Option(
        metavar="NAME:FACTOR",
        help="Scaling of the rotary angles in the full layers of a ModernBERT, as linear:4 or "
        "yarn:4. A model is to be trained on with it.",
    ),
]


def convert(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="Model to convert: folder or hub id of a BERT, RoBERTa, Longformer or ModernBERT, "
            "or of a BART or LED.",
        ),
    ],
    target: Annotated[
        Path | None,
        typer.Argument(
            metavar="TARGET",
            help="Folder to create for the converted model; by default SOURCE and the length, such "
            "as roberta-base-4096, in the current directory.",
        ),
    ] = None,
    architecture: Annotated[
        Literal["longformer", "poolingformer"],
        typer.Option(
            help="Architecture of the converted model; poolingformer adds a second, wider level of "
            "attention."
        ),
    ] = "longformer",
    max_length: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="TOKENS",
            help="Longest input of the converted model, in tokens; by default 4096, of a BART or "
            "LED 16384, of a ModernBERT its own.",
        ),
    ] = None,
    window: Window = None,
    positions: Positions = "tile",
    check: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Text on which source and result are compared as masked LMs."
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace TARGET if it exists.")
    ] = False,
    rope_theta: RopeTheta = None,
    rope_scaling: RopeScaling = None,
) -> None:
    """Turn a short-input model into a long-input one.

    An encoder becomes a Longformer or Poolingformer, a BART a LED; a ModernBERT stays one. At the
    end both models are run on short inputs, to prove that they compute the same.

    Example: ldt convert FacebookAI/roberta-base roberta-long --max-length 8192
    """
    from ldt.convert import convert

    report = convert(
        source,
        target,
        architecture=architecture,
        max_length=max_length,
        window=window,
        positions=positions,
        check=check,
        overwrite=overwrite,
        rope_theta=rope_theta,
        rope_scaling=rope_scaling,
    )
    for line in report.lines():
        say(line, console=stdout)
