"""What is told about a training: before its first step, and when it is over."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from ldt.cli.console import say, stderr, stdout
from ldt.data.features import Feature
from ldt.errors import plain

MANY_GLOBAL = 0.05  # share of global tokens above which a warning tells their cost


@dataclass(frozen=True)
class LengthReport:
    """What the features say about the documents; ``lines`` and ``warnings`` are to be printed.

    Counts are of documents but for ``inputs``, the features; lengths are in tokens, special ones
    included.
    """

    documents: int
    median: int
    p95: int
    longest: int
    inputs: int
    windowed: int  # read in more than one window
    truncated: int  # not read to the end
    empty: int
    global_share: float  # of all tokens of the inputs
    lines: list[str]
    warnings: list[str]


def length_report(features: Iterable[Feature], *, max_length: int, window: int) -> LengthReport:
    """Count and measure the documents of a set.

    Args:
        features: in order, as `encode_all` has them.
        max_length: tokens of the longest input.
        window: of the attention, the largest of the layers, for the cost of global tokens.
    """
    tokens: dict[int, int] = {}
    windowed, truncated, empty = set(), set(), set()
    inputs = read = marked = without = 0
    for feature in features:
        document, flags = feature["document"], feature.get("flags", {})
        if feature.get("windows", 1 + (document in tokens)) > 1:
            windowed.add(document)
        tokens[document] = feature["tokens"]
        truncated |= {document} if flags.get("truncated") else set()
        empty |= {document} if flags.get("empty") else set()
        here = int(np.sum(feature["global_attention_mask"]))
        inputs += 1
        read += len(feature["input_ids"])
        marked += here
        without += not here
    lengths = np.array([*tokens.values()] or [0])
    median, p95 = (round(q) for q in np.percentile(lengths, [50, 95]))
    report = {
        "documents": len(tokens),
        "median": median,
        "p95": p95,
        "longest": int(lengths.max()),
        "inputs": inputs,
        "windowed": len(windowed),
        "truncated": len(truncated),
        "empty": len(empty),
        "global_share": marked / max(read, 1),
    }

    def share(count: int) -> str:
        return f"{count:,} ({count / len(tokens):.0%})"

    lines = [
        f"{len(tokens):,} documents: {median:,} tokens in the median, {p95:,} at the 95th "
        f"percentile, {lengths.max():,} in the longest"
    ]
    if windowed:
        lines.append(
            f"{share(len(windowed))} have more than {max_length:,} tokens and are read in "
            f"windows, {inputs:,} inputs in all"
        )
    if truncated:
        lines.append(f"{share(len(truncated))} are cut off: their last tokens are not read")
    if not windowed and not truncated:
        lines.append(f"all fit into {max_length:,} tokens, nothing is cut off")
    if empty:
        lines.append(f"{share(len(empty))} are empty")
    warnings = []
    mean = marked / max(inputs, 1)
    if report["global_share"] > MANY_GLOBAL and mean > 1:  # one token is never too many
        warnings.append(
            f"{report['global_share']:.0%} of the tokens are global, {mean:,.0f} in the mean "
            f"input: attention costs {1 + 2 * mean / (window + 1):.1f} times that of the window "
            "alone; task.global_attention names fewer"
        )
    if without:
        warnings.append(
            f"{without:,} of {inputs:,} inputs have no global token: nothing there sees "
            "farther than the window"
        )
    return LengthReport(**report, lines=lines, warnings=warnings)


def marked_tokens(feature: Feature, tokenizer) -> list[tuple[str, bool]]:
    """Return each token of a feature as it would be printed, and whether it is global."""
    pieces = tokenizer.convert_ids_to_tokens([int(token) for token in feature["input_ids"]])
    special = set(tokenizer.all_special_tokens)
    return [
        (
            _printable(piece if piece in special else tokenizer.convert_tokens_to_string([piece])),
            bool(is_global),
        )
        for piece, is_global in zip(pieces, feature["global_attention_mask"], strict=True)
    ]


def show_example(feature: Feature, tokenizer, *, limit: int = 60) -> Text:
    """Return the encoded example for a terminal: tokens parted by a bar, global ones in stars.

    Of more than ``limit`` tokens the first two thirds and the last third of that are shown, and
    how many stand between them, the global ones among them counted.
    """
    tokens = marked_tokens(feature, tokenizer)
    first, last = len(tokens), len(tokens)
    if len(tokens) > limit:
        first = limit * 2 // 3
        last = len(tokens) - (limit - first)
    shown = [_mark(*token) for token in tokens[:first]]
    if first < last:
        count = sum(is_global for _, is_global in tokens[first:last])
        shown.append(Text(f" ... {last - first:,} tokens, {count:,} of them global ... ", "dim"))
    shown += [_mark(*token) for token in tokens[last:]]
    return Text("|", "dim").join(shown)


def _mark(token: str, is_global: bool) -> Text:
    return Text(f"*{token}*", "bold reverse") if is_global else Text(token)


def _printable(token: str) -> str:
    """The token with line ends, controls and the like as escapes."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in token)


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
