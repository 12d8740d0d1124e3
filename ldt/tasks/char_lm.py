"""Character language modelling: each character or byte of a text is predicted from those before."""

from collections.abc import Iterable
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ldt.errors import UserError
from ldt.metrics.numbers import loss_and_bits
from ldt.tasks.base import AnyTask


class Phase(BaseModel):
    """A part of a staged training, which begins with the weights of the phase before.

    What is None goes on from the phase before, the first phase from the recipe's sections.

    Args:
        length: of an input, in characters; None doubles it.
        window: as ``model.window``; None doubles it.
        learning_rate: None halves it.
        steps, epochs: how long; None keeps it.
        batch: inputs an optimizer step, over all processes; None keeps it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    length: int | None = Field(default=None, ge=2)
    window: int | list[int] | None = None
    learning_rate: float | None = Field(default=None, gt=0)
    steps: int | None = Field(default=None, ge=1)
    epochs: float | None = Field(default=None, gt=0)
    batch: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _one_length(self):
        if self.steps is not None and self.epochs is not None:
            raise ValueError("steps and epochs exclude each other")
        return self


class Sampling(BaseModel):
    """Options for continuing a prompt; a line of prompts may have its own value for each.

    Args:
        length: characters (or bytes) to add.
        temperature: what logits are divided by; 0 takes the most probable character.
        top_k: draw among so many of the most probable ones; None among all.
        seed: of the draws; those of a prompt depend on it and on the prompt's id.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    length: int = Field(default=200, ge=1)
    temperature: float = Field(default=1.0, ge=0)
    top_k: int | None = Field(default=None, ge=1)
    seed: int = 0


class CharacterLM(AnyTask):
    """A causal model of characters or bytes, pretrained on plain text and sampled from.

    Args:
        vocabulary: ``characters`` are those of the text (27 of text8); ``bytes`` are all 256, for
            text in any encoding (enwik8).
        phases: of a staged training (Beltagy et al. 2020, arXiv:2004.05150, section 4.1); without,
            training has one.
        eval_length, eval_step: the text of the evaluation is read in overlapping sequences of
            ``eval_length`` characters, of which the last ``eval_step`` are scored (all of the first
            one). None: the length of the inputs, and half of it.
        sampling: how `ldt predict` continues a prompt.
    """

    kind: ClassVar[str] = "characters"
    lower_is_better: ClassVar[frozenset[str]] = frozenset(
        {"loss", "bits_per_character", "bits_per_byte"}
    )

    name: Literal["charlm"] = "charlm"
    vocabulary: Literal["characters", "bytes"] = "characters"
    phases: list[Phase] = []
    eval_length: int | None = Field(None, ge=2)
    eval_step: int | None = Field(None, ge=1)
    sampling: Sampling = Sampling()

    @model_validator(mode="after")
    def _step_fits(self):
        if self.eval_length and self.eval_step and self.eval_step >= self.eval_length:
            raise ValueError(
                f"eval_step must be below eval_length, {self.eval_length}, got {self.eval_step}"
            )
        return self

    def published(self, answers: Iterable[dict]) -> Any:
        """Raise UserError: there is no published layout."""
        raise UserError("continued prompts are JSON lines; name the output .jsonl, not .json")

    def head(self) -> type:
        from ldt.model import LdtForCausalLM

        return LdtForCausalLM


def character_lm_metrics(nats: float, scored: int, characters: int, size: int) -> dict[str, float]:
    """``loss``, ``bits_per_character`` (bpc) and ``bits_per_byte`` of a character model.

    They are those of `ldt.metrics.numbers.loss_and_bits`; of a model of bytes a character is a
    byte.

    Args:
        nats: sum of the cross-entropy over the scored characters.
        scored: their number.
        characters, size: of the text, and its bytes in UTF-8.
    """
    return loss_and_bits(nats, scored, unit="character", units=characters, size=size)
