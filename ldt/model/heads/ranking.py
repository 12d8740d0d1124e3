"""Heads that rank: candidates inside the input, or choices with an input each."""

import torch
from transformers.utils import can_return_tuple

from ldt.attention.matmul import Linear
from ldt.model.base import INPUTS, Head, LdtHeadOutput, at_positions, check_positions, takes_inputs
from ldt.model.heads.losses import cross_entropy, exact
from ldt.model.heads.rows import (
    after_first,
    before_first,
    length_of,
    micro_batched,
    rows_of_documents,
    same_document,
    separators,
)


class RankingHead(Head):
    """Base class of heads with a loss for each question, which may have several rows of a batch."""

    def loss_items(self, *, labels, example_ids=None, **inputs):
        """Number of questions that have a label, scalar int64; ``example_ids`` [rows] say which
        rows are of one."""
        if example_ids is not None:
            labels = labels[_first_rows(rows_of_documents(example_ids))]
        return (labels != -100).sum()

    def _rows(self, example_ids, **inputs):
        """`_logits`, one row at a time where a question has several."""
        if same_document(example_ids):
            (logits,) = micro_batched(lambda **row: self._logits(**row)[:1], **inputs)
            return logits, {}
        return self._logits(**inputs)


class LdtForCandidateRanking(RankingHead):
    """A logit for each candidate of a row, read at one token each; ``logits`` are [b, candidates].

    The head of Longformer's WikiHop (Beltagy et al. 2020, arXiv:2004.05150): a linear
    layer without bias at the token in front of each candidate, candidates in front of the
    documents. A question whose documents do not fit one input has several rows, with the same
    candidates; its loss is that of the rows' mean (the paper), or of their sum (the authors' code),
    by ``config.window_merge``. Training computes one row at a time where a question has several
    (`ldt.model.base.micro_batched`), so its memory does not grow with them.

    ``global_attention_mask=None`` means global attention on every real token before the first
    separator of its row, which is the question and the candidates.
    """

    def __init__(self, config):
        super().__init__(config)
        self.classifier = Linear(config.hidden_size, 1, bias=False)
        self.post_init()

    @takes_inputs(*INPUTS)
    def forward(
        self, *, positions=None, example_ids=None, labels=None, num_items_in_batch=None, **inputs
    ):
        """Score the candidates of each row.

        Args:
            positions: [b, candidates] int64, the token of each candidate; -100 where a row has
                fewer. A column is the same candidate in all rows of a question.
            example_ids: [b] int64, which question each row is of, any numbers; None: each its own.
            labels: [b] int64, the column of the right candidate, alike in the rows of a question;
                -100: none is right, and the question has no part in the loss.
            num_items_in_batch: divisor of the loss, for several batches; see `Head`.
            inputs: input_ids [b, n] and other inputs of the encoder, see `PackedEncoder.forward`.

        Returns:
            `LdtHeadOutput`. The logits are those of the rows, not merged, in float32 at least; the
                least number of their type where there is no candidate.

        Raises:
            ValueError: besides those of `LdtModel`: no positions, or one outside of the input; no
                ``global_attention_mask``, and a row has no separator.
        """
        if positions is None:
            raise ValueError("give positions [b, candidates], the token of each candidate")
        check_positions(positions, length_of(inputs))
        there = positions >= 0
        logits, others = self._rows(example_ids, positions=positions, **inputs)
        logits = exact(logits)
        logits = logits.masked_fill(~there, torch.finfo(logits.dtype).min)
        loss = None
        if labels is not None:
            labels, merge = labels.to(logits.device), self.config.window_merge
            loss = _merged_loss(logits, there, example_ids, labels, merge, num_items_in_batch)
        return LdtHeadOutput(loss, logits=logits, **others)

    def _default_globals(self, input_ids, inputs_embeds, attention_mask):
        return before_first(self.config, input_ids, attention_mask)

    def _logits(self, positions, **inputs):
        """Logits [b, candidates], and the dict of the encoder's other outputs."""
        x, packing, more = self.encode(**inputs)
        logits = at_positions(packing.unpack(self.classifier(x)), positions)
        return logits.squeeze(-1), more


class LdtForMultipleChoice(RankingHead):
    """The best of several choices, each with the text in an input of its own.

    Inputs [b, choices, n] are those of transformers' LongformerForMultipleChoice, and in its order;
    ``logits`` are [b, choices]. Inputs [rows, n] are packed, each row a choice with a chunk of the
    text, any number of choices a question and of chunks a choice; ``logits`` are [rows, 1]. The
    loss is that of a choice's mean over its rows. Training computes one packed row at a time
    (`ldt.model.base.micro_batched`), so its memory does not grow with the choices.

    ``global_attention_mask=None`` means global attention on every real token more than one after
    the first separator of each choice, for inputs such as ``<s> context </s></s> choice </s>``.
    Differences from transformers' LongformerForMultipleChoice, besides those of `LdtModel`: any
    number of separators from one on will do, each choice is looked at by itself, and padding is
    never made global. Attentions and hidden states have b * choices rows; packed inputs give none.
    """

    def __init__(self, config):
        super().__init__(config, add_pooling_layer=True)
        self.add_answer("choice", 1)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids=None,
        token_type_ids=None,
        attention_mask=None,
        global_attention_mask=None,
        *,
        labels=None,
        choices=None,
        example_ids=None,
        num_items_in_batch=None,
        **inputs,
    ):
        """Compute logits and loss of inputs [b, choices, n], or of packed ones [rows, n], as
        `LdtHeadOutput`.

        Args:
            labels: [b] int64, the right choices; packed: [rows] int64, the right choice of the
                question that the row is of, -100 for none.
            choices: packed: [rows] int64, the number of each row's choice, from 0 on.
            example_ids: packed: [rows] int64, the number of each row's question, any numbers.
            num_items_in_batch: divisor of the loss, for several batches; see `Head`.

        Raises:
            ValueError: besides those of `LdtModel`: no ``global_attention_mask``, and a choice has
                no separator or there are no ``input_ids``; packed inputs with labels without
                ``choices`` and ``example_ids``.
        """
        words = inputs.get("inputs_embeds") if input_ids is None else input_ids
        if words is None:
            raise ValueError("give either input_ids or inputs_embeds")
        masks = {"global_attention_mask": global_attention_mask, "token_type_ids": token_type_ids}
        inputs |= {"input_ids": input_ids, "attention_mask": attention_mask} | masks
        loss, others = None, {}
        if input_ids is not None and words.dim() == 2:
            if labels is not None and (choices is None or example_ids is None):
                raise ValueError("packed choices need choices and example_ids [rows] for a loss")
            logits, _ = self._rows(example_ids, **inputs)
            if labels is not None:
                number = torch.arange(int(choices.max()) + 1, device=logits.device)
                there = choices.to(logits.device)[:, None] == number
                scored = exact(logits).expand(-1, len(number)), there, example_ids
                labels = labels.to(logits.device)
                loss = _merged_loss(*scored, labels, "mean", num_items_in_batch)
            return LdtHeadOutput(loss, logits=logits)
        # The encoder knows rows of tokens only: a row is a choice.
        flat = {
            name: value.flatten(0, 1) if isinstance(value, torch.Tensor) else value
            for name, value in inputs.items()
        }
        logits, others = self._logits(choices=words.shape[1], **flat)
        logits = logits.view(-1, words.shape[1])
        if labels is not None:
            loss = cross_entropy(logits, labels.to(logits.device), num_items_in_batch)
        return LdtHeadOutput(loss, logits=logits, **others)

    def _logits(self, *, global_attention_mask, choices=1, **inputs):
        """Logits [rows, 1], and the dict of the encoder's other outputs."""
        if global_attention_mask is None and self.has_global_attention:
            ids, mask = inputs["input_ids"], inputs["attention_mask"]
            real, separator = separators(self.config, ids, mask, choices)
            global_attention_mask = real & after_first(separator, 2)
        inputs["global_attention_mask"] = global_attention_mask
        pooled, _, more = self.encode(read="pooled", **inputs)
        return self.answer(pooled), more


def _merged_loss(logits, there, example_ids, labels, merge, count):
    """Cross entropy of logits [rows, candidates], of which those count that are ``there``, merged
    by question, as their ``mean`` or ``sum``; see `cross_entropy`."""
    if example_ids is None:
        example_ids = torch.arange(len(logits))
    member = rows_of_documents(example_ids.to(logits.device))
    rows = member.to(logits.dtype) @ there.to(logits.dtype)  # [questions, candidates]
    merged = member.to(logits.dtype) @ logits.masked_fill(~there, 0)
    if merge == "mean":
        merged = merged / rows.clamp(min=1)
    merged = merged.masked_fill(rows == 0, torch.finfo(merged.dtype).min)
    return cross_entropy(merged, labels[_first_rows(member)], count)


def _first_rows(member):
    """First row of each question, [questions] int64."""
    return member.int().argmax(1)
