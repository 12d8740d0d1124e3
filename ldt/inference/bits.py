"""bits: how well a character model predicts a text, by length of the sequences it reads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from transformers import PreTrainedConfig

from ldt.cli.console import say, stdout
from ldt.data.characters import Overlapping, collate, load_alphabet, part_texts, read_text
from ldt.errors import DataError, UserError
from ldt.files import write_whole
from ldt.inference.predictor import find_device
from ldt.model import LdtCausalConfig, LdtForCausalLM
from ldt.model.loading import find_folder
from ldt.recipe import recipe as recipes
from ldt.tasks.char_lm import figures

BATCH = 16384  # characters run at a time; a longer sequence is run alone
RECIPE = "recipe.yaml"


def is_character_model(folder: str) -> bool:
    """Whether a folder or hub id holds a character model.

    Raises:
        ModelError: there is no such folder.
    """
    try:
        found = PreTrainedConfig.get_config_dict(find_folder(folder))[0]
    except OSError:
        return False
    return found.get("model_type") == LdtCausalConfig.model_type


def bits(
    folder: str,
    names: Sequence[str] = (),
    *,
    part: str | None = None,
    lengths: Sequence[int] = (),
    step: int | None = None,
    device: str = "auto",
    json_file: Path | None = None,
) -> list[dict[str, Any]]:
    """Print a table of loss and bits per character and byte, by length of the sequences.

    The text is read in `ldt.data.characters.Overlapping` sequences; the figures are those of
    `ldt.tasks.char_lm.figures`.

    Args:
        folder: a character model.
        names: files of text, laid end to end; or
        part: ``eval`` or ``test`` of the text that the recipe in the folder names.
        lengths: of sequences; that of training where none is given.
        step: characters of a sequence that are scored; half of it where it is not given.
        device: auto, cpu or cuda.
        json_file: gets everything at full precision.

    Raises:
        UserError: options that do not go together.
        ModelError: the model cannot be read.
        DataError: text that cannot be read, or too little.
    """
    if bool(names) == (part is not None):
        raise UserError("give --input with a text, or --part of the text of the model's recipe")
    alphabet = load_alphabet(folder)[1]
    recipe = Path(folder) / RECIPE
    data = recipes.load(recipe).data if recipe.is_file() else None
    if names:
        ids = alphabet.encode(read_text(list(names)), ", ".join(names))
    else:
        if data is None:
            raise UserError(f"{folder}: no {RECIPE} that says which text is its {part}; --input")
        parts = part_texts(data, alphabet)[1]
        if part not in parts:
            raise UserError(f"{recipe}: data has neither {part} nor {part}_fraction; --input")
        ids = parts[part]
    if len(ids) < 2:
        raise DataError(f"{', '.join(names)}: {len(ids)} {alphabet.unit}s, 2 are needed")
    lengths = sorted(set(lengths)) or [data.max_length if data is not None else 512]
    model = LdtForCausalLM.from_pretrained(folder, dtype="float32").to(find_device(device)).eval()
    found = []
    for length in lengths:
        own = length // 2 if step is None else step
        if not 1 <= own < length:
            raise UserError(f"--step {own}: sequences of {length:,}; 1 to {length - 1:,} of them")
        windows = Overlapping(ids, length, own)
        nats, scored = measured(model, windows)
        values = figures(nats, scored, len(ids), alphabet.bytes_of(ids))
        rest = {"length": length, "step": own, "sequences": len(windows), "scored": scored}
        found.append(rest | values)
    counts = ("length", "step", "sequences")
    values = ("bits_per_character", "bits_per_byte", "loss")
    table = Table(*(key.replace("_", " ") for key in (*counts, *values)), box=None)
    for row in found:
        cells = [f"{row[key]:,}" for key in counts] + [f"{row[key]:.4f}" for key in values]
        table.add_row(*cells)
    stdout.print(table)
    say(f"{found[0]['scored']:,} {alphabet.unit}s scored, all but the first")
    if json_file:
        rows = {"model": folder, "input": list(names), "part": part, "rows": found}
        write_whole(json_file, json.dumps(rows, indent=1) + "\n")
    return found


def measured(model: LdtForCausalLM, windows: Overlapping) -> tuple[float, int]:
    """The sum of the cross-entropy over all that is scored, in nats, and how much that is."""
    nats, scored = 0.0, 0
    rows = max(1, BATCH // windows.length)
    for start in range(0, len(windows), rows):
        batch = collate([windows[i] for i in range(start, min(start + rows, len(windows)))])
        batch = {key: values.to(model.device) for key, values in batch.items()}
        with torch.inference_mode():
            one = torch.ones((), device=model.device)  # so that the loss is the sum
            nats += float(model(**batch, num_items_in_batch=one, at_labels=True).loss)
        scored += int((batch["labels"] != -100).sum())
    return nats, scored
