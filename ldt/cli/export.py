"""ldt export: a fine-tuned model to a file that other programs run."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from ldt.cli.console import say, stdout


def export(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="Folder of the finished run whose model it is.")
    ],
    target: Annotated[
        Path, typer.Argument(metavar="TARGET", help="Folder to create for the exported model.")
    ],
    format: Annotated[
        Literal["onnx"],
        typer.Option(help="Format of the file: onnx, which ONNX Runtime and others run."),
    ] = "onnx",
    precision: Annotated[
        Literal["fp32", "int8"],
        typer.Option(
            help="Number format of the weights: int8 is smaller and faster, and its answers are "
            "compared with those in fp32."
        ),
    ] = "fp32",
    opset: Annotated[
        int,
        typer.Option(min=18, max=23, metavar="NUMBER", help="Version of ONNX's operators."),
    ] = 20,
    check: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Documents on which answers in int8 are compared with those in fp32, the first "
            "200; by default data.eval of the run.",
        ),
    ] = None,
    int8_bound: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            metavar="SHARE",
            help="Share of these answers that int8 may change without being refused.",
        ),
    ] = 0.01,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace TARGET if it exists.")
    ] = False,
) -> None:
    """Turn a run's model into a file that runs without ldt.

    The folder gets the model as one file, its tokenizer and labels, and a README with the lines
    of Python that run it. At the end the file is run beside the model, to prove that both compute
    the same; ldt predict --runtime onnx answers by it.

    Example: ldt export runs/contracts contracts-onnx --opset 20
    """
    from ldt.export import export

    report = export(
        run,
        target,
        format=format,
        precision=precision,
        opset=opset,
        check=check,
        int8_bound=int8_bound,
        overwrite=overwrite,
    )
    for line in report.lines():
        say(line, console=stdout)
