"""Pretraining on plain text: masked, and character-level language modelling."""

import math
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from ldt.data.masking import Masker
from ldt.data.options import LONGEST, MOST, Count, Epochs, Length, Rate, Section
from ldt.metrics.numbers import loss_and_bits
from ldt.tasks.base import AnyTask, TaskAnswers, TaskInputs, TaskReads

Span = Annotated[int, Field(le=LONGEST)]  # the rest is for the model to say, phase by phase


class MaskedLM(AnyTask):
    """Masked language modelling: 15 % of the tokens are predicted from the text around them.

    Masks are drawn anew in every epoch. Special tokens are never masked.

    Args:
        global_attention: ``[cls]`` gives the first token of every row global attention and trains
            its projections; without it they are set to copies of the local ones at the end of
            training, as in the paper.
        mask_fraction: expected share of predicted tokens.
        whole_words: True predicts all tokens of a word together.
        trainable: ``all`` weights, or only the ``positions`` added by conversion; everything else
            is frozen.
        source_length: number of tokens the model read before it was made longer; for ``trainable:
            positions``.
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
        """Return the function that masks token ids as the recipe asks."""
        return Masker(tokenizer, self.mask_fraction, self.whole_words)


def masked_lm_metrics(nats: float, masked: int, tokens: int, size: int) -> dict[str, float]:
    """Return ``loss`` in nats per predicted token, ``bits_per_token`` (the paper's BPC),
    ``bits_per_byte`` (`ldt.metrics.numbers.loss_and_bits`) and ``perplexity``, e to the loss. Since
    masked tokens are predicted from both sides, these are not code lengths of the text.

    Args:
        nats: sum of the cross-entropy over the predicted tokens.
        masked: number of predicted tokens.
        tokens, size: tokens of the whole text without special tokens, and its UTF-8 bytes.
    """
    metrics = loss_and_bits(nats, masked, unit="token", units=tokens, size=size)
    return metrics | {"perplexity": math.exp(min(metrics["loss"], 700.0))}


class Phase(Section):
    """Phase of a staged training, which starts from the weights of the previous one.

    Keys without a value continue from the previous phase, in the first phase from the recipe.

    Args:
        length: characters of an input; none doubles that of the previous phase.
        window: attention window as in ``model.window``; none doubles that of the previous phase.
        learning_rate: peak learning rate; none halves that of the previous phase.
        steps: optimizer steps; excludes `epochs`.
        epochs: passes over the text; excludes `steps`.
        batch: inputs of an optimizer step, over all processes; none keeps the number.
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
    """Options for continuing a prompt; each prompt may override them.

    Args:
        length: characters (or bytes) to add.
        temperature: divisor of the logits; 0 takes the most probable character.
        top_k: number of most probable characters to sample from; none uses all.
        seed: seed of the sampling; samples depend on it and on the prompt's id.
    """

    length: Length = 200
    temperature: float = Field(default=1.0, ge=0, le=MOST)
    top_k: Count | None = None
    seed: int = Field(default=0, ge=0, le=2**64 - 1)


class CharacterLM(AnyTask):
    """Causal character or byte model, pretrained on plain text, for sampling.

    Args:
        vocabulary: ``characters`` are those of the text (27 for text8); ``bytes`` are all 256, for
            text in any encoding (enwik8).
        phases: phases of a staged training (Beltagy et al. 2020, arXiv:2004.05150, section 4.1);
            without any, training has one phase.
        eval_length: characters of the overlapping sequences for evaluation; none uses the input
            length.
        eval_step: scored characters at the end of each sequence (all in the first one); none uses
            half of `eval_length`.
        sampling: options with which `ldt predict` continues a prompt.
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
    """Return ``loss`` in nats, ``bits_per_character`` and ``bits_per_byte`` (`loss_and_bits`), from
    the summed cross-entropy ``nats`` of ``scored`` characters, and characters and UTF-8 bytes
    (``size``) of the text."""
    return loss_and_bits(nats, scored, unit="character", units=characters, size=size)
