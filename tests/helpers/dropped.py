"""Hidden dropout by the hash of the kernels, for modules that are to drop the same entries."""

import torch
from torch import nn

from ldt.attention.dropout import _mix, kept

ROW, COLUMN = 3, 4  # added to the seed for the codes of rows and of columns


def mask(rows, columns, dropout, seed):
    """[rows, columns] bool, the entries that stay."""

    def codes(salt, count):
        salted = torch.as_tensor(int(seed) + salt).to(torch.int32)
        return _mix(_mix(salted) + torch.arange(count, dtype=torch.int32))[None]

    return kept(codes(ROW, rows), codes(COLUMN, columns), dropout)[0]


def forward(self, x):
    """`torch.nn.Dropout.forward` by a seed that torch's generator gives."""
    if not self.training or not self.p:
        return x
    if self.p == 1:
        return x * 0
    seed = torch.randint(2**31, (), device=x.device)
    return x * mask(*x.shape, self.p, seed).to(x) / (1 - self.p)


def by_hash(monkeypatch):
    """Have all modules drop so."""
    monkeypatch.setattr(nn.Dropout, "forward", forward)
