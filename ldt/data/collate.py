"""Features of different lengths as one batch."""

import inspect
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

from ldt.data.features import TOKEN_TYPES, Feature

if TYPE_CHECKING:
    import torch

NO_POSITION = -100  # fills up rows of labels and positions; losses ignore it
# Keys of features that the model does not see, besides a task's own (`Task.extras`).
EXTRAS = frozenset({"answer_tokens", "document", "tokens", "flags", "windows", "chunks", "read"})


class Collator:
    """Pads features on the right to the longest of a batch, and keeps what the head takes.

    ``labels`` become one number a row (int64, or float32 of a regression), a float32 row of flags;
    they, positions and labels of tokens, where a feature has a list of whole numbers, become rows
    filled up with -100, which heads ignore.

    Args:
        pad_token_id: fills up input_ids.
        head: model class; the parameters of its ``forward`` are the inputs that a batch may have.
        extras: further keys of features that are for answers and messages only.
    """

    def __init__(
        self, pad_token_id: int, head: "type[torch.nn.Module]", extras: Iterable[str] = ()
    ):
        self.pad_token_id = pad_token_id
        self.inputs = frozenset(inspect.signature(head.forward).parameters) - {"self", "kwargs"}
        self.extras = EXTRAS.union(extras)
        self.required = {"input_ids"} | ({"global_attention_mask"} & self.inputs)

    def __call__(
        self, features: Sequence[Feature] | Sequence[list[Feature]]
    ) -> dict[str, "torch.Tensor"]:
        """Return input_ids and attention_mask, [rows, longest] int64, and every other input of the
        head that the features have. Of lists of features, whose members belong together, also
        ``example_ids`` [rows] int64, which list each row is of, if the head takes it.

        Raises:
            ValueError: a feature without its global mask, some with and some without a key, or a
                key that the head does not take.
        """
        import torch

        batch: dict[str, np.ndarray] = {}
        if isinstance(features[0], list):
            examples = cast(Sequence[list[Feature]], features)
            if "example_ids" in self.inputs:
                sizes = [len(example) for example in examples]
                batch["example_ids"] = np.repeat(np.arange(len(sizes)), sizes)
            rows = [feature for example in examples for feature in example]
        else:
            rows = list(cast(Sequence[Feature], features))
        keys = self.required.union(*rows) - self.extras
        if unknown := sorted(keys - self.inputs):
            raise ValueError(f"the head takes no {', '.join(unknown)}")
        for feature in rows:
            if missing := sorted(keys - feature.keys()):
                raise ValueError(f"a feature without {', '.join(missing)}")
        fillers = dict.fromkeys(TOKEN_TYPES, 0) | {"input_ids": self.pad_token_id}
        for key in sorted(keys):
            values = [feature[key] for feature in rows]
            batch[key] = _rows(values, fillers.get(key, NO_POSITION))
        ones = [np.ones(len(feature["input_ids"]), np.int64) for feature in rows]
        batch["attention_mask"] = _rows(ones, 0)
        return {key: torch.from_numpy(values) for key, values in batch.items()}


def by_input(outputs: dict[str, np.ndarray], rows: Iterable[int]) -> list[dict[str, np.ndarray]]:
    """The outputs of a head for a batch, [rows, ...] by name, as one dict for each of the rows."""
    return [{name: values[row] for name, values in outputs.items()} for row in rows]


def _rows(values: list, filler: int) -> np.ndarray:
    """One row a value: float32 of floats and flags, else int64, lists of numbers filled up."""
    values = [np.asarray(value) for value in values]
    if any(value.dtype.kind in "fb" and value.size for value in values):
        return np.stack(values).astype(np.float32)
    if not values[0].ndim:
        return np.stack(values).astype(np.int64)
    full = np.full((len(values), max(map(len, values))), filler, np.int64)
    for row, value in zip(full, values, strict=True):
        row[: len(value)] = value
    return full
