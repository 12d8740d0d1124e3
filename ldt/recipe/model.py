"""The `model:` sections of a recipe, one for each kind of data that tasks learn from."""

from typing import Any

from pydantic import Field, model_validator

from ldt.data.options import PathText, Section, Window


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
