"""The training section of a recipe, completed by ldt's defaults, as transformers'
TrainingArguments."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

from transformers import Trainer as Plain
from transformers import TrainingArguments, get_scheduler
from transformers.training_args import ParallelMode

from ldt.attention.matmul import has_bfloat16
from ldt.data.labels import SINGLE
from ldt.data.options import CorpusSection
from ldt.errors import RecipeError, UserError, first_line
from ldt.metrics.meanings import LOWER_IS_BETTER
from ldt.recipe.problems import quote
from ldt.recipe.recipe import Recipe, check_training
from ldt.recipe.sections import NEW_NAMES, OWN_TRAINING_KEYS
from ldt.tasks.deciding import Deciding, Weighted
from ldt.tasks.writing import WritingTask
from ldt.training import lora, processes
from ldt.training.progress import check_reports

DOCUMENTS_A_STEP = 8  # where the recipe does not say how many batches make a step
LINES = 50  # of progress in a run, where the recipe does not say how often

# Where ldt's defaults are not those of transformers' TrainingArguments. A recipe may set each.
# Further ones depend on the recipe, see `settings`.
DEFAULTS: dict[str, Any] = {
    "per_device_train_batch_size": 1,  # long documents fill a device one by one
    "per_device_eval_batch_size": 4,
    "num_train_epochs": 3,
    "learning_rate": 3e-5,
    "warmup_steps": 0.1,  # below 1: a share of all steps
    "weight_decay": 0.01,
    "save_total_limit": 2,  # and the best one besides
    "report_to": "none",
    "seed": 42,
}

# What ldt's Trainer relies on; a recipe cannot set these to something else.
FIXED = {
    "remove_unused_columns": False,
    "disable_tqdm": True,
    "logging_nan_inf_filter": False,
    "include_num_input_tokens_seen": "non_padding",
    "restore_callback_states_from_checkpoint": True,
    "average_tokens_across_devices": True,
    "batch_eval_metrics": False,
    "prediction_loss_only": False,
    "use_liger_kernel": False,  # which has none for this encoder
    "neftune_noise_alpha": None,  # for embeddings of padded rows, and ours are packed
}

# Each of them asks for compiled layers.
_COMPILE = ("torch_compile", "torch_compile_backend", "torch_compile_mode")
# Keys that take an evaluation set.
EVALUATION = (
    *("eval_strategy", "eval_steps", "eval_delay", "eval_on_start"),
    *("load_best_model_at_end", "metric_for_best_model", "greater_is_better"),
    *("early_stopping_patience", "early_stopping_threshold"),
)

# Key -> the other key and the value of that with which alone it acts; None: any but none.
TOGETHER: dict[str, tuple[str, Any]] = {
    key: (other, value)
    for keys, other, value in (
        ("eval_steps", "eval_strategy", "steps"),
        ("save_steps", "save_strategy", "steps"),
        ("logging_steps", "logging_strategy", "steps"),
        ("early_stopping_threshold", "early_stopping_patience", None),
        ("gradient_checkpointing_kwargs", "gradient_checkpointing", True),
        ("fsdp_config", "fsdp", None),
        ("run_name", "report_to", None),
        ("project trackio_space_id trackio_bucket_id", "report_to", "trackio"),
        ("trackio_static_space_id", "report_to", "trackio"),
        ("dataloader_in_order dataloader_persistent_workers", "dataloader_num_workers", None),
        ("dataloader_multiprocessing_context", "dataloader_num_workers", None),
    )
    for key in keys.split()
}


def settings(recipe: Recipe) -> dict[str, Any]:
    """Return the recipe's training section completed by ldt's defaults, as a new dict; idempotent.

    Beyond `DEFAULTS`: a step has 8 inputs over all processes; evaluation and saving happen
    together, after each epoch or as one of them is set; the best weights are loaded at the end;
    bf16 "auto" is true on CUDA devices with bfloat16 instructions unless fp16 is set; with
    per_device_train_batch_size "auto", gradient_accumulation_steps is the number of inputs per step
    and becomes the batch.

    Raises:
        RecipeError: keys are wrong, contradict each other, the task or the device, need a package
            that is missing, or ask for an evaluation without evaluation data.
    """
    check_training(recipe.training, recipe.places)
    _check_combinations(recipe)
    check_smoothing(recipe)
    check_reports(recipe)
    for key, value in _fixed(recipe).items():
        if recipe.training.get(key, value) != value:
            raise _refusal(recipe, key, f"is always {quote(value)}; leave it out")
    values = DEFAULTS | _by_one_name(recipe)
    if values.get("fp16") and not on_cuda(values):
        why = "runs on CUDA, the training on cpu; training.bf16=true runs there"
        raise _refusal(recipe, "fp16", why)
    if values.setdefault("bf16", "auto" if on_cuda(values) else False) == "auto":
        values["bf16"] = not values.get("fp16") and _multiplies_bfloat16(values)
    if values.get("lora") is not None:
        values["lora"] = lora.filled(recipe, values)
    automatic = is_automatic(recipe)
    if automatic:
        values["per_device_train_batch_size"] = 1
    _fill_steps(recipe, values)
    if automatic:  # all inputs of a step are one batch, of which memory holds all or a part
        values["per_device_train_batch_size"] = values["gradient_accumulation_steps"]
        values["gradient_accumulation_steps"] = 1
    if recipe.data.eval or recipe.data.eval_fraction:
        try:
            if recipe.task.answers.scorer:
                recipe.task.answers.scorer()
        except UserError as error:
            raise RecipeError(f"{recipe.where('task', 'name')}: {error}") from None
        _fill_evaluation(recipe, values)
    else:
        # Without an evaluation set there is no best step: what needs one is refused.
        none = values.get("eval_strategy") == "no"
        for key in EVALUATION:
            idle_too = none and key == "eval_steps"
            if values.pop(key, None) not in (None, False, 0, "no") and not idle_too:
                raise _refusal(recipe, key, "needs data.eval or data.eval_fraction")
        if values.setdefault("save_strategy", "epoch") == "best":
            why = "best needs data.eval or data.eval_fraction"
            raise _refusal(recipe, "save_strategy", why)
    _check_together(recipe, values)
    return values


def is_automatic(recipe: Recipe) -> bool:
    """True if ``training.per_device_train_batch_size`` is "auto": chosen by available memory."""
    return recipe.training.get("per_device_train_batch_size") == "auto"


def _refusal(recipe: Recipe, key: str, why: str) -> RecipeError:
    return RecipeError(f"{recipe.where('training', key)}: {why}")


def _check_combinations(recipe: Recipe) -> None:
    training = recipe.training
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if recipe.model.attention == "triton" and not interpreted and not on_cuda(training):
        raise RecipeError(
            f"{recipe.where('model', 'attention')}: triton runs on CUDA, the training on cpu; "
            "model.attention=blocked runs there"
        )
    if is_automatic(recipe) and processes.count() > 1:
        why = "auto is for a single process, here are several; give a number"
        raise _refusal(recipe, "per_device_train_batch_size", why)
    shards = next((key for key in ("fsdp", "deepspeed") if training.get(key)), None)
    compiled = next((key for key in _COMPILE if training.get(key)), None)
    for key in ("train_batch_tokens", compiled):
        if key and training.get(key) and shards:
            raise _refusal(recipe, key, f"does not go with {shards}; leave one of them out")
    if compiled and (
        recipe.task.reads.kind == "characters" or isinstance(recipe.task, WritingTask)
    ):
        why = "layers of character models and encoder-decoders are not compiled; leave it out"
        raise _refusal(recipe, compiled, why)


def _by_one_name(recipe: Recipe) -> dict[str, Any]:
    """The training section with aliases of keys resolved."""
    values = dict(recipe.training)
    for new, old in NEW_NAMES.items():
        if new in values and values.setdefault(old, values.pop(new)) != recipe.training[new]:
            raise _refusal(recipe, new, f"{old} is {quote(values[old])}; leave one of them out")
    return values


def _fill_steps(recipe: Recipe, values: dict[str, Any]) -> None:
    corpus = recipe.data if isinstance(recipe.data, CorpusSection) else None
    tokens = corpus and corpus.tokens_per_step
    inputs = values["per_device_train_batch_size"] * processes.count()
    wanted = max(1, DOCUMENTS_A_STEP // inputs)
    if tokens:
        wanted = max(1, round(tokens / (inputs * recipe.data.max_length)))
    if values.setdefault("gradient_accumulation_steps", wanted) != wanted and tokens:
        why = f"data.tokens_per_step makes it {wanted}; leave one of them out"
        raise _refusal(recipe, "gradient_accumulation_steps", why)
    if corpus and corpus.streaming:
        if values.get("max_steps", -1) < 1:
            raise _refusal(recipe, "max_steps", "missing; a stream has no end of its own")
        values.setdefault("save_strategy", "steps")


def _fill_evaluation(recipe: Recipe, values: dict[str, Any]) -> None:
    """Make evaluation and saving happen together, so that the best weights can be loaded."""
    asked = [values.get(key) for key in ("eval_strategy", "save_strategy")]
    strategy = next((item for item in asked if item in ("epoch", "steps")), "epoch")
    values.setdefault("eval_strategy", strategy)
    values.setdefault("save_strategy", strategy)
    if values["eval_strategy"] == values["save_strategy"] == "steps":
        every = values.get("eval_steps") or values.get("save_steps") or 500
        values.setdefault("eval_steps", every)
        values.setdefault("save_steps", every)
    both = values["eval_strategy"] != "no" and values["save_strategy"] in (strategy, "best")
    values.setdefault("load_best_model_at_end", both)
    if values.get("early_stopping_patience") and not values["load_best_model_at_end"]:
        why = "needs load_best_model_at_end and evaluation"
        raise _refusal(recipe, "early_stopping_patience", why)


def arguments(
    recipe: Recipe, training: dict[str, Any], run: Path, inputs: int, metric: str | None
) -> TrainingArguments:
    """Return transformers' TrainingArguments of a recipe, and refuse values that it cannot train
    with.

    Args:
        recipe: recipe, for its task and for messages.
        training: output of `settings`.
        run: the run folder.
        inputs: number of training inputs, for the interval of log lines; 0 for a stream.
        metric: metric for choosing the best weights if the recipe names none; None without an
            evaluation set.

    Raises:
        RecipeError: transformers refuses a value or a combination, or an optimizer, schedule or
            tracker is not available.
    """
    import torch

    values = {
        _newest_name(key): value for key, value in training.items() if key not in OWN_TRAINING_KEYS
    }
    values |= _fixed(recipe) | {"output_dir": str(run), "report_to": "none"}  # see `Reports`
    values.setdefault("run_name", run.name)
    values.setdefault("use_cpu", not torch.cuda.is_available())
    values.setdefault("ddp_find_unused_parameters", False)  # `_unused_parameters` are attached
    if metric:
        metric = values.get("metric_for_best_model") or metric
        values["metric_for_best_model"] = metric
        lower = metric.removeprefix("eval_") in LOWER_IS_BETTER
        values.setdefault("greater_is_better", not lower)
    steps = all_steps(values, inputs)
    values.setdefault("logging_steps", max(1, steps // LINES))
    with _refused(recipe.where("training")):
        args = TrainingArguments(**values)
    _check_parts(recipe, args, max(1, steps))
    # Or several processes would not take equally many whole inputs.
    for key, needed in (("dispatch_batches", False), ("even_batches", True)):
        if getattr(args.accelerator_config, key, None) not in (None, needed):
            why = f"{key} is always {quote(needed)}; leave it out"
            raise _refusal(recipe, "accelerator_config", why)
    return args


def steps_an_epoch(training: Mapping[str, Any], inputs: int) -> int:
    """Optimizer steps per epoch for a number of inputs; ``training`` is the output of
    `settings`."""
    together = training["per_device_train_batch_size"] * processes.count()
    return math.ceil(math.ceil(inputs / together) / training["gradient_accumulation_steps"])


def all_steps(training: Mapping[str, Any], inputs: int) -> int:
    """Optimizer steps of a whole training for a number of inputs: ``max_steps`` if positive, else
    those of all epochs. ``training`` is the output of `settings`."""
    steps = max(training.get("max_steps", 0), 0)
    return steps or math.ceil(steps_an_epoch(training, inputs) * training["num_train_epochs"])


def _newest_name(key: str) -> str:
    new = next((new for new, old in NEW_NAMES.items() if old == key), key)
    return new if new in TrainingArguments.__dataclass_fields__ else key


def _check_parts(recipe: Recipe, args: TrainingArguments, steps: int) -> None:
    """Create optimizer, schedule and trackers for a single weight, which reveals errors at once
    instead of after hours."""
    import torch

    if args.deepspeed:
        return  # its optimizer is made of the model's modules
    model = torch.nn.Sequential(torch.nn.Linear(1, 1))
    if args.optim_target_modules is not None:  # what they are is known of the model alone
        args = copy(args)
        args.optim_target_modules = "all-linear"
    if args.fsdp and args.parallel_mode != ParallelMode.DISTRIBUTED:
        raise _refusal(
            recipe,
            "fsdp",
            "shards a model over several processes; torchrun --nproc-per-node 2 -m ldt finetune "
            "RECIPE starts two",
        )
    if args.torch_compile:
        with _refused(recipe.where("training", "torch_compile")):
            backend = args.torch_compile_backend or "inductor"
            compiled = torch.compile(model[0], backend=backend, mode=args.torch_compile_mode)
            compiled(torch.zeros(1, 1))  # which asks for a compiler of C++, and for Triton on CUDA
    with _refused(recipe.where("training", "optim")):
        cls, options = Plain.get_optimizer_cls_and_kwargs(args, cast(Any, model))
        optimizer = cls(**{"params": model.parameters()} | options)
    with _refused(recipe.where("training", "lr_scheduler_type")):
        warmup = args.get_warmup_steps(steps)
        schedule = get_scheduler(
            args.lr_scheduler_type, optimizer, warmup, steps, cast(Any, args.lr_scheduler_kwargs)
        )
        for factor in getattr(schedule, "lr_lambdas", ()):
            for step in (warmup, (warmup + steps) // 2, steps):
                if not math.isfinite(factor(step)):
                    raise ValueError(f"no finite learning rate at step {step:,}")


@contextmanager
def _refused(where: str) -> Iterator[None]:
    """Turn any error of a library in the block into a one-line RecipeError."""
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Exception as error:  # KeyError, AttributeError, OSError ... by version and value
        plain = isinstance(error, ValueError | TypeError | ImportError | RuntimeError)
        kind = "" if plain else f"{type(error).__name__}: "
        raise RecipeError(f"{where}: {kind}{first_line(error)}") from error


def check_smoothing(recipe: Recipe, config: Any = None) -> None:
    """Raise RecipeError if label smoothing is set but labels are not single classes.

    Args:
        recipe: the recipe.
        config: config of the model, once the kind of labels is known.
    """
    if not recipe.training.get("label_smoothing_factor"):
        return
    task, where = recipe.task, recipe.where("training", "label_smoothing_factor")
    if isinstance(task, Weighted) and (key := task.weighs_by):
        raise RecipeError(f"{where}: does not go with task.{key}; leave one of them out")
    several = isinstance(task, Deciding) and task.problem_of(config) != SINGLE
    if several or not task.inputs.one_class:
        raise RecipeError(
            f"{where}: is for labels of one class each, as in token_classification and "
            f"single_label classification, and this {task.name} has others; leave it out"
        )


def on_cuda(training: Mapping[str, Any]) -> bool:
    """True if CUDA is available and the training section does not set ``use_cpu``."""
    import torch

    return torch.cuda.is_available() and not training.get("use_cpu")


def _multiplies_bfloat16(training: Mapping[str, Any]) -> bool:
    import torch

    if on_cuda(training):
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return has_bfloat16()


def precision(training: Mapping[str, Any]) -> str:
    """Line for the log: number format of a training and the key that changes it, such as
    ``precision: bf16; training.bf16=false trains in float32``. ``training`` is the output of
    `settings`."""
    if training.get("fp16"):
        return "precision: fp16, as training.fp16 says"
    if training["bf16"]:
        return "precision: bf16; training.bf16=false trains in float32"
    faster = "; training.bf16=true is faster here" if _multiplies_bfloat16(training) else ""
    return f"precision: float32{faster}"


def _fixed(recipe: Recipe) -> dict[str, Any]:
    return FIXED | {"label_names": list(recipe.task.inputs.label_names)}


def _check_together(recipe: Recipe, values: Mapping[str, Any]) -> None:
    """Refuse a key that has no effect next to the others."""
    usual = {field.name: field.default for field in fields(TrainingArguments)} | DEFAULTS
    for key, (other, needed) in TOGETHER.items():
        value = values.get(other, getattr(usual.get(other), "value", usual.get(other)))
        names = value if isinstance(value, list) else [value]
        acts = needed in names if needed else any(n not in (None, 0, "", "none") for n in names)
        acts = acts or value == "no"  # as a strategy, which says it plainly
        if values.get(key) not in (None, usual.get(key)) and not acts:
            what = f"{other}: {quote(needed)}" if needed else other
            why = (
                f"acts with {what} alone, and {other} is {quote(value)}; leave it out, or set that"
            )
            raise _refusal(recipe, key, why)
    orders = [
        ("task.sample", isinstance(recipe.task, Deciding) and recipe.task.balanced),
        ("data.streaming", getattr(recipe.data, "streaming", False)),
    ]
    for key, random in (("train_sampling_strategy", "random"), ("data_seed", None)):
        for other, is_set in orders:
            if is_set and values.get(key) not in (None, random):
                why = f"{other} decides the order of the inputs; leave one of them out"
                raise _refusal(recipe, key, why)
