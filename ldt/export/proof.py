"""Model and exported file compared on the same random inputs, of other sizes than it was traced by.

The model runs by its own attention, which packs; global tokens and padding are made here.
"""

from dataclasses import dataclass
from typing import Any

import torch

from ldt.errors import ModelError
from ldt.export.graph import GraphInterface
from ldt.inference.runtimes import Session
from ldt.model.config import layer_windows
from ldt.model.loading import quiet

TOLERANCE = 1e-4  # of the spread of the outputs; float32 sums in another order stay below 1e-5
LONGEST = 4096  # tokens that are compared at most: the model takes seconds for more
CANDIDATES = 3  # of a ranking


@dataclass
class ExportCheck:
    """Outputs of the model and of the file for the same inputs.

    Attributes:
        name: what was compared.
        rows, tokens: size of the batch.
        difference: largest absolute difference of two outputs.
        spread: highest less lowest output of all cases.
        tolerance: largest difference that passes, as a share of the spread.
    """

    name: str
    rows: int
    tokens: int
    difference: float
    spread: float
    tolerance: float = TOLERANCE

    @property
    def relative(self) -> float:
        """The difference as a share of the spread; inf where there is no spread."""
        if not self.difference:
            return 0.0
        return self.difference / self.spread if self.spread else float("inf")

    @property
    def ok(self) -> bool:
        """True if the outputs are equal as far as float32 goes; False for nan."""
        return self.relative <= self.tolerance

    def __str__(self) -> str:
        size = f"{self.rows} x {self.tokens} tokens"
        result = f"{self.relative:.1e} of {self.spread:.3g}, tolerance {self.tolerance:.0e}"
        return f"{result}, {size}{'' if self.ok else '  TOO LARGE'}"


@quiet()
@torch.no_grad()
def prove(
    model: Any, interface: GraphInterface, session: Session, longest: int
) -> list[ExportCheck]:
    """Compare a model and its file, which `ldt export` has written.

    Args:
        model: of ldt.
        interface: of the file.
        session: that runs the file.
        longest: tokens of the longest input.

    Raises:
        ModelError: the model's outputs are not finite.
    """
    windows = [window for window in layer_windows(model.config) if window < longest]
    middle = min(longest, 2 * max(windows, default=0) + 5)
    cases = [
        ("shortest", 1, min(4, longest), "none"),
        ("padding right", 4, middle, "right"),
        ("padding left", 2, min(longest, 17), "left"),
        ("padding inside", 5, middle, "inside"),
        ("longest", 1, min(longest, LONGEST), "none"),
    ]
    differences, values = [], []
    for name, rows, tokens, padding in cases:
        inputs = batch(model.config, interface, rows, tokens, padding)
        outputs = model(**inputs)
        expected = [outputs[name].float() for name in interface.outputs]
        if not all(output.isfinite().all() for output in expected):
            raise ModelError("the model's outputs are not finite, there is nothing to prove")
        written = session(inputs)
        given = [torch.from_numpy(written[each]) for each in interface.outputs]
        # At padding as well, where both have the same number.
        gaps = [(one - other).abs().max() for one, other in zip(expected, given, strict=True)]
        differences.append((name, rows, tokens, torch.stack(gaps).max().item()))
        values += [output[output > torch.finfo(output.dtype).min] for output in expected]
    # Of all cases: of one document there may be a single number, which has no spread.
    highest, lowest = (get(torch.cat(values)).item() for get in (torch.max, torch.min))
    return [ExportCheck(*case, highest - lowest) for case in differences]


def batch(
    config: Any, interface: GraphInterface, rows: int, tokens: int, padding: str = "none"
) -> dict[str, torch.Tensor]:
    """Random inputs [rows, tokens] by name, and always their ``global_attention_mask``.

    Args:
        padding: "none"; "right", "left" or "inside", more in each row than in the one before.
    """
    generator = torch.Generator().manual_seed(tokens)
    place, row = torch.arange(tokens), torch.arange(rows)[:, None]
    gone = row * (tokens - 1) // max(rows, 1) if padding != "none" else torch.zeros_like(row)
    real = {
        "left": place >= gone,
        "inside": (place < 1) | (place > gone // 2),
    }.get(padding, place < tokens - gone)
    real = real.expand(rows, tokens)
    ids = torch.randint(config.vocab_size - 1, (rows, tokens), generator=generator)
    ids = ids + (ids >= config.pad_token_id)
    first = real.int().argmax(1, keepdim=True)
    far = torch.rand(rows, tokens, generator=generator) < 0.1
    if interface.globals_ == "question":
        # One separator at least: as far behind the first token as a third of what is real.
        separator = first + real.sum(1, keepdim=True) // 3
        last = tokens - 1 - real.flip(1).int().argmax(1, keepdim=True)
        others = (id for id in range(3) if id not in (config.sep_token_id, config.pad_token_id))
        ids = torch.where(ids == config.sep_token_id, next(others), ids)
        ids = ids.scatter(1, torch.minimum(separator, last), config.sep_token_id)
        ids = ids.scatter(1, last, config.sep_token_id)
        before = (ids == config.sep_token_id) & real
        far = place < before.int().argmax(1, keepdim=True)
    elif interface.globals_ == "first":
        far = place == first
    elif interface.globals_ == "none":
        far = torch.zeros_like(real)
    inputs = {
        "input_ids": torch.where(real, ids, config.pad_token_id),
        "attention_mask": real.long(),
        "global_attention_mask": (far & real).long(),
    }
    if "token_type_ids" in interface.inputs:
        inputs["token_type_ids"] = (real & (place >= first + tokens // 2)).long()
    if "positions" in interface.inputs:
        inputs["positions"] = torch.randint(tokens, (rows, CANDIDATES), generator=generator)
        inputs["positions"][0, -1] = -100 if CANDIDATES > 1 else 0
    return inputs
