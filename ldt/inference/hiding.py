"""Outputs of a model for inputs to some of whose tokens nothing attends. Torch is imported then."""

from collections.abc import Sequence

import numpy as np

from ldt.data.collate import by_input
from ldt.data.features import Feature
from ldt.errors import out_of_memory
from ldt.inference.group import batches
from ldt.inference.predictor import Decoder, too_large
from ldt.tasks.base import Outputs


def without(
    predictor: Decoder,
    features: Sequence[Feature],
    outputs: Sequence[Outputs],
    gone: np.ndarray,
    batch_tokens: int,
) -> list[Outputs]:
    """Outputs for all inputs of a document where nothing attends to some of its tokens.

    Args:
        features: the inputs.
        outputs: for them as they are; inputs without such tokens are not run again.
        gone: [tokens of the document] bool.
        batch_tokens: most tokens of a batch.

    Raises:
        ResourceError: the memory does not hold an input.
    """
    rows, parts = [], []
    for row, feature in enumerate(features):
        first, start, end = feature["read"]
        if gone[start:end].any():
            rows.append(row)
            parts.append((feature, first + np.flatnonzero(gone[start:end])))
    changed = dict(zip(rows, hiding(predictor, parts, batch_tokens), strict=True))
    return [changed.get(row, output) for row, output in enumerate(outputs)]


def hiding(
    predictor: Decoder, parts: Sequence[tuple[Feature, np.ndarray]], batch_tokens: int
) -> list[Outputs]:
    """Outputs for inputs without some of their tokens.

    Their places stay empty, so all other tokens keep their positions.

    Args:
        parts: inputs, each with the places of its tokens to which nothing attends.
        batch_tokens: most tokens of a batch.

    Raises:
        ResourceError: the memory does not hold an input.
    """
    found: list[Outputs] = [{}] * len(parts)
    for batch in batches([len(feature["input_ids"]) for feature, _ in parts], batch_tokens):
        for place, row in zip(batch, _hidden(predictor, [parts[n] for n in batch]), strict=True):
            found[place] = row
    return found


def _hidden(predictor: Decoder, parts: list[tuple[Feature, np.ndarray]]) -> list[Outputs]:
    """`hiding` of one batch."""
    import torch

    features = [feature for feature, _ in parts]
    try:
        inputs = predictor.collate(features)
        for row, (_, tokens) in enumerate(parts):
            inputs["attention_mask"][row, torch.from_numpy(tokens)] = 0
        logits = predictor.logits(inputs)
    except Exception as error:  # each library has types of its own
        if not out_of_memory(error):
            raise
        raise too_large(features, predictor.device, error, 0) from error
    return by_input({"logits": logits}, range(len(features)))
