"""An answer with its evidence: the head of Longformer's HotpotQA."""

from dataclasses import dataclass
from typing import Unpack

import torch
from transformers.utils import ModelOutput, can_return_tuple

from ldt.attention.matmul import Linear
from ldt.model.base import EncoderInputs
from ldt.model.heads.base import ClassificationHead, Head
from ldt.model.heads.losses import counts, cross_entropy, weighted
from ldt.model.heads.markers import EvidenceHead, evidence_loss, known_evidence
from ldt.model.heads.spans import sides_loss, span_items, unpacked_sides
from ldt.model.packing import check_positions


@dataclass
class LdtEvidenceOutput(ModelOutput):
    """Output of `LdtForEvidenceAnswering`; what is not there has the dtype's least number. The
    last three are as in `LdtModelOutput`.

    Args:
        loss: scalar, None without labels.
        start_logits, end_logits: [b, n], of the tokens.
        type_logits: [b, num_labels], of the kinds of answers.
        paragraph_logits, sentence_logits: [b, paragraphs] and [b, sentences].
    """

    loss: torch.Tensor | None = None
    start_logits: torch.Tensor | None = None
    end_logits: torch.Tensor | None = None
    type_logits: torch.Tensor | None = None
    paragraph_logits: torch.Tensor | None = None
    sentence_logits: torch.Tensor | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None
    attentions: tuple[torch.Tensor, ...] | None = None
    global_attentions: tuple[torch.Tensor, ...] | None = None


class LdtForEvidenceAnswering(Head):
    """A span, yes or no; and which paragraphs and sentences say so.

    The head of Longformer's HotpotQA (Beltagy et al. 2020, arXiv:2004.05150, appendix D): start and
    end of a span by a linear layer, the kind of the answer at the first real token, and two
    feed-forward networks of two layers that score paragraphs and sentences, each at one token.

    The loss is a sum of four, weighted by ``config.evidence_weights``, or 1 each: ``span``, the
    mean of the two `span_loss`; ``type``, a cross entropy; ``paragraphs`` and ``sentences``,
    binary cross entropies. Each is a mean over what has a label, and 0 where nothing has.

    ``global_attention_mask=None`` means no global attention.
    """

    def __init__(self, config):
        super().__init__(config)
        self.qa_outputs = Linear(config.hidden_size, 2)
        self.type_classifier = ClassificationHead(config)
        self.paragraph_classifier = EvidenceHead(config)
        self.sentence_classifier = EvidenceHead(config)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids,
        attention_mask=None,
        global_attention_mask=None,
        token_type_ids=None,
        *,
        paragraph_positions=None,
        sentence_positions=None,
        start_positions=None,
        end_positions=None,
        labels=None,
        paragraph_labels=None,
        sentence_labels=None,
        num_items_in_batch=None,
        **kwargs: Unpack[EncoderInputs],
    ):
        """Answer each row.

        Args:
            input_ids, attention_mask, global_attention_mask, token_type_ids: [b, n], as in
                `LdtModel.forward`.
            paragraph_positions, sentence_positions: [b, k] int64, the token of each, -100 where a
                row has fewer.
            start_positions, end_positions: [b, spans] int64, all that are right, -100 where a row
                has fewer.
            labels: [b] int64, the kind of the answer, -100 for none.
            paragraph_labels, sentence_labels: [b, k] int64, 1 of evidence, else 0; -100 for none.
            num_items_in_batch: `loss_items` of all batches of an optimizer step; the loss is
                divided by it in place of that of this batch.

        Returns:
            `LdtEvidenceOutput`, or the tuple of what is not None in it. The loss is None unless
            all five labels are given.

        Raises:
            ValueError: besides those of `LdtModel`: no positions, or one outside of the input.
        """
        places = paragraph_positions, sentence_positions
        for positions in places:
            if positions is None:
                raise ValueError("give paragraph_positions and sentence_positions, a token of each")
            check_positions(positions, input_ids.shape[1])
        inputs = input_ids, attention_mask, global_attention_mask, token_type_ids
        x, packing, others = self.encode(*inputs, **kwargs)
        start, end = sides = unpacked_sides(self.qa_outputs(x), packing)
        kind = self.type_classifier(packing.first(x))
        x = packing.unpack(x)
        heads = self.paragraph_classifier, self.sentence_classifier
        paragraphs, sentences = (head(x, at) for head, at in zip(heads, places, strict=True))
        loss, golds = None, (start_positions, end_positions, paragraph_labels, sentence_labels)
        if labels is not None and all(gold is not None for gold in golds):
            starts, ends, types, *evidence = counts(num_items_in_batch, 5)
            losses = {
                "span": sides_loss(sides, golds[:2], packing.real(), (starts, ends)),
                "type": cross_entropy(kind, labels.to(kind.device), types),
                "paragraphs": evidence_loss(paragraphs, paragraph_labels, places[0], evidence[0]),
                "sentences": evidence_loss(sentences, sentence_labels, places[1], evidence[1]),
            }
            loss = weighted(losses, self.config.evidence_weights)
        return LdtEvidenceOutput(loss, start, end, kind, paragraphs, sentences, **others)

    def loss_items(self, *, labels, input_ids, attention_mask=None, **inputs):
        """[5] int64: rows with a right start, a right end and a kind; labels of paragraphs and of
        sentences."""
        sides = inputs["start_positions"], inputs["end_positions"]
        evidence = [
            known_evidence(inputs[f"{part}_labels"], inputs[f"{part}_positions"]).sum()
            for part in ("paragraph", "sentence")
        ]
        others = torch.stack([(labels != -100).sum(), *evidence])
        return torch.cat([span_items(sides, input_ids.shape, attention_mask), others])
