"""Names that other tools have for keys of a recipe, options and commands."""

from collections.abc import Iterable

from ldt.data.options import OPTIONS
from ldt.errors import did_you_mean
from ldt.recipe.sections import MODELS, REFUSED, training_section


def _by_name(names: dict[str, str]) -> dict[str, str]:
    return {other: name for name, others in names.items() for other in others.split()}


# Key of another tool -> key of a recipe.
KEYS = _by_name(
    {
        "model.path": "model_name_or_path base_model model_name model_id pretrained_model",
        "model.attention": "attn_implementation flash_attention",
        "model.window": "attention_window",
        "data.train": "train_file dataset datasets dataset_name train_data train_dataset",
        "data.eval": "validation_file eval_file dev_file val_file test_datasets eval_dataset",
        "data.eval_fraction": "val_set_size validation_split validation_split_percentage test_size",
        "data.text": "text_column text_column_name dataset_text_field",
        "data.label": "label_column label_column_name target_column",
        "data.max_length": "max_length max_seq_length max_seq_len sequence_len max_source_length "
        "model_max_length cutoff_len block_size",
        "data.stride": "doc_stride chunk_overlap",
        "data.overflow": "truncation",
        "task.max_target_tokens": "max_target_length",
        "task.mask_fraction": "mlm_probability",
        "task.class_weights": "class_weight",
        "training.output_dir": "output output_path save_dir run_dir",
        "training.per_device_train_batch_size": "micro_batch_size "
        "batch_size train_batch_size per_gpu_train_batch_size",
        "training.per_device_eval_batch_size": "eval_batch_size "
        "val_batch_size per_gpu_eval_batch_size",
        "training.gradient_accumulation_steps": "accumulate_grad_batches "
        "gradient_accumulation grad_accum",
        "training.num_train_epochs": "epochs num_epochs max_epochs n_epochs",
        "training.learning_rate": "lr",
        "training.lr_scheduler_type": "lr_scheduler scheduler",
        "training.warmup_steps": "warmup warmup_ratio num_warmup_steps",
        "training.optim": "optimizer",
        "training.max_grad_norm": "gradient_clip_val clip_grad_norm",
        "training.eval_strategy": "evaluation_strategy eval_every",
        "training.early_stopping_patience": "patience early_stopping",
        "training.bf16": "mixed_precision precision torch_dtype dtype",
        "training.train_sampling_strategy": "group_by_length",
        "training.use_cpu": "no_cuda",
        "training.seed": "random_seed random_state",
        "training.lora": "adapter peft use_lora use_peft",
        "training.lora.r": "lora_r lora_rank",
        "training.lora.alpha": "lora_alpha",
        "training.lora.dropout": "lora_dropout",
        "training.lora.targets": "lora_target_modules target_modules",
    }
)

# Command of another tool -> command of ldt.
COMMANDS = _by_name(
    {
        "finetune": "train fit tune fine-tune",
        "evaluate": "eval test score validate",
        "predict": "infer inference classify generate",
        "init": "new create",
        "doctor": "env info",
    }
)

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
