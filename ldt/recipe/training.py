"""The `training:` section of a recipe: the keys of transformers.TrainingArguments and ldt's own."""

import dataclasses
import functools
import typing
from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from ldt.data.options import MOST, Count, Epochs, Names, PathText, Section


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
    "lora": Lora | None,
    "early_stopping_patience": Count | None,
    "early_stopping_threshold": Annotated[float, Field(ge=0)],
    "train_batch_tokens": Count | None,  # of each process at a time, see `MicroBatches`
}

# What transformers calls two keys from 5.2x on, beside the names that it had and ldt keeps.
NEW_NAMES = {
    "activation_checkpointing": "gradient_checkpointing",
    "activation_checkpointing_kwargs": "gradient_checkpointing_kwargs",
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
    "fsdp": bool | str | None,  # true is what its documentation says
    "output_dir": PathText | None,
    "resume_from_checkpoint": PathText | None,
    "per_device_train_batch_size": _Batch | Literal["auto"],  # see `ldt.training.arguments`
    "per_device_eval_batch_size": _Batch,
    "gradient_accumulation_steps": Count,
    "eval_accumulation_steps": Count | None,
    "torch_empty_cache_steps": Count | None,
    "num_train_epochs": Epochs,
    "max_steps": Annotated[int, Field(ge=-1, le=MOST)],
    "warmup_steps": _Steps,
    "logging_steps": _Steps,
    "eval_steps": _Steps | None,
    "save_steps": _Steps,
    "eval_delay": _Steps,
    "save_total_limit": Annotated[int, Field(ge=0, le=MOST)] | None,
    "learning_rate": _Weight,
    "weight_decay": _Weight,
    "adam_beta1": _Decay,
    "adam_beta2": _Decay,
    "adam_epsilon": _Weight,
    "max_grad_norm": Annotated[float, Field(ge=0, allow_inf_nan=True)],  # .inf measures only
    "label_smoothing_factor": _Decay,
    "neftune_noise_alpha": _Weight | None,
    "seed": _Seed,
    "data_seed": _Seed | None,
    "dataloader_num_workers": Annotated[int, Field(ge=0, le=256)],
    "dataloader_prefetch_factor": Annotated[int, Field(ge=1, le=1024)] | None,
    "dataloader_multiprocessing_context": Literal["fork", "forkserver", "spawn"] | None,
    "ddp_bucket_cap_mb": Annotated[int, Field(ge=1, le=1 << 20)] | None,
    "ddp_timeout": Annotated[int, Field(ge=1, le=10**9)],  # seconds
    "local_rank": Annotated[int, Field(ge=-1, le=1 << 20)],
    "log_level": _Level,
    "log_level_replica": _Level,
    "report_to": str | list[str],
    "accelerator_config": PathText | dict | None,
}


@functools.cache
def training_section() -> type[BaseModel]:
    """A model whose fields are the keys of the section with their types; imports transformers."""
    from transformers import TrainingArguments

    hints = typing.get_type_hints(TrainingArguments)
    types = {
        item.name: hints[item.name] for item in dataclasses.fields(TrainingArguments) if item.init
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
