"""ldt export: a fine-tuned model to a file that other programs run."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from ldt.cli.console import say, stdout
from ldt.cli.options import File
from ldt.inference.runtimes import Format


def export(
    run: Annotated[str, "RUN"],
    target: Annotated[Path, "TARGET"],
    format: Format = "onnx",
    precision: Literal["fp32", "int8"] = "fp32",
    opset: Annotated[
        int | None, typer.Option(min=18, max=23, metavar="NUMBER", show_default="20")
    ] = None,
    check: File = None,
    max_changed: Annotated[float, typer.Option(min=0, max=1, metavar="SHARE")] = 0.01,
    overwrite: bool = False,
) -> None:
    """Turn a run's model into a file that runs without ldt.

    The folder gets the model, its tokenizer and labels, and a README with the lines of Python that
    run it, after a proof that it computes the same; ldt predict --runtime answers by it.

    Example: ldt export runs/contracts contracts-onnx --opset 20

    Args:
        run: Folder of the finished run whose model it is.
        target: Folder to create for the exported model.
        format: Format of the file: onnx, which most programs run, openvino or torch.
        precision: Number format of the weights: int8 (onnx alone) is smaller and faster, and its
            answers to --check or data.eval are compared with those in fp32.
        opset: Version of ONNX's operators.
        check: Documents on which answers in int8 are compared with those in fp32, the first 200; by
            default data.eval of the run.
        max_changed: Share of these answers that int8 may change without being refused.
        overwrite: Replace TARGET if it exists.
    """
    options = locals()
    from ldt.export import export

    for line in export(**options).lines():
        say(line, console=stdout)
