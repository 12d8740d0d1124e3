"""The encoder of an LED: Longformer's attention in BART's layers, on packed tokens."""

import torch
from torch import nn
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import can_return_tuple

from ldt.attention.matmul import Linear
from ldt.attention.ops import shared
from ldt.model.base import check_ids, first_real, given_words, pack
from ldt.model.encoders.longformer import SelfAttention
from ldt.model.recompute import recomputing
from ldt.model.seq2seq.layers import LedPart, PostNormLayer


class LedAttention(nn.Module):
    """Windows with global tokens, in some layers a second level, and the output projection."""

    def __init__(self, config, index):
        super().__init__()
        self.longformer_self_attn = SelfAttention(config, index)
        self.output = Linear(config.d_model, config.d_model)

    def forward(self, x, layout):
        return self.output(self.longformer_self_attn(x, layout)[0])


class LedEncoderLayer(PostNormLayer):
    """Attention and feed-forward network of packed tokens."""

    def __init__(self, config, index):
        super().__init__(config, config.encoder_ffn_dim)
        self.self_attn = LedAttention(config, index)

    def forward(self, x, layout):
        """[total, width] -> the same."""
        x = self.add(self.self_attn(x, layout), x, self.self_attn_layer_norm)
        return self.feed_forward(x)


class LedEncoder(LedPart):
    """The encoder of `ldt.model.seq2seq.model.LdtSeq2SeqModel`, which says what differs from that
    of transformers."""

    def __init__(self, config):
        layers = (LedEncoderLayer(config, index) for index in range(config.encoder_layers))
        super().__init__(config, config.max_encoder_position_embeddings, layers)

    @can_return_tuple
    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        global_attention_mask=None,
        inputs_embeds=None,
        output_attentions=None,
        output_hidden_states=None,
        packing=None,
        packed=False,
    ):
        """Encode a padded batch.

        Args:
            input_ids: [b, n] int64; or ``inputs_embeds`` [b, n, d] in their place.
            attention_mask: [b, n], 0 at padding, 1 at real tokens, 2 at real tokens with global
                attention. None: all tokens are real.
            global_attention_mask: [b, n], 1 at tokens with global attention. None: the first real
                token of each row, unless there is a 2 in ``attention_mask``.
            output_attentions: must not be asked for.
            packing: the `Packing` of these masks, which are then not looked at.
            packed: return (states [total, d], `Packing`, hidden states) of packed tokens.

        Returns:
            transformers' BaseModelOutput, zeros at padding.

        Raises:
            ValueError: an input that is empty, too long, or of the wrong shape or value.
        """
        refuse_attentions(self.config, output_attentions)
        words = given_words(input_ids, inputs_embeds)
        if packing is None:
            if input_ids is not None:
                self.warn_if_padding_and_no_attention_mask(input_ids, attention_mask)
            if global_attention_mask is None:
                global_attention_mask = default_globals(words, attention_mask)
            masks = attention_mask, global_attention_mask
            packing = pack(tuple(words.shape[:2]), *masks, words.device)
        x = self._embed(words, packing)
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        hidden = [x] if output_hidden_states else None
        layout = packing.layout
        if torch.compiler.is_compiling():
            layout = shared(layout)
        with recomputing(self):
            for layer in self.layers:
                x = layer(x, layout)
                if hidden is not None:
                    hidden.append(x)
        packing = packing.to(x.device)
        if hidden is not None:
            hidden = tuple(packing.to(state.device).unpack(state) for state in hidden)
        if packed:
            return x, packing, hidden
        return BaseModelOutput(packing.unpack(x), hidden)

    def _embed(self, words, packing):
        """[total, d], the embeddings of packed tokens, positions counted from the first real token
        of a row on."""
        shape, rows = tuple(words.shape[:2]), self.config.max_encoder_position_embeddings
        first = packing.real().int().argmax(1, keepdim=True)
        positions = (torch.arange(shape[1], device=words.device) - first).clamp(min=0)
        positions = packing.pack(positions)
        if not torch.compiler.is_compiling():
            if shape[1] > rows and (length := int(positions.max()) + 1) > rows:
                raise ValueError(
                    f"input has {length} tokens, the encoder's position table holds {rows}; "
                    f"ldt convert SOURCE --max-length {length} makes a longer one"
                )
            if words.dim() == 2:
                check_ids("input_ids", words, self.config.vocab_size, shape)
        return self.embed(packing.pack(words), positions)


def default_globals(words, attention_mask):
    """[b, n] bool, the tokens with global attention where no mask says which: the first real one of
    each row of ``words`` [b, n, …], unless the attention mask has a 2 anywhere."""
    is_global = first_real(words, attention_mask)
    if attention_mask is None or attention_mask.dtype == torch.bool:
        return is_global
    return is_global & ~(attention_mask == 2).any()


def refuse_attentions(config, output_attentions):
    """Raise a ValueError where attentions are asked for."""
    if config.output_attentions if output_attentions is None else output_attentions:
        raise ValueError(
            "an encoder-decoder has no output_attentions: probabilities are never stored; those of "
            "an encoder alone are in LdtModel's output"
        )
