"""A label for each token."""

from torch import nn

from ldt.model.encoders.longformer import LdtModel, LdtPreTrainedModel
from ldt.model.heads.losses import cross_entropy
from ldt.model.layers import Linear
from ldt.model.outputs import LdtHeadOutput, answered


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


def _token_answer(model, logits, packing, labels, rest, return_dict, count=None):
    """`LdtHeadOutput` of packed logits [total, classes] and padded labels [b, n]."""
    loss = None
    if labels is not None:
        labels = labels.to(logits.device).masked_fill(~packing.real(), -100)
        loss = cross_entropy(logits, packing.pack(labels), count)
    return answered(model, LdtHeadOutput(loss, packing.unpack(logits), **rest), return_dict)
