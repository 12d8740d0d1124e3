"""Decoder of an LED: BART's layers, with the keys and values of a document stored once."""

from dataclasses import dataclass
from itertools import groupby, pairwise

import torch
from torch import nn
from torch.nn import functional as F
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache

from ldt.attention.matmul import Linear, project_each
from ldt.model.base import Packing, check_ids, given_words
from ldt.model.recompute import cast_once, recomputing
from ldt.model.seq2seq.layers import LedPart, PostNormLayer


class SharedCache(EncoderDecoderCache):
    """Keys and values of the decoder: of its own tokens for each row, of a document once, for all
    beams or sequences that are generated from it.

    Args:
        own: transformers' cache of the decoder's own tokens.
    """

    def __init__(self, own: Cache):
        super().__init__(own, DynamicCache())
        # Of each layer, by its number, `CrossAttention.keys_and_values`.
        self.memory: dict[int, list[tuple]] = {}

    def reorder_cache(self, beam_idx):
        """Replace the cached keys and values of each row's own tokens by those of row ``beam_idx``
        [rows], of the same document, whose own are shared and stay."""
        self.self_attention_cache.reorder_cache(beam_idx)

    def reset(self):
        """Forget all keys and values."""
        super().reset()
        self.memory.clear()


class Projections(nn.Module):
    """Query, key, value and output of an attention, under BART's names."""

    def __init__(self, config):
        super().__init__()
        width = config.d_model
        self.heads = config.decoder_attention_heads
        self.dropout = config.attention_dropout
        self.q_proj = Linear(width, width)
        self.k_proj = Linear(width, width)
        self.v_proj = Linear(width, width)
        self.out_proj = Linear(width, width)

    def _attend(self, q, k, v, mask=None, causal=False):
        """Attention output [b, heads, t, dim] of queries of that shape, keys and values [b, heads,
        n, dim]."""
        dropout = self.dropout if self.training else 0.0
        return F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal=causal)

    def _project(self, x, *modules):
        """Project x [..., width] by each of the modules, to [..., heads, dim]."""
        for projected in project_each(modules, cast_once(x, *modules)):
            yield projected.unflatten(-1, (self.heads, -1))


class CausalAttention(Projections):
    """Attention of each token to itself and to the tokens before it."""

    def forward(self, x: torch.Tensor, mask, cache=None, index=None):
        """Attend from tokens to tokens: [rows, t, width] -> the same.

        Args:
            mask: [rows or 1, 1, t, cached + t] bool, True where a query sees a key. None: all that
                is before it, or at its place.
            cache: transformers' Cache, which has the tokens before and gets these.
            index: number of the layer, for the cache.
        """
        projected = self._project(x, self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (heads.transpose(1, 2) for heads in projected)
        if cache is not None:
            k, v = cache.update(k, v, index)
        out = self._attend(q, k, v, mask, causal=mask is None and q.shape[2] > 1)
        return self.out_proj(out.transpose(1, 2).flatten(2))


@dataclass
class RowGroup:
    """Adjacent documents of one length in a packed batch.

    Args:
        documents: number of documents.
        length: tokens of each.
        mask: [documents, 1, 1, length] bool, False at padding; None: there is none.
    """

    documents: int
    length: int
    mask: torch.Tensor | None = None


def groups_of(packing: Packing) -> list[RowGroup]:
    """Split a packed batch into groups of documents of one length, in order.

    A document of padding alone sees its one token.
    """
    rows, length = packing.shape
    lengths = [length] * rows
    if packing.index is not None:
        lengths = [end - start for start, end in pairwise(packing.layout.cu_seqlens_host)]
    groups = [RowGroup(len(list(equal)), n) for n, equal in groupby(lengths)]
    keep = packing.layout.key_padding_mask
    if keep is not None:
        keep = keep.index_fill(0, packing.first_index(), True)
        parts = keep.split([group.documents * group.length for group in groups])
        for group, part in zip(groups, parts, strict=True):
            group.mask = part.view(-1, 1, 1, group.length)
    return groups


class CrossAttention(Projections):
    """Attention to the documents: all rows of a document, its beams and their tokens, are queries
    of one block, and its keys and values are stored once."""

    def forward(self, x, memory):
        """Attend from the decoder's tokens to their documents: [rows, t, width] -> the same.

        Args:
            x: the rows of the first document, then those of the second, as many of each.
            memory: `keys_and_values` of the documents.
        """
        (q,) = self._project(x, self.q_proj)
        documents = sum(group.documents for group, _, _ in memory)
        q = q.reshape(documents, -1, *q.shape[2:]).transpose(1, 2)
        blocks = q.split([group.documents for group, _, _ in memory])
        out = [
            self._attend(block, k, v, group.mask)
            for block, (group, k, v) in zip(blocks, memory, strict=True)
        ]
        out = out[0] if len(out) == 1 else torch.cat(out)
        return self.out_proj(out.transpose(1, 2).reshape(x.shape))

    def keys_and_values(self, states: torch.Tensor, groups, contiguous=False):
        """Project the documents' states: a list of (group, keys, values), [documents, heads,
        length, dim] each, for each group.

        Args:
            states: [total, width], the encoder's.
            groups: of `groups_of`.
            contiguous: True lays keys and values out for many reads.
        """
        sizes = [group.documents * group.length for group in groups]
        sides = []
        for projected in self._project(states, self.k_proj, self.v_proj):
            parts = zip(projected.split(sizes), groups, strict=True)
            heads = [x.unflatten(0, (-1, group.length)).transpose(1, 2) for x, group in parts]
            sides.append([x.contiguous() for x in heads] if contiguous else heads)
        return list(zip(groups, *sides, strict=True))


class LedDecoderLayer(PostNormLayer):
    """Attention to the tokens before, attention to the document, feed-forward network."""

    def __init__(self, config, index):
        super().__init__(config, config.decoder_ffn_dim)
        self.index = index
        self.self_attn = CausalAttention(config)
        self.encoder_attn = CrossAttention(config)
        self.encoder_attn_layer_norm = nn.LayerNorm(config.d_model)

    def forward(self, x: torch.Tensor, states, groups, mask=None, past_key_values=None):
        """Run the layer on the decoder's tokens: [rows, t, width] -> the same.

        Args:
            states: [total, width], the encoder's packed tokens; not read where the cache has their
                keys and values.
            groups: `groups_of` the documents.
            mask: of `CausalAttention.forward`.
            past_key_values: `SharedCache`, to which the tokens are added; or None.
        """
        cache, memory = None, None
        if past_key_values is not None:
            cache, memory = past_key_values.self_attention_cache, past_key_values.memory
        out = self.self_attn(x, mask, cache, self.index)
        x = self.add(out, x, self.self_attn_layer_norm)
        if memory is None:
            documents = self.encoder_attn.keys_and_values(states, groups)
        else:
            if self.index not in memory:
                keys_and_values = self.encoder_attn.keys_and_values(states, groups, contiguous=True)
                memory[self.index] = keys_and_values
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
        """Decode: (states [rows, t, width] of the last layer; with ``output_hidden_states`` a tuple
        of those of the embeddings and all layers, else None). ValueError for inputs of a wrong
        shape or value, or that the position table does not hold.

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
        """Raise a ValueError for more places than the table holds, and for ids of no row."""
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
    diagonal = torch.eye(t, dtype=torch.bool, device=device)
    diagonal = F.pad(diagonal, (past, 0))
    return (causal & (mask != 0)[:, None, None]) | diagonal
