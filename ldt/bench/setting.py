"""Setting that all measurements of one comparison share."""

from dataclasses import dataclass

import torch

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
PASSES = ("forward", "training")  # training: forward and backward
WARM_UP = 64  # tokens of the call that lets libraries load their code


@dataclass(frozen=True)
class Setting:
    """Shape and kind of what is measured.

    Args:
        device: ``cpu`` or ``cuda``.
        dtype: a name in `DTYPES`.
        batch: documents, all of one length.
        window: tokens in reach on both sides together.
        heads, dim: number of heads and their width; an encoder is heads * dim wide.
        dilation: gap between the tokens in reach.
        causal: whether a token sees no token after it; then no token is global, else the first is.
        layers: of an encoder; 0: the attention operation alone.
        vocabulary: of an encoder.
        threads: of torch on the CPU; 0: as many as torch takes by itself.
    """

    device: str = "cpu"
    dtype: str = "fp32"
    batch: int = 1
    window: int = 512
    heads: int = 12
    dim: int = 64
    dilation: int = 1
    causal: bool = False
    layers: int = 0
    vocabulary: int = 50265
    threads: int = 0

    @property
    def width(self) -> int:
        return self.heads * self.dim

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]
