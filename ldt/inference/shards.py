"""A share of the records of an input, whose answers are a file of their own."""

import re
from typing import NamedTuple

from ldt.errors import UserError


class Shard(NamedTuple):
    """Every ``of``-th record of an input, from the one with that ``number`` on.

    Args:
        number: from 1 to ``of``.
        of: how many shards there are.
    """

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """The shard that "2/7" names.

        Raises:
            UserError: it names none.
        """
        found = re.fullmatch("([1-9][0-9]{0,5})/([1-9][0-9]{0,5})", text)
        if found is None or int(found[1]) > int(found[2]):
            raise UserError(
                f"--shard {text}: expected i/n with i from 1 to n, as 1/4, 2/4, 3/4 and 4/4"
            )
        return cls(int(found[1]), int(found[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def has(self, record: int) -> bool:
        """Whether the record of a number, from 1, is one of the shard."""
        return (record - self.number) % self.of == 0

    def part(self, target: str) -> str:
        """The file with the answers of the shard: "answers.jsonl.2-of-7"."""
        return f"{target}.{self.number}-of-{self.of}"
