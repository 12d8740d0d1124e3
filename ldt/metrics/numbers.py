"""Numerically stable softmax and logistic in float64, language-model losses, and metric formatting.

Metrics that are shares are from 0 to 100; those of `OWN_UNITS` are not.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

# What the names of metrics have that are no shares: losses in nats, errors in the unit of the
# labels or its square, correlations from -1 to 1, probabilities from 0 to 1.
OWN_UNITS = (
    *("loss", "mse", "mae", "pearson", "spearman", "perplexity", "bits_per_", "thresh"),
    *("brier", "error"),
)


def metric_text(name: str, value: float) -> str:
    """Format a metric: an int with thousands separators, a share (`is_share`) with two decimals,
    another float with four."""
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.2f}" if is_share(name) else f"{value:.4f}"


def is_share(name: str) -> bool:
    """True if a metric of this name is a share, 0 to 100, not a loss, error, correlation or
    threshold."""
    words = name.replace(".", "_").split("_")  # conll_f1 is a share
    return not {"ece", "nll"} & {*words} and not any(unit in name for unit in OWN_UNITS)


def columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Column names of a table whose rows have different keys, in order of first appearance."""
    return list(dict.fromkeys(name for row in rows for name in row))


def is_defined(value: Any) -> bool:
    """False for None and NaN, which a table shows as an empty cell."""
    return value is not None and value == value


def softmax(logits: np.ndarray) -> np.ndarray:
    """Softmax along the last axis, [..., n]."""
    scores = np.exp(logits - logits.max(-1, keepdims=True))
    return scores / scores.sum(-1, keepdims=True)


def logsumexp(logits: np.ndarray) -> np.ndarray:
    """Log of the sum of exponentials along the first axis: [n, ...] -> [...]."""
    top = logits.max(0)
    return top + np.log(np.exp(logits - top).sum(0))


def logistic(logit: float) -> float:
    """1 / (1 + exp(-logit)), without overflow."""
    return 1 / (1 + math.exp(-logit)) if logit > 0 else math.exp(logit) / (1 + math.exp(logit))


def by_doubling(lengths: Sequence[int] | np.ndarray) -> list[tuple[int, np.ndarray]]:
    """Group documents by length in tokens: up to 512, up to 1,024, and so on.

    Returns:
        (upper limit in tokens, indices of the documents) of each group that has documents.
    """
    doublings = np.ceil(np.log2(np.maximum(lengths, 1) / 512)).clip(0).astype(int)
    return [(512 << int(each), np.flatnonzero(doublings == each)) for each in np.unique(doublings)]


def loss_and_bits(
    nats: float, predicted: int, *, unit: str, units: int, size: int
) -> dict[str, float]:
    """Loss of a language model per predicted unit and per byte.

    Args:
        nats: sum of the cross-entropy over the predicted units.
        predicted: number of predicted units.
        unit: name of the unit, such as ``token``.
        units: number of units of the whole text, without special tokens.
        size: length of the text in UTF-8 bytes.

    Returns:
        ``loss``: mean nats per predicted unit; ``bits_per_<unit>``: the same in bits;
        ``bits_per_byte``: bits per unit times units per byte.
    """
    loss = nats / max(predicted, 1)
    bits = loss / math.log(2)
    return {"loss": loss, f"bits_per_{unit}": bits, "bits_per_byte": bits * units / max(size, 1)}
