"""One class per kind of answer. All read packed tokens; padding never takes part in a loss."""

import copy

import torch
from torch import nn
from torch.nn import functional as F
from transformers.activations import gelu

from ldt.model.encoder import LdtModel, LdtPreTrainedModel
from ldt.model.layers import Linear
from ldt.model.outputs import LdtHeadOutput, LdtQuestionAnsweringOutput
from ldt.model.packing import real_tokens


class LMHead(nn.Module):
    """Dense, gelu, LayerNorm, and the transposed word embeddings."""

    def __init__(self, config):
        super().__init__()
        self.dense = Linear(config.hidden_size, config.hidden_size)
        self.layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.decoder = Linear(config.hidden_size, config.vocab_size)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, x):
        return self.decoder(self.layer_norm(gelu(self.dense(x))))


class LdtForMaskedLM(LdtPreTrainedModel):
    """Masked language model; ``logits`` are [b, n, vocabulary].

    ``global_attention_mask=None`` means no global attention. Differences from transformers'
    LongformerForMaskedLM, besides those of `LdtModel`: logits at padding are zero, labels at
    padding do not count, and a batch without any label has the loss 0 instead of nan.
    """

    _tied_weights_keys = {
        "lm_head.decoder.weight": "longformer.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    }

    def __init__(self, config):
        super().__init__(config)
        self.longformer = LdtModel(config, add_pooling_layer=False)
        self.lm_head = LMHead(config)
        self.post_init()

    def get_output_embeddings(self):
        return self.lm_head.decoder

    def set_output_embeddings(self, new_embeddings):
        self.lm_head.decoder = new_embeddings

    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        global_attention_mask=None,
        token_type_ids=None,
        position_ids=None,
        inputs_embeds=None,
        labels=None,
        output_attentions=None,
        output_hidden_states=None,
        return_dict=None,
    ):
        """`LdtModel.forward` with ``labels`` [b, n] int64, -100 where there is none.

        Returns:
            `LdtHeadOutput`, or the tuple of what is not None in it.
        """
        x, _, packing, rest = self.longformer(
            input_ids,
            attention_mask,
            global_attention_mask,
            token_type_ids,
            position_ids,
            inputs_embeds,
            output_attentions,
            output_hidden_states,
            packed=True,
        )
        return _token_answer(self, self.lm_head(x), packing, labels, rest, return_dict)


class LdtForTokenClassification(LdtPreTrainedModel):
    """A label for each token; ``logits`` are [b, n, num_labels].

    ``global_attention_mask=None`` means no global attention. Differences from transformers'
    LongformerForTokenClassification: those that `LdtForMaskedLM` names.
    """

    def __init__(self, config):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.longformer = LdtModel(config, add_pooling_layer=False)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.classifier = Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        global_attention_mask=None,
        token_type_ids=None,
        position_ids=None,
        inputs_embeds=None,
        labels=None,
        output_attentions=None,
        output_hidden_states=None,
        return_dict=None,
    ):
        """`LdtModel.forward` with ``labels`` [b, n] int64, -100 where there is none.

        Returns:
            `LdtHeadOutput`, or the tuple of what is not None in it.
        """
        x, _, packing, rest = self.longformer(
            input_ids,
            attention_mask,
            global_attention_mask,
            token_type_ids,
            position_ids,
            inputs_embeds,
            output_attentions,
            output_hidden_states,
            packed=True,
        )
        logits = self.classifier(self.dropout(x))
        return _token_answer(self, logits, packing, labels, rest, return_dict)


class ClassificationHead(nn.Module):
    """Dropout, dense, tanh, dropout, projection to the labels."""

    def __init__(self, config):
        super().__init__()
        self.dense = Linear(config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.out_proj = Linear(config.hidden_size, config.num_labels)

    def forward(self, x):
        return self.out_proj(self.dropout(torch.tanh(self.dense(self.dropout(x)))))


class LdtForSequenceClassification(LdtPreTrainedModel):
    """Labels or numbers for each row; ``logits`` are [b, num_labels].

    ``global_attention_mask=None`` means global attention on the first real token of each row, with
    ``inputs_embeds`` too. Differences from transformers' LongformerForSequenceClassification,
    besides those of `LdtModel`:

    - the answer is read from the first real token; transformers reads position 0, and under left
      padding its answer does not depend on the text;
    - with ``config.classifier_pooling`` mean or max it is read from all real tokens instead;
    - where the config has no ``problem_type``, it is guessed from the labels of each batch, and
      never stored: one label is regression; floats, or labels of the logits' shape, are
      multi_label_classification; else single_label_classification.
    """

    def __init__(self, config):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.longformer = LdtModel(config, add_pooling_layer=False)
        self.classifier = ClassificationHead(config)
        self.post_init()

    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        global_attention_mask=None,
        token_type_ids=None,
        position_ids=None,
        inputs_embeds=None,
        labels=None,
        output_attentions=None,
        output_hidden_states=None,
        return_dict=None,
    ):
        """`LdtModel.forward` with ``labels`` [b] int64, or [b, num_labels], or [b] numbers.

        Returns:
            `LdtHeadOutput`, or the tuple of what is not None in it.
        """
        if global_attention_mask is None:
            global_attention_mask = _first_real(_words(input_ids, inputs_embeds), attention_mask)
        x, _, packing, rest = self.longformer(
            input_ids,
            attention_mask,
            global_attention_mask,
            token_type_ids,
            position_ids,
            inputs_embeds,
            output_attentions,
            output_hidden_states,
            packed=True,
            read="first" if self.config.classifier_pooling == "cls" else "all",
        )
        pooling = self.config.classifier_pooling
        logits = self.classifier(x if pooling == "cls" else packing.reduce(x, pooling))
        loss = self._loss(logits, labels.to(logits.device)) if labels is not None else None
        return _answer(self, LdtHeadOutput(loss, logits, **rest), return_dict)

    def _loss(self, logits, labels):
        problem = self.config.problem_type or self._problem(logits, labels)
        if problem == "regression":
            return F.mse_loss(logits.flatten(), labels.flatten().to(logits.dtype))
        if problem == "single_label_classification":
            return F.cross_entropy(logits, labels.flatten().long())
        return F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype))

    def _problem(self, logits, labels):
        if self.num_labels == 1:
            return "regression"
        if labels.is_floating_point() or labels.shape == logits.shape:
            return "multi_label_classification"
        return "single_label_classification"


class LdtForMultipleChoice(LdtPreTrainedModel):
    """The best of several choices; ``logits`` are [b, choices].

    ``global_attention_mask=None`` means global attention on every real token more than one after
    the first separator of each choice, for inputs such as ``<s> context </s></s> choice </s>``.
    Differences from transformers' LongformerForMultipleChoice, besides those of `LdtModel`: any
    number of separators from one on will do, each choice is looked at by itself, and padding is
    never made global. Attentions and hidden states have b * choices rows.
    """

    def __init__(self, config):
        super().__init__(config)
        self.longformer = LdtModel(config)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.classifier = Linear(config.hidden_size, 1)
        self.post_init()

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
    ):
        """`LdtModel.forward` on inputs [b, choices, n]; ``labels`` [b] int64 are the right choices.

        Returns:
            `LdtHeadOutput`, or the tuple of what is not None in it.

        Raises:
            ValueError: besides those of `LdtModel`: no ``global_attention_mask``, and a choice has
                no separator or there are no ``input_ids``.
        """
        choices = _words(input_ids, inputs_embeds).shape[1]
        flat = [
            None if given is None else given.flatten(0, 1)
            for given in (input_ids, attention_mask, global_attention_mask, token_type_ids)
        ]
        if global_attention_mask is None:
            real, separator = _separators(self.config, flat[0], flat[1], choices)
            flat[2] = real & _after_first(separator, 2)
        _, pooled, _, rest = self.longformer(
            *flat,
            None if position_ids is None else position_ids.flatten(0, 1),
            None if inputs_embeds is None else inputs_embeds.flatten(0, 1),
            output_attentions,
            output_hidden_states,
            packed=True,
            read="first",
        )
        logits = self.classifier(self.dropout(pooled)).view(-1, choices)
        loss = None if labels is None else F.cross_entropy(logits, labels.to(logits.device))
        return _answer(self, LdtHeadOutput(loss, logits, **rest), return_dict)


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
    ):
        """`LdtModel.forward` with ``start_positions`` and ``end_positions`` [b] int64.

        Returns:
            `LdtQuestionAnsweringOutput`, or the tuple of what is not None in it. The loss is the
            mean of the two cross entropies, None unless both positions are given.

        Raises:
            ValueError: besides those of `LdtModel`: no ``global_attention_mask``, and a row has no
                separator or there are no ``input_ids``.
        """
        if global_attention_mask is None:
            real, separator = _separators(self.config, input_ids, attention_mask)
            global_attention_mask = real & ~_after_first(separator, 0)
        x, _, packing, rest = self.longformer(
            input_ids,
            attention_mask,
            global_attention_mask,
            token_type_ids,
            position_ids,
            inputs_embeds,
            output_attentions,
            output_hidden_states,
            packed=True,
        )
        logits = self.qa_outputs(x)
        logits = packing.unpack(logits, torch.finfo(logits.dtype).min)
        start, end = (side.contiguous() for side in logits.unbind(-1))
        loss = None
        if start_positions is not None and end_positions is not None:
            sides = (start, start_positions), (end, end_positions)
            loss = sum(_span_loss(*side, packing.real()) for side in sides) / 2
        return _answer(self, LdtQuestionAnsweringOutput(loss, start, end, **rest), return_dict)


def _answer(model, output, return_dict):
    if return_dict is None:
        return_dict = model.config.return_dict
    return output if return_dict else output.to_tuple()


def _token_answer(model, logits, packing, labels, rest, return_dict):
    """`LdtHeadOutput` of packed logits [total, classes] and padded labels [b, n]."""
    loss = None
    if labels is not None:
        labels = labels.to(logits.device).masked_fill(~packing.real(), -100)
        loss = _cross_entropy(logits, packing.pack(labels))
    return _answer(model, LdtHeadOutput(loss, packing.unpack(logits), **rest), return_dict)


def _cross_entropy(logits, labels):
    """Mean over the labels other than -100, 0 when there is none."""
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()  # half precision could not hold the sum
    total = F.cross_entropy(logits, labels.long(), reduction="sum")
    return total / (labels != -100).sum().clamp(min=1)


def _span_loss(logits, positions, real):
    """`_cross_entropy` of [b, n] logits; positions [b] or [b, 1] outside of real tokens ignored."""
    positions = positions.to(logits.device).view(-1)
    inside = (positions >= 0) & (positions < logits.shape[1])
    place = positions.clamp(0, logits.shape[1] - 1)
    inside &= real.gather(1, place[:, None]).squeeze(1)
    return _cross_entropy(logits, place.masked_fill(~inside, -100))


def _words(input_ids, inputs_embeds):
    if input_ids is None and inputs_embeds is None:
        raise ValueError("give either input_ids or inputs_embeds")
    return input_ids if input_ids is not None else inputs_embeds


def _first_real(words, attention_mask):
    """[b, n] bool, True at the first real token of each row."""
    real = real_tokens(tuple(words.shape[:2]), attention_mask, words.device)
    return torch.zeros_like(real).scatter(1, real.int().argmax(1, keepdim=True), True)


def _separators(config, input_ids, attention_mask, choices=1):
    """Real tokens and, among them, separators, both [b, n] bool.

    Raises:
        ValueError: a row with real tokens has no separator; with ``choices`` the rows are choices.
    """
    if input_ids is None or config.sep_token_id is None:
        lacking = "input_ids" if input_ids is None else "sep_token_id in the config"
        raise ValueError(
            f"without {lacking} there is no telling which tokens are global; "
            "give global_attention_mask"
        )
    real = real_tokens(tuple(input_ids.shape), attention_mask, input_ids.device)
    separator = real & (input_ids == config.sep_token_id)
    without = real.any(1) & ~separator.any(1)
    if not torch.compiler.is_compiling() and without.any():
        row, choice = divmod(int(without.nonzero()[0]), choices)
        where = f"row {row}" if choices == 1 else f"row {row}, choice {choice}"
        raise ValueError(
            f"{where}: no separator (id {config.sep_token_id}) tells which tokens are global; "
            "give global_attention_mask"
        )
    return real, separator


def _after_first(separator, distance):
    """[b, n] bool: at least ``distance`` tokens after the first separator of the row."""
    position = torch.arange(separator.shape[1], device=separator.device)
    return position >= separator.int().argmax(1, keepdim=True) + distance
