"""Explanations of an answer: the passages it rests on, and the decision of each chunk alone.

``gradient`` is gradient x input (Shrikumar et al. 2016, arXiv:1605.01713) of a logit with respect
to the word embeddings, summed over a passage; ``occlusion`` (Zeiler and Fergus 2014,
arXiv:1311.2901) is the drop of the logit when no token attends to the passage. Torch is imported on
use.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ldt.data.features import Feature, by_input
from ldt.errors import ModelError, UserError, listed, out_of_memory
from ldt.inference.options import PredictOptions, flag
from ldt.inference.predictor import Decoder, too_large
from ldt.inference.stream import batches
from ldt.io.progress import Heartbeat, reported
from ldt.io.records import Example
from ldt.tasks.base import Outputs
from ldt.tasks.deciding import Deciding
from ldt.tasks.explained import ByLogits, ByPlaces, Reading, Target

_OF_CHUNK = ("label", "answer", "score", "scores")  # keys of an answer that a chunk has too


class Explaining:
    """Predictor that adds explanations to its answers: an `ldt.inference.stream.DocumentPredictor`.

    UserError if ``passages_of`` of the options names a label unknown to the model.
    """

    def __init__(self, predictor: Decoder, options: PredictOptions):
        self.predictor, self.options = predictor, options
        self.encode, self.outputs = predictor.encode, predictor.outputs
        self.max_length = predictor.max_length
        self.task: ByLogits | ByPlaces = predictor.task
        self.documents = 0
        self.heartbeat = Heartbeat("explaining")
        if predictor.model is not None:
            predictor.model.requires_grad_(False)  # of the weights no gradient is asked for
        known = list((getattr(predictor.config, "id2label", None) or {}).values())
        for label in options.passages_of:
            if label not in known:
                raise UserError(f"{flag('passages_of', label)}: the model knows {listed(known)}")

    def decode(
        self, outputs: list[Outputs], example: Example, features: list[Feature]
    ) -> dict[str, Any]:
        """Answer of the predictor with ``passages`` and ``by_chunk``, as requested.

        ``passages`` are {"start", "end", "text", "score"}, best first, with ``label`` if the answer
        has classes; ``by_chunk`` are {"start", "end"} with the chunk's own decision.
        """
        predictor = self.predictor
        answer = predictor.decode(outputs, example, features)
        reading = self.task.reading(
            example, predictor.tokenizer, predictor.data, self.options.passages_unit
        )
        more: dict[str, Any] = {}
        if self.options.passages and isinstance(self.task, ByPlaces):
            places = self.task.places(answer, example, predictor.data)
            more["passages"] = _around(places, reading, self.options.passages)
        elif self.options.passages:
            assert isinstance(self.task, ByLogits)
            more["passages"] = self._passages(self.task, answer, outputs, features, reading)
        if self.options.chunks:
            more["by_chunk"] = self._chunks(answer, outputs, example, features, reading)
        self.documents += 1
        self.heartbeat(self.documents)
        return answer | more

    def _passages(
        self,
        task: ByLogits,
        answer: dict[str, Any],
        outputs: list[Outputs],
        features: list[Feature],
        reading: Reading,
    ) -> list[dict[str, Any]]:
        targets = task.targets(answer, self.predictor.config, features, self.options.passages_of)
        passages = []
        if self.options.passages_by == "chunks":
            for target in targets:
                spans = [reading.span(*features[row]["read"][1:]) for row in target.rows]
                passages += _best(
                    target, target.logits(outputs), spans, reading, self.options.passages
                )
            return passages
        score = {"gradient": gradients, "occlusion": occlusions}[self.options.passages_by]
        scores = score(
            self.predictor, features, outputs, reading, targets, self.options.batch_tokens
        )
        for target, values in zip(targets, scores, strict=True):
            passages += _best(target, values, reading.passages, reading, self.options.passages)
        return passages

    def _chunks(
        self,
        answer: dict[str, Any],
        outputs: list[Outputs],
        example: Example,
        features: list[Feature],
        reading: Reading,
    ) -> list[dict[str, Any]]:
        """Place and own decision of each chunk; ``won`` lists the classes whose maximum it has."""
        places = list(dict.fromkeys(feature["read"][1:] for feature in features))
        chunks = []
        for place in places:
            rows = [r for r, feature in enumerate(features) if feature["read"][1:] == place]
            alone = self.predictor.decode(
                [outputs[row] for row in rows],
                example,
                [features[row] | {"chunks": 1} for row in rows],
            )
            start, end = reading.span(*place)
            alike = {key: alone[key] for key in _OF_CHUNK if key in alone}
            chunks.append({"start": start, "end": end} | alike)
        if isinstance(self.task, ByLogits):
            labels = tuple(answer["scores"]) if isinstance(self.task, Deciding) else ()
            targets = self.task.targets(answer, self.predictor.config, features, labels)
            for target in (each for each in targets if each.merge == "max"):
                (winner,) = target.shares(outputs)
                chunk = chunks[places.index(features[winner]["read"][1:])]
                chunk.setdefault("won", []).append(target.name)
        return chunks


def gradients(
    predictor: Decoder,
    features: Sequence[Feature],
    outputs: Sequence[Outputs],
    reading: Reading,
    targets: Sequence[Target],
    batch_tokens: int,
) -> np.ndarray:
    """Gradient x input of each target, summed over the tokens of each passage in all chunks.

    Args:
        predictor: predictor of torch.
        features: inputs of a document, one per chunk.
        outputs: their outputs, by which chunks are weighted.
        reading: text of the document, cut into passages.
        targets: logits to explain.
        batch_tokens: largest number of tokens of a batch.

    Returns:
        [targets, passages] float64, NaN for unread passages.

    Raises:
        ResourceError: memory is too small for an input and its backward pass.
        ModelError: gradients are not finite.
    """
    owners, shares = reading.owners(), [target.shares(outputs) for target in targets]
    # A passage that is read, by a chunk that counts or not, has a score.
    scores = np.where(reading.seen(features), 0.0, np.full((len(targets), 1), np.nan))
    needed = sorted({row for share in shares for row in share})
    lengths = [len(features[row]["input_ids"]) for row in needed]
    for batch in batches(lengths, batch_tokens):
        rows = [needed[place] for place in batch]
        weights = [[share.get(row, 0.0) for row in rows] for share in shares]
        indices = [target.index for target in targets]
        tokens = _gradient_by_input(predictor, [features[r] for r in rows], indices, weights)
        for number, row in enumerate(rows):
            first, start, end = features[row]["read"]
            inside = owners[start:end] >= 0
            for target, values in enumerate(tokens[number]):
                contributions = values[first : first + end - start]
                np.add.at(scores[target], owners[start:end][inside], contributions[inside])
    return scores


def _gradient_by_input(
    predictor: Decoder,
    features: list[Feature],
    indices: list[int],
    weights: list[list[float]],
) -> list[np.ndarray]:
    """Gradient x word embedding [targets, tokens] float64 for each row, of weighted logits of a
    batch.

    ``indices`` are the numbers of the logits, ``weights`` [targets][rows].
    """
    import torch

    lengths = [len(feature["input_ids"]) for feature in features]
    try:
        inputs = predictor.collate(features)
        inputs = {key: values.to(predictor.device) for key, values in inputs.items()}
        with torch.enable_grad(), _leaf_of_embeddings(predictor.model) as leaves:
            logits = predictor.model(**inputs).logits.float()
            (leaf,) = leaves  # [total, width]: the real tokens, row after row
            products = []
            logits_of = list(zip(indices, weights, strict=True))
            for place, (index, weight) in enumerate(reported(logits_of, "explaining", "labels")):
                total = (logits[:, index] * logits.new_tensor(weight)).sum()
                more = place + 1 < len(indices)
                (gradient,) = torch.autograd.grad(total, leaf, retain_graph=more)
                products.append((gradient.float() * leaf.detach().float()).sum(-1).cpu())
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        raise too_large(features, predictor.device) from error
    if not all(torch.isfinite(values).all() for values in products):
        other = flag("passages_by", "occlusion")
        raise ModelError(f"the model's gradients are not finite; {other} needs none")
    rows = np.split(torch.stack(products).double().numpy(), np.cumsum(lengths)[:-1], axis=1)
    return list(rows)


@contextmanager
def _leaf_of_embeddings(model: Any) -> Iterator[list[Any]]:
    """Within the block, the outputs of the word embeddings, as leaves with gradients."""
    leaves: list[Any] = []

    def catch(module, args, out):
        leaves.append(out.detach().requires_grad_())
        return leaves[-1]

    handle = model.get_input_embeddings().register_forward_hook(catch)
    try:
        yield leaves
    finally:
        handle.remove()


def occlusions(
    predictor: Decoder,
    features: Sequence[Feature],
    outputs: Sequence[Outputs],
    reading: Reading,
    targets: Sequence[Target],
    batch_tokens: int,
) -> np.ndarray:
    """Drop of each target's logit when no token attends to a passage.

    Only the chunks that contain a passage run again, about as many inputs as there are passages,
    for all targets at once. Arguments and result are those of `gradients`, with any predictor;
    ResourceError if memory is too small for an input.
    """
    owners = reading.owners()
    hidden = []  # (passage, row, its tokens)
    for row in sorted({row for target in targets for row in target.rows}):
        first, start, end = features[row]["read"]
        for passage in np.unique(owners[start:end][owners[start:end] >= 0]).tolist():
            hidden.append((passage, row, first + np.flatnonzero(owners[start:end] == passage)))
    parts = [(features[row], tokens) for _, row, tokens in hidden]
    changed: dict[int, dict[int, Outputs]] = {}  # by passage and row
    runs = reported(hiding(predictor, parts, batch_tokens), "explaining", "runs", total=len(parts))
    for (passage, row, _), result in zip(hidden, runs, strict=True):
        changed.setdefault(passage, {})[row] = result
    scores = np.full((len(targets), len(reading.passages)), np.nan)
    for passage, rows in changed.items():
        without = [rows.get(row, output) for row, output in enumerate(outputs)]
        for number, target in enumerate(targets):
            scores[number, passage] = target.value(outputs) - target.value(without)
    return scores


def hiding(
    predictor: Decoder, parts: Sequence[tuple[Feature, np.ndarray]], batch_tokens: int
) -> list[Outputs]:
    """Run inputs with some tokens masked out of attention; returns {"logits": array} of each input.

    The tokens keep their places, so others do too. ResourceError if memory is too small for one.

    Args:
        predictor: the model.
        parts: inputs, each with an int array of the positions of its masked tokens.
        batch_tokens: largest number of tokens of a batch.
    """
    import torch

    rows: list[Outputs] = [{}] * len(parts)
    for batch in batches([len(feature["input_ids"]) for feature, _ in parts], batch_tokens):
        features = [parts[place][0] for place in batch]
        try:
            inputs = predictor.collate(features)
            for number, place in enumerate(batch):
                inputs["attention_mask"][number, torch.from_numpy(parts[place][1])] = 0
            logits = predictor.logits(inputs)
        except Exception as error:  # each library has types of its own
            if not out_of_memory(error):
                raise
            raise too_large(features, predictor.device) from error
        outputs = by_input({"logits": logits}, range(len(batch)))
        for place, row in zip(batch, outputs, strict=True):
            rows[place] = row
    return rows


def _best(
    target: Target, scores: np.ndarray, spans: Sequence[tuple[int, int]], reading: Reading, k: int
) -> list[dict[str, Any]]:
    """Passages with the highest scores, for a number with the largest effects."""
    order = np.argsort(-(scores if target.signed else np.abs(scores)), kind="stable")
    label = {} if target.name is None else {"label": target.name}
    read = [place for place in order.tolist() if not np.isnan(scores[place])]
    chosen = [(place, *spans[place]) for place in read[:k] if spans[place][0] < spans[place][1]]
    return [
        {"start": a, "end": b, "text": reading.text[a:b], "score": float(scores[place])} | label
        for place, a, b in chosen
    ]


def _around(
    places: Sequence[tuple[int, float]], reading: Reading, number: int
) -> list[dict[str, Any]]:
    """Passages that contain the places, without repetition, with their best score, best first."""
    starts = [start for start, _ in reading.passages]
    scores: dict[int, float] = {}
    for place, score in places:
        passage = max(int(np.searchsorted(starts, place, "right")) - 1, 0)
        scores[passage] = max(score, scores.get(passage, -np.inf))
    best = sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:number]
    spans = [(*reading.passages[passage], score) for passage, score in best]
    return [{"start": a, "end": b, "text": reading.text[a:b], "score": s} for a, b, s in spans]
