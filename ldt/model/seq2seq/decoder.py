"""The decoder of an LED: BART's layers, which read documents that are kept once."""

import torch
from torch import nn
from torch.nn import functional as F

from ldt.model.packing import check_ids, given_words
from ldt.model.recompute import recomputing
from ldt.model.seq2seq.attention import CausalAttention, CrossAttention, groups_of
from ldt.model.seq2seq.base import LedPart
from ldt.model.seq2seq.layers import PostNormLayer


class LedDecoderLayer(PostNormLayer):
    """Attention to the tokens before, attention to the document, feed-forward network."""

    def __init__(self, config, index):
        super().__init__(config, config.decoder_ffn_dim)
        self.index = index
        self.self_attn = CausalAttention(config)
        self.encoder_attn = CrossAttention(config)
        self.encoder_attn_layer_norm = nn.LayerNorm(config.d_model)

    def forward(self, x, states, groups, mask=None, past_key_values=None):
        """[rows, t, width] -> the same.

        Args:
            states: [total, width], the encoder's packed tokens; not read where the cache has their
                keys and values.
            groups: `groups_of` the documents.
            mask: of `CausalAttention`.
            past_key_values: `SharedCache`.
        """
        own, memory = None, None
        if past_key_values is not None:
            own, memory = past_key_values.self_attention_cache, past_key_values.memory
        out = self.self_attn(x, mask, own, self.index)
        x = self.add(out, x, self.self_attn_layer_norm)
        if memory is None:
            documents = self.encoder_attn.keys_and_values(states, groups)
        else:
            if self.index not in memory:
                found = self.encoder_attn.keys_and_values(states, groups, contiguous=True)
                memory[self.index] = found
            documents = memory[self.index]
        x = self.add(self.encoder_attn(x, documents), x, self.encoder_attn_layer_norm)
        return self.feed_forward(x)


class LedDecoder(LedPart):
    """The decoder of `ldt.model.seq2seq.model.LdtSeq2SeqModel`."""

    def __init__(self, config):
        layers = (LedDecoderLayer(config, index) for index in range(config.decoder_layers))
        super().__init__(config, config.max_decoder_position_embeddings, layers)

    def forward(
        self,
        states,
        packing,
        input_ids=None,
        attention_mask=None,
        inputs_embeds=None,
        past_key_values=None,
        output_hidden_states=False,
    ):
        """States [rows, t, width] of the last layer, and those of all with the embeddings or None.

        Args:
            states: [total, width], the encoder's packed tokens, and their ``packing``. None where
                the cache knows the documents.
            input_ids: [rows, t] int64; or ``inputs_embeds`` [rows, t, width] in their place. There
                are as many rows of each document.
            attention_mask: [rows, cached + t], 0 at padding, which no token sees and no position
                counts. None: there is none.
            past_key_values: `SharedCache` with the tokens before these; is changed.
        """
        if input_ids is None and inputs_embeds is None:
            raise ValueError(
                "give decoder_input_ids, or labels to LdtForConditionalGeneration, which makes them"
            )
        words = given_words(input_ids, inputs_embeds)
        rows, t = words.shape[:2]
        past = 0 if past_key_values is None else past_key_values.get_seq_length()
        if attention_mask is not None and attention_mask.shape != (rows, past + t):
            raise ValueError(
                f"decoder_attention_mask must be {[rows, past + t]}, of the tokens before too, "
                f"got {[*attention_mask.shape]}"
            )
        groups = None
        if packing is not None:
            groups = groups_of(packing)
            if rows % packing.shape[0]:
                raise ValueError(f"{rows} rows of decoder ids are of {packing.shape[0]} documents")
        mask = _seen(attention_mask, past, t, words.device)
        positions = _positions(attention_mask, past, t, words.device)
        self._check(words, positions, past + t)
        x = self.embed(words, positions)
        hidden = [x] if output_hidden_states else None
        with recomputing(self):
            for layer in self.layers:
                x = layer(x, states, groups, mask, past_key_values=past_key_values)
                if hidden is not None:
                    hidden.append(x)
        return x, hidden and tuple(hidden)

    def _check(self, words, positions, length):
        """Raise a ValueError for an output of ``length`` places that the table does not hold, and
        for ids of no row."""
        table = self.config.max_decoder_position_embeddings
        if torch.compiler.is_compiling():
            return
        if length > table and (length := int(positions.max()) + 1) > table:
            raise ValueError(
                f"output has {length} tokens, the decoder's position table holds {table}"
            )
        if words.dim() == 2:
            check_ids("decoder_input_ids", words, self.config.vocab_size, tuple(words.shape))


def _positions(mask, past, t, device):
    """[rows or 1, t] int64, counted from the first real token of a row on."""
    if mask is None:
        return torch.arange(past, past + t, device=device)[None]
    return ((mask != 0).cumsum(1) - 1).clamp(min=0)[:, past:]


def _seen(mask, past, t, device):
    """[rows or 1, 1, t, past + t] bool, the keys that each query sees: real ones up to its own
    place, and itself, so that padding has something to see. None: plainly causal."""
    if mask is None and (past == 0 or t == 1):
        return None
    causal = torch.ones(t, past + t, dtype=torch.bool, device=device).tril(past)
    if mask is None:
        return causal[None, None]
    own = torch.eye(t, dtype=torch.bool, device=device)
    own = F.pad(own, (past, 0))
    return (causal & (mask != 0)[:, None, None]) | own
