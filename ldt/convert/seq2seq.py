"""Encoder-decoder sources: a BART or LED becomes a long LED.

The encoder becomes long as other encoders do. The decoder with its position table is unchanged, so
the length of its output is too.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.nn import functional as F
from transformers import GenerationConfig, LEDConfig, PreTrainedConfig, PreTrainedModel

from ldt.convert.kinds import KINDS, SEQ2SEQ_FIELDS
from ldt.convert.source import (
    Source,
    Tensors,
    compared,
    float_weights,
    random_ids,
    source_model,
    with_full_windows,
)
from ldt.data.tokenization import vocabulary_size
from ldt.errors import ModelError
from ldt.inference.agreement import OutputCheck
from ldt.model import LdtForConditionalGeneration, LdtSeq2SeqConfig, usable_length
from ldt.model.loading import quiet, read_generation_config, read_tokenizer
from ldt.model.seq2seq.layers import fit_weights

_BUFFERS = ("encoder.version", "decoder.version")  # in old files, not weights
_TIED = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
_WORDS = "shared.weight"
_BIAS = "final_logits_bias"
_ATTENTION = {  # module of BART's self-attention -> that of LED's encoder
    "q_proj": "longformer_self_attn.query",
    "k_proj": "longformer_self_attn.key",
    "v_proj": "longformer_self_attn.value",
    "out_proj": "output",
}
_PARTS = ("shared.", "encoder.", "decoder.")
_NEVER = -1e4  # bias of a word that is not written; float16 holds it
_SPECIAL = ("bos_token_id", "decoder_start_token_id", "eos_token_id", "pad_token_id")
_DECODED = 16  # tokens of the decoder: vocabularies are large
_READ, _WRITTEN = 64, 32  # most tokens of a document, and that are generated for it
_BEAMS = 4
_TRIES = 3


class Seq2SeqSource(Source):
    """BART or LED."""

    target_config = LdtSeq2SeqConfig
    target_class = LdtForConditionalGeneration
    fields = SEQ2SEQ_FIELDS
    prefix = "led."
    positions = "encoder.embed_positions.weight"
    attention = "encoder.layers.{}.self_attn.longformer_self_attn."
    longest = 16384
    default_windows = {"longformer": 1024, "poolingformer": 128}
    leading = 0

    @classmethod
    def read(cls, folder: Path, kind: str, config: PreTrainedConfig) -> Seq2SeqSource:
        """Read a BART or LED, of the kind and config that `source_config` gives for its folder.
        ModelError if its weights cannot be used, or input and output embeddings are not tied."""
        weights = {
            name: tensor
            for name, tensor in float_weights(folder).items()
            if not name.endswith(_BUFFERS)
        }
        _tie(folder, config, weights)
        long = _led_config(config)
        windows: list[int] = []
        config = copy.copy(config)
        config.tie_word_embeddings = True
        if KINDS[kind] == "LED":
            windows, config = with_full_windows(folder, config, usable_length(config) // 2)
            weights = fit_weights(weights, config)
        weights.setdefault(_BIAS, torch.zeros(1, config.vocab_size))
        inside = [name for name in weights if name.startswith(_PARTS)]
        model_class = getattr(transformers, KINDS[kind] + "ForConditionalGeneration")
        prefix = model_class.base_model_prefix + "."
        state = {prefix + name: weights[name] for name in inside} | {_BIAS: weights[_BIAS]}
        places = tuple(prefix + part for part in _PARTS)
        model = source_model(folder, model_class, config, state, places, _TIED)
        base = {_led_name(name): weights[name] for name in inside}
        table = base[cls.positions]
        base = fit_weights(base, long)
        first = len(table) - len(base[cls.positions])
        base[cls.positions] = table
        head = {_BIAS: weights[_BIAS]}
        _add_special_tokens(folder, long, base, head)
        return cls(
            folder=folder,
            kind=kind,
            config=long,
            model=model,
            base=base,
            head=head,
            head_note="",
            first=first,
            left_out=sorted({name.partition(".")[0] for name in weights.keys() - {*inside, _BIAS}}),
            windows=windows,
            generation=_generation(folder, long),
        )

    @property
    def proof_length(self) -> int:
        """Longest input of the proof in tokens; transformers' LED needs room for its windows."""
        return (
            min(super().proof_length, self.length // 2 + 1)
            if self.windows
            else super().proof_length
        )

    @property
    def facts(self) -> dict[str, str]:
        """Lines of the report on the decoder, and on tokens without an embedding in the file."""
        old, new = self.model.config.vocab_size, self.config.vocab_size
        facts = {
            "decoder": f"the source's, {self.config.decoder_layers} layers, "
            f"{self.config.max_decoder_position_embeddings} positions"
        }
        if new > old:
            facts["vocabulary"] = (
                f"{old} -> {new}, as the tokenizer has; new ones are never written"
            )
        return facts

    def lengths(self, max_length: int) -> dict[str, int]:
        """Sizes of both position tables, by the names of the config's keys."""
        return {
            "max_encoder_position_embeddings": max_length,
            "max_decoder_position_embeddings": self.config.max_decoder_position_embeddings,
        }

    def inputs(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensors:
        """Random first tokens of the decoder for as many rows as ``shape`` has."""
        length = min(_DECODED, self.config.max_decoder_position_embeddings)
        return {"decoder_input_ids": random_ids(self, (shape[0], length), generator)}

    def outputs(self, model: Any, inputs: Tensors, real: torch.Tensor) -> list[torch.Tensor]:
        """Encoder states [kept, width] of the real tokens, and decoder logits for the source's
        vocabulary."""
        outputs = model(**inputs, use_cache=False)
        words = self.model.config.vocab_size
        return [outputs.encoder_last_hidden_state[real], outputs.logits[..., :words]]

    def further_checks(self, model: PreTrainedModel, length: int) -> list[OutputCheck]:
        """Checks of all decoder positions, and of tokens that both models generate."""
        return [
            self._decoder(model, length),
            self._tokens(model, length, "greedy tokens", 1),
            self._tokens(model, length, f"tokens, {_BEAMS} beams", _BEAMS),
        ]

    def _decoder(self, model, length):
        generator = torch.Generator().manual_seed(0)
        rows = self.config.max_decoder_position_embeddings
        inputs = self._documents(1, length, generator)
        inputs["decoder_input_ids"] = random_ids(self, (1, rows), generator)
        expected, converted = (
            [x.base_model(**kwargs, use_cache=False).last_hidden_state]
            for x, kwargs in self._both(model, inputs)
        )
        return compared("decoder", rows, expected, converted, self.folder)

    def _tokens(self, model, length, name, beams):
        """Generated tokens: rounding may decide between equally likely continuations, so one of
        three tries must be equal."""
        most = min(_WRITTEN, self.config.max_decoder_position_embeddings - 1)
        settings = GenerationConfig(
            num_beams=beams,
            no_repeat_ngram_size=3,
            min_new_tokens=most // 2,
            max_new_tokens=most,
            **{id: getattr(self.config, id) for id in _SPECIAL},
        )
        model.generation_config = self.model.generation_config = settings
        for seed in range(_TRIES):
            inputs = self._documents(2, min(length, _READ), torch.Generator().manual_seed(seed))
            expected, converted = (x.generate(**kwargs) for x, kwargs in self._both(model, inputs))
            written = max(expected.shape[1], converted.shape[1])
            expected, converted = (
                F.pad(x, (0, written - x.shape[1]), value=-1) for x in (expected, converted)
            )
            different = (expected != converted).sum().item()
            if not different:
                break
        return OutputCheck(name, written, different, 0)

    def _documents(self, rows, length, generator):
        ids = random_ids(self, (rows, length), generator)
        everywhere = torch.zeros_like(ids)
        everywhere[:, 0] = 1
        return {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "global_attention_mask": everywhere,
        }

    def _both(self, model, inputs):
        theirs = dict(inputs)
        if not self.windows:
            del theirs["global_attention_mask"]
        return (self.model, theirs), (model, inputs)


def _tie(folder, config, weights):
    stored = [name for name in (_WORDS, *_TIED) if name in weights]
    if not config.tie_word_embeddings and _TIED[-1] not in stored:
        raise ModelError(f"{folder}: weights are missing: {_TIED[-1]}")
    for name in stored[1:]:
        if not torch.equal(weights[name], weights[stored[0]]):
            raise ModelError(
                f"{folder}: {name} differs from {stored[0]}, and a LED has one table of words"
            )
    tables = [weights.pop(name) for name in stored]
    if tables:
        weights[_WORDS] = tables[0]


def _led_config(config):
    if isinstance(config, LEDConfig):
        return config
    rows = config.max_position_embeddings
    return LEDConfig(
        **{field: getattr(config, field) for field in SEQ2SEQ_FIELDS},
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        max_encoder_position_embeddings=rows,
        max_decoder_position_embeddings=rows,
    )


def _led_name(name):
    """encoder.layers.0.self_attn.q_proj.bias -> ….longformer_self_attn.query.bias; others
    unchanged."""
    layer, attention, part = name.partition(".self_attn.")
    if not attention or not name.startswith("encoder."):
        return name
    module, _, kind = part.partition(".")
    return f"{layer}{attention}{_ATTENTION.get(module, module)}.{kind}"


def _add_special_tokens(folder, config, base, head):
    """Add embeddings for special tokens that the file lacks, as bart-large-cnn lacks <mask>."""
    tokenizer = read_tokenizer(folder)
    more = range(config.vocab_size, vocabulary_size(tokenizer))
    if more and set(more) <= set(tokenizer.all_special_ids):
        config.vocab_size = more.stop
        base[_WORDS] = F.pad(base[_WORDS], (0, 0, 0, len(more)))
        head[_BIAS] = F.pad(head[_BIAS], (0, len(more)), value=_NEVER)


@quiet()
def _generation(folder, config):
    settings = read_generation_config(folder, config)
    settings._from_model_config = False  # they are changed from now on where they stand
    for name in _SPECIAL:
        if getattr(settings, name) is None:
            setattr(settings, name, getattr(config, name))
    return settings
