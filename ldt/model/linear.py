"""The linear layer of all parts of the encoder."""

from torch import nn

from ldt.attention.matmul import linear


class Linear(nn.Linear):
    """nn.Linear by the fastest exact way on this machine."""

    def forward(self, x):
        return linear(x, self.weight, self.bias)
