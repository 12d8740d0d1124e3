"""A model that a training may begin with: whether it must be converted first."""

import os
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer
from transformers.utils import cached_file

from ldt.convert.kinds import source_config
from ldt.model.config import usable_length
from ldt.model.config_file import read_values
from ldt.model.loading import find_folder, read_config

_LONG = ("ldt", "ldt_seq2seq", "led", "longformer")  # kinds that are trained as they are


@dataclass(frozen=True)
class Candidate:
    """What is known of a model without reading its weights.

    Args:
        length: longest input, in tokens, of one that is trained as it is; none of one that is
            converted first.
        width: of its layers; none where it is not on this machine.
        tokenizer: none where it is not on this machine.
    """

    length: int | None
    width: int | None = None
    tokenizer: Tokenizer | None = None

    def count(self, text: str) -> int:
        """Tokens of a text, by a tokenizer that is here."""
        return len(self.tokenizer.encode(text, add_special_tokens=False).ids)  # type: ignore[union-attr]


def candidate(path: str) -> Candidate:
    """Look at a folder, or at the hub's copy on this machine; the network is not asked.

    Of a model that is not here its name tells: one called longformer reads 4,096 tokens.

    Raises:
        ModelError: there is no such folder, or no model in it that ldt can train or convert.
    """
    folder = _folder(path)
    if folder is None:
        return Candidate(4096 if "longformer" in path.lower() else None)
    values = read_values(folder)
    if values.get("model_type") in _LONG or values.get("attention_mode"):  # or the authors' files
        config = read_config(folder)
        length = usable_length(config)
    else:
        config, length = source_config(folder)[1], None
    file, tokenizer = folder / "tokenizer.json", None
    if file.is_file():
        tokenizer = Tokenizer.from_file(str(file))
        tokenizer.no_truncation()  # some files ask for it, at the length of short inputs
    return Candidate(length, config.hidden_size, tokenizer)


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
