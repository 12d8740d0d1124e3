"""Outputs of the models, with the fields of transformers' Longformer."""

from dataclasses import dataclass

import torch
from transformers.utils import ModelOutput


@dataclass
class LdtModelOutput(ModelOutput):
    """Output of the base model; n is the padded length, d the width.

    Args:
        last_hidden_state: [b, n, d], zeros at padding.
        pooler_output: [b, d], from the first real token of each row; None without a pooler.
        hidden_states: embeddings and each layer's output, layers + 1 of [b, n, d], zeros at
            padding.
        attentions: one of [b, heads, n, x + window + 1] a layer, x being the largest number of
            global tokens in a row: what a token gives to the global tokens in order of position,
            then to the offsets -window/2 to window/2. Global keys stand in front only; rows of
            global tokens and of padding are zero. Before dropout.
        global_attentions: one of [b, heads, n, x] a layer: what the x-th global token gives to
            each token. None without global tokens. Other than in transformers, the length is n
            without rounding, and the columns that a row does not use are zero. Before dropout.
    """

    last_hidden_state: torch.Tensor | None = None
    pooler_output: torch.Tensor | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None
    attentions: tuple[torch.Tensor, ...] | None = None
    global_attentions: tuple[torch.Tensor, ...] | None = None


@dataclass
class LdtHeadOutput(ModelOutput):
    """Output of a head with one set of logits; the last three are as in `LdtModelOutput`.

    Args:
        loss: scalar, None without labels.
        logits: the shape is in the head's docstring.
    """

    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None
    attentions: tuple[torch.Tensor, ...] | None = None
    global_attentions: tuple[torch.Tensor, ...] | None = None


@dataclass
class LdtQuestionAnsweringOutput(ModelOutput):
    """Output of the heads that answer questions; None for the parts that a head lacks, the dtype's
    least number at padding and where a row has fewer. The last three are as in `LdtModelOutput`.

    Args:
        loss: scalar, None without labels.
        start_logits, end_logits: [b, n], of the tokens.
        logits: [b, num_labels], of the classes.
        passage_logits, sentence_logits: [b, k], at the markers.
    """

    loss: torch.Tensor | None = None
    start_logits: torch.Tensor | None = None
    end_logits: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    passage_logits: torch.Tensor | None = None
    sentence_logits: torch.Tensor | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None
    attentions: tuple[torch.Tensor, ...] | None = None
    global_attentions: tuple[torch.Tensor, ...] | None = None
