"""Heads that score passages of a document at their markers, beside a class or an answer."""

from dataclasses import dataclass
from typing import Unpack

import torch
from transformers.utils import ModelOutput, can_return_tuple

from ldt.attention.matmul import Linear
from ldt.model.base import EncoderInputs
from ldt.model.heads.base import ClassificationHead, Head
from ldt.model.heads.losses import counts, cross_entropy, weighted
from ldt.model.heads.markers import (
    EvidenceHead,
    evidence_loss,
    known_evidence,
    one_passage_loss,
)
from ldt.model.heads.spans import sides_loss, span_items, unpacked_sides
from ldt.model.packing import check_positions


@dataclass
class LdtPassageOutput(ModelOutput):
    """Output of `LdtForEvidenceClassification` and `LdtForPassageAnswering`; what is not there has
    the dtype's least number. The last three are as in `LdtModelOutput`.

    Args:
        loss: scalar, None without labels.
        logits: [b, num_labels], of the classes.
        passage_logits: [b, passages].
        start_logits, end_logits: [b, n], of the tokens; None where no answer is cut out.
    """

    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    passage_logits: torch.Tensor | None = None
    start_logits: torch.Tensor | None = None
    end_logits: torch.Tensor | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None
    attentions: tuple[torch.Tensor, ...] | None = None
    global_attentions: tuple[torch.Tensor, ...] | None = None


class LdtForEvidenceClassification(Head):
    """A class for each row, and which passages it rests on.

    The class is read at the first real token, a passage at its marker, as in Span NLI BERT
    (Koreeda and Manning 2021, arXiv:2110.01799, section 4). The loss is a sum, weighted by
    ``config.evidence_weights``, or 1 each: ``class``, a cross entropy, and ``passages``, by
    ``config.passage_loss`` one of

    - ``each``: a binary cross entropy of each passage, the mean over those that have a label;
    - ``one``: `one_passage_loss`, where one passage is right, or none.

    Each is 0 where nothing has a label. ``global_attention_mask=None`` means no global attention.
    """

    def __init__(self, config):
        super().__init__(config)
        self.classifier = ClassificationHead(config)
        self.passage_classifier = EvidenceHead(config)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids,
        attention_mask=None,
        global_attention_mask=None,
        token_type_ids=None,
        *,
        passage_positions=None,
        labels=None,
        passage_labels=None,
        num_items_in_batch=None,
        **kwargs: Unpack[EncoderInputs],
    ):
        """Classify each row.

        Args:
            input_ids, attention_mask, global_attention_mask, token_type_ids: [b, n], as in
                `LdtModel.forward`.
            passage_positions: [b, k] int64, the marker of each, -100 where a row has fewer.
            labels: [b] int64, -100 for none.
            passage_labels: [b, k] int64, 1 of a right passage, else 0; -100 for none.
            num_items_in_batch: `loss_items` of all batches of an optimizer step; the loss is
                divided by it in place of that of this batch.

        Returns:
            `LdtPassageOutput`, or the tuple of what is not None in it. The loss is None unless
            both labels are given.

        Raises:
            ValueError: besides those of `LdtModel`: no positions, or one outside of the input.
        """
        inputs = input_ids, attention_mask, global_attention_mask, token_type_ids
        x, packing, more = self._read(passage_positions, *inputs, **kwargs)
        logits, passages = self._scores(x, packing, passage_positions)
        loss = None
        if labels is not None and passage_labels is not None:
            golds = (logits, labels), (passages, passage_labels, passage_positions)
            losses = self._losses(*golds, *counts(num_items_in_batch, 2))
            loss = weighted(losses, self.config.evidence_weights)
        return LdtPassageOutput(loss, logits, passages, **more)

    def loss_items(self, *, labels, passage_labels, passage_positions, **inputs):
        """[2] int64: rows that have a class; labels of passages, or rows that have any."""
        known = known_evidence(passage_labels, passage_positions)
        if self.config.passage_loss == "one":
            known = known.any(1)
        return torch.stack([(labels != -100).sum(), known.sum()])

    def _read(self, positions, input_ids, *inputs, **kwargs):
        """Outputs of the encoder, once the positions are known to be there."""
        if positions is None:
            raise ValueError("give passage_positions, the marker of each")
        check_positions(positions, input_ids.shape[1])
        return self.encode(input_ids, *inputs, **kwargs)

    def _scores(self, x, packing, positions):
        """Logits of the classes and of the passages."""
        logits = self.classifier(packing.first(x))
        return logits, self.passage_classifier(packing.unpack(x), positions)

    def _losses(self, classes, passages, class_count, passage_count):
        """The losses by their names, each of logits and labels."""
        logits, labels = classes
        loss = one_passage_loss if self.config.passage_loss == "one" else evidence_loss
        return {
            "class": cross_entropy(logits, labels.to(logits.device), class_count),
            "passages": loss(*passages, passage_count),
        }


class LdtForPassageAnswering(LdtForEvidenceClassification):
    """A span of the document with the kind of the answer, and the passages it rests on.

    To `LdtForEvidenceClassification` come start and end of a span by a linear layer, as in
    BERT-joint (Alberti et al. 2019, arXiv:1901.08634), and a loss ``span``, the mean of the two
    `span_loss`.
    """

    def __init__(self, config):
        super().__init__(config)
        self.qa_outputs = Linear(config.hidden_size, 2)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids,
        attention_mask=None,
        global_attention_mask=None,
        token_type_ids=None,
        *,
        passage_positions=None,
        start_positions=None,
        end_positions=None,
        labels=None,
        passage_labels=None,
        num_items_in_batch=None,
        **kwargs: Unpack[EncoderInputs],
    ):
        """Answer each row, as `LdtForEvidenceClassification.forward`.

        Args:
            start_positions, end_positions: [b, spans] int64, all that are right, -100 where a row
                has fewer. A row without an answer may point to its first token.

        Returns:
            `LdtPassageOutput`, or the tuple of what is not None in it. The loss is None unless
            all four labels are given.
        """
        inputs = input_ids, attention_mask, global_attention_mask, token_type_ids
        x, packing, more = self._read(passage_positions, *inputs, **kwargs)
        logits, passages = self._scores(x, packing, passage_positions)
        start, end = sides = unpacked_sides(self.qa_outputs(x), packing)
        loss, golds = None, (start_positions, end_positions, labels, passage_labels)
        if all(gold is not None for gold in golds):
            starts, ends, *others = counts(num_items_in_batch, 4)
            span = sides_loss(sides, golds[:2], packing.real(), (starts, ends))
            scored = (logits, labels), (passages, passage_labels, passage_positions)
            losses = {"span": span} | self._losses(*scored, *others)
            loss = weighted(losses, self.config.evidence_weights)
        return LdtPassageOutput(loss, logits, passages, start, end, **more)

    def loss_items(self, *, input_ids, attention_mask=None, **inputs):
        """[4] int64: rows with a right start, and a right end; then those of
        `LdtForEvidenceClassification.loss_items`."""
        sides = inputs["start_positions"], inputs["end_positions"]
        others = super().loss_items(**inputs)
        return torch.cat([span_items(sides, input_ids.shape, attention_mask), others])
