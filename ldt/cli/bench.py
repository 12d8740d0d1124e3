"""ldt bench: time and memory of an encoder on this machine."""

from dataclasses import asdict
from typing import Annotated

import typer

from ldt.cli import results
from ldt.cli.console import say, stderr, stdout
from ldt.cli.options import Device, File
from ldt.errors import plural


def bench(
    length: Annotated[list[int] | None, typer.Option(min=1, metavar="TOKENS")] = None,
    training: bool = False,
    device: Device = "auto",
    json: File = None,
) -> None:
    """Measure time and memory of an encoder, by length.

    Beside ldt, whose tokens attend to a window of 512 tokens and to the first token, RoBERTa with
    full attention is measured. Both are of base width, with random weights.

    Example: ldt bench --length 1024 --length 4096 --training

    Args:
        length: Length of the measured document, in tokens; repeat the option for more lengths.
        training: Measure forward and backward instead of forward.
        json: File for all measurements, as JSON; - prints them on standard output.
    """
    from ldt.attention import choose
    from ldt.inference import measure
    from ldt.inference.predictor import find_device

    results.check(json)
    console = stderr if json == "-" else stdout
    kind, machine = find_device(device).type, measure.machine()
    layers, dtype = measure.LAYERS[kind], measure.DTYPES[kind]
    backend, why = choose(kind, dtype)
    number = str(dtype).removeprefix("torch.")
    direction = "forward and backward" if training else "forward"
    cpu = f"{machine['cpu']}, {plural(machine['threads'], 'thread')}"
    say(f"{machine['gpu'] if kind == 'cuda' else cpu}; torch {machine['torch']}", console=console)
    say(f"attention: {backend}: {why}", console=console)
    say(f"{direction} through {layers} layers in {number}", console=console)
    names = [*measure.ENCODERS.values()]
    heads = [f"{name}, {unit}" for unit in ("ms", "MiB") for name in names]
    say(f"{'tokens':>9}" + "".join(f"{head:>14}" for head in heads), console=console)
    rows: list[measure.Measurement] = []
    for pair in measure.compare(length or (), training, kind):
        cells = [_milliseconds(row.seconds) for row in pair] + [_mebibytes(row.mib) for row in pair]
        say(f"{pair[0].tokens:>9,}" + "".join(f"{cell:>14}" for cell in cells), console=console)
        rows += pair
    for row in rows:
        if row.error:
            name = measure.ENCODERS[row.encoder]
            say(f"{name}, {row.tokens:,} tokens: {row.error}", console=console)
    facts = {"machine": machine, "device": kind, "dtype": number, "layers": layers}
    facts |= {"pass": direction, "backend": backend, "rows": [asdict(row) for row in rows]}
    results.tell(lambda: facts, json, lambda: None)


def _milliseconds(seconds: float | None) -> str:
    """Three digits: ``0.0123``, ``5.12``, ``1,230``."""
    if seconds is None:
        return "-"
    value = 1000 * seconds
    return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}"


def _mebibytes(mib: float | None) -> str:
    return "-" if mib is None else f"{mib:,.0f}"
