"""Logits to probabilities in float64, without overflow; losses to bits; metrics to text.

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
    *("brier", "nll", "error"),
)


def metric_text(name: str, value: float) -> str:
    """A metric as it is printed: a share with two digits, a count whole, all else with four."""
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.2f}" if is_share(name) else f"{value:.4f}"


def is_share(name: str) -> bool:
    """True of a metric from 0 to 100, False of one with a unit of its own."""
    return name != "ece" and not any(unit in name for unit in OWN_UNITS)


def columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Heads of a table of rows with different keys: all keys, in the order they first come."""
    return list(dict.fromkeys(name for row in rows for name in row))


def is_defined(value: Any) -> bool:
    """Return False of None and NaN, which a table shows as an empty cell."""
    return value is not None and value == value


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities [..., n] of logits [..., n], which add up to 1 along the last axis."""
    scores = np.exp(logits - logits.max(-1, keepdims=True))
    return scores / scores.sum(-1, keepdims=True)


def logsumexp(logits: np.ndarray) -> np.ndarray:
    """The logarithm of the sum of the exponentials along the first axis: [n, ...] -> [...]."""
    top = logits.max(0)
    return top + np.log(np.exp(logits - top).sum(0))


def logistic(logit: float) -> float:
    """1 / (1 + exp(-logit)), exact where it is small."""
    return 1 / (1 + math.exp(-logit)) if logit > 0 else math.exp(logit) / (1 + math.exp(logit))


def by_doubling(lengths: Sequence[int] | np.ndarray) -> list[tuple[int, np.ndarray]]:
    """Numbers of the documents of up to 512 tokens, of up to twice as many, and so on, behind the
    most tokens of each group; groups without documents are left out.
    """
    doublings = np.ceil(np.log2(np.maximum(lengths, 1) / 512)).clip(0).astype(int)
    return [(512 << int(each), np.flatnonzero(doublings == each)) for each in np.unique(doublings)]


def loss_and_bits(
    nats: float, predicted: int, *, unit: str, units: int, size: int
) -> dict[str, float]:
    """The loss of a language model, by predicted unit and by byte.

    Args:
        nats: sum of the cross-entropy over the predicted units.
        predicted: their number.
        unit: name of what is predicted, such as ``token``.
        units, size: units of the whole text, without special ones, and its bytes in UTF-8.

    Returns:
        ``loss``: nats per predicted unit, the mean; ``bits_per_<unit>``: the same in bits;
        ``bits_per_byte``: bits per unit, times units per byte of the text.
    """
    loss = nats / max(predicted, 1)
    bits = loss / math.log(2)
    return {"loss": loss, f"bits_per_{unit}": bits, "bits_per_byte": bits * units / max(size, 1)}
