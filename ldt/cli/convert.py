"""ldt convert: a short-input model becomes a long-input one."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from ldt.cli.console import say, stdout
from ldt.cli.options import File


def convert(
    source: Annotated[str, "SOURCE"],
    target: Annotated[Path | None, typer.Argument(metavar="TARGET")] = None,
    architecture: Literal["longformer", "poolingformer"] = "longformer",
    max_length: Annotated[int | None, typer.Option(min=1, metavar="TOKENS")] = None,
    window: Annotated[int | None, typer.Option(min=2, metavar="TOKENS")] = None,
    positions: Literal["tile", "interpolate", "random"] = "tile",
    check: File = None,
    overwrite: bool = False,
    rope_theta: Annotated[float | None, typer.Option(min=1, metavar="NUMBER")] = None,
    rope_scaling: Annotated[str | None, "NAME:FACTOR"] = None,
) -> None:
    """Turn a short-input model into a long-input one.

    An encoder becomes a Longformer or Poolingformer, a BART a LED; a ModernBERT stays one. At the
    end both models are run on short inputs, to prove that they compute the same.

    Example: ldt convert FacebookAI/roberta-base roberta-long --max-length 8192

    Args:
        source: Model to convert: folder or hub id of a BERT, RoBERTa, Longformer or ModernBERT, or
            of a BART or LED.
        target: Folder to create for the converted model; by default SOURCE and the length, such as
            roberta-base-4096, in the current directory.
        architecture: Architecture of the converted model; poolingformer adds a second, wider level
            of attention.
        max_length: Longest input of the converted model, in tokens; by default 4096, of a BART or
            LED 16384, of a ModernBERT its own.
        window: Attention window, in tokens, both sides together; by default 512, of a BART 1024
            (128 with poolingformer), and a Longformer or LED keeps its own. The full layers of a
            ModernBERT get one only if it is given.
        positions: Way to fill the longer table of positions: tile repeats the source's, interpolate
            stretches it, random initialises it anew.
        check: Text on which source and result are scored as masked LMs, in bits per token.
        overwrite: Replace TARGET if it exists.
        rope_theta: Base of the rotary angles in the full layers of a ModernBERT; by default its
            own, 160000 as published. With another one the model must be trained further.
        rope_scaling: Scaling of the rotary angles in the full layers of a ModernBERT, as linear:4
            or yarn:4, for a longer --max-length. The model must then be trained further.
    """
    options = locals()
    from ldt.convert import convert

    for line in convert(**options).lines():
        say(line, console=stdout)
