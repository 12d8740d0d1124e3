"""A text with one mask, scored by masked LMs in inputs of any length."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional as F
from transformers import PreTrainedModel

from ldt.data.corpus import Reader, sources
from ldt.data.features import Collator
from ldt.data.lm_inputs import Frame
from ldt.data.masking import Masker
from ldt.data.options import CorpusSection
from ldt.data.tokenization import token_parts
from ldt.errors import DataError
from ldt.io.progress import reported
from ldt.model import LdtForMaskedLM
from ldt.tasks.masked_lm import masked_lm_metrics

# Of a batch: input_ids, attention_mask and labels [rows, n] int64. Returns the logits at the
# labels, [labels, vocabulary].
Scorer = Callable[[dict[str, torch.Tensor]], torch.Tensor]


@dataclass
class Score:
    """A model at one length of input.

    Attributes:
        length: most tokens of an input, special ones included.
        inputs: how many there were.
        masked: predicted tokens, the same at every length.
        loss, bits_per_token, bits_per_byte, perplexity: as defined by
            `ldt.tasks.masked_lm.masked_lm_metrics`.
    """

    length: int
    inputs: int
    masked: int
    loss: float
    bits_per_token: float
    bits_per_byte: float
    perplexity: float


class MaskedText:
    """A text with one mask, cut to inputs of any length.

    The text is taken in blocks of so many whole inputs of the shortest length as go into one of
    the longest; what is left over at its end is not scored (``left_over``). A mask is drawn for
    each block, so every length has the same tokens to find, and fewer tokens around them the
    shorter it is. A block is parted evenly: 4,080 tokens to 8 inputs of 512, 4 of 1,022 or one of
    4,082.

    Args:
        texts: documents, joined by a separator.
        tokenizer: of the model.
        lengths: of inputs, in tokens with the special ones.
        seed: of the masks.

    Raises:
        DataError: no text.
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
        """Features of at most ``length`` tokens, in order."""
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
        model: gives the logits.
        text: with its masks.
        length: most tokens of an input.
        pad: id that fills up a batch.
        batch_tokens: of a batch, about.
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


def scorer(model: PreTrainedModel) -> Scorer:
    """The logits of one of ldt's models; nothing has global attention."""
    device = next(model.parameters()).device

    def logits(batch):
        batch = {key: values.to(device) for key, values in batch.items()}
        return model(**batch, at_labels=True).logits

    return logits


def texts(names: str | list[str], **how) -> Iterator[str]:
    """Documents of files, folders or patterns.

    Args:
        how: keys of `CorpusSection`.
    """
    data = CorpusSection(**how)
    for source in sources(names, data.format):
        yield from Reader(source, data)
