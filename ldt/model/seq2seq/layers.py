"""What the layers of BART's encoder and decoder share: sums that are normalised, feed-forward."""

from torch import nn
from torch.nn import functional as F
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer

from ldt.attention.matmul import Linear
from ldt.model.layers import activated, in_chunks
from ldt.model.recompute import cast_once, layer_norm


class PostNormLayer(GradientCheckpointingLayer):
    """A layer that ends with a feed-forward network and normalises behind each of its parts.

    Args:
        config: LdtSeq2SeqConfig.
        wide: width between the two products of the feed-forward network.
    """

    def __init__(self, config, wide):
        super().__init__()
        width = config.d_model
        self.dropout = config.dropout
        self.activation_dropout = config.activation_dropout
        self.self_attn_layer_norm = nn.LayerNorm(width)
        self.activation = ACT2FN[config.activation_function]
        self.known = type(self.activation)  # gives the same numbers each time; others may not
        self.fc1 = Linear(width, wide)
        self.fc2 = Linear(wide, width)
        self.final_layer_norm = nn.LayerNorm(width)

    def add(self, new, x, norm):
        """``x`` and, behind dropout, ``new``, normalised by ``norm``."""
        return layer_norm(norm, F.dropout(new, self.dropout, self.training) + x)

    def feed_forward(self, x):
        """[..., width] -> the same."""
        return in_chunks(self._feed_forward, x)

    def _feed_forward(self, x):
        wide = self.fc1(cast_once(x, self.fc1)())
        active = activated(self.activation, wide, self.known)
        active = F.dropout(active, self.activation_dropout, self.training)
        return self.add(self.fc2(active), x, self.final_layer_norm)
