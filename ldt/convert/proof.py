"""Source and converted model compared on the same inputs.

The source runs by transformers, the written folder by ldt: on short inputs, which the window
covers, on inputs where all attention is global, and at the last positions. A family of models may
have further checks.
"""

from contextlib import contextmanager
from dataclasses import dataclass

import torch

from ldt.errors import ModelError
from ldt.model.loading import quiet

TOLERANCE = 1e-4  # of the largest value; float32 sums in another order stay below 1e-5


@dataclass
class OutputCheck:
    """Outputs of the source and of the converted model on the same random tokens.

    Attributes:
        name: what was compared.
        tokens: length of the longest input.
        difference: largest absolute difference of two values; of tokens, how many are different.
        tolerance: largest difference that passes.
    """

    name: str
    tokens: int
    difference: float
    tolerance: float

    @property
    def ok(self):
        """True if the outputs are equal as far as float32 goes; False for nan."""
        return self.difference <= self.tolerance

    def __str__(self):
        result = f"{self.difference:.1e}, tolerance {self.tolerance:.1e}"
        if not self.tolerance:
            result = f"{self.difference} different" if self.difference else "equal"
        return f"{result}, up to {self.tokens} tokens{'' if self.ok else '  TOO LARGE'}"


@quiet()
@torch.no_grad()
def prove(source, model, max_length, window, tiled=True) -> list[OutputCheck]:
    """Compare a converted model with its source on random tokens.

    Args:
        source: `Source`.
        model: the converted one, of ldt's class with the source's head or pooler.
        max_length: its longest input.
        window: tokens in reach on both sides together, in the layer where it is smallest.
        tiled: whether the position table repeats the source's; if not, the source is run with the
            rows of the converted model, and the proof says nothing of them.

    Raises:
        ModelError: the source's outputs are not finite.
    """
    short = min(window // 2 + 1, source.proved)
    cases = [
        ("window", short, 0, False),
        ("global attention", source.proved, 0, True),
        ("last positions", short, max_length - short, False),
    ]
    checks = []
    for name, length, offset, everywhere in cases:
        with _positions(source, model, length, offset, tiled):
            checks.append(_compare(name, source, model, length, everywhere))
    with _positions(source, model, short, 0, tiled):
        return checks + source.further_checks(model, short)


def compared(name, tokens, expected, converted, folder):
    """`OutputCheck` of two lists of tensors.

    Raises:
        ModelError: the source's outputs are not finite.
    """
    scale = max(x.abs().max().item() for x in expected)
    if not all(x.isfinite().all() for x in expected):
        raise ModelError(f"{folder}: its outputs are not finite, there is nothing to prove")
    gaps = [(x - y).abs().max() for x, y in zip(converted, expected, strict=True)]
    return OutputCheck(name, tokens, torch.stack(gaps).max().item(), TOLERANCE * scale)


def padded(length):
    """[rows, length] bool, False at padding: rows of ``length`` tokens and fewer."""
    lengths = torch.tensor(sorted({length, -(-length // 2), -(-length // 3), 1}, reverse=True))
    return torch.arange(length) < lengths[:, None]


def random_ids(source, shape, generator):
    """Ids [shape] of the source's words, any but padding."""
    ids = torch.randint(source.model.config.vocab_size - 1, shape, generator=generator)
    return ids + (ids >= source.config.pad_token_id)


@contextmanager
def _positions(source, model, length, offset, tiled):
    """Have both models read the rows of ``length`` tokens from ``offset`` on at the beginning of
    their position tables; in the source its own, unless the converted model has others."""
    theirs, ours = (x.base_model.get_parameter(source.positions) for x in (source.model, model))
    rows = ours[source.leading + offset :][:length].clone()
    repeated = theirs[source.first + torch.arange(offset, offset + length) % source.length]
    places = theirs[source.first :][:length], ours[source.leading :][:length]
    originals = [place.clone() for place in places]
    places[0].copy_(repeated if tiled else rows)
    places[1].copy_(rows)
    try:
        yield
    finally:
        for place, before in zip(places, originals, strict=True):
            place.copy_(before)


def _compare(name, source, model, length, everywhere):
    """`OutputCheck` of rows of ``length`` tokens and fewer."""
    generator = torch.Generator().manual_seed(0)
    real = padded(length)
    shape = tuple(real.shape)
    ids = random_ids(source, shape, generator)
    inputs = {
        "input_ids": ids.where(real, torch.tensor(source.config.pad_token_id)),
        "attention_mask": real.long(),
    }
    inputs |= source.inputs(shape, generator)
    ours = inputs | {"global_attention_mask": real.long() * everywhere}
    expected = source.outputs(source.model, ours if source.windows else inputs, real)
    converted = source.outputs(model, ours, real)
    return compared(name, length, expected, converted, source.folder)
