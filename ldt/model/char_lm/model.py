"""Longformer's character language model: causal windows, relative positions, pre-LN."""

from itertools import pairwise
from operator import sub
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers import initialization
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils import can_return_tuple

from ldt.attention import Layout, sliding_window_attention
from ldt.attention.matmul import Linear, is_plain
from ldt.errors import ModelError
from ldt.model import adapters
from ldt.model.base import LdtPreTrainedModel, check_ids, given_words, pack
from ldt.model.config import LdtCausalConfig, layer_dilations, layer_windows, reaches
from ldt.model.heads.losses import cross_entropy
from ldt.model.layers import attention_options
from ldt.model.loading import find_folder, read_config


def read_causal_config(path: Path | str, **changes: Any) -> LdtCausalConfig:
    """Config of the character model of a folder or hub id; ``changes`` override config.json.

    Raises:
        ModelError: there is none, or it is of another kind of model.
    """
    folder = find_folder(path)
    kind = adapters.values(folder).get("model_type")
    if kind != LdtCausalConfig.model_type:
        raise ModelError(f"{folder} is a {kind} model, no character model")
    return read_config(folder, **changes)


def sinusoids(distances: torch.Tensor, width: int):
    """Sines, then cosines, of distances [n] at width / 2 frequencies: [n, width] float64.

    Source: Dai et al. 2019 (arXiv:1901.02860), section 3.3, in the order of their code.
    """
    places = torch.arange(0, width, 2, device=distances.device)
    angles = distances[:, None].double() / 10000 ** (places.double() / width)
    return torch.cat([angles.sin(), angles.cos()], 1)


class _LayerCache:
    """Keys and values [b, at most reach, heads, dim] of a layer, and its table of distances."""

    def __init__(self, reach):
        self.reach, self.last, self.table = reach, None, None

    def append(self, *new):
        """Append ``new`` keys and values [b, n, heads, dim]; return them with the cached ones in
        front."""
        if self.last is not None:
            new = [torch.cat(pair, 1) for pair in zip(self.last, new, strict=True)]
        self.last = [x[:, -self.reach :].clone() for x in new]
        return new


class KVCache:
    """Keys and values of the last tokens of a text, for each layer as many as its window reaches
    back, whatever the length of the text.

    Args:
        real: [b, n] bool, False at padding of the first tokens.
        reaches: tokens before a token that each layer's windows reach.

    Raises:
        ValueError: a row ends with padding, so that nothing can follow it.
    """

    def __init__(self, real, reaches):
        if not real[:, -1].all():
            raise ValueError("what is to be continued ends with a real token: pad on the left")
        self.layers = [_LayerCache(reach) for reach in reaches]
        self.reach = max(reaches)
        self.keep = real[:, -self.reach :]

    def extend(self, n: int) -> torch.Tensor:
        """Add ``n`` real tokens to the mask of the cached ones, in place; return the mask of both,
        [b, cached + n] bool, False at padding."""
        keep = F.pad(self.keep, (0, n), value=True)
        self.keep = keep[:, -self.reach :]
        return keep


def _cached_attention(q, k, v, keep, relative, dilation):
    """Causal attention of the last tokens of each row, [b, n, heads, dim], in O(n * offsets).

    Args:
        q: [b, n, heads, dim], the queries of the last n tokens.
        k, v: [b, m, heads, dim] of the last m tokens.
        keep: [b, m or more] bool, False at padding.
        relative: (query [b, n, heads, dim], table [heads, offsets, dim]).
        dilation: one gap a head.
    """
    query, table = relative
    n, heads, m = q.shape[1], q.shape[2], k.shape[1]
    back = torch.arange(table.shape[1] - 1, -1, -1, device=q.device)
    gaps = torch.tensor(dilation, device=q.device)
    place = torch.arange(m - n, m, device=q.device)[:, None] - gaps[:, None, None] * back
    seen = (place >= 0) & keep[:, -m:][:, place.clamp(min=0)]  # [b, heads, n, offsets]
    place = place.clamp(min=0)
    head = torch.arange(heads, device=q.device)[:, None, None]
    k, v = (x.transpose(1, 2)[:, head, place] for x in (k, v))  # [b, heads, n, offsets, dim]
    scores = torch.einsum("bnhd,bhnod->bhno", q, k) + torch.einsum("bnhd,hod->bhno", query, table)
    probs = (scores * q.shape[-1] ** -0.5).masked_fill(~seen, float("-inf")).softmax(-1)
    return torch.einsum("bhno,bhnod->bnhd", probs, v)


class _Recurrence:
    """Parts of packed documents, each with the tokens before it as memory without gradient.

    Where x [total, …] are the hidden states of a layer, each part is a document of its own in
    ``torch.cat([x.detach(), x])``: its memory taken from the first half, its tokens from the
    second. All parts are computed at once: unlike in Transformer-XL's code (Dai et al. 2019,
    arXiv:1901.02860) the memory is not carried from batch to batch, an input begins without.

    Args:
        layout: layout of the packed documents; without global tokens.
        length: tokens of a part, and of the memory before it.
    """

    def __init__(self, layout, length):
        total, device = layout.total_tokens, layout.cu_seqlens.device
        sources, sizes = [], []
        for start, stop in pairwise(layout.cu_seqlens_host):
            for first in range(start, stop, length):
                end = min(first + length, stop)
                sources.append(torch.arange(max(start, first - length), first))
                sources.append(torch.arange(first, end) + total)
                sizes.append(len(sources[-2]) + len(sources[-1]))
        self.source = torch.cat(sources).to(device)
        # Places of the tokens that are no memory, in the order of the text.
        self.places = (self.source >= total).nonzero().squeeze(1)
        keep = layout.key_padding_mask
        self.layout = Layout(
            torch.tensor([0, *sizes], device=device).cumsum(0),
            None if keep is None else keep[self.source % total],
            total=len(self.source),
            num_global=0,
        )

    def gather(self, x):
        """Parts with their memories, [tokens and memories, …], of [2 * total, …]."""
        return x.index_select(0, self.source)

    def with_memories(self, q):
        """Add zeros at the memories: [total, …] -> [tokens and memories, …]."""
        return q.new_zeros(len(self.source), *q.shape[1:]).index_copy(0, self.places, q)

    def without_memories(self, out):
        return out.index_select(0, self.places)


class RelativeAttention(nn.Module):
    """Causal sliding window whose scores know content and distance.

    The score of token i for token j before it is that of Transformer-XL::

        (q_i + u) k_j + (q_i + v) W r_(i - j)

    with r the `sinusoids` of the true distance, also in dilated heads, and u, v ``content_bias``,
    ``position_bias`` [heads, dim], ours in each layer. Computed in float32 at least, since half
    precision overflowed late in the authors' trainings.

    Source: Dai et al. 2019 (arXiv:1901.02860), section 3.3; windows and dilation of Beltagy et al.
    2020 (arXiv:2004.05150), section 4.1 and appendix A.
    """

    def __init__(self, config, index):
        super().__init__()
        width, self.heads = config.hidden_size, config.num_attention_heads
        self.window = layer_windows(config)[index]
        self.dilation = layer_dilations(config)[index]
        self.backend = config.attention_backend
        self.dropout = config.attention_probs_dropout_prob
        self.query = Linear(width, width, bias=False)
        self.key = Linear(width, width, bias=False)
        self.value = Linear(width, width, bias=False)
        self.position = Linear(width, width, bias=False)
        self.output = Linear(width, width, bias=False)
        self.content_bias = nn.Parameter(torch.empty(self.heads, width // self.heads))
        self.position_bias = nn.Parameter(torch.empty(self.heads, width // self.heads))

    def forward(self, x, layout, recurrence=None):
        """Attend from packed tokens x [total, width] to those before them: (output of that shape,
        (keys, values), [total, heads, dim] each). With a ``recurrence``, parts with memories, x
        is [2 * total, width], a copy without gradient in front."""
        tokens = x if recurrence is None else x[layout.total_tokens :]
        q = self._split(self.query(tokens))
        k, v = self._keys_and_values(x)
        new = k[-len(tokens) :], v[-len(tokens) :]
        if recurrence is not None:
            q, k, v = recurrence.with_memories(q), recurrence.gather(k), recurrence.gather(v)
            layout = recurrence.layout
        half = self._in_use(max(map(sub, layout.cu_seqlens_host[1:], layout.cu_seqlens_host)))
        pattern = {"window": 2 * half, "dilation": self.dilation, "causal": True}
        options = attention_options(self, x, self.dropout, self.backend)
        dtype = torch.promote_types(q.dtype, torch.float32)
        with torch.autocast(q.device.type, enabled=False):
            content, far = self._queries(q.to(dtype))
            parts = content, k.to(dtype), v.to(dtype), layout
            relative = far, self._table(half, dtype)
            out = sliding_window_attention(*parts, relative=relative, **pattern, **options)
        if recurrence is not None:
            out = recurrence.without_memories(out)
        return self.output(out.flatten(1).to(x.dtype)), new

    def step(self, x: torch.Tensor, keep, cache):
        """Attend from the next tokens: [b, n, width] -> the same, by the ``cache`` of the tokens
        before them, to which their keys and values are added; ``keep`` is the mask of
        `KVCache.extend`."""
        q = self._split(self.query(x))
        k, v = cache.append(*self._keys_and_values(x))
        dtype = torch.promote_types(q.dtype, torch.float32)
        if cache.table is None:
            cache.table = self._table(self.window // 2, dtype)
        content, far = self._queries(q.to(dtype))
        relative = far, cache.table[:, -1 - self._in_use(k.shape[1]) :]
        out = _cached_attention(content, k.to(dtype), v.to(dtype), keep, relative, self.dilation)
        return self.output(out.flatten(2).to(x.dtype))

    def _keys_and_values(self, x):
        return self._split(self.key(x)), self._split(self.value(x))

    def _table(self, half, dtype):
        """Projected sinusoids W r, [heads, half + 1, dim], for each place of the window, the
        farthest first."""
        if is_plain(self.position):
            weight = self.position.weight
        else:  # with an adapter or a hook
            width, like = self.content_bias.numel(), self.content_bias
            weight = self.position(like.new_zeros(width, width).fill_diagonal_(1)).T
        places = torch.arange(half, -1, -1, device=weight.device)
        waves = {
            gap: sinusoids(gap * places, weight.shape[1]).to(dtype) for gap in set(self.dilation)
        }
        rows = weight.to(dtype).unflatten(0, (self.heads, -1))  # [heads, dim, width]
        pairs = zip(self.dilation, rows, strict=True)
        return torch.stack([waves[gap] @ row.T for gap, row in pairs])

    def _queries(self, q):
        return q + self.content_bias.to(q.dtype), q + self.position_bias.to(q.dtype)

    def _in_use(self, longest):
        """Places before a token that a window has in a document of so many tokens."""
        return max(1, min(self.window // 2, (longest - 1) // min(self.dilation)))

    def _split(self, x):
        return x.unflatten(-1, (self.heads, -1))


class CausalLayer(GradientCheckpointingLayer):
    """Attention and feed-forward network, each on normalised input with a residual around it."""

    def __init__(self, config, index):
        super().__init__()
        width, wide = config.hidden_size, config.intermediate_size
        self.attention_norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.attention = RelativeAttention(config, index)
        self.norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.wide = Linear(width, wide)
        self.activation = ACT2FN[config.hidden_act]
        self.narrow = Linear(wide, width)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, x, layout, recurrence=None):
        """Run the layer on packed tokens [total, width]: (output of that shape, (keys, values) of
        its attention); ``recurrence`` is None, or cuts the documents into parts with memories."""
        read = x if recurrence is None else torch.cat([x.detach(), x])
        out, new = self.attention(self.attention_norm(read), layout, recurrence)
        return self._feed_forward(x + self.dropout(out)), new

    def step(self, x: torch.Tensor, keep, cache):
        """Run the layer on the next tokens [b, n, width]; see `RelativeAttention.step`."""
        return self._feed_forward(x + self.attention.step(self.attention_norm(x), keep, cache))

    def _feed_forward(self, x):
        active = self.dropout(self.activation(self.wide(self.norm(x))))
        return x + self.dropout(self.narrow(active))


class LdtForCausalLM(LdtPreTrainedModel):
    """The character language model of Beltagy et al. 2020 (arXiv:2004.05150), section 4: causal
    sliding windows that may grow from layer to layer, dilated in some heads, the relative
    positions of Transformer-XL, pre-LN, GELU. No token is global.

    The embedding is multiplied by the root of the width and, unless `tie_word_embeddings` says
    otherwise, is the output projection too, as Transformer-XL has it for characters: of a small
    vocabulary it costs nothing, and its init of 0.02 suits both ends. The output has a bias.

    A position's logits are those of the next token and do not depend on any later token. Attention
    runs in the blocked backend on every device: the Triton kernels have no relative positions.
    There is no ``generate``; `ldt.inference.generate` samples.
    """

    config: LdtCausalConfig  # type: ignore[assignment]
    base_model_prefix = "model"
    _input_embed_layer = "embeddings"
    accepts_loss_kwargs = True  # the Trainer counts the labels of all batches of a step
    _no_split_modules = ["CausalLayer"]
    _tied_weights_keys = {"decoder.weight": "embeddings.weight"}

    def __init__(self, config):
        super().__init__(config)
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        layers = range(config.num_hidden_layers)
        self.layers = nn.ModuleList(CausalLayer(config, index) for index in layers)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.decoder = Linear(config.hidden_size, config.vocab_size)
        if config.tie_word_embeddings:  # so that the Trainer does not miss it in a checkpoint
            self._keys_to_ignore_on_save = ["decoder.weight"]
        self.post_init()

    def _init_weights(self, module):
        super()._init_weights(module)
        if isinstance(module, RelativeAttention):
            for bias in (module.content_bias, module.position_bias):
                initialization.normal_(bias, std=self.config.initializer_range)

    def get_output_embeddings(self):
        """Linear layer [width, vocabulary] of the output."""
        return self.decoder

    def set_output_embeddings(self, new_embeddings: nn.Linear):
        """Replace the output layer."""
        self.decoder = new_embeddings

    @can_return_tuple
    def forward(
        self,
        input_ids,
        attention_mask=None,
        labels=None,
        past_key_values=None,
        use_cache=None,
        output_hidden_states=None,
        num_items_in_batch=None,
        at_labels=False,
    ):
        """Compute the logits of each next token, and the loss.

        Args:
            input_ids: [b, n] int64.
            attention_mask: [b, n], 0 at padding, else 1; padding costs nothing. None: no padding.
            labels: [b, n] int64, the ids again, -100 where none is to be predicted; the label at a
                place is that of the logits one place before. Without a real token right before it,
                a label does not count.
            past_key_values: `KVCache` of the tokens before these, which is changed; then all tokens
                are real, and neither a loss nor hidden states are given.
            use_cache: True to return a `KVCache` that ends with these tokens. Every row must then
                end with a real token. None: as the config says.
            output_hidden_states: None: as the config says.
            num_items_in_batch: labels of all batches of an optimizer step; the loss is divided by
                it in place of the number of labels here.
            at_labels: True to compute the logits only where there is a label: ``logits`` are
                [labels, vocabulary], in the order of the labels.

        Returns:
            transformers' CausalLMOutputWithPast: ``loss`` in nats, ``logits`` [b, n, vocabulary],
                zeros at padding, ``past_key_values``, ``hidden_states``: layers + 1 of [b, n,
                width].

        Raises:
            ValueError: an input that is empty, or of the wrong shape or value; a past in training.
        """
        config = self.config
        check_ids("input_ids", given_words(input_ids, None), config.vocab_size, input_ids.shape)
        use_cache = config.use_cache if use_cache is None else use_cache
        if output_hidden_states is None:
            output_hidden_states = config.output_hidden_states
        if self.training and (use_cache or past_key_values is not None):
            raise ValueError("keys and values are kept in evaluation mode only; model.eval() first")
        if past_key_values is not None:
            return self._step(input_ids, attention_mask, past_key_values)
        packing = pack(tuple(input_ids.shape), attention_mask, device=input_ids.device)
        cache = KVCache(packing.real(), reaches(config)) if use_cache else None
        hidden = self._hidden_states(packing.pack(input_ids), packing, cache)
        x = self.dropout(self.norm(hidden[-1]))
        loss, logits = self._loss_and_logits(x, labels, packing, num_items_in_batch, at_labels)
        states = tuple(map(packing.unpack, hidden)) if output_hidden_states else None
        return CausalLMOutputWithPast(loss, logits, cache, states)

    def loss_items(self, *, labels, input_ids, attention_mask=None, **inputs):
        """Number of labels that the loss of a batch is a mean over, scalar int64: those other than
        -100 whose token and the one before it are real."""
        packing = pack(tuple(input_ids.shape), attention_mask, device=input_ids.device)
        return (self._targets(labels, packing) != -100).sum()

    def _hidden_states(self, ids, packing, cache):
        """Embeddings and each layer's output, layers + 1 of [total, width], of packed ids."""
        recurrence, layout = None, packing.layout
        # It changes gradients alone, so without them nothing is cut.
        if self.config.memory_length and torch.is_grad_enabled():
            recurrence = _Recurrence(layout, self.config.memory_length)
        hidden = [self._embed(ids)]
        for number, layer in enumerate(self.layers):
            x, new = layer(hidden[-1], layout, recurrence)
            hidden.append(x)
            if cache is not None:
                cache.layers[number].append(*map(packing.unpack, new))
        return hidden

    def _loss_and_logits(self, x, labels, packing, count, at_labels):
        """Loss, None without labels, and logits of normalised states [total, width]."""
        if labels is None:
            return None, packing.unpack(self.decoder(x))
        targets = self._targets(labels.to(x.device), packing)
        if at_labels:
            places = (targets != -100).nonzero().squeeze(1)
            x, targets = x[places], targets[places]
        logits = self.decoder(x)
        loss = cross_entropy(logits, targets, count)
        return loss, logits if at_labels else packing.unpack(logits)

    def _step(self, input_ids, attention_mask, cache):
        if attention_mask is not None and not attention_mask.all():
            raise ValueError("tokens that follow a past are all real; padding stands before them")
        x = self._embed(input_ids)
        keep = cache.extend(input_ids.shape[1])
        for layer, layer_cache in zip(self.layers, cache.layers, strict=True):
            x = layer.step(x, keep, layer_cache)
        return CausalLMOutputWithPast(None, self.decoder(self.norm(x)), cache)

    def _embed(self, ids):
        return self.dropout(self.embeddings(ids) * self.config.hidden_size**0.5)

    def _targets(self, labels, packing):
        """Targets [total]: of each packed place the label of the place behind it, or -100."""
        if labels.shape != packing.shape:
            raise ValueError(
                f"labels must have the input's shape {list(packing.shape)}, got {[*labels.shape]}"
            )
        real = packing.real()
        counted = real & F.pad(real, (0, 1))[:, 1:]
        return packing.pack(F.pad(labels, (0, 1))[:, 1:].masked_fill(~counted, -100))
