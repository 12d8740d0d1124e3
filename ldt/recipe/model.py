"""The model and data sections of a recipe: those of fine-tuning, and those of pretraining."""

from typing import Any

from pydantic import Field, field_validator, model_validator

from ldt.data.options import CharacterSection, CorpusSection, DataSection, Section


class ModelSection(Section):
    """Where the model is and how its attention is computed.

    Args:
        path: folder of a model, or its id on the hub; `load` expands ``~``.
        attention: name of an attention backend, or ``auto``.
        window: tokens in reach on both sides together, even; one number, or one per layer.
            None keeps the model's own.
    """

    path: str | None = None
    attention: str = "auto"
    window: int | list[int] | None = None

    @field_validator("window")
    @classmethod
    def _even(cls, window):
        for size in window if isinstance(window, list) else [window]:
            if size is not None and (size < 2 or size % 2):
                raise ValueError(f"must be even and at least 2, got {size}")
        return window


class NewTokenizer(Section):
    """A byte-level BPE to be trained; ``vocab_size`` counts the 5 special tokens and 256 bytes."""

    vocab_size: int = Field(ge=261)


class PretrainedModelSection(ModelSection):
    """The model that pretraining goes on with, or begins with.

    Args:
        path: a masked LM to go on with; excludes `config` and `tokenizer`.
        config: of a model from scratch: fields of `ldt.model.LdtConfig`, such as hidden_size,
            num_hidden_layers, num_attention_heads. The vocabulary is that of the tokenizer, the
            position table has room for ``data.max_length``, the window is `window`.
        tokenizer: of a model from scratch: a folder that holds one, or ``{vocab_size: N}``, which
            trains a byte-level BPE on the training documents.
    """

    config: dict[str, Any] | None = None
    tokenizer: str | NewTokenizer | None = None

    @model_validator(mode="after")
    def _old_or_new(self):
        for key in ("config", "tokenizer"):
            if self.path is not None and getattr(self, key) is not None:
                raise ValueError(f"path and {key} exclude each other: go on, or from scratch")
        if (self.config is None) != (self.tokenizer is None):
            raise ValueError("a model from scratch needs both config and tokenizer")
        return self


class CharacterModelSection(ModelSection):
    """The character model that training goes on with, or begins with.

    Args:
        path: a character model to go on with; excludes `config`.
        config: of a model from scratch: fields of `ldt.model.LdtCausalConfig`, such as hidden_size,
            num_hidden_layers, num_attention_heads, attention_dilation. The vocabulary is that of
            the text, the windows are `window`.
    """

    config: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _old_or_new(self):
        if self.path is not None and self.config is not None:
            raise ValueError("path and config exclude each other: go on, or from scratch")
        return self


# command, or a task's own name for them -> its model and data sections
OF = {
    "finetune": (ModelSection, DataSection),
    "pretrain": (PretrainedModelSection, CorpusSection),
    "characters": (CharacterModelSection, CharacterSection),
}


def of(task: Any) -> tuple[type[ModelSection], type[Section]]:
    """The model and data sections of a task; of an unknown one those of fine-tuning."""
    command = getattr(task, "command", "finetune")
    return OF[getattr(task, "sections", command)]
