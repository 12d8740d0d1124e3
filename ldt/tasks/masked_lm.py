"""Masked language modelling: some tokens of a text are hidden, the model finds them again."""

import math
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from ldt.data.masking import Masker
from ldt.data.options import Length
from ldt.metrics.numbers import loss_and_bits
from ldt.tasks.base import AnyTask, TaskInputs, TaskReads


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
    inputs: ClassVar[TaskInputs] = TaskInputs(roles=("cls",), any_encoder=True)

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

    def head(self) -> type:
        from ldt.model import LdtForMaskedLM

        return LdtForMaskedLM

    def masker(self, tokenizer) -> Masker:
        """The masker that samples the masks."""
        return Masker(tokenizer, self.mask_fraction, self.whole_words)


def masked_lm_metrics(nats: float, masked: int, tokens: int, size: int) -> dict[str, float]:
    """Metrics of a masked LM.

    Args:
        nats: sum of the cross-entropy over the predicted tokens.
        masked: their number.
        tokens, size: tokens of the whole text without special ones, and its bytes in UTF-8.

    Returns:
        ``loss``, ``bits_per_token`` (what the paper calls BPC) and ``bits_per_byte`` of
        `ldt.metrics.numbers.loss_and_bits`; ``perplexity``: e to the loss. They say how well a
        token is told from the others around it, of both sides; a text cannot be stored in so few
        bits.
    """
    metrics = loss_and_bits(nats, masked, unit="token", units=tokens, size=size)
    return metrics | {"perplexity": math.exp(min(metrics["loss"], 700.0))}
