"""Models of the hub: which names are looked up there, and their files in the cache."""

import re
from pathlib import Path

from transformers.utils import cached_file

from ldt.errors import ModelError, first_line
from ldt.io.sources import hub_fault
from ldt.model.config_file import read_json

WEIGHTS = (  # the first of them that is there counts
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
TOKENIZERS = ("tokenizer.json", "vocab.json", "vocab.txt", "sentencepiece.bpe.model")
TOKENIZER_TABLES = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
GENERATION = "generation_config.json"  # of a model that writes
HUB_OPTIONS = (  # of transformers' `cached_file`
    "cache_dir",
    "force_download",
    "local_files_only",
    "proxies",
    "revision",
    "subfolder",
    "token",
)
_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


def is_hub_id(name):
    """True for a name such as ``roberta-base`` or ``owner/name``."""
    return bool(_ID.fullmatch(name))


def download(name, options):
    """The folder in the cache with the hub's files of a model.

    Where the hub does not answer, those that the cache has are taken.

    Args:
        name: of the model.
        options: some of `HUB_OPTIONS`.

    Raises:
        ModelError: there is no such model, or no way to it.
    """
    fault = None if options.get("local_files_only") else hub_fault()
    if fault:
        options = options | {"local_files_only": True}

    def fetch(file, optional=True):
        try:
            return cached_file(
                name, file, _raise_exceptions_for_missing_entries=not optional, **options
            )
        except OSError as error:
            if fault:
                raise ModelError(f"{name}: no such folder, and {fault}") from error
            why = first_line(error)
            raise ModelError(f"{name}: no such folder, nor on the hub: {why}") from error

    config = fetch("config.json", optional=False)
    if config is None:
        raise ModelError(f"{name}: no such folder, and on the hub it has no config.json")
    for file in (*TOKENIZERS, *TOKENIZER_TABLES, "merges.txt", GENERATION):
        fetch(file)
    folder = Path(config).parent
    for file in WEIGHTS:
        if fetch(file):
            if file.endswith(".index.json"):
                for shard in set(read_json(folder / file).get("weight_map", {}).values()):
                    fetch(shard)
            break
    return folder
