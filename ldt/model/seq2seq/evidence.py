"""An LED that writes an answer and says on which passages it rests."""

from dataclasses import dataclass

import torch
from torch.nn import functional as F
from transformers.modeling_outputs import Seq2SeqLMOutput
from transformers.utils import can_return_tuple

from ldt.attention.matmul import Linear
from ldt.model.heads.losses import counts, exact, mean, weighted
from ldt.model.heads.markers import known_evidence
from ldt.model.packing import check_positions
from ldt.model.seq2seq.model import LdtForConditionalGeneration


@dataclass
class LdtEvidenceGenerationOutput(Seq2SeqLMOutput):
    """transformers' Seq2SeqLMOutput of `LdtForEvidenceGeneration`.

    Args:
        passage_logits: [b, passages], the dtype's least number where there is none; None without
            positions.
    """

    passage_logits: torch.Tensor | None = None


class LdtForEvidenceGeneration(LdtForConditionalGeneration):
    """An answer that is written, and which passages of the document are its evidence.

    To `LdtForConditionalGeneration` comes a linear layer of two outputs, other and evidence, on the
    encoder's state at the token in front of a passage (Dasigi et al. 2021, arXiv:2105.03011,
    section 4.1). A passage is evidence where its logit, the second less the first, is above 0.

    The loss is a sum of two, weighted by ``config.evidence_weights``, or 1 each: ``answer``, that
    of `LdtForConditionalGeneration`, and ``passages``, `balanced_loss`.
    """

    def __init__(self, config):
        super().__init__(config)
        self.evidence_classifier = Linear(config.d_model, 2)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        decoder_input_ids=None,
        decoder_attention_mask=None,
        encoder_outputs=None,
        global_attention_mask=None,
        past_key_values=None,
        inputs_embeds=None,
        decoder_inputs_embeds=None,
        labels=None,
        use_cache=None,
        output_attentions=None,
        output_hidden_states=None,
        num_items_in_batch=None,
        packing=None,
        passage_positions=None,
        passage_labels=None,
    ):
        """`LdtForConditionalGeneration.forward`, and passages.

        Args:
            passage_positions: [b, k] int64, the token of each passage, -100 where a row has fewer.
                None: passages are not asked for.
            passage_labels: [b, k] int64, 1 of evidence, else 0; -100 for none.
            num_items_in_batch: `loss_items` of all batches of an optimizer step; the loss is
                divided by it in place of that of this batch.

        Returns:
            `LdtEvidenceGenerationOutput`, or the tuple of what is not None in it. The loss is that
            of the answer alone without ``passage_labels``, and None without ``labels``.

        Raises:
            ValueError: besides those of `LdtSeq2SeqModel`: a position outside of the input, or
                labels of passages without positions.
        """
        if passage_labels is not None and passage_positions is None:
            raise ValueError("give passage_positions, the token in front of each passage")
        answers = passages = num_items_in_batch
        if num_items_in_batch is not None and passage_labels is not None:
            answers, passages = counts(num_items_in_batch, 2)
        out = super().forward(
            input_ids,
            attention_mask,
            decoder_input_ids,
            decoder_attention_mask,
            encoder_outputs,
            global_attention_mask,
            past_key_values,
            inputs_embeds,
            decoder_inputs_embeds,
            labels,
            use_cache,
            output_attentions,
            output_hidden_states,
            answers,
            packing,
            return_dict=True,
        )
        loss, found = out.loss, None
        if passage_positions is not None:
            found = self.passage_logits(out.encoder_last_hidden_state, passage_positions)
        if loss is not None and passage_labels is not None:
            evidence = balanced_loss(found, passage_labels, passage_positions, passages)
            losses = {"answer": loss, "passages": evidence}
            loss = weighted(losses, self.config.evidence_weights)
        return LdtEvidenceGenerationOutput(**{**out, "loss": loss, "passage_logits": found})

    def passage_logits(self, states, positions):
        """[b, k] of the encoder's states [b, n, width] and positions [b, k], the dtype's least
        number where a position is below 0.

        Raises:
            ValueError: a position outside of the input.
        """
        check_positions(positions, states.shape[1])
        places = positions.clamp(min=0).unsqueeze(-1).expand(-1, -1, states.shape[-1])
        other, evidence = self.evidence_classifier(states.gather(1, places)).unbind(-1)
        logits = evidence - other
        return logits.masked_fill(positions < 0, torch.finfo(logits.dtype).min)

    def loss_items(self, *, labels, passage_labels=None, passage_positions=None, **inputs):
        """[2] int64: labels of answers; rows with a labelled passage. Scalar, the first alone,
        without labels of passages."""
        answers = super().loss_items(labels=labels)
        if passage_labels is None:
            return answers
        return torch.stack(
            [answers, known_evidence(passage_labels, passage_positions).any(1).sum()]
        )


def balanced_loss(logits, labels, positions, count=None):
    """Cross entropy in which the evidence of a row counts as its other passages do together.

    Of a row with p passages that are evidence and n that are not, each of the first counts n + 1
    and each of the others p + 1; the weighted mean over them, and the mean of it over rows with a
    labelled passage. 0 where there is none.

    Args:
        logits, labels, positions: [b, k]; labels 1 of evidence, else 0, -100 for none.
        count: divides in place of the number of rows.

    Source: Dasigi et al. 2021 (arXiv:2105.03011), their code, which has a row in a batch.
    """
    labels = labels.to(logits.device)
    known = known_evidence(labels, positions.to(logits.device))
    right = known & (labels == 1)
    ones = right.sum(1, keepdim=True)
    zeros = known.sum(1, keepdim=True) - ones
    logits = exact(logits).masked_fill(~known, 0)
    weights = torch.where(right, zeros + 1, ones + 1).masked_fill(~known, 0).to(logits.dtype)
    each = F.binary_cross_entropy_with_logits(
        logits, right.to(logits.dtype), weights, reduction="none"
    )
    total = weights.sum(1)
    rows = each.sum(1) / (total + (total == 0))
    return mean(rows.sum(), known.any(1).sum(), count)
