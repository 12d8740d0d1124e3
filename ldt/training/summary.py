"""Notices before the first step of a training: its data, an input, and how long it will be."""

from __future__ import annotations

import logging
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console, ConsoleOptions, ConsoleRenderable, Group, RenderResult
from rich.table import Column, Table
from rich.text import Text
from transformers import TrainingArguments

from ldt.data.features import Feature
from ldt.errors import counted

log = logging.getLogger("ldt")

WIDTH = 80  # of what is wrapped where the output is no terminal
MANY_GLOBAL = 0.05  # share of global tokens above which a warning tells their cost


class Notice(NamedTuple):
    """Lines for the user: as text, as a terminal can draw them, and how urgent they are."""

    text: str
    drawn: ConsoleRenderable | None = None
    level: int = logging.INFO


def warnings(lines: Iterable[str]) -> list[Notice]:
    """A notice of each line, as urgent as warnings are."""
    return [Notice(line, level=logging.WARNING) for line in lines]


def tell(notices: Iterable[Notice]) -> None:
    """Log notices, in order."""
    for text, drawn, level in notices:
        log.log(level, "%s", text, extra={"rich": drawn})


@dataclass(frozen=True)
class LengthReport:
    """Lengths of the documents of a set; ``lines`` and ``warnings`` say the same for people.

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

    def facts(self) -> dict[str, Any]:
        """The numbers by name, for metrics.json."""
        return {k: v for k, v in asdict(self).items() if k not in ("lines", "warnings")}


def length_report(features: Iterable[Feature], *, max_length: int, window: int) -> LengthReport:
    """Count and measure the documents of a set.

    Args:
        features: in order, as `encode_all` has them.
        max_length: tokens of the longest input.
        window: of the attention, the largest of the layers, for the cost of global tokens.
    """
    tokens = array("q")  # of each document
    counts: Counter[str] = Counter()
    for _, group in groupby(features, lambda feature: feature["document"]):
        chunks, flags = 0, set[str]()
        for number, feature in enumerate(group, 1):
            flags |= {flag for flag, value in feature.get("flags", {}).items() if value}
            chunks = max(chunks, feature.get("chunks", number))
            marked = int(np.sum(feature["global_attention_mask"]))
            counts.update(inputs=1, read=len(feature["input_ids"]), marked=marked)
            counts.update(without=int(not marked))
        tokens.append(feature["tokens"])
        counts.update(flags & {"truncated", "empty"}, windowed=int(chunks > 1))
    lengths = np.array(tokens or [0])
    median, p95 = (round(q) for q in np.percentile(lengths, [50, 95]))
    share = counts["marked"] / max(counts["read"], 1)

    def documents(name: str) -> str:
        return f"{counts[name]:,} ({counts[name] / len(tokens):.0%})"

    lines = [
        f"{len(tokens):,} documents: {median:,} tokens in the median, {p95:,} at the 95th "
        f"percentile, {lengths.max():,} in the longest"
    ]
    if counts["windowed"]:
        lines.append(
            f"{documents('windowed')} have more than {max_length:,} tokens and are read in "
            f"chunks, {counts['inputs']:,} inputs in all"
        )
    if counts["truncated"]:
        lines.append(f"{documents('truncated')} are cut off: their last tokens are not read")
    if not counts["windowed"] and not counts["truncated"]:
        lines.append(f"all fit into {max_length:,} tokens, nothing is cut off")
    if counts["empty"]:
        lines.append(f"{documents('empty')} are empty")
    warnings = []
    mean = counts["marked"] / max(counts["inputs"], 1)
    if share > MANY_GLOBAL and mean > 1:  # one token is never too many
        warnings.append(
            f"{share:.0%} of the tokens are global, {mean:,.0f} in the mean "
            f"input: attention costs {1 + 2 * mean / (window + 1):.1f} times that of the window "
            "alone; task.global_attention names fewer"
        )
    if counts["without"]:
        warnings.append(
            f"{counts['without']:,} of {counts['inputs']:,} inputs have no global token: nothing "
            "there sees farther than the window"
        )
    names = ("inputs", "windowed", "truncated", "empty")
    return LengthReport(
        documents=len(tokens),
        median=median,
        p95=p95,
        longest=int(lengths.max()),
        **{name: counts[name] for name in names},
        global_share=share,
        lines=lines,
        warnings=warnings,
    )


class EncodedExample:
    """An encoded example: tokens parted by bars, global ones in stars, in lines as wide as a
    terminal.

    Of more than ``limit`` tokens the first two thirds and the last third of that are shown; those
    between them are counted, and the global ones among them.
    """

    def __init__(self, feature: Feature, tokenizer, *, limit: int = 60):
        pieces = tokenizer.convert_ids_to_tokens([int(token) for token in feature["input_ids"]])
        special = set(tokenizer.all_special_tokens)
        self.parts = []
        for piece, marked in zip(pieces, feature["global_attention_mask"], strict=True):
            text = piece if piece in special else tokenizer.convert_tokens_to_string([piece])
            # Line ends, controls and the like as escapes.
            text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
            self.parts.append(Text(f"*{text}*", "bold reverse") if marked else Text(text))
        if len(pieces) > limit:
            first, last = limit * 2 // 3, len(pieces) - limit + limit * 2 // 3
            marked = int(np.sum(feature["global_attention_mask"][first:last]))
            middle = f" ... {last - first:,} tokens, {marked:,} of them global ... "
            self.parts[first:last] = [Text(middle, "dim")]

    def lines(self, width: int) -> list[Text]:
        """The tokens in lines of up to ``width`` columns, indented; only a token may be wider."""
        lines: list[Text] = []
        for number, part in enumerate(self.parts, 1):
            part = Text.assemble(part, ("|" if number < len(self.parts) else "", "dim"))
            if not lines or lines[-1].cell_len + part.cell_len > width:
                lines.append(Text("  ", overflow="fold"))
            lines[-1].append_text(part)
        return lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        return self.lines(options.max_width)


def labelled_data(
    reports: Mapping[str, LengthReport],
    labels: Mapping[str, Counter[str]],
    remarks: Sequence[str],
) -> list[Notice]:
    """Notices on labelled documents: their lengths, what the task remarks, their labels.

    Args:
        reports, labels: by set, train and eval.
        remarks: on the training set.
    """
    # A column a set: with the figures in rows it is narrow enough for any terminal.
    table = Table("tokens", *[Column(name, justify="right") for name in reports])
    for row in ("documents", "median", "p95", "longest", "inputs"):
        table.add_row(row, *[f"{getattr(report, row):,}" for report in reports.values()])
    table.add_row("in chunks", *[f"{report.windowed:,}" for report in reports.values()])
    table.add_row("cut off", *[f"{report.truncated:,}" for report in reports.values()])
    lines = [f"{name}: {line}" for name, report in reports.items() for line in report.lines]
    notices = [Notice("\n".join(lines), table)]
    for name, report in reports.items():
        notices += warnings(f"{name}: {line}" for line in report.warnings)
    notices += [Notice(f"train: {remark}") for remark in remarks]
    for name, counts in labels.items():
        if counts:
            notices.append(Notice(f"{name} labels: {counted(counts)}"))
    return notices


def corpus_data(sets: dict[str, dict[str, Any]]) -> list[Notice]:
    """Notices on the documents of a corpus by set, and on those that were left out."""
    notices = [
        Notice(
            f"{name}: {facts['documents']:,} documents, {facts['tokens']:,} tokens, "
            f"{facts['bytes']:,} bytes ({facts['bytes'] / max(facts['tokens'], 1):.2f} a token); "
            f"{facts['inputs']:,} inputs"
        )
        for name, facts in sets.items()
    ]
    stores = {id(facts["messages"]): facts for facts in sets.values()}
    for facts in stores.values():  # the two parts of one corpus have the same
        lines = [f"left out: {message}" for message in facts["messages"]]
        if facts["rejected"] or facts["empty"]:
            bad = f"{facts['rejected']} documents could not be read, {facts['empty']} are blank"
            lines = [bad, *lines]
        notices += warnings(lines)
    return notices


def encoded_input(heading: str, feature: Feature, tokenizer) -> Notice:
    """A notice of an input's tokens under a heading."""
    example = EncodedExample(feature, tokenizer)
    lines = [line.plain for line in example.lines(WIDTH)]
    return Notice("\n".join([heading, *lines]), Group(Text(heading), example))


def inputs_a_step(args: TrainingArguments) -> int:
    """Inputs of an optimizer step, over all processes."""
    return args.train_batch_size * args.gradient_accumulation_steps * args.world_size


def training_plan(args: TrainingArguments, amount: str, model: str) -> str:
    """A training in a line: length, inputs, device, model: ``3 epochs of ..., on cpu; ...``.

    Args:
        amount: inputs in all, or in a step.
        model: its size and longest input.
    """
    length = f"{args.max_steps:,} steps"
    if args.max_steps <= 0:
        length = f"{args.num_train_epochs:g} epoch{'s' * (args.num_train_epochs != 1)}"
    return f"{length} of {amount}, on {args.device.type}; {model}"
