"""ldt models on padded batches in plain operators, for export; see `ldt.attention.padded`."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ldt.attention import padded
from ldt.model.base import Packing
from ldt.model.config_file import all_numbers
from ldt.model.encoders.modernbert import LdtModernBertModel
from ldt.model.heads.classification import (
    LdtForSequenceClassification,
    LdtForTokenClassification,
)
from ldt.model.heads.embedding import LdtForEmbedding
from ldt.model.heads.questions import LdtForQuestionAnswering
from ldt.model.heads.ranking import LdtForCandidateRanking, LdtForMultipleChoice
from ldt.model.heads.rows import after_first
from ldt.model.layers import LdtModel

ENCODERS = (LdtModel, LdtModernBertModel)
HEADS = (
    LdtForSequenceClassification,
    LdtForTokenClassification,
    LdtForQuestionAnswering,
    LdtForMultipleChoice,
    LdtForCandidateRanking,
    LdtForEmbedding,
)
OUTPUTS = ("logits", "vectors")  # ends of names


@dataclass(frozen=True, eq=False)
class _PaddedPacking(Packing):
    """`Packing` of a batch that keeps all padding."""

    def reduce(self, x, reduction):
        """`Packing.reduce` without segment operators."""
        x, real = x.unflatten(0, self.shape), self.layout.keep[:, :, None]
        if reduction == "mean":
            return torch.where(real, x, 0.0).sum(1) / real.sum(1).clamp(min=1)
        return torch.where(real, x, torch.finfo(x.dtype).min).amax(1)


class PaddedModel(nn.Module):
    """Head in operators that ONNX and OpenVINO have, for inference.

    Equals the head for any padding; rows without a real token are undefined. Memory is linear in
    length, except in full layers of a ModernBERT.

    Args:
        model: ldt head in float32 that `refused` accepts.
        globals_: global tokens: ``none``; ``first``, the first real token of each row;
            ``question``, all before the first separator; ``given``, by a mask.
    """

    def __init__(self, model: Any, globals_: str):
        super().__init__()
        self.model, self.globals_ = model, globals_

    def forward(
        self,
        input_ids,
        attention_mask,
        global_attention_mask=None,
        token_type_ids=None,
        positions=None,
    ):
        """Dict of logits or vectors, by the names of the head's output.

        Args:
            input_ids, attention_mask, global_attention_mask, token_type_ids: [b, n] int64; the
                third one only if global tokens are ``given``.
            positions: [b, candidates] int64, for candidate ranking.
        """
        for one, other in zip(input_ids.shape, attention_mask.shape, strict=True):
            torch._check(one == other)  # else a graph takes them for four free numbers
        keep = attention_mask != 0
        place = torch.arange(keep.shape[1], device=keep.device)
        first, far = keep.int().argmax(1), None
        if self.globals_ == "first":
            far = padded.one_a_row(first, keep)
        elif self.globals_ == "question":
            separator = keep & (input_ids == self.model.config.sep_token_id)
            far = padded.any_number(keep & ~after_first(separator, 0))
        elif self.globals_ == "given":
            far = padded.any_number(keep & (global_attention_mask != 0))
        layout = padded.PaddedLayout.of(keep, far)
        # The packing says which tokens are global; a mask keeps the head from looking for them.
        inputs = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "global_attention_mask": attention_mask,
            "token_type_ids": token_type_ids,
            "packing": _PaddedPacking(layout, layout.rows, None, self.globals_ == "first"),
        }
        if positions is not None:
            inputs["positions"] = positions
        if isinstance(self.model.base_model, LdtModernBertModel):
            inputs["position_ids"] = place - first[:, None]
        return {name: x for name, x in self.model(**inputs).items() if name.endswith(OUTPUTS)}


def refused(model: Any) -> str | None:
    """Name of a part of the model that `PaddedModel` lacks, for a message; None if it supports
    everything."""
    config = model.config
    if type(model.base_model) not in ENCODERS:
        return f"the encoder {type(model.base_model).__name__}"
    if not isinstance(model, HEADS):
        return f"the head {type(model).__name__}"
    if set(all_numbers(getattr(config, "attention_dilation", 1))) != {1}:
        return "dilated attention"
    others = "causal", "clip_global_distances"
    return next((name for name in others if getattr(config, name, False)), None)
