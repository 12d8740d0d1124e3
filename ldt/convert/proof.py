"""Source and converted model compared on the same inputs.

The source runs by transformers, the written folder by ldt: on short inputs, which the window
covers, on inputs where all attention is global, and at the last positions.
"""

from dataclasses import dataclass

import torch

from ldt.convert.source import PROVED_LENGTH
from ldt.errors import ModelError
from ldt.model.loading import quiet

TOLERANCE = 1e-4  # of the largest value; float32 sums in another order stay below 1e-5
_DECODED = 64  # tokens whose logits are compared: vocabularies are large


@dataclass
class Check:
    """Outputs of the source and of the converted model on the same random tokens.

    Attributes:
        name: what was compared.
        tokens: length of the longest input.
        difference: largest absolute difference of two values.
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


@quiet()
@torch.no_grad()
def prove(source, model, max_length, window, tiled=True) -> list[Check]:
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
    short = min(window // 2 + 1, source.length, PROVED_LENGTH)
    long = min(source.length, PROVED_LENGTH)
    cases = [
        ("window", short, 0, False),
        ("global attention", long, 0, True),
        ("last positions", short, max_length - short, False),
    ]
    if tiled:
        return [_compare(name, source, model, *case) for name, *case in cases]
    table = source.model.base_model.embeddings.position_embeddings.weight
    checks, kept = [], table.clone()
    for name, length, offset, everywhere in cases:
        begin = model.config.pad_token_id + 1 + offset
        rows = model.base_model.embeddings.position_embeddings.weight[begin : begin + length]
        table[source.first : source.first + length] = rows
        checks.append(_compare(name, source, model, length, offset, everywhere, shift=offset))
        table.copy_(kept)
    return checks


def _compare(name, source, model, length, offset, everywhere, shift=0):
    """`Check` of rows of ``length`` tokens and fewer that start at position ``offset``; in the
    source ``shift`` before that."""
    config = model.config
    random = torch.Generator().manual_seed(0)
    lengths = torch.tensor(sorted({length, -(-length // 2), -(-length // 3), 1}, reverse=True))
    shape = len(lengths), length
    real = torch.arange(length) < lengths[:, None]
    ids = torch.randint(config.vocab_size - 1, shape, generator=random)
    ids += ids >= config.pad_token_id  # any but padding
    inputs = {
        "input_ids": ids.where(real, torch.tensor(config.pad_token_id)),
        "attention_mask": real.long(),
        "token_type_ids": torch.randint(config.type_vocab_size, shape, generator=random),
    }
    theirs, ours = dict(inputs), dict(inputs)
    if offset:
        positions = torch.arange(offset, offset + length).expand(shape)
        theirs["position_ids"] = source.first + (positions - shift) % source.length
        ours["position_ids"] = config.pad_token_id + 1 + positions
    if everywhere:
        ours["global_attention_mask"] = real.long()
        if source.windows:
            theirs["global_attention_mask"] = real.long()
    expected = _outputs(source.model, theirs, real)
    scale = max(x.abs().max().item() for x in expected)
    if not all(x.isfinite().all() for x in expected):
        raise ModelError(f"{source.folder}: its outputs are not finite, there is nothing to prove")
    converted = _outputs(model, ours, real)
    gaps = [(x - y).abs().max() for x, y in zip(converted, expected, strict=True)]
    return Check(name, length, torch.stack(gaps).max().item(), TOLERANCE * scale)


def _outputs(model, inputs, real):
    """Hidden states [kept, width] of the real tokens, the pooled ones, and some logits."""
    base = model.base_model
    states = base(**inputs)
    hidden = states.last_hidden_state[real]
    outputs = [hidden]
    if getattr(base, "pooler", None) is not None:
        outputs.append(states.pooler_output)
    head = getattr(model, "lm_head", getattr(model, "cls", None))
    if head is not None:
        outputs.append(head(hidden[:_DECODED]))
    return outputs
