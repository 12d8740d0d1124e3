"""Where an answer stands in a document: the head for spans, and its loss."""

import copy

import torch

from ldt.model.encoders.longformer import LdtModel, LdtPreTrainedModel
from ldt.model.heads.by_document import by_row, share, takes_documents
from ldt.model.heads.default_globals import before_first
from ldt.model.layers import Linear
from ldt.model.outputs import LdtQuestionAnsweringOutput, answered


class LdtForQuestionAnswering(LdtPreTrainedModel):
    """Where an answer starts and ends; ``start_logits`` and ``end_logits`` are [b, n].

    ``global_attention_mask=None`` means global attention on every real token before the first
    separator of its row, that is on ``<s>`` and the question in ``<s> question </s> document </s>``
    and in ``<s> question </s></s> document </s>``. Differences from transformers'
    LongformerForQuestionAnswering, besides those of `LdtModel`:

    - any number of separators from one on will do, each row is looked at by itself;
    - padding does not compete: its logits are the dtype's least number, so a loss is that of the
      row without padding. Positions outside of a row's real tokens are ignored, as transformers
      ignores those outside of the input; a batch without any other has the loss 0 instead of nan;
    - a row may have several right positions, and several rows may be one document (`span_loss`);
    - ``num_labels`` is always 2: a config with another number is copied and changed.
    """

    def __init__(self, config):
        if config.num_labels != 2:
            config = copy.deepcopy(config)
            config.num_labels = 2
        super().__init__(config)
        self.longformer = LdtModel(config, add_pooling_layer=False)
        self.qa_outputs = Linear(config.hidden_size, 2)
        self.post_init()

    @takes_documents
    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        global_attention_mask=None,
        token_type_ids=None,
        position_ids=None,
        inputs_embeds=None,
        start_positions=None,
        end_positions=None,
        output_attentions=None,
        output_hidden_states=None,
        return_dict=None,
        example_ids=None,
    ):
        """`LdtModel.forward` with the right positions, and which rows are one document.

        Args:
            start_positions, end_positions: [b] int64; or [b, spans], all right ones, -100 where
                a row has fewer.
            example_ids: [b] int64 from 0, the document of each row; None: each is one of its own.
                Where rows share one, they are run one by one, so that memory does not grow with
                their number; hidden states and attentions are then not given.

        Returns:
            `LdtQuestionAnsweringOutput`, or the tuple of what is not None in it. The loss is the
            mean of the two `span_loss`, None unless both positions are given.

        Raises:
            ValueError: besides those of `LdtModel`: no ``global_attention_mask``, and a row has no
                separator or there are no ``input_ids``.
        """
        if global_attention_mask is None:
            global_attention_mask = before_first(self.config, input_ids, attention_mask)
        inputs = (
            input_ids,
            attention_mask,
            global_attention_mask,
            token_type_ids,
            position_ids,
            inputs_embeds,
        )
        if share(example_ids):
            (start, end, real), rest = by_row(lambda *row: self._sides(*row)[0], *inputs), {}
        else:
            found, rest = self._sides(*inputs, output_attentions, output_hidden_states)
            start, end, real = found
        loss = None
        if start_positions is not None and end_positions is not None:
            sides = (start, start_positions), (end, end_positions)
            loss = sum(span_loss(*side, real, example_ids) for side in sides) / 2
        output = LdtQuestionAnsweringOutput(loss, start, end, **rest)
        return answered(self, output, return_dict)

    def _sides(self, *inputs):
        """(start logits, end logits, real tokens), all [b, n]; and the encoder's other outputs."""
        x, _, packing, rest = self.longformer(*inputs, packed=True)
        logits = self.qa_outputs(x)
        logits = packing.unpack(logits, torch.finfo(logits.dtype).min)
        start, end = (side.contiguous() for side in logits.unbind(-1))
        return (start, end, packing.real()), rest


def span_loss(logits, positions, real, example_ids=None):
    """How improbable all right positions of a document together are: the OR loss.

    The logarithm of the sum of exp(logit) over all tokens of a document, less that over its right
    positions, each counted once; the mean over documents that have any, 0 where none has. With one
    right position and one row a document it is the cross entropy.

    Args:
        logits: [b, n], in any precision.
        positions: [b] or [b, spans] int64; those outside of a row's real tokens are ignored.
        real: [b, n] bool, False at padding, which does not compete.
        example_ids: [b] int64 from 0, the document of each row; None: each is one of its own.

    Returns:
        A scalar, at least 0. Documents without a right position have no gradient.

    Source: Clark & Gardner 2018 (arXiv:1710.10723), section 4, as Beltagy et al. 2020
    (arXiv:2004.05150) use it for TriviaQA.
    """
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()  # half precision could not hold the sums
    length, least = logits.shape[1], torch.finfo(logits.dtype).min
    positions = positions.to(logits.device).view(len(logits), -1)
    inside = (positions >= 0) & (positions < length)
    place = positions.masked_fill(~inside, length)  # one column more, for those that are nowhere
    gold = real.new_zeros(len(logits), length + 1).scatter(1, place, True)[:, :length] & real
    # The least number in place of -inf: it counts nothing, and no gradient becomes nan.
    right = logits.masked_fill(~gold, least).logsumexp(1)
    total = logits.masked_fill(~real, least).logsumexp(1)
    some = gold.any(1)
    if example_ids is not None:
        number = torch.arange(len(logits), device=logits.device)
        mine = number[:, None] == example_ids.to(logits.device)
        right, total = (torch.where(mine, side, least).logsumexp(1) for side in (right, total))
        some = (mine & some).any(1)
    return (total - right).masked_fill(~some, 0).sum() / some.sum().clamp(min=1)
