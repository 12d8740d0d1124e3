"""Base of an encoder-decoder and its parts."""

from torch import nn
from torch.nn import functional as F

from ldt.model.base import LdtPreTrainedModel
from ldt.model.seq2seq.config import LdtSeq2SeqConfig, check_seq2seq, fit_weights


class LdtSeq2SeqPreTrainedModel(LdtPreTrainedModel):
    """Base of both classes and of encoder and decoder; parameters are named as in an LED."""

    config: LdtSeq2SeqConfig  # type: ignore[assignment]
    base_model_prefix = "led"
    fit_weights = staticmethod(fit_weights)
    check = staticmethod(check_seq2seq)
    _no_split_modules = ["LedEncoderLayer", "LedDecoderLayer"]


class LedPart(LdtSeq2SeqPreTrainedModel):
    """The encoder or the decoder: embeddings, a table of positions and layers.

    Args:
        positions: rows of the table.
        layers: made before.
    """

    def __init__(self, config, positions, layers):
        super().__init__(config)
        width = config.d_model
        self.embed_tokens = nn.Embedding(config.vocab_size, width, config.pad_token_id)
        self.embed_positions = nn.Embedding(positions, width)
        self.layernorm_embedding = nn.LayerNorm(width)
        self.layers = nn.ModuleList(layers)
        self.post_init()

    def embed(self, words, positions):
        """Embeddings [..., width] of ids [...], or of vectors [..., width], at their positions."""
        if not words.is_floating_point():
            words = self.embed_tokens(words)
        x = self.layernorm_embedding(words + self.embed_positions(positions))
        return F.dropout(x, self.config.dropout, self.training)
