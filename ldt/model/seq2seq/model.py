"""LED: an encoder for long documents with a decoder that generates text, and with evidence."""

from dataclasses import dataclass
from inspect import signature

import torch
from torch import nn
from torch.nn import functional as F
from transformers import DynamicCache, GenerationMixin
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput, Seq2SeqModelOutput
from transformers.utils import ModelOutput, can_return_tuple

from ldt.attention.matmul import Linear
from ldt.model.base import at_positions, check_positions, pack, takes_inputs
from ldt.model.heads.losses import counts, cross_entropy, weighted
from ldt.model.heads.questions import balanced_loss, known_evidence
from ldt.model.seq2seq.decoder import LedDecoder, SharedCache
from ldt.model.seq2seq.layers import LdtSeq2SeqPreTrainedModel, LedEncoder


class LdtSeq2SeqModel(LdtSeq2SeqPreTrainedModel):
    """Longformer-Encoder-Decoder (Beltagy et al. 2020, arXiv:2004.05150, section 7), equal to
    transformers' LEDModel at real tokens; with ``config.pooling_layers`` the encoder is
    Poolingformer's (`ldt.model.pooling.SecondLevel`).

    Differences from transformers' LEDModel, all on purpose:

    - without ``global_attention_mask`` the first real token of each row has global attention, in
      generation too; there none has, unlike in any training that was published;
    - positions are counted from the first real token of a row on, in the encoder and in the
      decoder, so that padding on the left changes nothing;
    - no n × n mask, nothing is padded to the window, padding costs nothing, outputs there are zero;
    - any even window >= 2 and any mixture over the layers;
    - keys and values of a document are kept once for all beams and sequences that are generated;
    - ``decoder_input_ids`` must be given: the input never becomes the output;
    - no attentions as outputs, no layers dropped in training;
    - an input or output too long for its position table raises ValueError.
    """

    _tied_weights_keys = {
        "encoder.embed_tokens.weight": "shared.weight",
        "decoder.embed_tokens.weight": "shared.weight",
    }

    def __init__(self, config):
        super().__init__(config)
        self.shared = nn.Embedding(config.vocab_size, config.d_model, config.pad_token_id)
        self.encoder = LedEncoder(config)
        self.decoder = LedDecoder(config)
        self.post_init()

    def get_input_embeddings(self):
        """Word embeddings, shared by encoder and decoder."""
        return self.shared

    def set_input_embeddings(self, value):
        """Replace the word embeddings by an nn.Embedding, in encoder and decoder too."""
        self.shared = self.encoder.embed_tokens = self.decoder.embed_tokens = value

    @can_return_tuple
    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        decoder_input_ids=None,
        decoder_attention_mask=None,
        encoder_outputs=None,
        global_attention_mask=None,
        past_key_values=None,
        inputs_embeds=None,
        decoder_inputs_embeds=None,
        use_cache=None,
        output_attentions=None,
        output_hidden_states=None,
        packing=None,
    ):
        """Encode a padded batch of documents, and decode.

        Args:
            input_ids, attention_mask, global_attention_mask, inputs_embeds, packing: as in
                `ldt.model.base.PackedEncoder.forward`.
            decoder_input_ids: [rows, t] int64, one or several rows for each document in turn; or
                ``decoder_inputs_embeds`` [rows, t, d] in their place.
            decoder_attention_mask: [rows, t], with a cache [rows, cached + t], 0 at padding. None:
                there is none, or it stands behind all real tokens.
            encoder_outputs: what the encoder gave for these documents, [b, n, d] in front; with the
                same ``attention_mask``. The encoder then does not run.
            past_key_values: `SharedCache` of the tokens before these; is changed.
            use_cache: return a `SharedCache`. None: as the config says, but not in training.
            output_attentions: must not be asked for.
            output_hidden_states: None: as the config says.

        Returns:
            transformers' Seq2SeqModelOutput, or the tuple of what is not None in it.

        Raises:
            ValueError: an input that is empty, too long, or of the wrong shape or value.
        """
        self.encoder.refuse_attentions(output_attentions)
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        if encoder_outputs is not None and not isinstance(encoder_outputs, ModelOutput):
            encoder_outputs = BaseModelOutput(*encoder_outputs)
        cache = self._cache(past_key_values, use_cache)
        states = None  # where the cache knows the documents
        if cache is None or not cache.memory:
            inputs = input_ids, attention_mask, global_attention_mask
            options = {"inputs_embeds": inputs_embeds, "output_hidden_states": output_hidden_states}
            states, packing, encoder_outputs = self._documents(
                inputs, options, packing, encoder_outputs
            )
        x, decoder_hidden = self.decoder(
            states,
            None if states is None else packing,
            decoder_input_ids,
            decoder_attention_mask,
            decoder_inputs_embeds,
            cache,
            output_hidden_states,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=x,
            past_key_values=cache,
            decoder_hidden_states=decoder_hidden,
            encoder_last_hidden_state=encoder_outputs and encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs and encoder_outputs.hidden_states,
        )

    def _cache(self, given, use_cache):
        if given is not None and not isinstance(given, SharedCache):
            raise ValueError(
                "past_key_values must be what this model returns with use_cache=True, got a "
                f"{type(given).__name__}"
            )
        if use_cache is None:
            use_cache = self.config.use_cache and not self.training
        return SharedCache(DynamicCache()) if given is None and use_cache else given

    def _documents(self, inputs, options, packing, encoded):
        """(states [total, d], packing, output) of the encoder, which ran before if there is one."""
        if encoded is not None:
            given = encoded.last_hidden_state
            packing = packing or pack(tuple(given.shape[:2]), inputs[1], device=given.device)
            return packing.pack(given), packing, encoded
        # By way of forward, so that hooks run: sharded training gathers weights in one.
        states, packing, others = self.encoder(*inputs, **options, packing=packing, packed=True)
        return states, packing, BaseModelOutput(packing.unpack(states), **others)


INPUTS = tuple(signature(LdtSeq2SeqModel.forward).parameters)[1:]


class LdtForConditionalGeneration(LdtSeq2SeqPreTrainedModel, GenerationMixin):
    """LED that generates text: summaries, answers. ``logits`` are [rows, t, vocabulary].

    Differences from transformers' LEDForConditionalGeneration, besides those of `LdtSeq2SeqModel`:
    the loss is divided by ``num_items_in_batch``, so that accumulation over several batches gives
    the loss and the gradients of one; a batch without any label has the loss 0 instead of nan;
    `generate` refuses a ``max_length`` that the decoder's position table does not hold, and caches
    of a fixed size.

    Labels begin with the first token to generate, behind the start token: those of a RoBERTa
    tokenizer with ``<s>`` and ``</s>``. All but -100 count in the loss, padding too where it is
    left in, as in transformers.
    """

    accepts_loss_kwargs = True  # the Trainer counts the labels of all batches of a step
    _tied_weights_keys = {"lm_head.weight": "led.shared.weight"}
    _keys_to_ignore_on_load_missing = ["final_logits_bias"]  # not in old files; zeros

    def __init__(self, config):
        super().__init__(config)
        self.led = LdtSeq2SeqModel(config)
        self.register_buffer("final_logits_bias", torch.zeros(1, config.vocab_size))
        self.lm_head = Linear(config.d_model, config.vocab_size, bias=False)
        self.post_init()

    def _init_weights(self, module):
        super()._init_weights(module)
        if isinstance(module, LdtForConditionalGeneration):
            init.zeros_(module.final_logits_bias)

    def resize_token_embeddings(self, *args, **kwargs):
        """Resize the embeddings as transformers does and return them; new tokens have no bias."""
        embeddings = super().resize_token_embeddings(*args, **kwargs)
        old, size = self.final_logits_bias, len(embeddings.weight)
        self.final_logits_bias = F.pad(old, (0, size - old.shape[1]))
        return embeddings

    @takes_inputs(*INPUTS)
    def forward(self, *, labels: torch.Tensor | None = None, num_items_in_batch=None, **inputs):
        """Compute logits and loss of the inputs of `LdtSeq2SeqModel.forward`.

        Args:
            labels: [rows, t] int64, -100 where there is none. Without decoder ids, the decoder
                reads them behind a start token.
            num_items_in_batch: `loss_items` of all batches of an optimizer step; the loss is
                divided by it in place of that of this batch.

        Returns:
            transformers' Seq2SeqLMOutput, or the tuple of what is not None in it.
        """
        if labels is not None:
            if inputs.get("use_cache") is None:
                inputs["use_cache"] = False
            names = "decoder_input_ids", "decoder_inputs_embeds"
            if all(inputs.get(name) is None for name in names):
                inputs["decoder_input_ids"] = self.prepare_decoder_input_ids_from_labels(labels)
        out = self.led(**inputs)
        logits = self.lm_head(out.last_hidden_state)
        logits += self.final_logits_bias  # in place: the largest tensor of a step is there once
        loss = None
        if labels is not None:
            labels = labels.to(logits.device)
            loss = cross_entropy(logits.flatten(0, 1), labels.flatten(), num_items_in_batch)
        return Seq2SeqLMOutput(
            loss=loss,
            logits=logits,
            past_key_values=out.past_key_values,
            decoder_hidden_states=out.decoder_hidden_states,
            encoder_last_hidden_state=out.encoder_last_hidden_state,
            encoder_hidden_states=out.encoder_hidden_states,
        )

    def loss_items(self, *, labels, **inputs):
        """Number of labels other than -100, scalar int64: the loss of a batch is a mean
        over them."""
        return (labels != -100).sum()

    def prepare_decoder_input_ids_from_labels(self, labels):
        """Decoder ids [rows, t]: a start token, then the labels [rows, t] without the last, padding
        for -100."""
        config = self.config
        ids = labels.masked_fill(labels == -100, config.pad_token_id)
        return F.pad(ids[:, :-1], (1, 0), value=config.decoder_start_token_id)

    def _expand_inputs_for_generation(
        self, expand_size=1, is_encoder_decoder=False, input_ids=None, **model_kwargs
    ):
        """transformers' hook: beams have decoder ids of their own, and share a document."""
        documents = ("encoder_outputs", "attention_mask", "global_attention_mask", "packing")
        shared = {name: model_kwargs.pop(name) for name in documents if name in model_kwargs}
        ids, others = super()._expand_inputs_for_generation(
            expand_size, False, input_ids, **model_kwargs
        )
        return ids, others | shared

    def _validate_generated_length(
        self, generation_config, input_ids_length, has_default_max_length
    ):
        """transformers' hook, called when all lengths are known."""
        table, length = self.config.max_decoder_position_embeddings, generation_config.max_length
        if length > table:
            raise ValueError(
                f"max_length {length} is more than the decoder's position table holds, {table} "
                "tokens with the start token"
            )
        super()._validate_generated_length(
            generation_config, input_ids_length, has_default_max_length
        )

    def _prepare_cache_for_generation(self, generation_config, model_kwargs, *args, **kwargs):
        """transformers' hook: its cache of the decoder's own tokens, in a `SharedCache`."""
        kind = generation_config.cache_implementation
        if kind not in (None, "dynamic", "offloaded"):
            raise ValueError(
                f"cache_implementation {kind!r} is not offered; leave it out: the cache of the "
                "tokens that are written grows with them, that of the document is made once"
            )
        before = model_kwargs.get("past_key_values")
        super()._prepare_cache_for_generation(generation_config, model_kwargs, *args, **kwargs)
        cache = model_kwargs.get("past_key_values")
        if cache is not None and before is None:
            model_kwargs["past_key_values"] = SharedCache(cache.self_attention_cache)


@dataclass
class LdtEvidenceGenerationOutput(Seq2SeqLMOutput):
    """transformers' Seq2SeqLMOutput of `LdtForEvidenceGeneration`.

    Args:
        passage_logits: [b, passages], the dtype's least number where there is none; None without
            positions.
    """

    passage_logits: torch.Tensor | None = None


class LdtForEvidenceGeneration(LdtForConditionalGeneration):
    """LED that generates an answer and scores which passages of the document are its evidence.

    To `LdtForConditionalGeneration` comes a linear layer of two outputs, other and evidence, on the
    encoder's state at the token in front of a passage (Dasigi et al. 2021, arXiv:2105.03011,
    section 4.1). A passage is evidence where its logit, the second less the first, is above 0.

    The loss is a sum of two, weighted by ``config.evidence_weights``, or 1 each: ``answer``, that
    of `LdtForConditionalGeneration`, and ``passages``, `balanced_loss`.
    """

    def __init__(self, config):
        super().__init__(config)
        self.evidence_classifier = Linear(config.d_model, 2)
        self.post_init()

    @takes_inputs(*INPUTS)
    def forward(
        self,
        *,
        labels=None,
        passage_positions=None,
        passage_labels=None,
        num_items_in_batch=None,
        **inputs,
    ):
        """Compute logits and loss of the answer, and logits of passages; inputs as of
        `LdtForConditionalGeneration.forward`.

        Args:
            passage_positions: [b, k] int64, the token of each passage, -100 where a row has fewer.
                None: passages are not asked for.
            passage_labels: [b, k] int64, 1 of evidence, else 0; -100 for none.

        Returns:
            `LdtEvidenceGenerationOutput`, or the tuple of what is not None in it. The loss is that
                of the answer alone without ``passage_labels``, and None without ``labels``.

        Raises:
            ValueError: besides those of `LdtSeq2SeqModel`: a position outside of the input, or
                labels of passages without positions.
        """
        if passage_labels is not None and passage_positions is None:
            raise ValueError("give passage_positions, the token in front of each passage")
        answers = passages = num_items_in_batch
        if num_items_in_batch is not None and passage_labels is not None:
            answers, passages = counts(num_items_in_batch, 2)
        counted = {"labels": labels, "num_items_in_batch": answers}
        out = super().forward(**counted, **inputs, return_dict=True)
        loss, scores = out.loss, None
        if passage_positions is not None:
            scores = self.passage_logits(out.encoder_last_hidden_state, passage_positions)
        if loss is not None and passage_labels is not None:
            evidence = balanced_loss(scores, passage_labels, passage_positions, passages)
            losses = {"answer": loss, "passages": evidence}
            loss = weighted(losses, self.config.evidence_weights)
        return LdtEvidenceGenerationOutput(**{**out, "loss": loss, "passage_logits": scores})

    def passage_logits(self, states: torch.Tensor, positions: torch.Tensor):
        """Logits [b, k] of passages from the encoder's states [b, n, width] at positions [b, k];
        the dtype's least number where a position is below 0.

        Raises:
            ValueError: a position outside of the input.
        """
        check_positions(positions, states.shape[1])
        states = at_positions(states, positions)
        other, evidence = self.evidence_classifier(states).unbind(-1)
        logits = evidence - other
        return logits.masked_fill(positions < 0, torch.finfo(logits.dtype).min)

    def loss_items(self, *, labels, passage_labels=None, passage_positions=None, **inputs):
        """Numbers of items of the two losses, [2] int64: labels of answers; rows with a labelled
        passage. Without ``passage_labels`` the first alone, a scalar."""
        answers = super().loss_items(labels=labels)
        if passage_labels is None:
            return answers
        return torch.stack(
            [answers, known_evidence(passage_labels, passage_positions).any(1).sum()]
        )
