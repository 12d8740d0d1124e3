"""Predictors: encode documents, run a model with its task's head, and decode answers.

Torch is imported when a predictor is created.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ldt.data.features import Collator, Feature, by_input
from ldt.errors import ModelError, RecipeError, ResourceError, UserError, out_of_memory, plural
from ldt.inference.agreement import least_cosine
from ldt.inference.options import flag
from ldt.inference.runtimes import RUNTIMES, Runtime, session
from ldt.io.records import Example
from ldt.metrics.decisions import in_words
from ldt.tasks.base import WRITTEN, Joining, Outputs, path_of

if TYPE_CHECKING:
    import torch

    from ldt.recipe.recipe import Recipe

log = logging.getLogger("ldt")

DIGITS = 6  # of the floats in answers, behind the point

Answer = dict[str, Any]


def answer_of(model, outputs: list[Outputs], example: Example, features: list[Feature]) -> Answer:
    """Decode a document's answer by a predictor, and round its floats to `DIGITS` decimals.

    Args:
        model: the predictor.
        outputs: outputs by name of each input; ModelError if one is not finite.
        example: the document.
        features: its inputs.
    """
    if not all(np.isfinite(values).all() for row in outputs for values in row.values()):
        raise ModelError(
            f"{example.where}: the model answers with numbers that are not finite; its "
            "weights are damaged or its training diverged"
        )
    return rounded(model.decode(outputs, example, features))


def rounded(value: Any) -> Any:
    """Copy of the value with floats in dicts and lists rounded to `DIGITS` decimals.

    Tuples become lists; arrays are not copied or rounded.
    """
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    return round(value, DIGITS) if isinstance(value, float) else value


class EncoderInputs:
    """Encoder of documents, without the model's weights: an `ldt.inference.stream.DocumentEncoder`.

    Args:
        folder: folder of the model.
        recipe: recipe of its training.
        config: config of the model; None reads it.

    Raises:
        ModelError: the config or the tokenizer cannot be used.
        RecipeError: the recipe asks for longer inputs than the model takes.
    """

    def __init__(self, folder: Path, recipe: Recipe, config: Any = None):
        from ldt.model import load_tokenizer, usable_length
        from ldt.model.loading import find_folder, read_config

        self.task, self.data = recipe.task, recipe.data
        self.config = config or read_config(find_folder(folder))
        self.tokenizer = load_tokenizer(folder, self.config)
        self.max_length = self.data.max_length or usable_length(self.config)
        if self.max_length > usable_length(self.config):
            raise RecipeError(
                f"{recipe.where('data', 'max_length')}: {self.max_length:,} tokens, the model "
                f"takes {usable_length(self.config):,}"
            )

    def path(self, name: str) -> str:
        """Name that a task's field, such as "question", has in the records, dotted if nested."""
        return path_of(self.task, name, self.data)

    def encode(self, example: Example) -> list[Feature]:
        """Inputs of a document, one per chunk; DataError if it cannot be used."""
        return self.task.encode(example, self.tokenizer, data=self.data, max_length=self.max_length)


class Decoder(EncoderInputs, ABC):
    """Base class of predictors with any runtime; decodes a model's outputs.

    Args:
        raw_scores: True gives logits as scores, before calibration.
        label_sets: coverage of the key ``label_set``; None leaves it out.

    Attributes:
        collate: collator of the inputs.
        device: device of the model.
        model: torch model; None for other runtimes.
    """

    device: Any
    model: Any

    def __init__(
        self,
        folder: Path,
        recipe: Recipe,
        config: Any = None,
        raw_scores: bool = False,
        label_sets: float | None = None,
    ):
        super().__init__(folder, recipe, config)
        self.raw_scores, self.label_sets = raw_scores, label_sets
        self.task.policy(self.config)  # decisions that are not a model's are refused here
        self.collate = Collator(self.config.pad_token_id, self.task.head(), self.task.inputs.extras)

    @abstractmethod
    def run(self, batch: dict[str, Any]) -> Outputs:
        """Outputs of the head for a collated batch, [inputs, ...] by the names of
        `TaskAnswers.outputs`; float32, token ids integers."""

    @abstractmethod
    def logits(self, batch: dict[str, Any]) -> np.ndarray:
        """The head's ``logits`` [inputs, ...] for a collated batch, float32."""

    def outputs(self, features: list[Feature]) -> list[Outputs]:
        """Run inputs as one batch: arrays of each by the names of `TaskAnswers.outputs`, float32.

        Raises:
            ResourceError: memory is too small for the batch.
        """
        try:
            outputs = self.run(self.collate(features))
        except Exception as error:  # each library has types of its own
            if not out_of_memory(error):
                raise
            raise too_large(features, self.device) from error
        return by_input(outputs, range(len(features)))

    def decode(
        self, outputs: list[Outputs], example: Example, features: list[Feature]
    ) -> dict[str, Any]:
        """Answer to a document from its inputs' outputs, with ``label_set`` and raw scores if asked
        for."""
        if isinstance(self.task, Joining):
            outputs = self.task.joined(self.model, outputs, features)
        answer = self.task.decode(outputs, self.config, example, features)
        if self.label_sets is not None:
            answer["label_set"] = self.task.label_set(answer, self.config, self.label_sets)
        if self.raw_scores:
            answer["scores"] = self.task.raw_scores(outputs, answer, features)
        return answer


class EncoderPredictor(Decoder):
    """Fine-tuned encoder with task and tokenizer: an `ldt.inference.stream.DocumentPredictor`.

    Args:
        folder: folder of the model.
        recipe: recipe of its training.
        device: a torch device, or "auto".
        precision: a name in `ldt.model.precision.PRECISIONS`.
        raw_scores, label_sets: as for `Decoder`.
        memory: file descriptor for lowered weights shared by processes, for
            `ldt.model.precision.lowered_in`.

    Attributes:
        inputs: class that encodes documents without the weights, created with (folder, recipe).
        exact: for int8, the predictor in fp32, which keeps the fp32 weights in memory.

    Raises:
        ModelError: the folder cannot be used, its weights belong to another task, or another
            program overwrites them; `run` and `logits` notice this too.
        UserError: the device does not exist or lacks the precision.
    """

    inputs = EncoderInputs

    def __init__(
        self,
        folder: Path,
        recipe: Recipe,
        device: str = "auto",
        precision: str = "fp32",
        raw_scores: bool = False,
        label_sets: float | None = None,
        memory: int | None = None,
    ):
        from ldt.attention.matmul import has_bfloat16
        from ldt.model import load
        from ldt.model.graphs import use_graphs
        from ldt.model.loading import find_folder

        task = recipe.task
        self.device = find_device(device)
        if precision == "int8" and self.device.type != "cpu":
            raise UserError(
                f"{flag('precision', 'int8')} runs on the CPU, not on {self.device}; bf16 does"
            )
        if precision == "int8" and WRITTEN in task.answers.outputs:
            raise UserError(
                f"{flag('precision', 'int8')}: answers of {task.name} are written; bf16 does"
            )
        if precision == "bf16" and self.device.type == "cpu" and not has_bfloat16():
            log.warning(
                "%s: this CPU has no instructions for bfloat16 and takes longer than in fp32; int8 "
                "is faster",
                flag("precision", "bf16"),
            )
        self._memory = memory
        # What to lower to after the first batch, which is run in fp32 as well.
        self._lower_to = precision if precision == "bf16" else "fp32"
        self.exact: EncoderPredictor | None = None
        self._weights = Unchanged(find_folder(folder))
        self.model = load(folder, task.head(), mapped=True)
        self._weights.check()
        if self.model.new_weights:
            raise ModelError(
                f"{folder}: not fine-tuned for {task.name}: there are no weights for "
                f"{', '.join(self.model.new_weights)}; ldt finetune RECIPE model.path={folder} "
                "trains them"
            )
        super().__init__(folder, recipe, self.model.config, raw_scores, label_sets)
        self.model.to(self.device)
        use_graphs(self.model)
        if precision == "int8":
            self.exact = copy(self)
            self._lower(precision)
        if words := in_words(getattr(self.config, "decisions", {})):
            log.info("%s: decision: %s", folder, words)

    @staticmethod
    def automatic(device: str) -> str:
        """Precision that "auto" stands for: "bf16" on a GPU that supports it, else "fp32". The
        device "auto" is the GPU if there is one."""
        from ldt.model.precision import automatic

        return automatic(find_device(device))

    def run(self, batch: dict[str, Any]) -> Outputs:
        """Outputs of the head for a collated batch, [inputs, ...] by the names of
        `TaskAnswers.outputs`.

        They are float32, token ids integers. In bf16 the first batch is run in fp32 too, and the
        difference is logged. ModelError if another program wrote over the weights.
        """
        import torch

        inputs = self._there(batch)
        with torch.inference_mode():
            outputs = self._run(inputs)
            if self._lower_to != "fp32":
                outputs = self._lowered(inputs, exact=outputs)
        self._weights.check()
        return outputs

    def logits(self, batch: dict[str, Any]) -> np.ndarray:
        """The head's ``logits`` [inputs, ...], float32; ModelError if weights were written over."""
        import torch

        with torch.inference_mode():
            logits = _as_array(self.model(**self._there(batch)).logits)
        self._weights.check()
        return logits

    def _there(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {key: values.to(self.device) for key, values in batch.items()}

    def _run(self, inputs) -> Outputs:
        outputs = self.task.run(self.model, inputs)
        return {name: _as_array(outputs[name]) for name in self.task.answers.outputs}

    def _lowered(self, inputs, exact: Outputs) -> Outputs:
        """Lower the precision for good, log the deviation of the outputs, and return them."""
        precision, self._lower_to = self._lower_to, "fp32"  # also where there is no memory now
        self._lower(precision)
        lowered = self._run(inputs)
        on = f"{precision} against fp32 on the first {plural(len(inputs['input_ids']), 'input')}"
        for name, values in exact.items():
            if values.dtype.kind == "i":
                same = sum(map(_same_tokens, lowered[name], values))
                log.info(f"{on}: the {name} are the same in {same}")
                continue
            states = isinstance(self.task, Joining)
            if states or name == "vectors":
                what, least = "states" if states else name, least_cosine(values, lowered[name])
                log.info(f"{on}: the least cosine of the {what} is {least:.5f}")
                continue
            real = values > np.finfo(np.float32).min  # not padding
            if not real.any():  # such as passages, where no document of the batch has one
                continue
            same = int((lowered[name].argmax(1) == values.argmax(1)).sum())
            log.info(
                f"{on}: the highest of the {name} is the same in {same}; they are "
                f"{np.abs(lowered[name] - values)[real].max():.2g} off at most, and range from "
                f"{values[real].min():.2g} to {values[real].max():.2g}"
            )
        return lowered

    def _lower(self, precision: str) -> None:
        """Lower the model's precision; that of ``exact`` is unchanged."""
        from ldt.model.precision import lower, lowered, lowered_in

        if self._memory is not None and self.device.type == "cpu":
            self.model = lowered_in(self.model, precision, self._memory)
        elif self.exact:
            self.model = lowered(self.model, precision)
        else:
            lower(self.model, precision)


class Unchanged:
    """State of a folder's weight files, which must not be overwritten while they are memory-mapped.
    Replacing files, as ldt does, is safe: the old ones stay mapped."""

    def __init__(self, folder: Path):
        from ldt.model import adapters
        from ldt.model.weights import weight_files

        while adapters.is_adapter(folder):  # whose base may be one again
            folder = adapters.base_of(folder)
        self._files = {file: _stamp(file) for file in weight_files(folder)}

    def check(self) -> None:
        """Raise ModelError if a file was written over; removed and replaced ones are no error."""
        for file, before in self._files.items():
            try:
                now = _stamp(file)
            except OSError:  # removed, which takes nothing from who has mapped it
                continue
            if now != before and now[:2] == before[:2]:
                raise ModelError(
                    f"{file}: another program wrote over it while it was read; answers since then "
                    "may be of neither model: run the command again, with --overwrite"
                )


def _stamp(file: Path) -> tuple[int, ...]:
    stat = file.stat()
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


def _as_array(values: Any) -> np.ndarray:
    """numpy array of a tensor: integers unchanged, other types in float32."""
    return (values.float() if values.is_floating_point() else values).cpu().numpy()


def _same_tokens(one: np.ndarray, other: np.ndarray) -> bool:
    """True if one row of tokens is a prefix of the other, which differs by padding only."""
    size = min(len(one), len(other))
    return np.array_equal(one[:size], other[:size])


def too_large(features: list[Feature], device: Any) -> ResourceError:
    """ResourceError to raise for a batch that is too large for a device; frees its cached memory.

    Args:
        features: inputs of the batch.
        device: torch device, or its name.
    """
    if str(device).startswith("cuda"):
        import torch

        torch.cuda.empty_cache()  # so that a smaller batch finds the memory in one piece
    longest = max(len(feature["input_ids"]) for feature in features)
    advice = "a shorter data.max_length takes less"
    if len(features) > 1:
        advice = f"{flag('batch_tokens', longest * (len(features) // 2))} takes less"
    return ResourceError(
        f"out of memory on {device} with {plural(len(features), 'input')} of up to "
        f"{longest:,} tokens; {advice}"
    )


def find_device(name: str) -> torch.device:
    """Torch device of a name; "auto" is the GPU if there is one. UserError if it cannot be used."""
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{flag('device', name)}: cannot be used: {reason}") from None
    return device


class ExportedPredictor(Decoder):
    """Exported model with task and tokenizer: an `ldt.inference.stream.DocumentPredictor`.

    Args:
        folder: folder that `ldt export` wrote.
        recipe: recipe of its training.
        device: "auto" or "cpu".
        precision: "fp32", which stands for the file's own precision.
        runtime: one of `RUNTIMES`.
        shown: as for `Decoder`.

    Raises:
        ModelError: the folder cannot be used.
        UserError: the library is not installed or does not support the device.
    """

    inputs = EncoderInputs
    device, model = "cpu", None
    exact = None

    def __init__(
        self,
        folder: Path,
        recipe: Recipe,
        device: str = "auto",
        precision: str = "fp32",
        *,
        runtime: Runtime = "onnx",
        **shown: Any,
    ):
        if device not in ("auto", "cpu"):
            raise UserError(f"{flag('device', device)}: {flag('runtime', runtime)} runs on the cpu")
        super().__init__(folder, recipe, **shown)
        format = RUNTIMES[runtime]
        self.session = session(format, folder / format.file)

    @staticmethod
    def automatic(device: str) -> str:
        """Return "fp32" for any device, which stands for the precision of the file."""
        return "fp32"

    def run(self, batch: dict[str, Any]) -> Outputs:
        return self.session(batch)

    def logits(self, batch: dict[str, Any]) -> np.ndarray:
        return self.session(batch)["logits"]
