"""Small documents to train on, training as the commands do it, and what two runs share."""

import json
import random
from pathlib import Path

import torch
from safetensors.torch import load_file

from ldt.cli import train as training
from ldt.cli.console import configure_streams

WORDS = "the party of first part and other agree that this agreement ends".split()
LABELS = {
    "classes": lambda kind: kind,
    "several": lambda kind: ["x", kind] if kind == "a" else [],
    "number": lambda kind: 1.5 if kind == "a" else -0.25,
}


def documents(path, count, seed, label="classes"):
    """Documents of 5 to 60 words; the kind a has ZZZ in it."""
    rng = random.Random(seed)
    with open(path, "w") as file:
        for number in range(count):
            size, kind = rng.choice([5, 10, 20, 60]), "ab"[number % 2]
            words = [rng.choice(WORDS) for _ in range(size)]
            if kind == "a":
                words[rng.randrange(size)] = "ZZZ"
            row = {"id": f"doc-{number}", "text": " ".join(words), "label": LABELS[label](kind)}
            file.write(json.dumps(row) + "\n")


def train(recipe, **options):
    """Train and print as the command does; return the metrics."""
    configure_streams()
    return training.train(recipe, **options).metrics


def weights(folder="runs/r"):
    return load_file(Path(folder) / "model.safetensors")


def rows(run):
    return [json.loads(line) for line in Path(run, "metrics.jsonl").read_text().splitlines()]


def assert_same_run(one, other):
    """Weights bit by bit, metrics and log, but for what depends on the clock."""
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    results = [json.loads(Path(run, "metrics.json").read_text()) for run in (one, other)]
    clock = {"seconds", "tokens_per_second", "finished"}
    first, second = ({k: v for k, v in r.items() if k not in clock} for r in results)
    assert first == second
    clock |= {"memory", "eval_runtime", "eval_samples_per_second", "eval_steps_per_second"}
    first, second = (
        [{key: value for key, value in row.items() if key not in clock} for row in rows(run)]
        for run in (one, other)
    )
    assert first == second
