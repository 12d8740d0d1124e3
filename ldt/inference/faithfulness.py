"""How far an answer rests on its passages: it is asked for again without them and by them alone."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ldt.data.features import Feature
from ldt.data.records import Example
from ldt.inference.hiding import without
from ldt.inference.predictor import Decoder
from ldt.metrics.passages import comprehensiveness, mean_curve, sufficiency
from ldt.tasks.base import Outputs
from ldt.tasks.explained import Reading
from ldt.tasks.text.alignment import Span


def faithfulness(
    passages: Sequence[Mapping[str, Any]],
    reading: Reading,
    chunks: bool,
    predictor: Decoder,
    example: Example,
    features: Sequence[Feature],
    outputs: Sequence[Outputs],
    batch_tokens: int,
) -> dict[str, Any]:
    """The probability of an answer without its passages and by them alone.

    ``comprehensiveness`` and ``sufficiency`` (`ldt.metrics.passages`) are of all passages;
    ``deletion`` has the probability where the first 0, 1, 2, ... of them are hidden. ``random_`` in
    front of a name: the same of as many passages in a random order. Each is the mean over the
    classes that are explained. There is none of a number or an empty document.

    Args:
        passages: of the answer, those of a label best first.
        reading: of the document.
        chunks: whether they are whole chunks.
        outputs: for the features as they are.
        batch_tokens: most tokens of a batch.

    Raises:
        ResourceError: the memory does not hold an input.
    """
    labels = list(dict.fromkeys(each["label"] for each in passages if "label" in each))
    parts = _parts(reading, features, chunks)

    def scores(hidden: Sequence[np.ndarray], shown: Sequence[np.ndarray] = ()) -> dict[str, float]:
        gone = np.zeros(len(reading.offsets), bool)
        for tokens in hidden:
            gone[tokens] = True
        for tokens in shown:
            gone[tokens] = False
        changed = without(predictor, features, outputs, gone, batch_tokens)
        return predictor.task.decode(changed, predictor.config, example, features)["scores"]

    full = scores(())
    random = np.random.default_rng(len(reading.text))  # the same in each run
    everything = list(parts.values())
    rows: list[dict[str, Any]] = []
    for label in labels:
        named = [parts[p["start"], p["end"]] for p in passages if p["label"] == label]
        drawn = [everything[n] for n in random.permutation(len(everything))[: len(named)]]
        row: dict[str, Any] = {}
        for prefix, chosen in (("", named), ("random_", drawn)):
            hidden = [chosen[:number] for number in range(1, len(chosen) + 1)]
            curve = [full[label], *(scores(those)[label] for those in hidden)]
            alone = scores(everything, chosen)[label]
            # The last point hides them all, which is what comprehensiveness asks for.
            row[f"{prefix}comprehensiveness"] = comprehensiveness(full[label], curve[-1])
            row[f"{prefix}sufficiency"] = sufficiency(full[label], alone)
            row[f"{prefix}deletion"] = curve
        rows.append(row)
    found = {key: [row[key] for row in rows] for key in (rows or [{}])[0]}
    return {
        key: mean_curve(each) if key.endswith("deletion") else sum(each) / len(each)
        for key, each in found.items()
    }


def _parts(reading: Reading, features: Sequence[Feature], chunks: bool) -> dict[Span, np.ndarray]:
    """What can be hidden of a document: numbers of its tokens, by the characters of the passages
    that are read, or of its chunks."""
    owners = reading.owners()
    if chunks:
        places = dict.fromkeys(feature["read"][1:] for feature in features)
        return {reading.span(a, b): a + np.flatnonzero(owners[a:b] >= 0) for a, b in places}
    seen = np.flatnonzero(reading.seen(features)).tolist()
    return {reading.passages[n]: np.flatnonzero(owners == n) for n in seen}
