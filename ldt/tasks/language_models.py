"""Pretraining on plain text: masked language modelling, and modelling of characters or bytes."""

import math
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from ldt.data.masking import Masker
from ldt.data.options import LONGEST, MOST, Count, Epochs, Length, Rate, Section
from ldt.metrics.numbers import loss_and_bits
from ldt.tasks.base import AnyTask, TaskAnswers, TaskInputs, TaskReads

Span = Annotated[int, Field(le=LONGEST)]  # the rest is for the model to say, phase by phase


class MaskedLM(AnyTask):
    """Pretraining on plain text: 15 % of the tokens are predicted from the text around them.

    Masks are sampled anew in every epoch. Special tokens are never chosen.

    Args:
        global_attention: ``[cls]`` gives the first token of every row global attention and trains
            its projections; without, they become copies of the local ones when training is over,
            as in the paper.
        mask_fraction: expected share of the tokens that are predicted.
        whole_words: whether all tokens of a word are predicted together.
        trainable: ``all`` weights, or only the ``positions`` that conversion added; all else is
            frozen.
        source_length: tokens that the model read before it was made longer; goes with
            ``trainable: positions``.
    """

    reads: ClassVar[TaskReads] = TaskReads(kind="corpus")
    inputs: ClassVar[TaskInputs] = TaskInputs(
        head="LdtForMaskedLM", roles=("cls",), any_encoder=True
    )

    name: Literal["mlm"] = "mlm"
    global_attention: list[Literal["cls"]] = []
    mask_fraction: float = Field(0.15, gt=0, lt=1)
    whole_words: bool = False
    trainable: Literal["all", "positions"] = "all"
    source_length: Length | None = None

    @model_validator(mode="after")
    def _positions(self):
        if (self.trainable == "positions") != (self.source_length is not None):
            raise ValueError("trainable: positions and source_length go together")
        return self

    def masker(self, tokenizer) -> Masker:
        """The masker that samples the masks."""
        return Masker(tokenizer, self.mask_fraction, self.whole_words)


def masked_lm_metrics(nats: float, masked: int, tokens: int, size: int) -> dict[str, float]:
    """``loss``, ``bits_per_token`` (what the paper calls BPC) and ``bits_per_byte`` of
    `ldt.metrics.numbers.loss_and_bits`, and ``perplexity``, e to the loss: how well a token is told
    from the others around it, of both sides; a text cannot be stored in so few bits.

    Args:
        nats: sum of the cross-entropy over the predicted tokens.
        masked: their number.
        tokens, size: tokens of the whole text without special ones, and its bytes in UTF-8.
    """
    metrics = loss_and_bits(nats, masked, unit="token", units=tokens, size=size)
    return metrics | {"perplexity": math.exp(min(metrics["loss"], 700.0))}


class Phase(Section):
    """A part of a staged training, which begins with the weights of the phase before.

    A key that is none goes on from the phase before, in the first phase from the recipe's sections.

    Args:
        length: characters of an input; none doubles the length of the phase before.
        window: attention window as in ``model.window``; none doubles that of the phase before.
        learning_rate: highest learning rate; none halves that of the phase before.
        steps: optimizer steps; excludes `epochs`.
        epochs: passes over the text; excludes `steps`.
        batch: inputs of an optimizer step, over all processes; none keeps their number.
    """

    length: int | None = Field(default=None, ge=2, le=LONGEST)
    window: Span | list[Span] | None = None
    learning_rate: Rate | None = None
    steps: Count | None = None
    epochs: Epochs | None = None
    batch: Count | None = None

    @model_validator(mode="after")
    def _one_length(self):
        if self.steps is not None and self.epochs is not None:
            raise ValueError("steps and epochs exclude each other")
        return self


class Sampling(Section):
    """Options for continuing a prompt; a line of prompts may have its own value for each.

    Args:
        length: characters (or bytes) to add.
        temperature: number that logits are divided by; 0 takes the most probable character.
        top_k: number of the most probable characters to sample among; none takes all.
        seed: seed of the sampling; what is sampled for a prompt depends on it and the prompt's id.
    """

    length: Length = 200
    temperature: float = Field(default=1.0, ge=0, le=MOST)
    top_k: Count | None = None
    seed: int = Field(default=0, ge=0, le=2**64 - 1)


class CharacterLM(AnyTask):
    """A causal model of characters or bytes, pretrained on plain text and sampled from.

    Args:
        vocabulary: ``characters`` are those of the text (27 of text8); ``bytes`` are all 256, for
            text in any encoding (enwik8).
        phases: phases of a staged training (Beltagy et al. 2020, arXiv:2004.05150, section 4.1);
            without any, training has one phase.
        eval_length: characters of the overlapping sequences in which the text of the evaluation is
            read; none takes the length of the inputs.
        eval_step: characters at the end of each sequence that are scored (all of the first
            sequence); none takes half of `eval_length`.
        sampling: options by which `ldt predict` continues a prompt.
    """

    reads: ClassVar[TaskReads] = TaskReads(kind="characters")
    inputs: ClassVar[TaskInputs] = TaskInputs(head="LdtForCausalLM")
    answers: ClassVar[TaskAnswers] = TaskAnswers(keys=("text",))

    name: Literal["charlm"] = "charlm"
    vocabulary: Literal["characters", "bytes"] = "characters"
    phases: list[Phase] = Field([], max_length=100)
    eval_length: int | None = Field(None, ge=2, le=LONGEST)
    eval_step: Length | None = None
    sampling: Sampling = Sampling()

    @model_validator(mode="after")
    def _step_fits(self):
        if self.eval_length and self.eval_step and self.eval_step >= self.eval_length:
            raise ValueError(
                f"eval_step must be below eval_length, {self.eval_length}, got {self.eval_step}"
            )
        return self


def character_lm_metrics(nats: float, scored: int, characters: int, size: int) -> dict[str, float]:
    """``loss``, ``bits_per_character`` and ``bits_per_byte`` (`loss_and_bits`), by the sum of the
    cross-entropy, the scored characters, those of the text, and its bytes in UTF-8."""
    return loss_and_bits(nats, scored, unit="character", units=characters, size=size)
