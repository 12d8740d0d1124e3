"""Text generation with a character model."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError

from ldt.data.characters import Alphabet
from ldt.data.features import Feature
from ldt.errors import DataError, ModelError, UserError, out_of_memory
from ldt.inference.options import flag
from ldt.inference.predictor import Unchanged, find_device, too_large
from ldt.io.records import Example, text
from ldt.model.loading import find_folder, load, read_tokenizer
from ldt.recipe.problems import explain
from ldt.recipe.recipe import Recipe
from ldt.tasks.base import Outputs
from ldt.tasks.language_models import Sampling


class PromptInputs:
    """Encoder of prompts, without the model's weights: an `ldt.inference.stream.DocumentEncoder`.

    ModelError if the tokenizer in ``folder`` cannot be used.
    """

    def __init__(self, folder: Path, recipe: Recipe):
        self.task, self.data = recipe.task, recipe.data
        self.max_length = recipe.data.max_length  # of training; a prompt may be longer
        self.tokenizer = read_tokenizer(folder)
        self.alphabet = Alphabet.of_tokenizer(self.tokenizer, folder)

    def encode(self, example: Example) -> list[Feature]:
        """A list of one input: the prompt's ids, its ``sampling`` options, and ``draws``, random
        numbers.

        Raises:
            DataError: the prompt is missing, empty or has a character unknown to the model, or a
                field of `Sampling` has a wrong value.
        """
        prompt = text(example, self.data.text)
        if not prompt:
            raise DataError(f"{example.where}: {self.data.text!r} is empty; a prompt begins a text")
        ids = self.alphabet.encode(prompt.encode(errors="surrogatepass"), example.where)
        sampling = self._sampling(example)
        name = hashlib.sha256(str(example.id).encode(errors="surrogatepass")).digest()
        draws = np.random.default_rng((sampling.seed, int.from_bytes(name[:8], "little")))
        return [
            {
                "input_ids": ids,
                "document": 0,
                "tokens": len(ids),
                "flags": {},
                "sampling": sampling,
                "draws": draws.random(sampling.length),
            }
        ]

    def _sampling(self, example: Example) -> Sampling:
        """Sampling options of the recipe, overridden by those of the record."""
        options = {
            key: example.fields[key] for key in Sampling.model_fields if key in example.fields
        }
        try:
            return Sampling.model_validate(self.task.sampling.model_dump() | options)
        except ValidationError as error:
            keys, what = next(iter(explain(error, options)))
            raise DataError(f"{example.where}: {'.'.join(map(str, keys))}: {what}") from None


class CharacterPredictor(PromptInputs):
    """Character model that samples continuations: an `ldt.inference.stream.DocumentPredictor`.

    Args:
        folder: folder of the model.
        recipe: recipe of its training.
        device: a torch device, or "auto".
        precision: "fp32".

    Raises:
        ModelError: the folder cannot be used.
        UserError: the device does not exist, or another precision is requested.
    """

    inputs = PromptInputs

    def __init__(self, folder: Path, recipe: Recipe, device: str = "auto", precision: str = "fp32"):
        if precision != "fp32":
            raise UserError(f"{flag('precision', precision)}: a character model samples in fp32")
        super().__init__(folder, recipe)
        self._weights = Unchanged(find_folder(folder))
        backend = recipe.model.attention
        model = load(folder, recipe.task.head(), mapped=True, attention_backend=backend)
        self.model = model.to(find_device(device))

    @staticmethod
    def automatic(device: str) -> str:
        """Return "fp32" for any device: the precision that "auto" stands for."""
        return "fp32"

    def outputs(self, features: list[Feature]) -> list[Outputs]:
        """Sample the ids that go on after each prompt: a list of {"added": int [length]}.

        Raises:
            ModelError: logits are not finite, or another program changed the weights.
            ResourceError: memory is too small for the prompts.
        """
        try:
            outputs = self._outputs(features)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            raise too_large(features, self.model.device) from error
        self._weights.check()
        return outputs

    def _outputs(self, features: list[Feature]) -> list[Outputs]:
        added: list[list[int]] = [[] for _ in features]
        steps = max(feature["sampling"].length for feature in features)
        prompts = [feature["input_ids"] for feature in features]
        for place, logits in zip(
            range(steps), _next_logits(self.model, prompts, added), strict=False
        ):
            for row, feature in enumerate(features):
                if place < feature["sampling"].length:
                    draw = feature["draws"][place]
                    added[row].append(choose(logits[row], feature["sampling"], draw))
                else:
                    added[row].append(0)  # goes on with the others, and is cut off
        return [
            {"added": np.array(ids[: feature["sampling"].length])}
            for ids, feature in zip(added, features, strict=True)
        ]

    def decode(
        self, outputs: list[Outputs], example: Example, features: list[Feature]
    ) -> dict[str, Any]:
        """{"text": the prompt with its continuation}, from the ids of `outputs` and `encode`."""
        ids = [*features[0]["input_ids"].tolist(), *outputs[0]["added"].tolist()]
        return {"text": self.tokenizer.decode(ids)}


def _next_logits(model, prompts: Sequence[np.ndarray], added: list[list[int]]) -> Iterator:
    """Yield the logits [prompts, vocabulary] float64 that follow the prompts and ``added``.

    The caller appends one id to each list of ``added`` before the next logits.
    """
    longest = max(map(len, prompts))
    batch = torch.zeros(len(prompts), longest, dtype=torch.long)
    mask = torch.zeros_like(batch)
    for row, prompt in enumerate(prompts):
        batch[row, longest - len(prompt) :] = torch.from_numpy(prompt.astype(np.int64))
        mask[row, longest - len(prompt) :] = 1
    past = None
    while True:
        with torch.inference_mode():
            if past is None:
                out = model(batch.to(model.device), mask.to(model.device), use_cache=True)
            else:
                last = torch.tensor([ids[-1:] for ids in added], device=model.device)
                out = model(last, past_key_values=past)
        past, logits = out.past_key_values, out.logits[:, -1].double().cpu()
        if not logits.isfinite().all():
            raise ModelError(
                "the model's logits are not finite; its weights are damaged or its training "
                "diverged"
            )
        yield logits


def choose(logits: torch.Tensor, sampling: Sampling, draw: float) -> int:
    """Choose the next id by logits [vocabulary]: the highest at temperature 0, else a sample.

    Args:
        logits: logits of all ids.
        sampling: temperature, and the number of best ids among which to choose.
        draw: random number in [0, 1) that decides.
    """
    if not sampling.temperature:
        return int(logits.argmax())
    candidates = torch.arange(len(logits))
    if sampling.top_k is not None and sampling.top_k < len(logits):
        candidates = logits.topk(sampling.top_k).indices
    up_to = (logits[candidates] / sampling.temperature).softmax(0).cumsum(0)
    place = int(torch.searchsorted(up_to, draw * up_to[-1], right=True))
    return int(candidates[min(place, len(candidates) - 1)])
