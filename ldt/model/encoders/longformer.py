"""LdtModel: Longformer's encoder, and Poolingformer's, on packed tokens."""

import torch

from ldt.attention import choose
from ldt.attention.ops import shared
from ldt.model.base import PackedEncoder
from ldt.model.config import LdtConfig, usable_length
from ldt.model.graphs import Graphs
from ldt.model.layers import (
    Embeddings,
    Encoder,
    Pooler,
    attach_unused_parameters,
    unused_parameters,
)
from ldt.model.packing import check_ids
from ldt.model.recompute import recomputing


class LdtModel(PackedEncoder):
    """Longformer's encoder (Beltagy et al. 2020, arXiv:2004.05150), equal to transformers' at
    real tokens; with ``config.pooling_layers`` Poolingformer's (`ldt.model.pooling.SecondLevel`),
    with ``attention_dilation`` and ``causal`` that of Longformer's character models.

    ``global_attention_mask=None`` means no global attention. Differences from transformers'
    LongformerModel, all on purpose:

    - any even window >= 2 and any mixture over the layers; inputs are not padded to the window;
    - outputs at padding are zero; padding costs nothing;
    - the pooler reads the first real token of a row, not position 0 (which is padding under left
      padding);
    - a 2 in ``global_attention_mask`` counts as 1; a 2 in ``attention_mask`` is a real token with
      global attention, whatever the other mask says;
    - with ``inputs_embeds``, positions count as with the ids that they are of;
    - ``global_attentions`` are n long, and ``attentions`` are those before dropout;
    - with torch.distributed, parameters that a batch does not use get a gradient of zero; else
      none, as there;
    - an input that is empty or too long for the position table raises ValueError.

    Args:
        config: LdtConfig.
        add_pooling_layer: False: no pooler, and no ``pooler_output``.
    """

    config: LdtConfig
    base_model_prefix = "longformer"
    has_global_attention = True
    graphs: Graphs | None = None  # see `ldt.model.graphs.use_graphs`
    _no_split_modules = ["LdtLayer"]

    def __init__(self, config, add_pooling_layer=True):
        super().__init__(config)
        self.max_length = usable_length(config)
        self.embeddings = Embeddings(config)
        self.encoder = Encoder(config)
        self.pooler = Pooler(config) if add_pooling_layer else None
        self.post_init()

    def get_input_embeddings(self):
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value):
        self.embeddings.word_embeddings = value

    @property
    def position_table(self):
        """The position embeddings, [rows, d]."""
        return self.embeddings.position_embeddings.weight

    def global_projections(self):
        """Pairs of query, key and value of each layer; see `LdtPreTrainedModel`."""
        for layer in self.encoder.layer:
            attention = layer.attention.self
            for name in ("query", "key", "value"):
                yield getattr(attention, name), getattr(attention, f"{name}_global")

    def _encode(self, words, packing, ids, read, output_attentions, output_hidden_states):
        x, others = self._layers(
            self._inputs(words, *ids),
            packing,
            output_attentions,
            output_hidden_states,
            first_only=read != "all",
        )
        return self.pooler(x) if read == "pooled" else x, packing.to(x.device), others

    def _pooled(self, x, packing):
        if self.pooler is None:
            return x, None
        pooled = self.pooler(packing.first(x))
        return attach_unused_parameters(x, *unused_parameters(self.pooler)), pooled

    def _inputs(self, words, input_ids, token_type_ids, position_ids):
        """Words, positions and, where they are not all 0, types of a padded batch."""
        shape = tuple(words.shape[:2])
        if position_ids is None:
            position_ids = self.position_ids_of(words)
        self._check_ids(input_ids, position_ids, token_type_ids, shape)
        others = position_ids, token_type_ids
        return words, *(ids.expand(shape) for ids in others if ids is not None)

    def _embed(self, words, positions, types=None):
        """[total, d], the embeddings of packed tokens."""
        types = torch.zeros_like(positions) if types is None else types
        return self.embeddings(words, positions, types)

    def _layers(self, inputs, packing, output_attentions, output_hidden_states, first_only):
        """Packed states [total, d], or [b, d] with ``first_only``; and the dict of the rest."""
        # Only the first tokens, all of them global, are read of the last layer.
        plain = not (output_attentions or output_hidden_states)
        short = first_only and packing.first_is_global and plain
        first = packing.first_index() if short else None
        hidden, probs, global_probs = None, [], []

        def note(x, local, everywhere):
            if hidden is not None:
                hidden.append(x)
            if output_attentions:
                there = packing.to(x.device)
                probs.append(there.unpack(local).transpose(1, 2))
                if everywhere is not None:
                    global_probs.append(there.unpack_global_probabilities(everywhere))

        x = self._by_graph(inputs, packing, first) if plain else None
        if x is None:
            x = self._embed(*map(packing.pack, inputs))
            hidden = [x] if output_hidden_states else None
            with recomputing(self):
                x = self._through(x, packing.layout, first, output_attentions, note)
        if first_only and not short:
            x = packing.to(x.device).first(x)
        if hidden is not None:
            hidden = tuple(packing.to(state.device).unpack(state) for state in hidden)
        return x, {
            "hidden_states": hidden,
            "attentions": tuple(probs) if output_attentions else None,
            "global_attentions": tuple(global_probs) if global_probs else None,
        }

    def _through(self, x, layout, first=None, output_attentions=False, note=None):
        """Packed states [total, d] after all layers.

        Args:
            first: [documents] int64, packed indices of tokens; only their states are then given,
                [documents, d], of the last layer as if no other token were global.
            note: function of what each layer gives, called after it.
        """
        layers = self.encoder.layer
        if torch.compiler.is_compiling() or self.encoder.compiled:
            layout = shared(layout)
        for layer in layers[: None if first is None else -1]:
            x, *probs = layer(x, layout, output_attentions=output_attentions)
            if note is not None:
                note(x, *probs)
        if first is not None:
            # Its call but for a compiled form: so few rows, with no operator of their own.
            x, *_ = layers[-1]._call_impl(x, layout.global_at(first), globals_only=True)
        return x

    def _by_graph(self, inputs, packing, first):
        """Result of `_through` for the embeddings of ``inputs``, by a CUDA graph; None where there
        is none for it."""
        if self.graphs is None or self.encoder.compiled or torch.compiler.is_compiling():
            return None
        backend, config = self.config.attention_backend, self.config
        if backend == "auto":
            kind = inputs[0].device, self.position_table.dtype
            backend = choose(*kind, config.hidden_size // config.num_attention_heads)[0]
        if backend != "triton":  # the others look at the borders of documents on the host
            return None
        modules = self.embeddings, self.encoder.layer
        return self.graphs(modules, self._from_words, inputs, packing, first)

    def _from_words(self, inputs, layout, first=None):
        return self._through(self._embed(*inputs), layout, first)

    def train(self, mode=True):
        """Set training mode, which has the memory of all graphs."""
        if mode and self.graphs is not None:
            self.graphs.clear()
        return super().train(mode)

    def position_ids_of(self, words):
        """[b, n] int64, pad_token_id + 1 at the first token that counts, + 2 at the second, …

        Ids other than pad_token_id count, whatever the attention mask says, as in transformers;
        likewise embeddings [b, n, d] other than that of pad_token_id, or of zeros, which pad too.
        All others get pad_token_id.
        """
        pad = self.config.pad_token_id
        counted = words != pad
        if words.dim() == 3:
            padding = self.embeddings.word_embeddings.weight[pad].to(words.dtype)
            counted = (words != padding).any(-1) & words.any(-1)
        return counted.cumsum(1) * counted + pad

    def _check_ids(self, input_ids, position_ids, token_type_ids, shape):
        """Raise a ValueError where an embedding would raise an IndexError, or CUDA an assertion."""
        if torch.compiler.is_compiling():
            return
        longest = self.max_length
        if shape[1] > longest:
            length = int(position_ids.max()) - self.config.pad_token_id
            if length > longest:
                raise ValueError(
                    f"input has {length} tokens, the position table holds {longest}; "
                    f"ldt convert SOURCE --max-length {length} makes a longer one"
                )
        for name, ids, rows in (
            ("input_ids", input_ids, self.config.vocab_size),
            ("position_ids", position_ids, self.config.max_position_embeddings),
            ("token_type_ids", token_type_ids, self.config.type_vocab_size),
        ):
            if ids is not None:
                check_ids(name, ids, rows, shape)
