"""Perplexity of a language model on a text, by input length."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.table import Table
from torch.nn import functional as F

from ldt.data.characters import Alphabet, Overlapping, part_texts, read_text
from ldt.data.corpus import Reader, sources
from ldt.data.features import Collator
from ldt.data.lm_inputs import Frame
from ldt.data.masking import Masker
from ldt.data.options import CorpusSection
from ldt.data.tokenization import token_parts
from ldt.errors import DataError, ModelError, UserError
from ldt.inference.predictor import find_device
from ldt.io.progress import reported
from ldt.model import (
    LdtCausalConfig,
    LdtForCausalLM,
    LdtForMaskedLM,
    load,
    load_tokenizer,
    usable_length,
)
from ldt.model.config_file import read_values
from ldt.model.loading import find_folder, read_tokenizer
from ldt.recipe import recipe as recipes
from ldt.recipe.recipe import RECIPE
from ldt.recipe.run import recipe_file
from ldt.tasks.language_models import character_lm_metrics, masked_lm_metrics

BATCH_CHARACTERS = 16384  # run at a time; a longer sequence is run alone
SHORTEST = 8  # tokens of an input of a masked LM
DEFAULT_LENGTH = 512  # of the sequences of a character model without a recipe

# Of a batch: input_ids, attention_mask and labels [rows, n] int64. Returns the logits at the
# labels, [labels, vocabulary].
Scorer = Callable[[dict[str, torch.Tensor]], torch.Tensor]


@dataclass
class Perplexity:
    """Loss of a model on a text.

    Attributes:
        facts: model and text, by name.
        rows: figures by name, one row per input length, shortest first.
        columns: column titles by name of the figure.
        note: remark about the scored text.
    """

    facts: dict[str, Any]
    rows: list[dict[str, Any]]
    columns: dict[str, str]
    note: str

    def table(self) -> Table:
        """Rows as a `rich` table: integers, and floats with four decimals."""
        table = Table(*self.columns.values(), box=None)
        for row in self.rows:
            values = [row[name] for name in self.columns]
            table.add_row(*(f"{x:,}" if isinstance(x, int) else f"{x:.4f}" for x in values))
        return table

    def as_json(self) -> dict[str, Any]:
        """Facts, and ``rows`` at full precision, in one dict."""
        return self.facts | {"rows": self.rows}


def perplexity(
    folder: str,
    names: Sequence[str] = (),
    *,
    lengths: Sequence[int] = (),
    text: str = "text",
    seed: int = 0,
    step: int | None = None,
    part: str | None = None,
    device: str = "auto",
) -> Perplexity:
    """Loss, bits and perplexity of a model on a text, by input length, shortest first.

    Args:
        folder: folder or hub id of a masked LM or a character model; no recipe is needed.
        names: text files; for a masked LM also folders, patterns and tables.
        lengths: input lengths, in tokens or characters; default the longest of a masked LM, or the
            training length of a character model.
        text: text field of a table.
        seed: seed of the random masks of a masked LM.
        step: characters scored at the end of each sequence of a character model; default half of
            it.
        part: ``eval`` or ``test`` of the text in a character model's recipe, instead of names.
        device: a torch device, or "auto".

    Raises:
        ModelError: the folder holds neither kind of model.
        UserError: options contradict each other, or the model does not read a length.
        DataError: the text cannot be read or is too short.
    """
    lengths = sorted(set(lengths))
    if is_character_model(folder):
        return _of_characters(folder, names, part, lengths, step, device)
    if not names or step or part:
        raise UserError("a masked LM takes --gold, a text; --step and --part are of characters")
    return _of_masked_words(folder, names, lengths, text, seed, device)


def is_character_model(folder: str) -> bool:
    """True if a folder or hub id holds a character model; ModelError without its config.json."""
    return read_values(find_folder(folder)).get("model_type") == LdtCausalConfig.model_type


def _of_masked_words(folder, names, lengths, text, seed, device):
    model = load(folder, LdtForMaskedLM, mapped=True)
    if model.new_weights:
        raise ModelError(
            f"{folder}: no masked LM: there are no weights for {', '.join(model.new_weights)}; "
            f"ldt pretrain RECIPE model.path={folder} trains them"
        )
    longest = usable_length(model.config)
    for length in lengths:
        if not SHORTEST <= length <= longest:
            raise UserError(f"--length {length}: {folder} reads {SHORTEST} to {longest:,} tokens")
    lengths = lengths or [longest]
    masked = MaskedText(
        texts(list(names), text=text), load_tokenizer(folder, model.config), lengths, seed=seed
    )
    run, pad = scorer(model.to(find_device(device))), model.config.pad_token_id
    rows = [asdict(score(run, masked, length, pad=pad)) for length in lengths]
    facts = {"tokens": masked.tokens, "bytes": masked.size, "left_over": masked.left_over}
    columns = ("inputs", "bits_per_token", "bits_per_byte", "perplexity", "loss")
    return Perplexity(
        facts={"model": folder, "input": list(names), "seed": seed} | facts,
        rows=rows,
        columns={"length": "input length"} | {name: name.replace("_", " ") for name in columns},
        note=f"{rows[0]['masked']:,} masked tokens, the same at every length, of "
        f"{masked.tokens:,} in {masked.size:,} bytes; {masked.left_over:,} at the end not scored",
    )


def _of_characters(folder, names, part, lengths, step, device):
    if bool(names) == (part is not None):
        raise UserError("--gold with a text, or --part of the text of the model's recipe is needed")
    alphabet = Alphabet.of_tokenizer(read_tokenizer(folder), folder)
    recipe = recipe_file(Path(folder))
    data = recipes.load(recipe).data if recipe.is_file() else None
    if names:
        ids = alphabet.encode(read_text(list(names)), ", ".join(names))
    elif data is None or part not in (parts := part_texts(data, alphabet)[1]):
        raise UserError(f"{folder}: no {RECIPE} that names a text for {part}; --gold names one")
    else:
        ids = parts[part]
    if len(ids) < 2:
        raise DataError(f"{', '.join(names)}: {len(ids)} {alphabet.unit}s, 2 are needed")
    model = load(folder, LdtForCausalLM, mapped=True).to(find_device(device))
    rows = []
    for length in lengths or [DEFAULT_LENGTH if data is None else data.max_length]:
        stride = length // 2 if step is None else step
        if not 1 <= stride < length:
            raise UserError(
                f"--step {stride}: sequences of {length:,}; 1 to {length - 1:,} of them"
            )
        sequences = Overlapping(ids, length, stride)
        nats, scored = _summed_loss(model, sequences)
        counts = {"length": length, "step": stride, "sequences": len(sequences), "scored": scored}
        rows.append(counts | character_lm_metrics(nats, scored, len(ids), alphabet.bytes_of(ids)))
    columns = ("length", "step", "sequences", "bits_per_character", "bits_per_byte", "loss")
    return Perplexity(
        facts={"model": folder, "input": list(names), "part": part},
        rows=rows,
        columns={name: name.replace("_", " ") for name in columns},
        note=f"{rows[0]['scored']:,} {alphabet.unit}s scored, all but the first",
    )


def _summed_loss(model: LdtForCausalLM, sequences: Overlapping) -> tuple[float, int]:
    """Return (summed cross-entropy in nats, number of characters scored)."""
    collate, nats, scored = Collator(0, type(model)), 0.0, 0
    rows = max(1, BATCH_CHARACTERS // sequences.length)
    for start in range(0, len(sequences), rows):
        batch = collate([sequences[i] for i in range(start, min(start + rows, len(sequences)))])
        batch = {key: values.to(model.device) for key, values in batch.items()}
        with torch.inference_mode():
            one = torch.ones((), device=model.device)  # so that the loss is the sum
            nats += float(model(**batch, num_items_in_batch=one, at_labels=True).loss)
        scored += int((batch["labels"] != -100).sum())
    return nats, scored


@dataclass
class Score:
    """Scores at one input length.

    Attributes:
        length: largest number of tokens of an input, with special tokens.
        inputs: number of inputs.
        masked: number of predicted tokens, the same at every length.
        loss, bits_per_token, bits_per_byte, perplexity: as defined by
            `ldt.tasks.language_models.masked_lm_metrics`.
    """

    length: int
    inputs: int
    masked: int
    loss: float
    bits_per_token: float
    bits_per_byte: float
    perplexity: float


class MaskedText:
    """Text with one mask, cut into inputs of any length.

    The text is divided into blocks of as many whole inputs of the shortest length as fit in one of
    the longest; the remainder at the end is not scored (``left_over``). One mask is drawn per
    block, so every length predicts the same tokens, with less context the shorter it is. Blocks are
    divided evenly: 4,080 tokens give 8 inputs of 512, 4 of 1,022 or one of 4,082.

    Args:
        texts: documents, joined by a separator; DataError if there is no text.
        tokenizer: tokenizer of the model.
        lengths: input lengths in tokens, with special tokens.
        seed: seed of the masks.
    """

    def __init__(self, texts: Iterable[str], tokenizer, lengths: Sequence[int], *, seed: int = 0):
        self.frame, self.masker = Frame.of(tokenizer), Masker(tokenizer)
        self.tokens, self.size = 0, 0
        parts: list[np.ndarray] = []
        for text in texts:
            ids = [np.array(part, np.int64) for part in token_parts(tokenizer, text)]
            if parts:
                parts.append(np.array([self.frame.separator]))
            parts += ids
            self.tokens += sum(map(len, ids))
            self.size += len(text.encode(errors="surrogatepass"))
        stream = np.concatenate(parts) if parts else np.empty(0, np.int64)
        if not self.tokens:
            raise DataError("there is no text to score")
        short, long = min(lengths) - 2, max(lengths) - 2
        room = min(long // short * short, len(stream))
        self.blocks = []
        for number in range(len(stream) // room):
            block = stream[number * room : (number + 1) * room]
            generator = np.random.default_rng((seed, number))
            self.blocks.append(self.masker(block, generator))
        self.left_over = len(stream) % room

    def inputs(self, length: int) -> Iterator[dict[str, np.ndarray]]:
        """Yield the features of all blocks, of at most ``length`` tokens with special tokens, in
        order.

        Masked tokens have their id in ``labels``, others -100.
        """
        for shown, labels in self.blocks:
            count = -(-len(shown) // (length - 2))
            for ids, wanted in zip(
                np.array_split(shown, count), np.array_split(labels, count), strict=True
            ):
                yield {
                    "input_ids": self.frame.around(ids),
                    "labels": np.pad(wanted, 1, constant_values=-100),
                    "global_attention_mask": np.zeros(len(ids) + 2, np.uint8),
                }


@torch.no_grad()
def score(
    model: Scorer, text: MaskedText, length: int, *, pad: int, batch_tokens: int = 8192
) -> Score:
    """Score a text in inputs of at most ``length`` tokens.

    Args:
        model: function from a batch to logits, as from `scorer`.
        text: text with its masks.
        length: largest number of tokens of an input, with special tokens.
        pad: id for padding.
        batch_tokens: approximate number of tokens of a batch.
    """
    collate, inputs = Collator(pad, LdtForMaskedLM), list(text.inputs(length))
    nats, count = 0.0, 0
    rows = max(1, batch_tokens // length)
    for start in reported(range(0, len(inputs), rows), f"scoring at {length:,} tokens", "batches"):
        batch = collate(inputs[start : start + rows])
        labels = batch["labels"][batch["labels"] != -100]
        logits = model(batch)
        loss = F.cross_entropy(logits.float(), labels.to(logits.device), reduction="none")
        nats += loss.double().sum().item()
        count += len(labels)
    return Score(
        length, len(inputs), count, **masked_lm_metrics(nats, count, text.tokens, text.size)
    )


def scorer(model: LdtForMaskedLM) -> Scorer:
    """Function from a batch to the logits [labels, vocabulary] at its labels, by ``model``."""
    device = next(model.parameters()).device

    def logits(batch):
        batch = {key: values.to(device) for key, values in batch.items()}
        return model(**batch, at_labels=True).logits

    return logits


def texts(names: str | list[str], **section: Any) -> Iterator[str]:
    """Yield the documents of files, folders or patterns; ``section``: keys of `CorpusSection`."""
    data = CorpusSection(**section)
    for source in sources(names, data.format):
        yield from Reader(source, data)
