"""A model that a training may begin with: whether it must be converted first."""

import os
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer
from transformers.utils import cached_file

from ldt.convert.kinds import source_config
from ldt.errors import ModelError
from ldt.model.config import usable_length
from ldt.model.config_file import read_values
from ldt.model.encoders import ENCODERS, SEQ2SEQ
from ldt.model.loading import find_folder, read_config

_LONG = (*ENCODERS, *SEQ2SEQ, "led", "longformer")  # kinds that are trained as they are
_NAMED = {  # part of a name -> input of such models
    **{"longformer": 4096, "led-": 16384},
    **{"modernbert": 8192, "mmbert": 8192, "ettin-": 7999},
}
SHORT, SHORT_BART = 512, 1024  # tokens that models read which are converted first


@dataclass(frozen=True)
class Candidate:
    """Facts of a model that are known without reading its weights.

    Args:
        length: longest input, in tokens, of one that is trained as it is; none of one that is
            converted first.
        width: of its layers; none where it is not on this machine.
        shortest: least length, in tokens, of what it is converted to.
        tokenizer: none where it is not on this machine.
    """

    length: int | None
    width: int | None = None
    tokenizer: Tokenizer | None = None
    shortest: int = SHORT

    def count(self, text: str) -> int:
        """Tokens of a text, by a tokenizer that is here."""
        return len(self.tokenizer.encode(text, add_special_tokens=False).ids)  # type: ignore[union-attr]


def candidate(path: str, writes: bool = False) -> Candidate:
    """Look at a folder, or at the hub's copy on this machine; the network is not asked.

    Of a model that is not here its name tells: one called longformer reads 4,096 tokens.

    Args:
        writes: whether the task needs a model with a decoder, which writes; others need an encoder.

    Raises:
        ModelError: there is no such folder, or no model in it that ldt can train or convert for
            such a task.
    """
    folder = _folder(path)
    if folder is None:
        length = next((n for part, n in _NAMED.items() if part in path.lower()), None)
        return Candidate(length, shortest=SHORT_BART if writes else SHORT)
    values = read_values(folder)
    if values.get("model_type") in _LONG or values.get("attention_mode"):  # or the authors' files
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
    """The folder of the model; None of a hub id whose model is not on this machine."""
    here = os.path.lexists(os.path.expanduser(path)) or os.path.isdir(os.path.dirname(path))
    if here or path.count("/") > 1 or path.startswith(".") or path.endswith("/"):
        return find_folder(path)  # raises where it is none
    try:
        config = cached_file(path, "config.json", local_files_only=True)
    except OSError:
        return None
    return Path(config).parent if config else None
