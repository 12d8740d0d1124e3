"""The `training:` section of a recipe: the keys of transformers.TrainingArguments and ldt's own."""

import dataclasses
import functools
import typing
from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

OWN_TRAINING_KEYS: dict[str, Any] = {
    "early_stopping_patience": Annotated[int, Field(ge=1)] | None,
    "early_stopping_threshold": Annotated[float, Field(ge=0)],
}

# Further values than the annotations of TrainingArguments have.
WIDER_TYPES: dict[str, Any] = {
    "bf16": bool | Literal["auto"],  # see `ldt.training.arguments`
    "fsdp": bool | str | None,  # true is what its documentation says
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
    types |= WIDER_TYPES | OWN_TRAINING_KEYS
    config = ConfigDict(extra="forbid", arbitrary_types_allowed=True, protected_namespaces=())
    fields: dict[str, Any] = {name: (hint, None) for name, hint in types.items()}
    return create_model("Training", __config__=config, **fields)
