"""ldt export: a fine-tuned model to a file that other programs run."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from ldt.cli.console import say, stdout
from ldt.inference.runtimes import Format


def export(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="Folder of the finished run whose model it is.")
    ],
    target: Annotated[
        Path, typer.Argument(metavar="TARGET", help="Folder to create for the exported model.")
    ],
    format: Annotated[
        Format,
        typer.Option(help="Format of the file: onnx, which most programs run, openvino or torch."),
    ] = "onnx",
    precision: Annotated[
        Literal["fp32", "int8"],
        typer.Option(
            help="Number format of the weights: int8 is smaller and faster, and its answers are "
            "compared with those in fp32."
        ),
    ] = "fp32",
    opset: Annotated[
        int | None,
        typer.Option(
            min=18, max=23, metavar="NUMBER", show_default="20", help="Version of ONNX's operators."
        ),
    ] = None,
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

    The folder gets the model, its tokenizer and labels, and a README with the lines of Python that
    run it, after a proof that it computes the same; ldt predict --runtime answers by it.

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
