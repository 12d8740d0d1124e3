"""Evaluation by document while a model trains."""

from __future__ import annotations

import numpy as np
from transformers import TrainerCallback

from ldt.errors import RecipeError, TrainingDiverged
from ldt.recipe.recipe import Recipe
from ldt.tasks.base import by_input
from ldt.training.job import Ready
from ldt.training.progress import is_metric
from ldt.training.trainer import Trainer


class Scorer(TrainerCallback):
    """Scores evaluations by document, over its windows, and remembers them by step.

    As the Trainer's compute_metrics it gets what the head says, each [inputs, ...] in the order of
    the inputs.
    """

    def __init__(self, task, ready: Ready):
        self.task, self.ready = task, ready
        self.documents = ready.evaluation.by_document()
        self.found: dict[int, tuple[dict[str, float], list[dict]]] = {}
        self._table: list[dict] = []

    def __call__(self, prediction) -> dict[str, float]:
        found = by_name(self.task, prediction.predictions)
        answers, wrong = [], []
        for rows, example in zip(self.documents, self.ready.examples, strict=True):
            outputs = by_input(found, rows)
            if not all(np.isfinite(said).all() for output in outputs for said in output.values()):
                wrong.append(str(example.id))
                continue
            features = [self.ready.evaluation[row] for row in rows]
            answers.append(self.task.decode(outputs, self.ready.config, example, features))
        if wrong:
            raise TrainingDiverged(
                "training diverged: the model's answers in evaluation are not finite, documents "
                f"{', '.join(wrong[:10])}"
            )
        metrics, self._table = self.task.score(answers, self.ready.golds, self.ready.config)
        return metrics

    def on_evaluate(self, args, state, control, metrics, **kwargs):
        kept = {key: value for key, value in metrics.items() if is_metric(key)}
        self.found[state.global_step] = kept, self._table


def by_name(task, found) -> dict[str, np.ndarray]:
    """What a head said, by the names of ``task.outputs``: one array, or a tuple of them."""
    arrays = found if isinstance(found, tuple | list) else (found,)
    return dict(zip(task.outputs, arrays, strict=True))


def check_metric(recipe: Recipe, trainer: Trainer, ready: Ready) -> None:
    """Answer one document, so that a metric that is not there does not end the first epoch.

    Raises:
        RecipeError: ``training.metric_for_best_model`` is not among those of the task.
    """
    rows = ready.evaluation.by_document()[0]
    features = [ready.evaluation[row] for row in rows]
    batch = trainer.data_collator([features] if recipe.task.together else features)
    trainer.model.eval()
    found = trainer.prediction_step(trainer.model, batch, prediction_loss_only=False)[1]
    arrays = found if isinstance(found, tuple) else (found,)
    found = by_name(recipe.task, tuple(values.float().cpu().numpy() for values in arrays))
    outputs = by_input(found, range(len(rows)))
    answer = recipe.task.decode(outputs, ready.config, ready.examples[0], features)
    names = {*recipe.task.score([answer], ready.golds[:1], ready.config)[0], "loss"}
    wanted = trainer.args.metric_for_best_model.removeprefix("eval_")
    if wanted not in names:
        raise RecipeError(
            f"{recipe.where('training', 'metric_for_best_model')}: no metric {wanted!r}, there "
            f"are {', '.join(sorted(names))}"
        )
