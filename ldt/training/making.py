"""The Trainer of a job, made of what is prepared."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from transformers import EarlyStoppingCallback

from ldt.model.graphs import use_graphs
from ldt.recipe.run import Run
from ldt.tasks.writing_task import WritingTask
from ldt.training import processes
from ldt.training.arguments import arguments
from ldt.training.compiling import compile_layers
from ldt.training.evaluation import ByExample, MetricsByStep, check_metric
from ldt.training.job import Job, Prepared
from ldt.training.progress import ProgressReport
from ldt.training.reports import Reports
from ldt.training.trainer import Trainer


def make_trainer(
    job: Job, prepared: Prepared, training: dict[str, Any], run: Run, console: Console | None
) -> Trainer:
    """The Trainer of what is prepared.

    Args:
        training: the `settings`.
        run: for checkpoints and log.
        console: shows progress, in the process that writes.

    Raises:
        RecipeError: transformers refuses the settings, or there is no such metric.
    """
    if job.unit == "token":  # a character model reads any length
        prepared.tokenizer.model_max_length = prepared.max_length
    measure, items = prepared.measure, prepared.train_items
    use_graphs(prepared.model)  # in evaluation
    metrics = MetricsByStep(measure) if measure else None
    callbacks = [*([metrics] if metrics else []), *prepared.callbacks]
    if processes.is_first():
        callbacks.append(Reports(training.get("report_to"), run))
    if patience := training.get("early_stopping_patience"):
        threshold = training.get("early_stopping_threshold", 0.0)
        callbacks.append(EarlyStoppingCallback(patience, threshold))
    count = len(items) if hasattr(items, "__len__") else 0  # a stream has no end
    args = arguments(job.recipe, training, run.folder, count, prepared.metric if measure else None)
    compile_layers(prepared.model, args)
    trainer = job.trainer(
        model=prepared.model,
        args=args,
        train_dataset=items,
        eval_dataset=prepared.eval_items if measure else None,
        data_collator=prepared.collate,
        compute_metrics=metrics,
        callbacks=callbacks,
        tokenizer=prepared.tokenizer,
        ids=prepared.names,
        progress=ProgressReport(console if processes.is_first() else None, run),
    )
    trainer.train_sampler = prepared.sampler
    trainer.micro_batch_tokens = training.get("train_batch_tokens")
    if isinstance(measure, ByExample) and isinstance(measure.task, WritingTask):
        trainer.answer = measure.answer
    if measure:
        check_metric(job.recipe, trainer, measure)
    return trainer
