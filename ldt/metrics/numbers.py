"""Logits to probabilities, in float64 and without overflow."""

import math

import numpy as np


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
