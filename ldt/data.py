"""Examples to features, and what to tell about them before a training."""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from rich.text import Text

from ldt.errors import DataError
from ldt.features import Features
from ldt.reading import Example
from ldt.tasks.base import Feature, Task

if TYPE_CHECKING:
    from ldt.recipe import DataSection

MANY_GLOBAL = 0.05  # share of global tokens above which a warning tells their cost


def unique(examples: Iterable[Example]) -> Iterator[Example]:
    """Pass examples on, and raise DataError at an id that another one had before.

    Takes memory per example: for training and evaluation sets, not for endless input.
    """
    seen: dict[str | int, str] = {}
    for example in examples:
        if example.id in seen:
            raise DataError(f"{example.where}: id {example.id!r} stands at {seen[example.id]} too")
        seen[example.id] = example.where
        yield example


def split(
    examples: Sequence[Example], task: Task, data: "DataSection", seed: int
) -> tuple[list[Example], list[Example]]:
    """Part a training set into one to train on and ``data.eval_fraction`` of it to evaluate on.

    Classes (``task.stratum``) keep their proportions, and each keeps a document to train on; what
    belongs together (``task.unit``) stays together. Both parts keep the order of the whole. The
    same seed gives the same parts.

    Raises:
        DataError: too few documents for one on both sides.
    """
    generator = np.random.default_rng(seed)
    units: dict[Hashable, Example] = {}  # and the first example of each
    strata: dict[Hashable, list[Hashable]] = {}
    of = [task.unit(example, data) for example in examples]
    for unit, example in zip(of, examples, strict=True):
        if units.setdefault(unit, example) is example:
            strata.setdefault(task.stratum(example, data), []).append(unit)
    # Every 1/fraction-th unit of all strata laid end to end, each shuffled.
    groups = [
        [group[place] for place in generator.permutation(len(group))] for group in strata.values()
    ]
    order = [unit for group in groups for unit in group]
    taken = np.diff(np.floor(np.arange(len(order) + 1) * data.eval_fraction + 0.5)) > 0
    chosen = {unit for unit, taken in zip(order, taken, strict=True) if taken}
    for group in groups:
        if chosen.issuperset(group):
            chosen.remove(group[0])
    if not chosen:
        raise DataError(
            f"{data.train or 'the training set'}: data.eval_fraction={data.eval_fraction} of "
            f"{len(units):,} documents leaves none to evaluate on"
        )
    parts: tuple[list[Example], list[Example]] = [], []
    for unit, example in zip(of, examples, strict=True):
        parts[unit in chosen].append(example)
    return parts


def encode_all(
    examples: Iterable[Example],
    task: Task,
    tokenizer,
    *,
    data: "DataSection",
    max_length: int,
    config=None,
    all: bool = True,
) -> Features:
    """Encode every example once; with labels if there is a config.

    Args:
        all: False leaves out what the task does not train on (`Task.keeps`).

    Raises:
        DataError: an example that the task cannot encode.
        ResourceError: the disk of temporary files is full.
    """

    def features():
        for number, example in enumerate(examples):
            found = task.encode(example, tokenizer, data=data, max_length=max_length, config=config)
            if all or task.keeps(found):
                yield from (feature | {"document": number} for feature in found)

    return Features(features())


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
