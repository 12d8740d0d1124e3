"""Poolingformer's second level: attention to pooled cells of a larger window."""

from functools import partial

import torch
from torch import nn

from ldt.attention import POOLINGS, pooled_attention
from ldt.attention.matmul import Linear

GATE_SCALE = 100.0


class SecondLevel(nn.Module):
    """The part that a layer of `LdtConfig.pooling_layers` adds to its sliding window.

    With y the first level's output (window and global attention, heads side by side, before the
    output projection), q, k, v projections of y, and P the pooling::

        z = attention of q to P(k), P(v) inside the larger window
        output = y + z               with a gate g for each head: y + 100 g z

    which the output projection of the layer then takes.

    Certain from Zhang et al. 2021 (arXiv:2105.04371) and what was written about it: two levels in
    one layer; the second reads the first one's output; its keys and values are pooled; a residual
    connects the levels, their outputs are added; projections of its own, of which "weight sharing"
    is an ablation that does worse, as is "Mix", where it reads the layer's input; mean, max and
    LDConv as poolings; about a quarter of the layers, with plain ones above; windows of 128 and
    512.

    Our reading, where the full text was not at hand: that the windows count both sides, as all
    windows of ldt do (64 and 256 tokens each side; if the paper counts one side, the same keys are
    in reach at 256 and 1024); a kernel of 5 and a stride of 4; that no output projection stands
    between the levels; a scale of 1 / sqrt(dim); where cells lie, and LDConv's generator
    (`ldt.attention.cells`). benchmarks/poolingformer.py trains other readings beside it.
    Ours besides: the pooling ``conv``, and the gate.

    Global tokens have seen the whole document, so z is zero in their rows, which stay those of
    the first level. As keys they are like any other token: cells pool what they gathered.

    The gate starts at zero, so the layer starts as its first level. It is stored a hundredth of its
    size: Adam moves each number by about the learning rate in a step, and with rates of 3e-5 a
    factor would stay near zero for thousands of steps.

    Parameters: ``query``, ``key``, ``value`` (not with `pooling_share_weights`), ``weight`` of the
    pooling, ``gate`` [heads] (with `pooling_gate`).
    """

    def __init__(self, config):
        super().__init__()
        width, heads = config.hidden_size, config.num_attention_heads
        self.heads = heads
        self.pattern = {
            "pooling": config.pooling,
            "size": config.pooling_size,
            "stride": config.pooling_stride,
            "window": config.pooling_window,
        }
        self.reads_first_level = config.pooling_input == "first_level"
        if not config.pooling_share_weights:
            self.query = Linear(width, width)
            self.key = Linear(width, width)
            self.value = Linear(width, width)
        weight = POOLINGS[config.pooling].initial(heads, width // heads, config.pooling_size)
        self.weight = None if weight is None else nn.Parameter(weight)
        self.gate = nn.Parameter(torch.zeros(heads)) if config.pooling_gate else None

    def forward(self, first, x, layout, shared, **options):
        """Sum of both levels, [total, heads, dim].

        Args:
            first: [total, heads, dim], output of the first level.
            x: [total, width], input of the layer.
            layout: `Layout` of the packed tokens.
            shared: functions that project to query, key and value in the first level, which
                `pooling_share_weights` uses here.
            options: dropout, seed and backend of `pooled_attention`.
        """
        read = first.flatten(1) if self.reads_first_level else x
        projections = (self.query, self.key, self.value) if hasattr(self, "query") else shared
        # Functions, so that q, k and v are made one after the other and freed as soon as read.
        heads = (partial(self._heads_of, project, read) for project in projections)
        second = pooled_attention(*heads, self.weight, layout, **self.pattern, **options)
        if self.gate is not None:
            second = second * (GATE_SCALE * self.gate).to(second.dtype)[:, None]
        return first + second

    def _heads_of(self, project, x):
        return project(x).unflatten(1, (self.heads, -1))


def gates(model: nn.Module) -> dict[int, list[float]]:
    """Gates of the second levels by number of their layer, a number per head, in true size
    (`GATE_SCALE` times the parameter); without those on other processes of a sharded training."""
    levels = {
        int(name.split(".")[-4]): module  # encoder.layer.N.attention.self.pooled
        for name, module in model.named_modules()
        if isinstance(module, SecondLevel) and module.gate is not None
    }
    return {
        number: (GATE_SCALE * level.gate.detach().float()).tolist()
        for number, level in levels.items()
        if level.gate.numel() == level.heads
    }
