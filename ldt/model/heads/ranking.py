"""Heads that rank: candidates inside the input, or choices with an input each."""

import torch
from torch import nn
from torch.nn import functional as F

from ldt.model.encoders.longformer import LdtModel, LdtPreTrainedModel
from ldt.model.heads.by_document import by_row, share, takes_documents
from ldt.model.heads.default_globals import after_first, before_first, separators, words_of
from ldt.model.heads.losses import cross_entropy
from ldt.model.layers import Linear
from ldt.model.outputs import LdtHeadOutput, answered
from ldt.model.packing import check_positions


class LdtForCandidateRanking(LdtPreTrainedModel):
    """A score for each candidate of a row, read at one token each; ``logits`` are [b, candidates].

    The head of Longformer's WikiHop (Beltagy et al. 2020, arXiv:2004.05150): a linear
    layer without bias at the token in front of each candidate, candidates in front of the
    documents. A question whose documents do not fit one input has several rows, with the same
    candidates; its loss is that of the rows' mean (the paper), or of their sum (the authors' code),
    by ``config.window_merge``. Training computes one row at a time where a question has several
    (`ldt.model.heads.by_document.by_row`), so its memory does not grow with them.

    ``global_attention_mask=None`` means global attention on every real token before the first
    separator of its row, which is the question and the candidates.
    """

    def __init__(self, config):
        super().__init__(config)
        self.longformer = LdtModel(config, add_pooling_layer=False)
        self.classifier = Linear(config.hidden_size, 1, bias=False)
        self.post_init()

    @takes_documents
    def forward(
        self,
        input_ids,
        attention_mask=None,
        global_attention_mask=None,
        token_type_ids=None,
        positions=None,
        example_ids=None,
        labels=None,
        return_dict=None,
    ):
        """Score the candidates of each row.

        Args:
            input_ids, attention_mask, global_attention_mask, token_type_ids: [b, n], as in
                `LdtModel.forward`.
            positions: [b, candidates] int64, the token of each candidate; -100 where a row has
                fewer. A column is the same candidate in all rows of a question.
            example_ids: [b] int64, which question each row is of, from 0 on; None: each its own.
            labels: [b] int64, the column of the right candidate, alike in the rows of a question;
                -100: none is right, and the question has no part in the loss.

        Returns:
            `LdtHeadOutput` with logits and, of labels, loss, or the tuple of what is not None in
            it. The logits are those of the rows, not merged, in float32 at least; the least
            number of their type where there is no candidate.

        Raises:
            ValueError: besides those of `LdtModel`: no positions, or one outside of the input; no
                ``global_attention_mask``, and a row has no separator.
        """
        there = self._there(positions, input_ids)
        if global_attention_mask is None:
            global_attention_mask = before_first(self.config, input_ids, attention_mask)
        inputs = input_ids, attention_mask, global_attention_mask, token_type_ids, positions
        (scores,) = _computed(self._scores, example_ids, inputs)
        logits = _exact(scores)
        logits = logits.masked_fill(~there, torch.finfo(logits.dtype).min)
        loss = None
        if labels is not None:
            merge = self.config.window_merge
            loss = _merged_loss(logits, there, example_ids, labels.to(logits.device), merge)
        return answered(self, LdtHeadOutput(loss, logits), return_dict)

    def _scores(self, input_ids, attention_mask, global_attention_mask, token_type_ids, positions):
        x, _, packing, _ = self.longformer(
            input_ids, attention_mask, global_attention_mask, token_type_ids, packed=True
        )
        scores = packing.unpack(self.classifier(x)).squeeze(-1)
        return (scores.gather(1, positions.clamp(min=0)),)

    def _there(self, positions, input_ids):
        """[b, candidates] bool: where there is a candidate."""
        if positions is None:
            raise ValueError("give positions [b, candidates], the token of each candidate")
        check_positions(positions, input_ids.shape[1])
        return positions >= 0


class LdtForMultipleChoice(LdtPreTrainedModel):
    """The best of several choices, each with the text in an input of its own.

    Inputs [b, choices, n] are those of transformers' LongformerForMultipleChoice; ``logits`` are
    [b, choices]. Inputs [rows, n] are packed, each row a choice with a window of the text, any
    number of choices a question and of windows a choice; ``logits`` are [rows, 1]. The loss is that
    of a choice's mean over its rows. Training computes one packed row at a time
    (`ldt.model.heads.by_document.by_row`), so its memory does not grow with the choices.

    ``global_attention_mask=None`` means global attention on every real token more than one after
    the first separator of each choice, for inputs such as ``<s> context </s></s> choice </s>``.
    Differences from transformers' LongformerForMultipleChoice, besides those of `LdtModel`: any
    number of separators from one on will do, each choice is looked at by itself, and padding is
    never made global. Attentions and hidden states have b * choices rows; packed inputs give none.
    """

    def __init__(self, config):
        super().__init__(config)
        self.longformer = LdtModel(config)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.classifier = Linear(config.hidden_size, 1)
        self.post_init()

    @takes_documents
    def forward(
        self,
        input_ids=None,
        token_type_ids=None,
        attention_mask=None,
        global_attention_mask=None,
        labels=None,
        position_ids=None,
        inputs_embeds=None,
        output_attentions=None,
        output_hidden_states=None,
        return_dict=None,
        choices=None,
        example_ids=None,
    ):
        """`LdtModel.forward` on inputs [b, choices, n], or on packed ones [rows, n].

        Args:
            labels: [b] int64, the right choices; packed: [rows] int64, the right choice of the
                question that the row is of, -100 for none.
            choices: packed: [rows] int64, which choice each row has, from 0 on.
            example_ids: packed: [rows] int64, which question each row is of, from 0 on.

        Returns:
            `LdtHeadOutput`, or the tuple of what is not None in it.

        Raises:
            ValueError: besides those of `LdtModel`: no ``global_attention_mask``, and a choice has
                no separator or there are no ``input_ids``; packed inputs with labels without
                ``choices`` and ``example_ids``.
        """
        words = words_of(input_ids, inputs_embeds)
        if input_ids is not None and words.dim() == 2:
            inputs = input_ids, attention_mask, global_attention_mask, token_type_ids
            return self._packed(inputs, choices, example_ids, labels, return_dict)
        number = words.shape[1]
        flat = [
            None if given is None else given.flatten(0, 1)
            for given in (input_ids, attention_mask, global_attention_mask, token_type_ids)
        ]
        logits, rest = self._scores(
            *flat,
            None if position_ids is None else position_ids.flatten(0, 1),
            None if inputs_embeds is None else inputs_embeds.flatten(0, 1),
            output_attentions,
            output_hidden_states,
            choices=number,
        )
        logits = logits.view(-1, number)
        loss = None if labels is None else F.cross_entropy(logits, labels.to(logits.device))
        return answered(self, LdtHeadOutput(loss, logits, **rest), return_dict)

    def _packed(self, inputs, choices, example_ids, labels, return_dict):
        if labels is not None and (choices is None or example_ids is None):
            raise ValueError("packed choices need choices and example_ids [rows] for a loss")
        (logits,) = _computed(lambda *rows: self._scores(*rows)[:1], example_ids, inputs)
        loss = None
        if labels is not None:
            number = torch.arange(int(choices.max()) + 1, device=logits.device)
            there = choices.to(logits.device)[:, None] == number
            scores = _exact(logits).expand(-1, len(number))
            loss = _merged_loss(scores, there, example_ids, labels.to(logits.device), "mean")
        return answered(self, LdtHeadOutput(loss, logits), return_dict)

    def _scores(self, input_ids, attention_mask, global_attention_mask, *rest, choices=1):
        """Logits [rows, 1] and the dict of the encoder's other outputs."""
        if global_attention_mask is None:
            real, separator = separators(self.config, input_ids, attention_mask, choices)
            global_attention_mask = real & after_first(separator, 2)
        _, pooled, _, rest = self.longformer(
            input_ids, attention_mask, global_attention_mask, *rest, packed=True, read="first"
        )
        return self.classifier(self.dropout(pooled)), rest


def _computed(run, example_ids, inputs):
    """``run`` on the rows, one at a time (`by_row`) where a question has several."""
    return by_row(run, *inputs) if share(example_ids) else run(*inputs)


def _exact(x):
    """``x`` in float32 at least: half precision would tell few scores apart."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _merged_loss(scores, there, example_ids, labels, how):
    """Cross entropy of the rows' scores, merged by question.

    Args:
        scores: [rows, candidates], in float32 or better.
        there: [rows, candidates] bool, which of them count.
        example_ids: [rows] int64, the question of each row; None: each row its own.
        labels: [rows] int64, alike in the rows of a question; -100: no part in the loss.
        how: "mean" or "sum" of the rows.

    Returns:
        Scalar, the mean over the questions that have a label; 0 where none has.
    """
    if example_ids is None:
        example_ids = torch.arange(len(scores))
    example_ids = example_ids.to(scores.device)
    number = torch.arange(int(example_ids.max()) + 1, device=scores.device)
    member = number[:, None] == example_ids  # [questions, rows]
    count = member.to(scores.dtype) @ there.to(scores.dtype)
    merged = member.to(scores.dtype) @ scores.masked_fill(~there, 0)
    if how == "mean":
        merged = merged / count.clamp(min=1)
    merged = merged.masked_fill(count == 0, torch.finfo(merged.dtype).min)
    return cross_entropy(merged, labels[member.int().argmax(1)])
