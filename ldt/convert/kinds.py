"""Kinds of models that can be made long, and their configs."""

import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path

import transformers
from tokenizers import Tokenizer
from transformers import LEDConfig, LongformerConfig, PreTrainedConfig
from transformers.utils import cached_file

from ldt.errors import ModelError
from ldt.model import adapters
from ldt.model.config import LdtSeq2SeqConfig, usable_length
from ldt.model.config_file import (
    FIELDS,
    FULL_ATTENTION,
    check_full_attention,
    make_config,
    read_values,
    refuse_others,
)
from ldt.model.encoders import ENCODERS
from ldt.model.encoders import SEQ2SEQ as WRITERS
from ldt.model.loading import find_folder, read_config
from ldt.model.weights import read_weights

log = logging.getLogger("ldt")

KINDS = {  # model_type -> how transformers' classes of it begin
    "bert": "Bert",
    "camembert": "Camembert",
    "ldt": "Longformer",
    "longformer": "Longformer",
    "roberta": "Roberta",
    "xlm-roberta": "XLMRoberta",
    "bart": "Bart",
    "led": "LED",
}
SEQ2SEQ = ("bart", "led")  # those with a decoder besides
SEQ2SEQ_FIELDS = (  # the same in BART and LED
    "vocab_size d_model encoder_layers encoder_ffn_dim encoder_attention_heads decoder_layers "
    "decoder_ffn_dim decoder_attention_heads activation_function dropout attention_dropout "
    "activation_dropout init_std pad_token_id decoder_start_token_id"
).split()
_ENDS = ["bos_token_id", "eos_token_id"]
_LONG = {  # class of a config -> fields of those that are long already
    LongformerConfig: [
        *(*FIELDS, "attention_window", "max_position_embeddings", *_ENDS, "sep_token_id")
    ],
    LEDConfig: [
        *(*SEQ2SEQ_FIELDS, "attention_window", *_ENDS),
        *("max_encoder_position_embeddings", "max_decoder_position_embeddings"),
    ],
}


def _kind_by_names(keys, folder):
    """Kind of a model whose config.json does not name it, by the names of its class or weights."""
    where = folder / "config.json"
    kinds = {
        kind: name
        for name in keys.get("architectures") or ()
        for kind in FULL_ATTENTION
        if re.match(rf"{KINDS[kind]}(For|Model|PreTrained)", name)
    }
    if not kinds:
        names = read_weights(folder, mapped=True)
        heads = {"bert": ("bert.", "cls.predictions."), "roberta": ("lm_head.dense.",)}
        kinds = {
            kind: name for kind, head in heads.items() for name in names if name.startswith(head)
        }
    if len(kinds) != 1:
        raise ModelError(
            f'{where}: no model_type; a line "model_type": "bert" makes it a BERT, others are '
            f"{', '.join(sorted(KINDS.keys() - {'bert'}))} and modernbert"
        )
    ((kind, name),) = kinds.items()
    log.warning("%s: no model_type; read as %s, by the name %s", where, kind, name)
    return kind


def source_config(folder: Path) -> tuple[str, PreTrainedConfig]:
    """Kind of the model in a folder (a key of `KINDS`), and its config of transformers.

    Raises:
        ModelError: config.json is invalid, or the model cannot be made long.
    """
    keys = read_values(folder)
    kind = keys.get("model_type")
    if LdtSeq2SeqConfig.takes(keys):
        kind = "led"  # the authors' own files too
    elif keys.get("attention_mode") and kind in (None, "", "roberta"):
        kind = "longformer"  # the same
    if not kind:
        kind = _kind_by_names(keys, folder)
    refuse_others(kind, folder)
    if kind not in KINDS:
        raise ModelError(
            f"{folder}: a {kind} model cannot be converted, only "
            f"{', '.join(KINDS)} and modernbert can"
        )
    check_full_attention(keys, folder)
    config_class = getattr(transformers, f"{KINDS[kind]}Config")
    if config_class in _LONG:
        ours = read_config(folder)
        if ours.pooling_layers:
            raise ModelError(
                f"{folder}: a Poolingformer cannot be converted, only the model that it came from"
            )
        if ours.causal or ours.attention_dilation != 1:
            raise ModelError(
                f"{folder}: causal or dilated windows cannot be converted, only plain ones"
            )
        names = (*_LONG[config_class], "id2label")
        config = config_class(**{field: getattr(ours, field) for field in names})
    else:
        if kind in SEQ2SEQ:
            # refuses what LED has no place for
            LdtSeq2SeqConfig.in_own_terms(keys | {"model_type": "led"}, folder)
        config, _ = make_config(config_class, keys, folder)
    if config.pad_token_id is None or not 0 <= config.pad_token_id < config.vocab_size:
        raise ModelError(
            f"{folder / 'config.json'}: pad_token_id must be an id of the {config.vocab_size} in "
            f"the vocabulary, got {config.pad_token_id}"
        )
    return kind, config


# -- a model that a training may begin with: must it be converted first?

_TRAINED = (*ENCODERS, *WRITERS, "led", "longformer")  # kinds that are trained as they are
_NAMED = {  # part of a name -> input of such models
    **{"longformer": 4096, "led-": 16384},
    **{"modernbert": 8192, "mmbert": 8192, "ettin-": 7999},
}
SHORT, SHORT_BART = 512, 1024  # tokens that models read which are converted first


@dataclass(frozen=True)
class Candidate:
    """Facts about a model, known without reading its weights.

    Args:
        length: longest input in tokens of a model that is trained directly; None if it must be
            converted first.
        width: hidden size; None if the model is not on this machine.
        tokenizer: its tokenizer; None if it is not on this machine.
        shortest: least length, in tokens, for converting it.
    """

    length: int | None
    width: int | None = None
    tokenizer: Tokenizer | None = None
    shortest: int = SHORT

    def count(self, text: str) -> int:
        """Number of tokens of a text without special tokens; only for a model with a tokenizer."""
        return len(self.tokenizer.encode(text, add_special_tokens=False).ids)  # type: ignore[union-attr]


def candidate(path: str, writes: bool = False) -> Candidate:
    """Facts about a model, without its weights: its longest input, or that it must be converted
    first.

    A model that is not on this machine is judged by its name: one called longformer reads 4,096
    tokens. Nothing is downloaded.

    Args:
        path: folder or hub id.
        writes: True if the task generates text and needs a decoder; other tasks need an encoder.

    Raises:
        ModelError: the folder is missing, or has no model that ldt can train or convert for the
            task.
    """
    folder = _folder(path)
    if folder is None:
        length = next((n for part, n in _NAMED.items() if part in path.lower()), None)
        return Candidate(length, shortest=SHORT_BART if writes else SHORT)
    values = adapters.values(folder)
    if values.get("model_type") in _TRAINED or values.get(
        "attention_mode"
    ):  # or the authors' files
        config = read_config(folder)
        length, shortest = usable_length(config), SHORT
    else:
        kind, config = source_config(folder)
        unused = 0 if kind in ("bart", "bert") else config.pad_token_id + 1  # rows of the table
        length, shortest = None, max(SHORT, config.max_position_embeddings - unused)
    if config.is_encoder_decoder and not writes:
        raise ModelError(f"{path} writes text; this task needs an encoder, as a BERT or RoBERTa")
    if writes and not config.is_encoder_decoder:
        raise ModelError(f"{path} writes no text; this task needs a BART or LED")
    file, tokenizer = folder / "tokenizer.json", None
    if file.is_file():
        tokenizer = Tokenizer.from_file(str(file))
        tokenizer.no_truncation()  # some files ask for it, at the length of short inputs
    return Candidate(length, config.hidden_size, tokenizer, shortest)


def _folder(path: str) -> Path | None:
    """Folder of the model; None if a hub model is not on this machine."""
    here = os.path.lexists(os.path.expanduser(path)) or os.path.isdir(os.path.dirname(path))
    if here or path.count("/") > 1 or path.startswith(".") or path.endswith("/"):
        return find_folder(path)  # raises where it is none
    try:
        config = cached_file(path, "config.json", local_files_only=True)
    except OSError:
        return None
    return Path(config).parent if config else None
