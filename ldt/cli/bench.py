"""ldt bench: time and memory of attention on this machine."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from ldt.cli.console import say, stdout
from ldt.cli.options import Device
from ldt.errors import refusal


def bench(
    length: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            metavar="TOKENS",
            help="Length of the measured documents, in tokens; repeat the option for more lengths.",
        ),
    ] = None,
    backend: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Implementation to measure; repeat the option for more; by default all of them.",
        ),
    ] = None,
    window: Annotated[
        int,
        typer.Option(metavar="TOKENS", help="Attention window, in tokens, both sides together."),
    ] = 512,
    dilation: Annotated[
        int,
        typer.Option(
            min=1, metavar="TOKENS", help="Distance between neighbouring tokens of a window."
        ),
    ] = 1,
    causal: Annotated[
        bool,
        typer.Option(
            "--causal", help="Let tokens attend to earlier tokens only; no token is global then."
        ),
    ] = False,
    batch: Annotated[
        int, typer.Option(min=1, metavar="DOCUMENTS", help="Number of documents in a batch.")
    ] = 1,
    heads: Annotated[
        int, typer.Option(min=1, metavar="HEADS", help="Number of attention heads in a layer.")
    ] = 12,
    dim: Annotated[
        int, typer.Option(min=1, metavar="NUMBERS", help="Width of an attention head, in numbers.")
    ] = 64,
    encoder: Annotated[
        bool, typer.Option("--encoder", help="Measure whole encoders instead of attention alone.")
    ] = False,
    layers: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="LAYERS",
            help="Number of layers of a measured encoder; by default 2 on a CPU, 12 on CUDA.",
        ),
    ] = None,
    kind: Annotated[
        Literal["forward", "training", "both"],
        typer.Option("--pass", help="Passes to measure; training is forward and backward."),
    ] = "both",
    dtype: Annotated[
        Literal["fp32", "bf16", "fp16"] | None,
        typer.Option(help="Number format of the tensors; by default fp32 on a CPU, bf16 on CUDA."),
    ] = None,
    device: Device = "auto",
    threads: Annotated[
        int,
        typer.Option(
            min=0, metavar="THREADS", help="Number of CPU threads; 0 leaves the choice to torch."
        ),
    ] = 0,
    rounds: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="ROUNDS",
            help="Number of timed runs of each implementation, after one warm-up.",
        ),
    ] = 5,
    limit: Annotated[
        float,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="Longest run that is measured, in seconds; slower implementations are left out.",
        ),
    ] = 1.0,
    no_memory: Annotated[
        bool, typer.Option("--no-memory", help="Measure time only, not peak memory.")
    ] = False,
    json: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File for all measurements, as JSON."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File for a plot of the measurements, .png or .svg."),
    ] = None,
) -> None:
    """Measure time and memory of attention, by length.

    The backends of ldt run beside transformers' Longformer, full attention and FlexAttention.

    Example: ldt bench --length 1024 --length 4096 --pass forward
    """
    from ldt.bench import plot as picture
    from ldt.bench.run import check_files, plan
    from ldt.bench.table import reasons
    from ldt.inference import result_file

    check_files(json, plot)
    for file, option in ((json, "--json"), (plot, "--plot")):
        if file:
            result_file.check(file, option)
    comparison = plan(
        lengths=length or (),
        backends=backend or (),
        kind=kind,
        device=device,
        encoder=encoder,
        layers=layers,
        rounds=rounds,
        limit=limit,
        memory=not no_memory,
        window=window,
        dilation=dilation,
        causal=causal,
        batch=batch,
        heads=heads,
        dim=dim,
        dtype=dtype,
        threads=threads,
    )
    for line in comparison.heading():
        say(line, console=stdout)
    rows = comparison.measure()
    for title, table in comparison.tables(rows):
        say(title, console=stdout)
        stdout.print(table)
    for line in reasons(rows):
        say(line, console=stdout)
    if json:
        result_file.write(json, comparison.json(rows))
        say(f"{json}: written")
    if plot:
        try:
            picture.write(plot, rows, comparison.machine, comparison.setting)
        except OSError as error:
            raise refusal(error, plot) from None
        say(f"{plot}: written")
