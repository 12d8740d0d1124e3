"""Heads that rank: candidates inside the input, or choices with an input each."""

from torch import nn
from torch.nn import functional as F

from ldt.model.encoder import LdtModel, LdtPreTrainedModel
from ldt.model.layers import Linear
from ldt.model.outputs import LdtHeadOutput, answered
from ldt.model.separators import after_first, separators, words_of


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
        choices = words_of(input_ids, inputs_embeds).shape[1]
        flat = [
            None if given is None else given.flatten(0, 1)
            for given in (input_ids, attention_mask, global_attention_mask, token_type_ids)
        ]
        if global_attention_mask is None:
            real, separator = separators(self.config, flat[0], flat[1], choices)
            flat[2] = real & after_first(separator, 2)
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
        return answered(self, LdtHeadOutput(loss, logits, **rest), return_dict)
