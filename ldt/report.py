"""What is told about a training: before its first step, and when it is over."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from ldt.console import plain, say, stderr, stdout
from ldt.data import show_example

log = logging.getLogger("ldt")


def describe(ready: Any, trainer: Any, run: Path) -> None:
    """What goes in: lengths, labels, one example; and what will be done with it."""
    reports = ready.reports
    if stderr.is_terminal:
        table = Table("tokens", "documents", "median", "p95", "longest", "inputs")
        table.add_column("in windows")
        table.add_column("cut off")
        for name, report in reports.items():
            values = (report.documents, report.median, report.p95, report.longest, report.inputs)
            values = (*values, report.windowed, report.truncated)
            table.add_row(name, *[f"{value:,}" for value in values])
        stderr.print(table)
    else:
        for name, report in reports.items():
            for line in report.lines:
                say(f"{name}: {line}")
    for report in reports.values():
        for warning in report.warnings:
            log.warning("%s", warning)
    for line in ready.remarks:
        say(f"train: {line}")
    for name, counts in ready.labels.items():
        if counts:
            listed = ", ".join(f"{label} {count:,}" for label, count in counts.most_common(20))
            more = f" and {len(counts) - 20} more" if len(counts) > 20 else ""
            say(f"{name} labels: {listed}{more}")
    first = ready.train[0]
    stderr.print(
        Text.assemble(
            f"document {plain(str(ready.ids[first['document']]))!r}, global tokens in stars: ",
            show_example(first, ready.tokenizer),
        ),
        soft_wrap=True,
    )
    args, inputs = trainer.args, len(ready.items)
    step = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
    items = "inputs" if ready.items is ready.train else "documents"
    length = f"{args.max_steps:,} steps"
    if args.max_steps <= 0:
        length = f"{args.num_train_epochs:g} epoch{'s' * (args.num_train_epochs != 1)}"
    say(
        f"{run}: {length} of {inputs:,} {items}, {step} a step, on {args.device.type}; "
        f"{ready.model.num_parameters():,} parameters, inputs of up to {ready.max_length:,} tokens"
    )


def describe_corpus(ready: Any, trainer: Any, run: Path) -> None:
    """The text that goes in, an input with its mask, and what will be done with it."""
    for name, facts in ready.corpora.items():
        say(
            f"{name}: {facts['documents']:,} documents, {facts['tokens']:,} tokens, "
            f"{facts['bytes']:,} bytes ({facts['bytes'] / max(facts['tokens'], 1):.2f} a token); "
            f"{facts['inputs']:,} inputs"
        )
    stores = {id(facts["messages"]): facts for facts in ready.corpora.values()}
    for facts in stores.values():  # a split of one corpus tells it once
        if facts["rejected"] or facts["empty"]:
            log.warning(
                "%d documents could not be read, %d are blank", facts["rejected"], facts["empty"]
            )
        for message in facts["messages"]:
            log.warning("left out: %s", message)
    shown = ready.evaluation
    if hasattr(ready.items, "__len__"):
        shown = ready.items
    if shown is not None:
        example = show_example(shown[0][0], ready.tokenizer)
        stderr.print(Text.assemble("the first input, masked: ", example), soft_wrap=True)
    say(f"{run}: {pretraining_plan(ready, trainer, 'token')}")


def pretraining_plan(ready: Any, trainer: Any, unit: str) -> str:
    """How long a pretraining is, and of what; ``unit`` is what an input is made of."""
    args = trainer.args
    step = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
    length = f"{args.max_steps:,} steps"
    if args.max_steps <= 0:
        length = f"{args.num_train_epochs:g} epoch{'s' * (args.num_train_epochs != 1)}"
    trained = ready.model.num_parameters(only_trainable=True)
    return (
        f"{length} of {step:,} inputs or {step * ready.max_length:,} {unit}s, on "
        f"{args.device.type}; {ready.model.num_parameters():,} parameters, {trained:,} of them "
        f"trained; inputs of up to {ready.max_length:,} {unit}s"
    )


def show_results(results: dict[str, Any]) -> None:
    """Metrics and the table of classes, on standard output."""
    for name, value in results["metrics"].items():
        say(f"{name.removeprefix('eval_')}  {value:.4f}", console=stdout)
    if results["table"]:
        rows = results["table"]
        table = Table(*rows[0], box=None)
        for row in rows:
            cells = [f"{v:.4f}" if isinstance(v, float) else plain(str(v)) for v in row.values()]
            table.add_row(*[Text(cell) for cell in cells])
        stdout.print(table)
