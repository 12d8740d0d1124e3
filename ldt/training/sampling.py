"""Orders of training inputs in which rare classes come as often as others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from torch.utils.data import Sampler

from ldt.tasks.base import Task
from ldt.tasks.deciding import Deciding
from ldt.tasks.weighted import classes_of


class Balanced(Sampler[int]):
    """Sampler that draws each class equally often, in another order each epoch.

    A class has its share, to within one, of inputs that are drawn without any coming again before
    all have come. Inputs without a class share as a class would. Who has several classes comes for
    each of them, so classes that go together come more often.

    Args:
        classes: numbers of the classes of each input.
        seed: of the order; with the epoch it says all, in any process.
    """

    def __init__(self, classes: Sequence[Sequence[int]], seed: int):
        self.seed, self.epoch, self.size = seed, 0, len(classes)
        members: dict[int, list[int]] = {}
        for number, own in enumerate(classes):
            for name in own or [-1]:
                members.setdefault(name, []).append(number)
        self.members = [np.array(members[name]) for name in sorted(members)]

    def set_epoch(self, epoch: int) -> None:
        """Have the order of an epoch, from 0 on."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        generator = np.random.default_rng([self.seed, self.epoch])
        shares = np.full(len(self.members), self.size // len(self.members))
        shares[generator.permutation(len(shares))[: self.size - shares.sum()]] += 1
        drawn = [
            np.concatenate([generator.permutation(own) for _ in range(-(-share // len(own)))])[
                :share
            ]
            for own, share in zip(self.members, shares.tolist(), strict=True)
            if share
        ]
        yield from generator.permutation(np.concatenate(drawn)).tolist()


def sampler(task: Task, items: Sequence[Any], seed: int) -> Balanced | None:
    """Sampler of a task's inputs as its ``sample`` says; None for a random order."""
    if not (isinstance(task, Deciding) and task.balanced):
        return None
    return Balanced([classes_of(item["labels"]) for item in items], seed)
