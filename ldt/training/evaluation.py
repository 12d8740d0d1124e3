"""Evaluation during training: from model outputs to metrics, remembered by step."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from transformers import EvalPrediction, TrainerCallback

from ldt.data.features import NO_POSITION, Features, by_input
from ldt.errors import RecipeError, TrainingDiverged
from ldt.io.records import Example
from ldt.metrics.baseline import Baseline, no_better
from ldt.metrics.numbers import by_doubling
from ldt.recipe.recipe import Recipe
from ldt.recipe.run import is_metric
from ldt.tasks.base import WRITTEN, AnyTask, Task, score_all, settings_of
from ldt.tasks.deciding import Calibrated, Decision
from ldt.tasks.writing import WritingTask

if TYPE_CHECKING:
    from ldt.training.trainer import Trainer

log = logging.getLogger("ldt")


class Measured(NamedTuple):
    """Result of an evaluation.

    Args:
        metrics: metrics by name, shares from 0 to 100.
        table: rows of further metrics, such as those of each class.
        changes: changes of the model's config that go with these metrics, such as a threshold.
        decisions: figures of the decision policy (`ldt.tasks.deciding.report`).
        by_length: metrics by document length (up to 512 tokens, 1,024, and so on): rows of
            ``most_tokens``, ``documents`` and ``metrics``; empty if there is only one.
    """

    metrics: dict[str, float]
    table: list[dict[str, Any]]
    changes: Mapping[str, Any] = MappingProxyType({})
    decisions: Mapping[str, Any] = MappingProxyType({})
    by_length: Sequence[dict[str, Any]] = ()


class Measure(ABC):
    """Computes metrics and table rows from a model's outputs for the whole evaluation set.

    ``rough``: True evaluates some documents and fast metrics only, until training is over;
    ``share``: share of the documents used then.
    """

    rough = False
    share = 1.0

    @abstractmethod
    def __call__(self, prediction: EvalPrediction) -> Measured:
        """All results, with metric names without the prefix ``eval_``.

        Raises:
            TrainingDiverged: an output is not finite.
        """

    @abstractmethod
    def names(self, trainer: Trainer) -> set[str]:
        """Names of the metrics without ``eval_``; may answer one document with the trainer's model
        to find out."""


class ByExample(Measure):
    """Answers each document from all its inputs, and scores the answers.

    Args:
        task: task that decodes and scores.
        config: config of the model.
        features: inputs of all documents, in order.
        examples: the documents.
        golds: gold answers, as from `Task.gold`.
        decides: True fits a decision policy even if the recipe does not ask for it.
    """

    def __init__(
        self,
        task: Task,
        config,
        features: Features,
        examples: Sequence[Example],
        golds: Sequence,
        decides: bool = False,
    ):
        self.decides = None
        if isinstance(task, Calibrated) and (decides or task.decides):
            self.decides = task = task.uncalibrated()
        self.task = task
        self.config, self.features = config, features
        self.examples, self.golds = examples, golds
        self.rows = features.by_document()
        self.rough, size = isinstance(task, WritingTask), len(examples)
        self.sampled = task.sampled(size) if isinstance(task, WritingTask) else range(size)
        self.share = len(self.sampled) / len(examples)

    def __call__(self, prediction):
        outputs = self._by_name(prediction.predictions)  # each [inputs, ...], in order
        answers, numbers, wrong = [], [], []
        for number, (rows, example) in enumerate(zip(self.rows, self.examples, strict=True)):
            if self.rough and number not in self.sampled:
                continue
            chunks = by_input(outputs, rows)
            if not all(np.isfinite(array).all() for one in chunks for array in one.values()):
                wrong.append(str(example.id))
                continue
            features = [self.features[row] for row in rows]
            answers.append(self.task.decode(chunks, self.config, example, features))
            numbers.append(number)
        if wrong:
            raise TrainingDiverged(
                "training diverged: the model's answers in evaluation are not finite, documents "
                f"{', '.join(wrong[:10])}"
            )
        decision, golds = Decision(answers), [self.golds[number] for number in numbers]
        if self.decides:
            decision = self.decides.decide(answers, golds, self.config)
        lengths = [self.features[self.rows[n][0]]["tokens"] for n in numbers]
        metrics, table = score_all(self.task, decision.answers, golds, self.config)
        rows = zip_longest(table, decision.columns, fillvalue={})
        changes = settings_of(self.task, metrics) | decision.changes
        table = [row | more for row, more in rows]
        by_length = [] if self.rough else self._by_length(decision.answers, golds, lengths)
        return Measured(metrics, table, changes, decision.report, by_length)

    def _by_length(self, answers: Sequence, golds: Sequence, lengths: Sequence[int]) -> list[dict]:
        table: list[dict[str, Any]] = []
        groups = by_doubling(lengths)
        for most, members in groups if len(groups) > 1 else ():
            parts = [answers[number] for number in members], [golds[number] for number in members]
            metrics, _ = score_all(self.task, *parts, self.config)
            settings = settings_of(self.task, metrics)  # these tell nothing about the quality
            metrics = {name: value for name, value in metrics.items() if name not in settings}
            table.append({"most_tokens": most, "documents": len(members), "metrics": metrics})
        return table

    def names(self, trainer: Trainer) -> set[str]:
        rows = self.rows[0]
        features: Any = [self.features[row] for row in rows]
        batch = trainer.data_collator(
            [features] if self.task.inputs.loss_per_document else features
        )
        trainer.model.eval()
        outputs = trainer.prediction_step(trainer.model, batch, prediction_loss_only=False)[1]
        arrays = outputs if isinstance(outputs, tuple) else (outputs,)
        named = self._by_name(tuple(values.float().cpu().numpy() for values in arrays))
        chunks = by_input(named, range(len(rows)))
        answer = self.task.decode(chunks, self.config, self.examples[0], features)
        return {*score_all(self.task, [answer], self.golds[:1], self.config)[0]}

    def answer(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        documents: Sequence[int],
        every: bool = False,
    ) -> dict[str, Any]:
        """Outputs of a model for a batch, tensors [rows, ...] by name: int64 for generated ids,
        else float32; -100 for documents left out of a rough evaluation.

        Args:
            model: the model.
            inputs: the batch, tensors [rows, ...] by name.
            documents: number of each row's document.
            every: True leaves none out.
        """
        rows = [
            row
            for row, number in enumerate(documents)
            if every or not self.rough or number in self.sampled
        ]
        outputs: Mapping[str, Any] = {}
        if rows:
            part = {name: values[rows] for name, values in inputs.items()}
            outputs = self.task.run(model, part, quick=self.rough)
        whole, ids = {}, inputs["input_ids"]
        for name in self.task.answers.outputs:
            size = outputs[name].shape[1] if rows else 1
            dtype = ids.dtype if name == WRITTEN else torch.float32
            whole[name] = ids.new_full((len(ids), size), NO_POSITION, dtype=dtype)
            if rows:
                whole[name][rows] = outputs[name].to(dtype)
        return whole

    def _by_name(self, outputs) -> dict[str, np.ndarray]:
        arrays = outputs if isinstance(outputs, tuple | list) else (outputs,)
        return dict(zip(self.task.answers.outputs, arrays, strict=True))


class BySum(Measure):
    """Metrics of a language model from the summed loss and the number of predicted units.

    Args:
        metrics: function of both, the sum in nats.
    """

    def __init__(self, metrics: Callable[[float, int], dict[str, float]]):
        self.metrics = metrics

    def __call__(self, prediction):
        nats = float(np.sum(prediction.predictions))
        if not math.isfinite(nats):
            raise TrainingDiverged("training diverged: the loss in evaluation is not finite")
        return Measured(self.metrics(nats, int(np.sum(prediction.label_ids))), [])

    def names(self, trainer: Trainer) -> set[str]:
        return {*self.metrics(0.0, 1)}


class MetricsByStep(TrainerCallback):
    """compute_metrics of the Trainer, which remembers the result of each evaluation."""

    def __init__(self, measure: Measure):
        self.measure = measure
        self._at: dict[int, Measured] = {}
        self.last = Measured({}, [])

    def __call__(self, prediction: EvalPrediction) -> dict[str, float]:
        self.last = self.measure(prediction)
        return self.last.metrics

    def on_evaluate(self, args, state, control, metrics, **kwargs):
        """Remember the last result under the step, with its metrics as the Trainer names them
        (``eval_``)."""
        scores = {key: value for key, value in metrics.items() if is_metric(key)}
        self._at[state.global_step] = self.last._replace(metrics=scores)

    def of_weights(self, trainer: Trainer) -> Measured:
        """Result, with metrics named ``eval_``, for the weights that the model holds after
        training. If they were not evaluated in this session, or only roughly, they are now; the
        trainer's progress report is removed before."""
        step = trainer.weights_step
        assert step is not None  # training is over
        # Evaluated in an earlier session, roughly, or not at all.
        if step not in self._at or self.measure.rough:
            if self.measure.rough:
                log.info("evaluating all documents as prediction answers for them")
            self.measure.rough = False
            trainer.remove_callback(trainer.progress)  # it is no step of the run
            trainer.evaluate()
            self._at[step] = self._at.pop(trainer.state.global_step)
        return self._at[step]


def no_better_than(task: AnyTask, results: dict[str, Any]) -> list[str]:
    """List of one warning if the model does not beat the baseline, else an empty one.

    The main metric counts, or any metric if that has no baseline.

    Args:
        task: the task.
        results: content of metrics.json.
    """
    baselines = {name: Baseline(**each) for name, each in results["baseline"].items()}
    metrics = {name.removeprefix("eval_"): value for name, value in results["metrics"].items()}
    metric = (results["metric"] or "").removeprefix("eval_")
    if metric in baselines:
        baselines = {metric: baselines[metric]}
    return no_better(metrics, baselines)


def check_metric(recipe: Recipe, trainer: Trainer, measure: Measure) -> None:
    """Refuse an unknown metric before training rather than after the first epoch.

    Raises:
        RecipeError: ``training.metric_for_best_model`` is not a metric of the task.
    """
    metric = trainer.args.metric_for_best_model
    assert metric is not None  # `ldt.training.arguments` sets it where there is a measure
    wanted = metric.removeprefix("eval_")
    names = {*measure.names(trainer), "loss"}
    if wanted not in names:
        raise RecipeError(
            f"{recipe.where('training', 'metric_for_best_model')}: no metric {wanted!r}, there "
            f"are {', '.join(sorted(names))}"
        )
