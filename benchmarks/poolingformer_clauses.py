"""The task of poolingformer.py: whose name a clause of a contract had, some words behind it."""

import random
import re
import sys
from functools import cache
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[1] / "examples" / "demo"))

from contracts import CITY, FIRST, contract

PAIRS = 8  # clauses with their questions in a document
CITIES, NAMES = CITY[:12], FIRST[:8]  # chance is 1 in 8
PAD, MASK = 1, 2


@cache
def contract_words():
    """Words and punctuation of contracts, one behind the other."""
    texts = (contract(number, "court")["text"] for number in range(200))
    return [word for text in texts for word in re.findall(r"\w+|[^\w\s]", text)]


class Contracts:
    """Documents with clauses and questions, drawn from one generator.

    Args:
        seed: of the generator.
        longest: distance from a clause to its question.
        length: tokens of a document.
    """

    def __init__(self, seed, longest=128, length=256):
        self.longest, self.length = longest, length
        self.draw = random.Random(seed)
        prose = contract_words()
        words = dict.fromkeys([*prose, *self.clause("", ""), *CITIES, *NAMES])
        self.ids = {word: i for i, word in enumerate(words, MASK + 1)}
        self.prose = [self.ids[word] for word in prose]

    @staticmethod
    def clause(city, name):
        return "The", "agent", "for", city, "is", name, "."

    def batch(self, size):
        """ids, labels and distances of documents, [size, length] each.

        A label is the number of the name at a question's mask, -100 elsewhere; there the distance
        is the number of tokens from the clause's name to the mask.
        """
        documents = [self.document() for _ in range(size)]
        return [torch.tensor(part) for part in zip(*documents, strict=True)]

    def document(self):
        draw = self.draw
        start = draw.randrange(len(self.prose) - self.length)
        ids = self.prose[start : start + self.length]
        labels, distances = [-100] * self.length, [0] * self.length
        free = set(range(self.length))
        for city in draw.sample(CITIES, PAIRS):
            name = draw.randrange(len(NAMES))
            words = [self.ids[word] for word in self.clause(city, NAMES[name])]
            asked = [MASK if word == self.ids[NAMES[name]] else word for word in words]
            width = len(words)
            while True:
                distance = round(width * (self.longest / width) ** draw.random())
                place = draw.randrange(self.length - distance - width)
                span = {*range(place, place + width)}
                span |= {token + distance for token in span}
                if span <= free:
                    break
            free -= span
            ids[place : place + width] = words
            place += distance
            ids[place : place + width] = asked
            mask = place + asked.index(MASK)
            labels[mask], distances[mask] = name, distance
        return ids, labels, distances
