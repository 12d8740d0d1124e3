"""Classes and passages of a document, merged over the outputs for all its chunks."""

from collections.abc import Collection, Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

from ldt.data.features import Feature
from ldt.metrics.numbers import softmax
from ldt.tasks.base import NO_LABEL, Outputs

Weight = Annotated[float, Field(ge=0)]  # of a loss


def label(features: Sequence[Feature], number: int, evidence: Collection[int]) -> None:
    """Add labels to the features of a document.

    A class is learnt from the chunks that have some of its evidence, as in the script of Span NLI
    BERT (``impossible_strategy: ignore``); one that has no evidence from all of them.

    Args:
        number: of the class.
        evidence: numbers of the passages that are right.
    """
    for feature in features:
        right = [int(passage in evidence) for passage in feature["passages"].tolist()]
        feature["passage_labels"] = right
        feature["labels"] = number if any(right) or not evidence else NO_LABEL


def probabilities(
    outputs: Sequence[Outputs], features: Sequence[Feature], passages: int
) -> tuple[np.ndarray, np.ndarray]:
    """The probabilities of the classes, and of each passage that it is evidence.

    That of a passage is the mean over the chunks that have its marker, 0 where none has. Those of
    the classes are a mean over chunks, each weighted by the mean probability of its passages, so
    that a chunk with evidence says more; where no chunk has a passage, all weigh the same.

    Args:
        outputs: logits [classes] and passage_logits [passages of the chunk or more] of each chunk.
        features: the chunks.
        passages: of the document.

    Returns:
        [classes] and [passages] float64.

    Source: Koreeda and Manning 2021 (arXiv:2110.01799), their script's means over windows; there
    the weight is a mean over all tokens of a window, here over its markers.
    """
    total, chunks = np.zeros((2, passages))
    classes, weights = [], []
    for output, feature in zip(outputs, features, strict=True):
        here = feature["passages"]
        logits = output["passage_logits"][: len(here)].astype(float)
        found = softmax(np.stack([np.zeros_like(logits), logits], -1))[:, 1]
        total[here] += found
        chunks[here] += 1
        weights.append(found.mean() if len(here) else 0.0)
        classes.append(softmax(output["logits"].astype(float)))
    shares = np.array(weights) if any(weights) else np.ones(len(weights))
    return shares @ np.array(classes) / shares.sum(), total / np.maximum(chunks, 1)
