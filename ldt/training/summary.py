"""Notices before the first training step: data, an example input, and the plan."""

from __future__ import annotations

import logging
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainingArguments

from ldt.data.features import Feature
from ldt.errors import counted

log = logging.getLogger("ldt")

WIDTH = 80  # of the lines of an encoded example
SHOWN = 60  # tokens of it


class Notice(NamedTuple):
    """Text for the user with its log level."""

    text: str
    level: int = logging.INFO


def warnings(lines: Iterable[str]) -> list[Notice]:
    """Turn lines into notices at the level of warnings."""
    return [Notice(line, logging.WARNING) for line in lines]


def tell(notices: Iterable[Notice]) -> None:
    """Log notices in order, each at its level."""
    for text, level in notices:
        log.log(level, "%s", text)


@dataclass(frozen=True)
class LengthReport:
    """Document lengths of a set; ``lines`` and ``warnings`` describe them in words.

    Counts are of documents, except ``inputs``, which counts features; lengths are in tokens, with
    special tokens.
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
        """The report as a dict without ``lines`` and ``warnings``, for metrics.json."""
        return {k: v for k, v in asdict(self).items() if k not in ("lines", "warnings")}


def length_report(
    features: Iterable[Feature], max_length: int, *, marked: bool = True
) -> LengthReport:
    """Measure the documents of a set.

    Args:
        features: features in order, as from `encode_all`, with the number of their ``document``.
        max_length: longest input in tokens.
        marked: True if the recipe asks for global tokens: inputs without any give a warning.
    """
    tokens = array("q")  # of each document
    counts: Counter[str] = Counter()
    for _, group in groupby(features, lambda feature: feature["document"]):
        chunks, flags = 0, set[str]()
        for number, feature in enumerate(group, 1):
            flags |= {flag for flag, value in feature.get("flags", {}).items() if value}
            chunks = max(chunks, feature.get("chunks", number))
            count = int(np.sum(feature["global_attention_mask"]))
            counts.update(inputs=1, read=len(feature["input_ids"]), marked=count)
            counts.update(without=int(not count))
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
    if counts["without"] and marked:
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


def labelled_data(
    reports: Mapping[str, LengthReport],
    labels: Mapping[str, Counter[str]],
    remarks: Sequence[str],
) -> list[Notice]:
    """Notices about labelled documents: lengths, remarks of the task, labels.

    Args:
        reports: document lengths by set, train and eval.
        labels: number of documents by label, by set.
        remarks: remarks about the training set.
    """
    lines = [f"{name}: {line}" for name, report in reports.items() for line in report.lines]
    notices = [Notice("\n".join(lines))]
    for name, report in reports.items():
        notices += warnings(f"{name}: {line}" for line in report.warnings)
    notices += [Notice(f"train: {remark}") for remark in remarks]
    for name, counts in labels.items():
        if counts:
            notices.append(Notice(f"{name} labels: {counted(counts)}"))
    return notices


def corpus_data(sets: dict[str, dict[str, Any]]) -> list[Notice]:
    """Notices about the documents of a corpus, and warnings about those left out. ``sets`` has
    under ``train`` and ``eval`` documents, tokens, bytes, inputs, rejected, empty (counts) and
    messages."""
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


def encoded_input(heading: str, feature: Feature, tokenizer: PreTrainedTokenizerBase) -> Notice:
    """Tokens of an input under a heading, separated by bars, global tokens in asterisks.

    Beyond `SHOWN` tokens the first two thirds and the last third of that number are shown, and the
    rest is counted.
    """
    ids, marks = feature["input_ids"], feature["global_attention_mask"]
    special = set(tokenizer.all_special_tokens)
    parts = []
    for piece, marked in zip(
        tokenizer.convert_ids_to_tokens(list(map(int, ids))), marks, strict=True
    ):
        text = piece if piece in special else tokenizer.convert_tokens_to_string([piece])
        # Line ends, controls and the like as escapes.
        text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
        parts.append(f"*{text}*" if marked else text)
    if len(parts) > SHOWN:
        first, last = SHOWN * 2 // 3, len(parts) - SHOWN // 3
        marked = int(np.sum(marks[first:last]))
        parts[first:last] = [f" ... {last - first:,} tokens, {marked:,} of them global ... "]
    lines = [heading, "  "]
    for number, part in enumerate(parts, 1):
        part += "|" * (number < len(parts))
        if lines[-1].strip() and len(lines[-1] + part) > WIDTH:
            lines.append("  ")
        lines[-1] += part
    return Notice("\n".join(lines))


def inputs_a_step(args: TrainingArguments) -> int:
    """Inputs of an optimizer step, over accumulated batches and all processes."""
    return args.train_batch_size * args.gradient_accumulation_steps * args.world_size


def training_plan(args: TrainingArguments, items: Any, noun: str, model: PreTrainedModel) -> str:
    """One-line description of a training: ``3 epochs of 100 documents, 8 a step, on cpu; …``.

    Args:
        args: arguments of the Trainer.
        items: training items; a stream has no length.
        noun: name of an item.
        model: the model.
    """
    length = f"{args.max_steps:,} steps"
    if args.max_steps <= 0:
        length = f"{args.num_train_epochs:g} epoch{'s' * (args.num_train_epochs != 1)}"
    amount = f"{len(items):,} {noun}" if hasattr(items, "__len__") else f"a stream of {noun}"
    return (
        f"{length} of {amount}, {inputs_a_step(args)} a step, on {args.device.type}; "
        f"{model.num_parameters():,} parameters, "
        f"{model.num_parameters(only_trainable=True):,} of them trained"
    )
