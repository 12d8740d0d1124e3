"""Names that other tools have for keys of a recipe, options and commands."""

from collections.abc import Iterable

from ldt.data.options import OPTIONS
from ldt.errors import did_you_mean
from ldt.recipe.model import MODELS
from ldt.recipe.training import REFUSED, training_section

# Key of another tool -> key of a recipe.
KEYS = {
    **dict.fromkeys(
        ("model_name_or_path", "base_model", "model_name", "model_id", "pretrained_model"),
        "model.path",
    ),
    **dict.fromkeys(("attn_implementation", "flash_attention"), "model.attention"),
    "attention_window": "model.window",
    **dict.fromkeys(
        ("train_file", "dataset", "datasets", "dataset_name", "train_data", "train_dataset"),
        "data.train",
    ),
    **dict.fromkeys(
        ("validation_file", "eval_file", "dev_file", "val_file", "test_datasets", "eval_dataset"),
        "data.eval",
    ),
    **dict.fromkeys(
        ("val_set_size", "validation_split", "validation_split_percentage", "test_size"),
        "data.eval_fraction",
    ),
    **dict.fromkeys(("text_column", "text_column_name", "dataset_text_field"), "data.text"),
    **dict.fromkeys(("label_column", "label_column_name", "target_column"), "data.label"),
    **dict.fromkeys(
        ("max_length", "max_seq_length", "max_seq_len", "sequence_len", "max_source_length"),
        "data.max_length",
    ),
    **dict.fromkeys(("model_max_length", "cutoff_len", "block_size"), "data.max_length"),
    **dict.fromkeys(("doc_stride", "chunk_overlap"), "data.stride"),
    "truncation": "data.overflow",
    "max_target_length": "task.max_target_tokens",
    "mlm_probability": "task.mask_fraction",
    "class_weight": "task.class_weights",
    **dict.fromkeys(("output", "output_path", "save_dir", "run_dir"), "training.output_dir"),
    **dict.fromkeys(
        ("micro_batch_size", "batch_size", "train_batch_size", "per_gpu_train_batch_size"),
        "training.per_device_train_batch_size",
    ),
    **dict.fromkeys(
        ("eval_batch_size", "val_batch_size", "per_gpu_eval_batch_size"),
        "training.per_device_eval_batch_size",
    ),
    **dict.fromkeys(
        ("accumulate_grad_batches", "gradient_accumulation", "grad_accum"),
        "training.gradient_accumulation_steps",
    ),
    **dict.fromkeys(
        ("epochs", "num_epochs", "max_epochs", "n_epochs"), "training.num_train_epochs"
    ),
    "lr": "training.learning_rate",
    **dict.fromkeys(("lr_scheduler", "scheduler"), "training.lr_scheduler_type"),
    **dict.fromkeys(("warmup", "warmup_ratio", "num_warmup_steps"), "training.warmup_steps"),
    "optimizer": "training.optim",
    **dict.fromkeys(("gradient_clip_val", "clip_grad_norm"), "training.max_grad_norm"),
    **dict.fromkeys(("evaluation_strategy", "eval_every"), "training.eval_strategy"),
    **dict.fromkeys(("patience", "early_stopping"), "training.early_stopping_patience"),
    **dict.fromkeys(("mixed_precision", "precision", "torch_dtype", "dtype"), "training.bf16"),
    "group_by_length": "training.train_sampling_strategy",
    "no_cuda": "training.use_cpu",
    **dict.fromkeys(("random_seed", "random_state"), "training.seed"),
    **dict.fromkeys(("adapter", "peft", "use_lora", "use_peft"), "training.lora"),
    **dict.fromkeys(("lora_r", "lora_rank"), "training.lora.r"),
    "lora_alpha": "training.lora.alpha",
    "lora_dropout": "training.lora.dropout",
    **dict.fromkeys(("lora_target_modules", "target_modules"), "training.lora.targets"),
}

# Command of another tool -> command of ldt.
COMMANDS = {
    **dict.fromkeys(("train", "fit", "tune", "fine-tune"), "finetune"),
    **dict.fromkeys(("eval", "test", "score", "validate"), "evaluate"),
    **dict.fromkeys(("infer", "inference", "classify", "generate"), "predict"),
    **dict.fromkeys(("new", "create"), "init"),
    **dict.fromkeys(("env", "info"), "doctor"),
}

# Command that another one does the work of -> how that is called.
MOVED = {
    "compare": "ldt report A B",
    "runs": "ldt report",
    "thresholds": "ldt evaluate RUN --choose-thresholds",
    "perplexity": "ldt evaluate MODEL --gold TEXT",
    "merge": "ldt predict --merge OUTPUT",
}


def key_of(name: str) -> str:
    """The dotted key of a recipe that has another tool's name, or this name in a section; "" for
    none; may import transformers."""
    if name in KEYS:
        return KEYS[name]
    for section, kinds in (("data", OPTIONS), ("model", MODELS)):
        if any(name in cls.model_fields for cls in kinds.values()):
            return f"{section}.{name}"
    return f"training.{name}" if name in training_section().model_fields else ""


def meant(name: str, section: str | None, names: Iterable[str]) -> str:
    """The end of a message about an unknown key of a section: what does its job, or the nearest of
    the names that there are; "" for nothing."""
    if line := REFUSED.get(name):
        return f"; {line}"
    key = KEYS.get(name, "").removeprefix(f"{section}.")
    return f", did you mean {key!r}?" if key else did_you_mean(name, names)


def unknown_option(option: str) -> str:
    """The end of a message about an unknown option of a command that takes keys of a recipe."""
    name = option.lstrip("-").partition("=")[0].replace("-", "_")
    if line := REFUSED.get(name):
        return f"; {line}"
    key = name if "." in name else key_of(name)
    return f", write {key}=VALUE" if key else ""
