"""Setting that all measurements of one comparison share."""

from dataclasses import dataclass

import torch

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
PASSES = ("forward", "training")  # training: forward and backward


@dataclass(frozen=True)
class Setting:
    """Shape and kind of what is measured: one document, whose first token is global.

    Args:
        device: ``cpu`` or ``cuda``.
        dtype: a name in `DTYPES`.
        window: tokens in reach on both sides together.
        heads, dim: number of heads and their width; an encoder is heads * dim wide.
        layers, vocabulary: of an encoder.
    """

    device: str = "cpu"
    dtype: str = "fp32"
    window: int = 512
    heads: int = 12
    dim: int = 64
    layers: int = 2
    vocabulary: int = 50265

    @property
    def width(self) -> int:
        return self.heads * self.dim

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]
