"""Features of different lengths as one batch."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ldt.data.features import _TOKEN_TYPES, Feature

if TYPE_CHECKING:
    import torch

NO_POSITION = -100  # fills up rows of labels and positions; losses ignore it
# What the heads take besides; a list of any length becomes a row of a batch.
_INPUTS = (
    *("labels", "start_positions", "end_positions", "positions", "choices"),
    *("paragraph_positions", "sentence_positions", "paragraph_labels", "sentence_labels"),
)


class Collator:
    """Pads features on the right to the longest of a batch.

    ``labels`` become one number a row (int64, or float32 of a regression), a float32 row of a
    multi-label feature; they, positions and labels of tokens, where a feature has a list of whole
    numbers, become rows filled up with -100, which heads ignore.
    """

    def __init__(self, pad_token_id: int):
        self.pad_token_id = pad_token_id

    def __call__(
        self, features: Sequence[Feature] | Sequence[list[Feature]]
    ) -> dict[str, "torch.Tensor"]:
        """Return input_ids, attention_mask, global_attention_mask, [rows, longest] int64, and
        token_type_ids, labels and positions if the features have them. Of lists of features, whose
        members belong together, also ``documents`` [rows] int64, which list each row is of.

        Raises:
            ValueError: a feature without its global mask, or some with and some without a key.
        """
        import torch

        extra = {}
        if isinstance(features[0], list):
            rows = [len(document) for document in features]
            extra["documents"] = np.repeat(np.arange(len(rows)), rows)
            features = [feature for document in features for feature in document]
        every = (*_TOKEN_TYPES, *_INPUTS)
        keys = {key for feature in features for key in every if key in feature}
        keys |= {"input_ids", "global_attention_mask"}
        for feature in features:
            if missing := sorted(keys - feature.keys()):
                raise ValueError(f"a feature without {', '.join(missing)}")
        fillers = dict.fromkeys(_TOKEN_TYPES, 0) | {"input_ids": self.pad_token_id}
        batch = {
            key: _rows([feature[key] for feature in features], fillers.get(key, NO_POSITION))
            for key in every
            if key in keys
        }
        ones = [np.ones(len(feature["input_ids"]), np.int64) for feature in features]
        batch["attention_mask"] = _rows(ones, 0)
        return {key: torch.from_numpy(values) for key, values in (batch | extra).items()}


def _rows(values: list, filler: int) -> np.ndarray:
    """One row a value: float32 of floats, else int64, lists of whole numbers filled up."""
    values = [np.asarray(value) for value in values]
    if any(value.dtype.kind == "f" and value.size for value in values):
        return np.stack(values).astype(np.float32)
    if not values[0].ndim:
        return np.stack(values).astype(np.int64)
    full = np.full((len(values), max(map(len, values))), filler, np.int64)
    for row, value in zip(full, values, strict=True):
        row[: len(value)] = value
    return full
