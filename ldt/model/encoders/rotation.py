"""Rotary positions (Su et al. 2021, arXiv:2104.09864): queries and keys are turned by angles that
grow with the place of their token, so that scores depend on distances.

The form is that of LLaMA and GPT-NeoX: number i of a head's first half makes a pair with number i
of its second half.
"""

import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from ldt.attention.derivatives import transformed

TYPES = ("default", "linear", "yarn", "llama3")  # others depend on the length of an input


def frequencies(config, kind):
    """[dim / 2] float32 on the CPU, by how much the angle of each pair grows from token to token;
    and what the tables are multiplied by (YaRN's temperature, else 1).

    Args:
        config: a `transformers.ModernBertConfig`.
        kind: of a layer, ``full_attention`` or ``sliding_attention``.

    Source: transformers' `ModernBertRotaryEmbedding` and `ROPE_INIT_FUNCTIONS`.
    """
    parameters = config.rope_parameters[kind]
    if parameters["rope_type"] != "default":
        make = ROPE_INIT_FUNCTIONS[parameters["rope_type"]]
        return make(config, torch.device("cpu"), layer_type=kind)
    dim = config.hidden_size // config.num_attention_heads
    places = torch.arange(0, dim, 2, dtype=torch.float32, device="cpu")
    return 1.0 / parameters["rope_theta"] ** (places / dim), 1.0


def tables(positions, growth, scale, dtype):
    """(cos, sin), [total, 1, dim / 2] each.

    Angles are products in float32, whatever the dtype: so they were in training, and in float64
    those of token 5,000 differ by 2e-4.

    Args:
        positions: [total] int64, the place of each token.
        growth, scale: of `frequencies`.
        dtype: of queries and keys. The tables are in float32 at least.
    """
    angles = (positions.float()[:, None] * growth.to(positions.device))[:, None]
    dtype = torch.promote_types(dtype, torch.float32)
    return (angles.cos() * scale).to(dtype), (angles.sin() * scale).to(dtype)


def rotated(x, cos, sin):
    """``x`` [total, parts, heads, dim] with its first two parts, queries and keys, turned.

    In place: whoever made x gives it away. Nothing but the tables is kept for the backward pass,
    which turns the gradient back.
    """
    if torch.compiler.is_compiling() or transformed():
        return torch.cat([turned(x[:, :2], cos[:, None], sin[:, None]), x[:, 2:]], 1)
    if torch.is_grad_enabled() and x.requires_grad:
        return _Rotate.apply(x, cos, sin)
    return _turn(x, cos, sin)


def turned(x, cos, sin):
    """``x`` [..., dim] turned, as a new tensor."""
    first, second = x.to(cos.dtype).chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)


def _turn(x, cos, sin):
    for part in x[:, :2].unbind(1):
        first, second = part.chunk(2, -1)
        ahead = second * sin
        up = first * sin
        first.copy_((first * cos).sub_(ahead))
        second.copy_((second * cos).add_(up))
    return x


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, cos, sin):
        ctx.save_for_backward(cos, sin)
        ctx.mark_dirty(x)
        return _turn(x, cos, sin)

    @staticmethod
    def backward(ctx, grad):
        cos, sin = ctx.saved_tensors
        return rotated(grad.clone(), cos, -sin), None, None
