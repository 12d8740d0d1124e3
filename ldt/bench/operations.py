"""One attention operation, its inputs given: ldt's backends and their peers.

All compute the same where the pattern allows: windows and one global token, whose own row is part
of the operation. ldt's global row also projects what it reads, the peers take that as given.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import psutil
import torch
from torch.nn.functional import scaled_dot_product_attention

from ldt.attention import BACKENDS, Layout, fill_global_rows, sliding_window_attention
from ldt.bench.setting import WARM_UP, Setting


@dataclass(frozen=True)
class Operation:
    """A call, the tensors its gradients are taken for, and the gradient of its output.

    ``compiled``: whether its first call at a shape compiles code.
    """

    call: Callable[[], torch.Tensor]
    leaves: tuple
    up: torch.Tensor
    compiled: bool = False

    def run(self, kind):
        """The output, or the gradients (``kind`` training)."""
        out = self.call()
        return out if kind == "forward" else torch.autograd.grad(out, self.leaves, self.up)


@dataclass(frozen=True, eq=False)
class Given:
    """The inputs of one operation in the layouts that the implementations take, made on demand."""

    setting: Setting
    tokens: int
    training: bool

    @cached_property
    def packed(self):
        """q, k, v, each [batch * tokens, heads, dim]."""
        return tuple(self._leaf(self._random(seed)) for seed in range(3))

    @cached_property
    def heads_first(self):
        """q, k, v, each [batch, heads, tokens, dim]."""
        return tuple(self._leaf(self._rows(seed).transpose(1, 2).contiguous()) for seed in range(3))

    def padded(self, multiple):
        """q, k, v, each [batch, tokens rounded up to ``multiple``, heads * dim], zeros behind."""
        more = -self.tokens % multiple
        rows = (self._rows(seed).flatten(2) for seed in range(3))
        return tuple(self._leaf(torch.nn.functional.pad(x, (0, 0, 0, more))) for x in rows)

    @cached_property
    def hidden(self):
        """[batch * tokens, heads * dim], what ldt's global rows project; of the values of v."""
        return self._leaf(self._random(2).flatten(1))

    @cached_property
    def layout(self):
        """Layout of the documents; their first tokens are global unless the pattern is causal."""
        setting = self.setting
        total = setting.batch * self.tokens
        borders = torch.arange(0, total + 1, self.tokens, device=setting.device)
        if setting.causal:
            return Layout(borders, total_tokens=total)
        is_global = torch.arange(total, device=setting.device) % self.tokens == 0
        return Layout(borders, None, is_global, total, setting.batch)

    def _rows(self, seed):
        return self._random(seed).unflatten(0, (self.setting.batch, self.tokens))

    def _random(self, seed):
        generator = torch.Generator(self.setting.device).manual_seed(seed)
        shape = self.setting.batch * self.tokens, self.setting.heads, self.setting.dim
        how = {"device": self.setting.device, "dtype": self.setting.torch_dtype}
        return torch.randn(shape, generator=generator, **how)

    def _leaf(self, x):
        return x.requires_grad_(self.training)


def ldt(given: Given, backend: str) -> Operation:
    """The band and the global rows, as the encoder's layers compute them."""
    setting, layout = given.setting, given.layout
    q, k, v = given.packed
    how = {"window": setting.window, "dilation": setting.dilation, "causal": setting.causal}
    up = torch.randn_like(q)
    if backend == "reference":
        require_memory(setting, given.tokens)
    if setting.causal:
        return Operation(
            lambda: sliding_window_attention(q, k, v, layout, backend=backend, **how), (q, k, v), up
        )
    x = given.hidden
    weight = torch.eye(setting.width, device=setting.device, dtype=setting.torch_dtype)
    project = weight, weight.new_zeros(setting.width)

    def call():
        out = sliding_window_attention(q, k, v, layout, backend=backend, **how)
        return fill_global_rows(out, x, project, project, project, layout, backend=backend)

    return Operation(call, (q, k, v, x), up)


def require_memory(setting, tokens):
    """Refuse full score matrices that do not fit the memory that is free.

    Raises:
        MemoryError: and how much it would be.
    """
    scores = setting.heads * (setting.batch * tokens) ** 2
    needed = scores * (4 * setting.torch_dtype.itemsize + 3)
    if setting.device == "cuda":
        free = torch.cuda.mem_get_info()[0]
    else:
        free = psutil.virtual_memory().available
    if needed > 0.7 * free:
        raise MemoryError(f"needs about {needed / 2**30:.0f} GiB, {free / 2**30:.0f} are free")


def sdpa(given: Given) -> Operation:
    """Full attention by torch's own choice of kernel."""
    q, k, v = given.heads_first
    causal = given.setting.causal

    def call():
        return scaled_dot_product_attention(q, k, v, is_causal=causal)

    return Operation(call, (q, k, v), torch.randn_like(q))


def cudnn(given: Given) -> Operation:
    """Full attention by cuDNN's kernel."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if given.setting.device != "cuda":
        raise ValueError("cuDNN runs on CUDA")
    plain = sdpa(given)

    def call():
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return plain.call()

    return Operation(call, plain.leaves, plain.up)


def flex(given: Given, backend: str = "AUTO") -> Operation:
    """FlexAttention with the same mask, compiled.

    Args:
        backend: of its kernels: a name that its option BACKEND takes.
    """
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    setting = given.setting
    if backend == "FLASH" and setting.device != "cuda":
        raise ValueError("FlexAttention by FlashAttention runs on CUDA")
    if given.training and setting.device == "cpu":
        raise NotImplementedError("torch has no backward pass of it on the CPU")
    reach, gap, causal = setting.window // 2 * setting.dilation, setting.dilation, setting.causal

    def mask(batch, head, query, key):
        distance = query - key
        near = (distance <= reach) & (distance % gap == 0)
        if causal:
            return near & (distance >= 0)
        return (near & (distance >= -reach)) | (key == 0) | (query == 0)

    q, k, v = given.heads_first
    # Compiled, it does not hold the whole [tokens, tokens] mask; on a CPU that takes too long.
    make = torch.compile(create_block_mask) if setting.device == "cuda" else create_block_mask
    blocks = make(mask, None, None, given.tokens, given.tokens, device=setting.device)
    torch.compiler.reset()  # else the ninth shape of a process is no longer compiled
    compiled = torch.compile(flex_attention, dynamic=False)

    def call():
        return compiled(q, k, v, block_mask=blocks, kernel_options={"BACKEND": backend})

    return Operation(call, (q, k, v), torch.randn_like(q), compiled=True)


def varlen(given: Given) -> Operation:
    """The windows alone, without the global token, by torch's FlashAttention of packed documents.

    Less than the others compute. Its dtypes and GPUs are torch's to refuse.
    """
    from torch.nn.attention.varlen import varlen_attn

    setting, layout = given.setting, given.layout
    q, k, v = given.packed
    reach = setting.window // 2
    if setting.device != "cuda" or setting.dilation > 1:
        raise ValueError("FlashAttention runs on CUDA, without dilation")
    borders = layout.cu_seqlens.to(torch.int32)
    sides = (reach, 0 if setting.causal else reach)

    def call():
        documents = borders, borders, given.tokens, given.tokens
        return varlen_attn(q, k, v, *documents, window_size=sides)

    return Operation(call, (q, k, v), torch.randn_like(q))


class Copy(torch.nn.Module):
    def forward(self, x):
        return x.clone()


class Fixed(torch.nn.Module):
    """Gives [tokens, batch, width] of its own whatever it is asked."""

    def __init__(self, x):
        super().__init__()
        self.x = x

    def forward(self, _):
        return self.x


def longformer(given: Given) -> Operation:
    """transformers' chunked attention without its projections, padded to the window as there."""
    from transformers import LongformerConfig
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

    setting = given.setting
    if setting.dilation > 1 or setting.causal:
        raise ValueError("transformers has neither dilated nor causal windows")
    config = LongformerConfig(
        attention_window=[setting.window],
        hidden_size=setting.width,
        num_attention_heads=setting.heads,
        num_hidden_layers=1,
        attention_probs_dropout_prob=0.0,
    )
    q, k, v = given.padded(setting.window)
    with torch.device("meta"):  # its weights are not used
        module = LongformerSelfAttention(config, 0)
    for name in ("query", "query_global"):
        setattr(module, name, Copy())  # transformers scales these in place
    for name, x in {"key": k, "value": v}.items():
        setattr(module, name, Fixed(x.transpose(0, 1)))
        setattr(module, f"{name}_global", Fixed(x.transpose(0, 1)))
    place = torch.arange(q.shape[1], device=q.device).expand(q.shape[:2])
    is_global, padding = place == 0, place >= given.tokens
    scores = torch.where(is_global, 10000.0, torch.where(padding, -10000.0, 0.0)).to(q.dtype)

    def call():
        return module(
            q,
            attention_mask=scores,
            is_index_masked=padding,
            is_index_global_attn=is_global,
            is_global_attn=True,
        )[0]

    return Operation(call, (q, k, v), torch.randn_like(q))


PEERS: dict[str, Callable[[Given], Operation]] = {
    "longformer": longformer,
    "sdpa": sdpa,
    "cudnn": cudnn,
    "flex": flex,
    "flex-flash": partial(flex, backend="FLASH"),
    "varlen": varlen,
}


def names(setting: Setting) -> tuple[str, ...]:
    """Implementations that `load` knows: the backends of ldt and the peers."""
    return (*BACKENDS, *PEERS)


def operation(name, given: Given) -> Operation:
    """The operation of one of `names`.

    Raises:
        Exception: of any kind, where it cannot run.
    """
    return ldt(given, name) if name in BACKENDS else PEERS[name](given)


def load(name, tokens, kind, setting: Setting):
    """(run, warm_up): a call at ``setting.batch`` documents of ``tokens``, and one at few tokens.

    What compiles code for each shape warms up at its own.

    Raises:
        Exception: of any kind, where it cannot run.
    """
    full = operation(name, Given(setting, tokens, kind == "training"))
    few = full
    if not full.compiled:
        few = operation(name, Given(setting, WARM_UP, kind == "training"))
    return lambda: full.run(kind), lambda: few.run(kind)
