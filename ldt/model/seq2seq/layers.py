"""Base class of an encoder-decoder, and its encoder: Longformer's attention in BART's layers."""

import torch
from torch import nn
from torch.nn import functional as F
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer

from ldt.attention import Layout
from ldt.attention.matmul import Linear
from ldt.attention.ops import shared
from ldt.model.base import LdtPreTrainedModel, PackedEncoder, check_ids, check_length, first_real
from ldt.model.config import LdtSeq2SeqConfig
from ldt.model.layers import SelfAttention, activated, in_chunks
from ldt.model.recompute import cast_once, layer_norm, recomputing


def fit_weights(weights, config):
    """Rename and reshape the tensors of a file to fit `LdtSeq2SeqModel`; changes the dict and
    returns it.

    BART's files, and with them the authors', have two rows in front of both position tables that no
    position reads. Where embeddings are tied, a file may have them under one of four names.

    Args:
        weights: {name: tensor}, without the prefix of the base model.
        config: config of the model; has the number of rows.
    """
    for part in ("encoder", "decoder"):
        name = f"{part}.embed_positions.weight"
        rows = getattr(config, f"max_{part}_position_embeddings")
        if name in weights and len(weights[name]) == rows + 2:
            weights[name] = weights[name][2:].clone()
    tied = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
    if config.tie_word_embeddings and "shared.weight" not in weights:
        for name in filter(weights.__contains__, tied):
            weights["shared.weight"] = weights[name]
            break
    return weights


class LdtSeq2SeqPreTrainedModel(LdtPreTrainedModel):
    """Base of both classes and of encoder and decoder; parameters are named as in an LED."""

    config: LdtSeq2SeqConfig  # type: ignore[assignment]
    base_model_prefix = "led"
    fit_weights = staticmethod(fit_weights)
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

    def embed(self, words: torch.Tensor, positions: torch.Tensor):
        """Embeddings [..., width] of ids [...], or of vectors [..., width], at their positions."""
        if not words.is_floating_point():
            words = self.embed_tokens(words)
        x = self.layernorm_embedding(words + self.embed_positions(positions))
        return F.dropout(x, self.config.dropout, self.training)


class PostNormLayer(GradientCheckpointingLayer):
    """Base class of layers that end with a feed-forward network and normalise behind each of their
    parts.

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

    def add(self, new: torch.Tensor, x: torch.Tensor, norm):
        """Add ``new``, after dropout, to ``x`` and normalise the sum by the module ``norm``."""
        return layer_norm(norm, F.dropout(new, self.dropout, self.training) + x)

    def feed_forward(self, x: torch.Tensor):
        """Run the feed-forward network with its residual and norm: [..., width] -> the same."""
        return in_chunks(self._feed_forward, x)

    def _feed_forward(self, x):
        wide = self.fc1(cast_once(x, self.fc1)())
        active = activated(self.activation, wide, self.known)
        active = F.dropout(active, self.activation_dropout, self.training)
        return self.add(self.fc2(active), x, self.final_layer_norm)


class LedAttention(nn.Module):
    """Windows with global tokens, in some layers a second level, and the output projection."""

    def __init__(self, config, index):
        super().__init__()
        self.longformer_self_attn = SelfAttention(config, index)
        self.output = Linear(config.d_model, config.d_model)

    def forward(self, x: torch.Tensor, layout: Layout):
        """Attend from packed tokens and project the output: [total, width] -> the same."""
        return self.output(self.longformer_self_attn(x, layout)[0])


class LedEncoderLayer(PostNormLayer):
    """Attention and feed-forward network of packed tokens."""

    def __init__(self, config, index):
        super().__init__(config, config.encoder_ffn_dim)
        self.self_attn = LedAttention(config, index)

    def forward(self, x: torch.Tensor, layout: Layout):
        """Run the layer on packed tokens: [total, width] -> the same."""
        x = self.add(self.self_attn(x, layout), x, self.self_attn_layer_norm)
        return self.feed_forward(x)


class LedEncoder(LedPart, PackedEncoder):
    """The encoder of `ldt.model.seq2seq.model.LdtSeq2SeqModel`, which says what differs from that
    of transformers."""

    def __init__(self, config):
        layers = (LedEncoderLayer(config, index) for index in range(config.encoder_layers))
        super().__init__(config, config.max_encoder_position_embeddings, layers)

    def _default_globals(self, words, attention_mask):
        """First real token of each row, [b, n] bool; none if ``attention_mask`` has a 2."""
        is_global = first_real(words, attention_mask)
        if attention_mask is None or attention_mask.dtype == torch.bool:
            return is_global
        return is_global & ~(attention_mask == 2).any()

    def _encode(self, words, packing, ids, read, output_attentions, output_hidden_states):
        positions = packing.pack(self._positions(words, packing))
        if not torch.compiler.is_compiling():
            rows, shape = self.config.max_encoder_position_embeddings, tuple(words.shape[:2])
            check_length(shape, rows, lambda: positions.max() + 1, "encoder's position table")
            if words.dim() == 2:
                check_ids("input_ids", words, self.config.vocab_size, shape)
        x, layout = self.embed(packing.pack(words), positions), packing.layout
        hidden = [x]
        if torch.compiler.is_compiling():
            layout = shared(layout)
        with recomputing(self):
            for layer in self.layers:
                x = layer(x, layout)
                hidden.append(x if output_hidden_states else None)
        packing = packing.to(x.device)
        return (
            x,
            packing,
            {"hidden_states": packing.unpack_each(hidden) if output_hidden_states else None},
        )

    def _positions(self, words, packing):
        """[b, n] int64, counted from the first real token of a row on."""
        first = packing.real().int().argmax(1, keepdim=True)
        return (torch.arange(words.shape[1], device=words.device) - first).clamp(min=0)
