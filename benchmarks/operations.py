"""The attention of one document by other libraries, its queries, keys and values given.

They compute windows and one global token, or full attention where they have nothing else.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from setting import Setting
from torch.nn.functional import scaled_dot_product_attention


@dataclass(frozen=True)
class Operation:
    """A call, the tensors its gradients are taken for, and the gradient of its output."""

    call: Callable[[], torch.Tensor]
    leaves: tuple
    up: torch.Tensor

    def run(self, kind):
        """The output, or the gradients (``kind`` training)."""
        out = self.call()
        return out if kind == "forward" else torch.autograd.grad(out, self.leaves, self.up)


@dataclass(frozen=True)
class Given:
    """The inputs of one operation, made on demand."""

    setting: Setting
    tokens: int
    training: bool

    def packed(self):
        """q, k, v, each [tokens, heads, dim]."""
        return tuple(x.requires_grad_(self.training) for x in self._random())

    def heads_first(self):
        """q, k, v, each [1, heads, tokens, dim]."""
        rows = (x.transpose(0, 1)[None].contiguous() for x in self._random())
        return tuple(x.requires_grad_(self.training) for x in rows)

    def _random(self):
        setting = self.setting
        generator = torch.Generator(setting.device).manual_seed(0)
        kind = {"device": setting.device, "dtype": setting.torch_dtype, "generator": generator}
        return torch.randn(3, self.tokens, setting.heads, setting.dim, **kind).unbind()


def sdpa(given):
    """Full attention by torch's own choice of kernel."""
    q, k, v = given.heads_first()
    return Operation(partial(scaled_dot_product_attention, q, k, v), (q, k, v), torch.randn_like(q))


def cudnn(given):
    """Full attention by cuDNN's kernel."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    plain = sdpa(given)

    def call():
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return plain.call()

    return Operation(call, plain.leaves, plain.up)


def flex(given, backend="AUTO"):
    """FlexAttention with windows and a global token, compiled.

    Args:
        backend: of its kernels: a name that its option BACKEND takes.
    """
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    setting = given.setting
    reach = setting.window // 2

    def mask(batch, head, query, key):
        return ((query - key).abs() <= reach) | (key == 0) | (query == 0)

    q, k, v = given.heads_first()
    # Compiled, it does not hold the whole [tokens, tokens] mask; on a CPU that takes too long.
    make = torch.compile(create_block_mask) if setting.device == "cuda" else create_block_mask
    blocks = make(mask, None, None, given.tokens, given.tokens, device=setting.device)
    torch.compiler.reset()  # else the ninth shape of a process is no longer compiled
    compiled = torch.compile(flex_attention, dynamic=False)

    def call():
        return compiled(q, k, v, block_mask=blocks, kernel_options={"BACKEND": backend})

    return Operation(call, (q, k, v), torch.randn_like(q))


def varlen(given):
    """The windows alone, without the global token, by torch's FlashAttention of packed documents.

    Less than the others compute.
    """
    from torch.nn.attention.varlen import varlen_attn

    q, k, v = given.packed()
    borders = torch.tensor([0, given.tokens], dtype=torch.int32, device=q.device)
    reach = given.setting.window // 2

    def call():
        documents = borders, borders, given.tokens, given.tokens
        return varlen_attn(q, k, v, *documents, window_size=(reach, reach))

    return Operation(call, (q, k, v), torch.randn_like(q))


# Each takes a `Given` and raises an exception of any kind where it cannot run.
PEERS = {
    "sdpa": sdpa,
    "cudnn": cudnn,
    "flex": flex,
    "flex-flash": partial(flex, backend="FLASH"),
    "varlen": varlen,
}
