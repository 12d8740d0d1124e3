"""Sections `model:` and `training:` of a recipe, and descriptions of its keys."""

import dataclasses
import functools
import inspect
import re
import typing
from collections.abc import Iterable
from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator

from ldt.data.options import MOST, OPTIONS, Count, Epochs, Names, PathText, Section, Window
from ldt.errors import did_you_mean, documented


class ModelSection(Section):
    """A model to fine-tune: where it is and how its attention is computed.

    Args:
        path: folder of a model, or its id on the hub; a leading ``~`` is the home folder. Labels
            that its head knows by name keep their rows, the others start anew.
        attention: attention backend; ``auto`` takes the fast one on the device.
        window: tokens that a token sees, both sides together; even; one number, or one per layer.
            None keeps the model's own.
    """

    path: PathText | None = None
    attention: str = "auto"
    window: Window | None = None


class NewTokenizer(Section):
    """A byte-level BPE to be trained on the text.

    Args:
        vocab_size: entries of the vocabulary, the 5 special tokens and 256 bytes among them.
    """

    vocab_size: int = Field(ge=261, le=1 << 24)


class CharacterModelSection(ModelSection):
    """The character model that training goes on with, or begins with.

    Args:
        path: a character model to go on with; excludes `config`.
        config: config of a model from scratch: fields of `ldt.model.LdtCausalConfig`, such as
            hidden_size, num_hidden_layers, num_attention_heads, attention_dilation. The vocabulary
            is that of the text, the windows are `window`.
    """

    config: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _old_or_new(self) -> Any:
        for key in ("config", "tokenizer"):
            if self.path is not None and getattr(self, key, None) is not None:
                raise ValueError(f"path and {key} exclude each other: go on, or from scratch")
        return self


class PretrainedModelSection(CharacterModelSection):
    """The masked LM that pretraining goes on with, or begins with.

    Args:
        path: a masked LM to go on with; excludes `config` and `tokenizer`.
        config: config of a model from scratch: fields of `ldt.model.LdtConfig`, such as
            hidden_size, num_hidden_layers, num_attention_heads; with ``model_type: modernbert``
            those of `ldt.model.LdtModernBertConfig`. The vocabulary is that of the tokenizer, the
            longest input ``data.max_length``, the window of a Longformer is `window`.
        tokenizer: tokenizer of a model from scratch: a folder that holds one, or
            ``{vocab_size: N}``, which trains a byte-level BPE on the training documents.
    """

    tokenizer: PathText | NewTokenizer | None = None

    @model_validator(mode="after")
    def _both(self) -> Any:
        if (self.config is None) != (self.tokenizer is None):
            raise ValueError("a model from scratch needs both config and tokenizer")
        return self


MODELS: dict[str, type[ModelSection]] = {  # by `TaskReads.kind`
    "examples": ModelSection,
    "corpus": PretrainedModelSection,
    "characters": CharacterModelSection,
}


class Lora(Section):
    """A LoRA adapter that is trained in place of the encoder's weights, with the head; takes
    ``pip install 'ldt-toolkit[lora]'``.

    Args:
        r: rank of the two matrices that a layer gets.
        alpha: their product is multiplied by ``alpha / r``.
        dropout: share of a layer's input that the adapter does not see in training.
        targets: names of the layers that get one; or ``all-linear``, every linear layer of the
            encoder. None: all projections of the attention, local and global; of a decoder also
            q_proj and v_proj, those of queries and values.
    """

    r: int = Field(default=8, ge=1, le=1 << 16)
    alpha: float = Field(default=16.0, gt=0, le=1e6)
    dropout: float = Field(default=0.0, ge=0, lt=1)
    targets: Literal["all-linear"] | Names | None = None


OWN_TRAINING_KEYS: dict[str, Any] = {
    "lora": Annotated[
        Lora | None,
        Field(description="a LoRA adapter that is trained in place of the encoder's weights."),
    ],
    "early_stopping_patience": Annotated[
        Count | None,
        Field(description="evaluations without a gain after which training ends."),
    ],
    "early_stopping_threshold": Annotated[
        float, Field(ge=0, description="least difference of the metric that counts as a gain.")
    ],
    "train_batch_tokens": Annotated[
        Count | None,
        Field(
            description="tokens, padding included, that a process runs at a time: a step has the "
            "inputs that it has without, parted by length."
        ),
    ],
}

# What transformers calls two keys from 5.2x on, beside the names that it had and ldt keeps.
NEW_NAMES = {
    "activation_checkpointing": "gradient_checkpointing",
    "activation_checkpointing_kwargs": "gradient_checkpointing_kwargs",
}

# Keys of TrainingArguments by what does their job in ldt; the others act, or are fixed by
# `ldt.training.arguments.FIXED`.
_REASONS = {
    "a smaller batch changes what is learned; per_device_train_batch_size: auto does not": (
        "auto_find_batch_size"
    ),
    "evaluation computes as training.bf16 and training.fp16 say; ldt predict --precision bf16 "
    "answers in half precision": "bf16_full_eval fp16_full_eval",
    "a training evaluates on data.eval; ldt evaluate scores answers, ldt predict gives them": (
        "do_eval do_predict do_train"
    ),
    "--resume goes on, to be the same run; SIGTERM saves a checkpoint in every training": (
        "enable_jit_checkpoint ignore_data_skip resume_from_checkpoint"
    ),
    "a training uploads nothing; hf upload OWNER/NAME RUN does, once the run is finished": (
        "hub_always_push hub_model_id hub_private_repo hub_revision hub_strategy hub_token "
        "push_to_hub"
    ),
    "Liger has no kernels for this encoder; model.attention names ldt's": "liger_kernel_config",
    "torchrun --nproc-per-node 2 -m ldt finetune RECIPE starts two processes; training.fsdp shards "
    "the model over them": "local_rank parallelism_config",
    "one process writes the run folder, which all nodes have to see": "save_on_each_node",
    "ldt has its own way; leave it out": "eval_do_concat_batches eval_use_gather_object "
    "include_for_metrics length_column_name skip_memory_metrics use_cache",
}
REFUSED = {key: reason for reason, keys in _REASONS.items() for key in keys.split()}

# Key of another tool -> key of a recipe.
KEYS = {
    other: key
    for key, others in {
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
    }.items()
    for other in others.split()
}

_Batch = Annotated[int, Field(ge=1, le=1 << 20)]
_Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]  # what numpy takes
_Steps = Annotated[float, Field(ge=0, le=MOST)]  # below 1: a share of all steps
_Decay = Annotated[float, Field(ge=0, lt=1)]
_Weight = Annotated[float, Field(ge=0, le=1e6)]
_Level = Literal["passive", "detail", "debug", "info", "warning", "error", "critical"]

# Where the annotations of TrainingArguments are wider, or narrower, than what has a meaning.
TYPES: dict[str, Any] = {
    "bf16": bool | Literal["auto"],  # see `ldt.training.arguments`
    "debug": Literal["", "underflow_overflow"] | list[Literal["underflow_overflow"]],
    "fsdp": bool | str | None,  # true is what its documentation says
    "output_dir": PathText | None,
    "per_device_train_batch_size": _Batch | Literal["auto"],  # see `ldt.training.arguments`
    "per_device_eval_batch_size": _Batch,
    "gradient_accumulation_steps": Count,
    "eval_accumulation_steps": Count | None,
    "torch_empty_cache_steps": Count | None,
    "num_train_epochs": Epochs,
    "max_steps": Annotated[int, Field(ge=-1, le=MOST)],
    **dict.fromkeys(("warmup_steps", "logging_steps", "save_steps", "eval_delay"), _Steps),
    "eval_steps": _Steps | None,
    "save_total_limit": Annotated[int, Field(ge=0, le=MOST)] | None,
    **dict.fromkeys(("learning_rate", "weight_decay", "adam_epsilon"), _Weight),
    **dict.fromkeys(("adam_beta1", "adam_beta2", "label_smoothing_factor"), _Decay),
    "max_grad_norm": Annotated[float, Field(ge=0, allow_inf_nan=True)],  # .inf measures only
    "neftune_noise_alpha": _Weight | None,
    "seed": _Seed,
    "data_seed": _Seed | None,
    "dataloader_num_workers": Annotated[int, Field(ge=0, le=256)],
    "dataloader_prefetch_factor": Annotated[int, Field(ge=1, le=1024)] | None,
    "dataloader_multiprocessing_context": Literal["fork", "forkserver", "spawn"] | None,
    "ddp_bucket_cap_mb": Annotated[int, Field(ge=1, le=1 << 20)] | None,
    "ddp_timeout": Annotated[int, Field(ge=1, le=10**9)],  # seconds
    **dict.fromkeys(("log_level", "log_level_replica"), _Level),
    "report_to": str | list[str],
    "accelerator_config": PathText | dict | None,
}


@functools.cache
def training_section() -> type[BaseModel]:
    """pydantic model whose fields are the keys of the training section; imports transformers."""
    from transformers import TrainingArguments

    hints = typing.get_type_hints(TrainingArguments)
    types = {
        item.name: hints[item.name]
        for item in dataclasses.fields(TrainingArguments)
        if item.init and item.name not in REFUSED
    }
    for name, hint in types.items():
        branches = typing.get_args(hint)
        # Of ``Enum | str`` only the Enum, or any text would do.
        if any(isinstance(branch, type) and issubclass(branch, Enum) for branch in branches):
            types[name] = typing.Union[tuple(b for b in branches if b is not str)]  # noqa: UP007
    if "torch_compile_backend" in types:
        from accelerate.utils import DynamoBackend  # type: ignore[import-untyped]  # has no hints

        names = tuple(backend.value.lower() for backend in DynamoBackend)
        types["torch_compile_backend"] = Literal[names] | None
    types |= {new: types[old] for new, old in NEW_NAMES.items()}
    types |= {name: hint for name, hint in TYPES.items() if name in types} | OWN_TRAINING_KEYS
    config = ConfigDict(
        extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True, protected_namespaces=()
    )
    fields: dict[str, Any] = {name: (hint, None) for name, hint in types.items()}
    return create_model("Training", __config__=config, **fields)


# -- meanings


def summary(item: object) -> str:
    """First paragraph of an object's docstring, on one line; "" without one."""
    return " ".join((inspect.getdoc(item) or "").partition("\n\n")[0].split())


def meanings(cls: type) -> dict[str, str]:
    """Descriptions of the keys of a section or task, by name, from the ``Args:`` of the docstrings
    of its class and of those that it derives from."""
    from ldt.tasks.base import AnyTask

    known: dict[str, str] = {}
    if issubclass(cls, AnyTask) and cls.inputs.roles:
        names = ", ".join(f"``{role}``" for role in cls.inputs.roles)
        known["global_attention"] = (
            "segments whose tokens see the whole input and are seen by all of it; the segments of "
            f"this task are {names}."
        )
    for base in reversed(cls.__mro__):
        known |= documented(base.__dict__.get("__doc__") or "")
    return known


def training_meanings() -> dict[str, str]:
    """Descriptions of the training keys by name, from transformers' own; imports transformers.

    The first paragraph alone, the list of a key's values included.
    """
    from transformers import TrainingArguments

    text = inspect.cleandoc(TrainingArguments.__doc__ or "")
    entries = re.findall(r"^    (\w+) ?\(.*\):\n((?: {8}.*\n)+)", text, re.M)
    known = {name: " ".join(meaning.split()) for name, meaning in entries}
    ours = {name: training_section().model_fields[name] for name in OWN_TRAINING_KEYS}
    return known | {name: str(field.description) for name, field in ours.items()}


def meant(name: str, names: Iterable[str]) -> str:
    """End of a message about an unknown key, such as ``, did you mean 'seed'?``: the key to use
    instead, why there is none, or the most similar of ``names``; "" if nothing is known."""
    if key := KEYS.get(name):
        tail = key.partition(".")[2]
        return f", did you mean {(tail if tail in names else key)!r}?"
    return f"; {REFUSED[name]}" if name in REFUSED else did_you_mean(name, names)


def unknown_option(option: str) -> str:
    """End of a message about an unknown option, such as ``--lr``, of a command that takes keys of a
    recipe: the key to write (``, write training.learning_rate=VALUE``), why there is none, or a
    similar one; "" if nothing is known. May import transformers."""
    name = option.lstrip("-").partition("=")[0].replace("-", "_")
    keys = {key: f"training.{key}" for key in training_section().model_fields}
    for section, kinds in (("data", OPTIONS), ("model", MODELS)):
        keys |= {key: f"{section}.{key}" for cls in kinds.values() for key in cls.model_fields}
    if key := name if "." in name else (KEYS | keys).get(name):
        return f", write {key}=VALUE"
    return f"; {REFUSED[name]}" if name in REFUSED else did_you_mean(name, keys, keys.__getitem__)
