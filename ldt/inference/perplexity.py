"""perplexity: how well a masked LM finds hidden words, at several lengths on the same text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.table import Table

from ldt.cli.console import say, stdout
from ldt.errors import ModelError, UserError
from ldt.files import write_whole
from ldt.inference.masked_text import MaskedText, Score, score, scorer, texts
from ldt.inference.predictor import find_device
from ldt.model import LdtForMaskedLM, load, load_tokenizer, usable_length


def perplexity(
    folder: str,
    names: Sequence[str],
    *,
    lengths: Sequence[int] = (),
    text: str = "text",
    seed: int = 0,
    device: str = "auto",
    json_file: Path | None = None,
) -> list[Score]:
    """Print a table of loss, bits per token and per byte, and perplexity by length of input.

    Args:
        folder: a masked LM.
        names: files, folders or patterns of text, as ``data.train`` takes them.
        lengths: of inputs; the longest of the model where none is given.
        text: field of the text in tables.
        seed: of the masks.
        device: auto, cpu or cuda.
        json_file: gets everything at full precision.

    Raises:
        ModelError: the folder holds no masked LM.
        UserError: a length that the model cannot read.
        DataError: text that cannot be read.
    """
    model = load(folder, LdtForMaskedLM)
    if model.new_weights:
        raise ModelError(
            f"{folder}: no masked LM: there are no weights for {', '.join(model.new_weights)}; "
            f"ldt pretrain RECIPE model.path={folder} trains them"
        )
    longest = usable_length(model.config)
    lengths = sorted(set(lengths)) or [longest]
    if lengths[0] < 8 or lengths[-1] > longest:
        wrong = lengths[0] if lengths[0] < 8 else lengths[-1]
        raise UserError(f"--length {wrong}: {folder} reads 8 to {longest:,} tokens")
    tokenizer = load_tokenizer(folder, model.config)
    masked_text = MaskedText(texts(list(names), text=text), tokenizer, lengths, seed=seed)
    run = scorer(model.to(find_device(device)))
    found = [score(run, masked_text, length, pad=model.config.pad_token_id) for length in lengths]
    table = Table(
        "input length", "inputs", "bits per token", "bits per byte", "perplexity", "loss", box=None
    )
    for row in found:
        values = (row.bits_per_token, row.bits_per_byte, row.perplexity, row.loss)
        table.add_row(f"{row.length:,}", f"{row.inputs:,}", *(f"{value:.4f}" for value in values))
    stdout.print(table)
    say(
        f"{found[0].masked:,} masked tokens, the same at every length, of "
        f"{masked_text.tokens:,} in {masked_text.size:,} bytes; {masked_text.left_over:,} at the "
        "end not scored"
    )
    if json_file:
        rows = {
            "model": folder,
            "input": list(names),
            "seed": seed,
            "tokens": masked_text.tokens,
            "bytes": masked_text.size,
            "left_over": masked_text.left_over,
            "rows": [asdict(row) for row in found],
        }
        write_whole(json_file, json.dumps(rows, indent=1) + "\n")
    return found
