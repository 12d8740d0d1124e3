"""Which cases of a class of faults are tried, and small files to try them on.

Every run tries a sample. ``LDT_CHAOS=all`` tries every case, in an order that ``LDT_CHAOS_SEED``
gives; ``LDT_CHAOS=60`` does so for 60 minutes.
"""

import json
import os
import random
from pathlib import Path

SEED = int(os.environ.get("LDT_CHAOS_SEED", "0"))
_LONG = os.environ.get("LDT_CHAOS", "")
ALL = bool(_LONG)
MINUTES = float(_LONG) if _LONG not in ("", "all") else float("inf")


def sample(cases, most):
    """Some of the cases, chosen by the seed; all of them in a long run, in an order of its own."""
    cases = list(cases)
    count = len(cases) if ALL else min(most, len(cases))
    return random.Random(SEED).sample(cases, count)


def lines(path, rows):
    """Write a JSON line for each row."""
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def contracts(count, words=40, seed=0):
    """Documents of two classes, told apart by a word."""
    rng = random.Random(seed)
    vocabulary = "the party of first part and other agree that this agreement ends".split()
    rows = []
    for number in range(count):
        text = [rng.choice(vocabulary) for _ in range(words)]
        text[rng.randrange(words)] = ("court", "tribunal")[number % 2]
        rows.append({"id": f"d{number}", "text": " ".join(text), "label": "ab"[number % 2]})
    return rows
