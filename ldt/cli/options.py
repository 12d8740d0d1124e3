"""Types of arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from ldt.inference.runtimes import Runtime

Recipe = Annotated[
    Path,
    typer.Argument(
        metavar="RECIPE",
        help="Recipe of the run: a YAML file, or a name that ldt recipes lists.",
        show_default=False,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE", help="Keys of the recipe to change, such as training.seed=1."
    ),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Continue the run from its newest checkpoint.")
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace what the run folder holds already.")
]
KeepCheckpoints = Annotated[
    bool,
    typer.Option("--keep-checkpoints", help="Keep the checkpoints when the run is finished."),
]
Device = Annotated[
    Literal["auto", "cpu", "cuda"],
    typer.Option(help="Device to compute on; auto takes the GPU if there is one."),
]
Library = Annotated[
    Runtime,
    typer.Option(
        help="What runs the model: torch, for a folder that ldt export wrote onnx, openvino or pt2."
    ),
]
