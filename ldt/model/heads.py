"""One class per kind of answer. All read packed tokens; padding never takes part in a loss."""

import torch
from torch import nn
from torch.nn import functional as F
from transformers import initialization as init
from transformers.activations import gelu

from ldt.model.encoder import LdtModel, LdtPreTrainedModel
from ldt.model.layers import Linear
from ldt.model.losses import cross_entropy
from ldt.model.outputs import LdtHeadOutput, answered
from ldt.model.separators import first_real, words_of


class LMHead(nn.Module):
    """Dense, gelu, LayerNorm, and the transposed word embeddings."""

    def __init__(self, config):
        super().__init__()
        self.dense = Linear(config.hidden_size, config.hidden_size)
        self.layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.decoder = Linear(config.hidden_size, config.vocab_size)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    @property
    def weight(self):
        """[vocabulary, width], the decoder's."""
        return self.decoder.weight

    def forward(self, x):
        return self.decoder(self.layer_norm(gelu(self.dense(x))))


class LdtForMaskedLM(LdtPreTrainedModel):
    """Masked language model; ``logits`` are [b, n, vocabulary].

    ``global_attention_mask=None`` means no global attention. Differences from transformers'
    LongformerForMaskedLM, besides those of `LdtModel`: logits at padding are zero, labels at
    padding do not count, and a batch without any label has the loss 0 instead of nan.
    """

    accepts_loss_kwargs = True  # the Trainer counts the labels of all batches of a step

    _tied_weights_keys = {
        "lm_head.decoder.weight": "longformer.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    }

    def __init__(self, config):
        super().__init__(config)
        self.longformer = LdtModel(config, add_pooling_layer=False)
        self.lm_head = LMHead(config)
        self.post_init()

    def _init_weights(self, module):
        super()._init_weights(module)
        if isinstance(module, LMHead):
            init.zeros_(module.bias)

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
        num_items_in_batch=None,
        at_labels=False,
    ):
        """`LdtModel.forward` with ``labels`` [b, n] int64, -100 where there is none.

        Args:
            num_items_in_batch: labels of all batches of an optimizer step; the loss is divided by
                it in place of the number of labels here, so that the losses of the batches add up
                to the mean of all.
            at_labels: compute the logits only where there is a label, which costs a seventh:
                ``logits`` are [labels, vocabulary], in the order of the labels.

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
        count = num_items_in_batch
        if not at_labels:
            logits = self.lm_head(x)
            return _token_answer(self, logits, packing, labels, rest, return_dict, count)
        labels = packing.pack(labels.to(x.device).masked_fill(~packing.real(), -100))
        places = (labels != -100).nonzero().squeeze(1)
        logits = self.lm_head(x[places])
        loss = cross_entropy(logits, labels[places], count)
        return answered(self, LdtHeadOutput(loss, logits, **rest), return_dict)


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
            global_attention_mask = first_real(words_of(input_ids, inputs_embeds), attention_mask)
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
        return answered(self, LdtHeadOutput(loss, logits, **rest), return_dict)

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


def _token_answer(model, logits, packing, labels, rest, return_dict, count=None):
    """`LdtHeadOutput` of packed logits [total, classes] and padded labels [b, n]."""
    loss = None
    if labels is not None:
        labels = labels.to(logits.device).masked_fill(~packing.real(), -100)
        loss = cross_entropy(logits, packing.pack(labels), count)
    return answered(model, LdtHeadOutput(loss, packing.unpack(logits), **rest), return_dict)
