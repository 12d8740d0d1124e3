"""Answers by Ray Data, which reads, maps and writes on a cluster of machines. No Ray in here."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ldt.errors import DataError, listed
from ldt.inference.answerer import Answerer


class Predictor:
    """A class for ``map_batches`` of Ray Data: rows of documents in, rows of answers out.

    Each actor of a pool makes one and loads the model then. Rows go out in their order with the
    column of their ids as it came in, by which Ray's checkpoints know them, and ``answer``, JSON
    text as in a line of ``ldt predict``; {"id", "error"} for a document that cannot be used.

    Args:
        folder: folder of a finished run, which all machines have.
        ids: name of the column with the ids, each of which is there once.
        options: of `ldt.load`, such as ``text``, ``precision`` and ``batch_tokens``.

    Raises:
        UserError: the folder or an option cannot be used.
    """

    def __init__(self, folder: str, ids: str = "id", **options: Any):
        self.ids = ids
        self.model = Answerer(folder, id=ids, **{"on_error": "answer"} | options).load()

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """The answers for a batch: {column: [rows]} both times.

        Raises:
            DataError: there is no column of ids, or a row has none.
        """
        if self.ids not in batch:
            raise DataError(f"no column {self.ids!r} of ids; there are {listed(list(batch))}")
        if any(id is None or id == "" or id != id for id in batch[self.ids]):  # NaN is not itself
            raise DataError(f"column {self.ids!r}: a row has no id; each needs one of its own")
        answers = self.model.columns(batch)["answer"]
        return {self.ids: batch[self.ids], "answer": np.array(answers, dtype=object)}
