"""Generation settings of a recipe, and the configuration of a model by them."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from ldt.data.options import Length, Section

# What belongs to a model and its tokenizer, and stays as it is.
_OWN = (
    *("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"),
    *("forced_bos_token_id", "forced_eos_token_id"),
)


class Generation(Section):
    """The search for a text, by the names that transformers' GenerationConfig has for it.

    Lengths are in tokens, special ones included, and that which the decoder starts with.

    Args:
        num_beams: beams of the search; 1 takes the likeliest token at each place.
        length_penalty: power of its length that a text's log probability is divided by; above 1
            favours long ones.
        early_stopping: end of the search: as soon as ``num_beams`` texts are finished (``true``),
            when no better one is likely (``false``), or when none is possible (``never``).
        max_length: longest text; none is the 95th percentile of the training set.
        max_new_tokens: the same without the token that the decoder starts with.
        min_length: shortest text.
        min_new_tokens: the same without the token that the decoder starts with.
        no_repeat_ngram_size: tokens in a row that a text has once at most; 0 allows all. It holds
            for names and numbers too.
        encoder_no_repeat_ngram_size: tokens in a row of the input that a text must not have; 0
            allows all.
        repetition_penalty: divisor of the odds of tokens that the text has; 1 changes nothing.
        encoder_repetition_penalty: factor of the odds of tokens that the input has; 1 changes
            nothing.
    """

    num_beams: int = Field(default=4, ge=1, le=1024)
    length_penalty: float = Field(default=1.0, ge=-100, le=100)
    early_stopping: bool | Literal["never"] = False
    max_length: Length | None = None
    max_new_tokens: Length | None = None
    min_length: int = Field(default=0, ge=0, le=1 << 24)
    min_new_tokens: Length | None = None
    no_repeat_ngram_size: int = Field(default=3, ge=0, le=1 << 24)
    encoder_no_repeat_ngram_size: int = Field(default=0, ge=0, le=1 << 24)
    repetition_penalty: float = Field(default=1.0, gt=0, le=1e6)
    encoder_repetition_penalty: float = Field(default=1.0, gt=0, le=1e6)

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        if self.max_length is not None and self.max_new_tokens is not None:
            raise ValueError("max_length and max_new_tokens exclude each other")
        if self.num_beams == 1:
            for name in ("length_penalty", "early_stopping"):
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise ValueError(f"{name} compares beams, num_beams is 1")
        shortest = max(self.min_length, (self.min_new_tokens or 0) + 1)
        if self.longest is not None and shortest > self.longest:
            raise ValueError(f"a text of {shortest:,} tokens at least and {self.longest:,} at most")
        return self

    @property
    def longest(self) -> int | None:
        """Tokens of the longest text, the decoder's first one among them; None: by the data."""
        return self.max_length or (self.max_new_tokens and self.max_new_tokens + 1)

    def settings(self, longest: int) -> dict[str, Any]:
        """Arguments of a GenerationConfig.

        Args:
            longest: text where the recipe does not say.
        """
        values = self.model_dump(exclude_none=True)
        if self.num_beams == 1:
            del values["length_penalty"], values["early_stopping"]
        return values | ({} if self.longest else {"max_length": longest})


def configure(model, settings: dict[str, Any]) -> None:
    """Have a model write by these settings; its special tokens stay those that it has."""
    from transformers import GenerationConfig

    own = {name: getattr(model.generation_config, name) for name in _OWN}
    model.generation_config = GenerationConfig(**own, **settings)


def wordless(count: int, total: int) -> str | None:
    """Warning where so many texts of all are empty or a single token; None if they are not the
    most."""
    if 2 * count <= total:
        return None
    return (
        f"{count:,} of {total:,} summaries are empty or a single token: the model has not learnt "
        "to write; more steps or another training.learning_rate may do"
    )


def greedy(config):
    """A copy of a GenerationConfig that takes the likeliest token at each place."""
    from transformers import GenerationConfig

    values = config.to_dict() | {"num_beams": 1, "length_penalty": None, "early_stopping": None}
    return GenerationConfig.from_dict(values)
