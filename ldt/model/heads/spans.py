"""Head for an answer that is a span of its document, and the loss of spans."""

import copy
from typing import Unpack

import torch
from transformers.utils import can_return_tuple

from ldt.model.base import EncoderInputs
from ldt.model.heads.base import Head
from ldt.model.heads.by_document import (
    micro_batched,
    rows_of_documents,
    same_document,
)
from ldt.model.heads.default_globals import before_first
from ldt.model.heads.losses import counts, exact, mean
from ldt.model.outputs import LdtQuestionAnsweringOutput
from ldt.model.packing import real_tokens


class LdtForQuestionAnswering(Head):
    """Start and end of an answer; ``start_logits`` and ``end_logits`` are [b, n].

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
        self.add_answer("spans", 2)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        global_attention_mask=None,
        token_type_ids=None,
        *,
        start_positions=None,
        end_positions=None,
        example_ids=None,
        num_items_in_batch=None,
        **kwargs: Unpack[EncoderInputs],
    ):
        """`LdtModel.forward` with the right positions, and which rows are one document.

        Args:
            start_positions, end_positions: [b] int64; or [b, spans], all right ones, -100 where
                a row has fewer.
            example_ids: [b] int64, the document of each row, any numbers; None: each its own.
                Where rows share one, they are run one by one, so that memory does not grow with
                their number; hidden states and attentions are then not given.
            num_items_in_batch: `loss_items` of all batches of an optimizer step; the loss is
                divided by it in place of that of this batch.

        Returns:
            `LdtQuestionAnsweringOutput`, or the tuple of what is not None in it. The loss is the
            mean of the two `span_loss`, None unless both positions are given.

        Raises:
            ValueError: besides those of `LdtModel`: no ``global_attention_mask``, and a row has no
                separator or there are no ``input_ids``.
        """
        if global_attention_mask is None and self.has_global_attention:
            global_attention_mask = before_first(self.config, input_ids, attention_mask)
        inputs = input_ids, attention_mask, global_attention_mask, token_type_ids
        others = {}
        if same_document(example_ids):
            start, end, real = micro_batched(self._sides, *inputs, **kwargs)
        else:
            (start, end, real), others = self._sides_and_rest(*inputs, **kwargs)
        loss = None
        if start_positions is not None and end_positions is not None:
            golds = start_positions, end_positions
            parts = counts(num_items_in_batch, 2)
            loss = sides_loss((start, end), golds, real, parts, example_ids)
        return LdtQuestionAnsweringOutput(loss, start, end, **others)

    def loss_items(
        self, *, start_positions, end_positions, attention_mask=None, example_ids=None, **inputs
    ):
        """[2] int64: documents that have a right start, and a right end."""
        sides = start_positions, end_positions
        return span_items(sides, inputs["input_ids"].shape, attention_mask, example_ids)

    def _sides(self, *inputs, **kwargs):
        """(start logits, end logits, real tokens), all [b, n]."""
        return self._sides_and_rest(*inputs, **kwargs)[0]

    def _sides_and_rest(self, *inputs, **kwargs):
        """`_sides`, and the dict of the encoder's other outputs."""
        x, packing, others = self.encode(*inputs, **kwargs)
        return (*unpacked_sides(self.answer(x), packing), packing.real()), others


def unpacked_sides(logits, packing):
    """Logits of starts and of ends, [b, n] each, of packed ones [total, 2]; padding has the dtype's
    least number."""
    logits = packing.unpack(logits, torch.finfo(logits.dtype).min)
    start, end = (side.contiguous() for side in logits.unbind(-1))
    return start, end


def sides_loss(sides, golds, real, numbers, example_ids=None):
    """The mean of the `span_loss` of starts and of ends.

    Args:
        sides, golds, numbers: of starts and of ends, its logits, positions and count.
        real, example_ids: as it has them.
    """
    parts = zip(sides, golds, numbers, strict=True)
    return sum(span_loss(*side, real, example_ids, number) for *side, number in parts) / 2


def span_loss(logits, positions, real, example_ids=None, count=None):
    """OR loss: how improbable all right positions of a document together are.

    The logarithm of the sum of exp(logit) over all tokens of a document, less that over its right
    positions, each counted once; the mean over documents that have any, 0 where none has. With one
    right position and one row a document it is the cross entropy.

    Args:
        logits: [b, n], in any precision.
        positions: [b] or [b, spans] int64; those outside of a row's real tokens are ignored.
        real: [b, n] bool, False at padding, which does not compete.
        example_ids: [b] int64, the document of each row, any numbers; None: each is one of its own.
        count: divides in place of the number of documents with a right position: those of all
            batches of a step.

    Returns:
        A scalar, at least 0. Documents without a right position have no gradient.

    Source: Clark & Gardner 2018 (arXiv:1710.10723), section 4, as Beltagy et al. 2020
    (arXiv:2004.05150) use it for TriviaQA.
    """
    logits = exact(logits)
    least = torch.finfo(logits.dtype).min
    gold = _right_places(positions.to(logits.device), real)
    # The least number in place of -inf: it counts nothing, and no gradient becomes nan.
    right = logits.masked_fill(~gold, least).logsumexp(1)
    total = logits.masked_fill(~real, least).logsumexp(1)
    some = gold.any(1)
    if example_ids is not None:
        mine = rows_of_documents(example_ids.to(logits.device))
        right, total = (torch.where(mine, side, least).logsumexp(1) for side in (right, total))
        some = (mine & some).any(1)
    return mean((total - right).masked_fill(~some, 0).sum(), some.sum(), count)


def span_items(sides, shape, attention_mask, example_ids=None):
    """[sides] int64: the documents of which `span_loss` is the mean, for each of the positions.

    Args:
        sides: positions of starts and of ends, as `span_loss` has them.
        shape: (b, n) of the batch.
        attention_mask, example_ids: of the batch, or None.
    """
    real = real_tokens(tuple(shape), attention_mask, sides[0].device)
    has_answer = torch.stack([_right_places(positions, real).any(1) for positions in sides])
    if example_ids is not None:
        has_answer = (rows_of_documents(example_ids) & has_answer[:, None]).any(2)
    return has_answer.sum(1)


def _right_places(positions, real):
    """[b, n] bool: the real tokens that ``positions`` name, [b] or [b, spans]."""
    rows, length = real.shape
    positions = positions.view(rows, -1)
    inside = (positions >= 0) & (positions < length)
    place = positions.masked_fill(~inside, length)  # one column more, for those that are nowhere
    return real.new_zeros(rows, length + 1).scatter(1, place, True)[:, :length] & real
