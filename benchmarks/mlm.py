"""The paper's table of pretraining, small: a masked LM at 512 tokens, made longer, trained on.

    python benchmarks/mlm.py FOLDER    # sotu.train.jsonl and sotu.dev.jsonl, packed or not

Trains what FOLDER/runs does not have yet, an interrupted run goes on: a model from scratch by
recipes/pretrain_small.yaml; converted to 4,096 tokens with tiled and with random positions; the
tiled one trained on, all of it and the new positions only. All five are scored on the same hidden
words of the evaluation set. Writes results/mlm.json. Beltagy et al. 2020 (arXiv:2004.05150),
table 5. Some 40 minutes of a CPU core.
"""

import argparse
import json
import lzma
import sys
from dataclasses import asdict
from pathlib import Path

import commands
from rich.console import Console
from rich.table import Table

from ldt.inference.perplexity import MaskedText, score, scorer, texts
from ldt.model import LdtForMaskedLM, load, load_tokenizer

ROOT = Path(__file__).parents[1]
SHORT, LONG = 512, 4096
# Of all runs: checkpoints to go on from, no evaluation on the way.
SAVED = {
    "training.eval_strategy": "no",
    "training.load_best_model_at_end": "false",
    "training.save_strategy": "steps",
    "training.save_steps": 100,
}
# Over recipes/pretrain.yaml, for both runs that go on.
FURTHER = {
    "model.path": "tiled",
    "data.max_length": LONG,
    "data.eval_fraction": "null",
    "data.tokens_per_step": 2 * LONG,
    "training.max_steps": 300,
    "training.warmup_steps": 30,
    "training.learning_rate": 5e-4,
    "training.logging_steps": 10,
    "training.bf16": "false",
    "training.seed": 0,
}
POSITIONS = {"task.trainable": "positions", "task.source_length": SHORT}
# The paper's bits per token of RoBERTa-base, for the order.
PAPER = {
    "source at 512": 1.846,
    "random positions": 10.299,
    "tiled": 1.957,
    "trained on": 1.753,  # 2,000 steps
    "positions only": 1.850,
}


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks" / "results" / "mlm.json")
    parser.add_argument("--steps", type=int, help="of every run, to try it out")
    args = parser.parse_args(argv)
    folder = args.folder.absolute()
    data = {part: find(folder, f"sotu.{part}.jsonl") for part in ("train", "dev")}
    steps = {} if args.steps is None else {"training.max_steps": args.steps}
    source = {"data.train": data["train"], "data.eval": "null", **steps}
    commands.train(folder, "runs/source", "pretrain_small", source | SAVED, "pretrain")
    for name, positions in (("tiled", "tile"), ("random", "random")):
        if not (folder / name).exists():
            options = ("--max-length", LONG, "--positions", positions)
            commands.ldt(folder, "convert", "runs/source", name, *options)
    further = FURTHER | SAVED | {"data.train": data["train"], **steps}
    commands.train(folder, "runs/further", "pretrain", further, "pretrain")
    commands.train(folder, "runs/positions", "pretrain", further | POSITIONS, "pretrain")
    write(folder, data["dev"], args.json)


def find(folder, name):
    found = next((path for path in sorted(folder.glob(f"{name}*")) if path.is_file()), None)
    if found is None:
        sys.exit(f"{folder}: no {name}")
    return found.name


def write(folder, dev, target):
    """Score all models, print the table, write the file."""
    models = {
        "source at 512": ("runs/source", SHORT),
        "random positions": ("random", LONG),
        "tiled": ("tiled", LONG),
        "trained on": ("runs/further", LONG),
        "positions only": ("runs/positions", LONG),
    }
    documents = list(texts(str(folder / dev)))
    whole = "\n".join(documents).encode()
    tokenizer = load_tokenizer(folder / "tiled", load(folder / "tiled", LdtForMaskedLM).config)
    text = MaskedText(documents, tokenizer, [SHORT, LONG])
    rows = {}
    for name, (place, length) in models.items():
        model = load(folder / place, LdtForMaskedLM)
        found = score(scorer(model), text, length, pad=model.config.pad_token_id)
        rows[name] = asdict(found) | {"paper": PAPER[name]}
    runs = {
        name: json.loads((folder / "runs" / name / "metrics.json").read_text("utf-8"))
        for name in ("source", "further", "positions")
    }
    kept = ("steps", "tokens", "seconds", "parameters", "versions")
    result = {
        "rows": rows,
        "xz_bits_per_byte": 8 * len(lzma.compress(whole, preset=9)) / len(whole),
        "masked": {"tokens": text.tokens, "bytes": text.size, "left_over": text.left_over},
        "runs": {name: {key: found[key] for key in kept} for name, found in runs.items()},
    }
    target.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    table = Table("model", "input", "bits per token", "bits per byte", "the paper's", box=None)
    for name, row in rows.items():
        values = (row["bits_per_token"], row["bits_per_byte"], row["paper"])
        table.add_row(name, f"{row['length']:,}", *(f"{value:.3f}" for value in values))
    console = Console()
    console.print(table)
    console.print(f"xz -9: {result['xz_bits_per_byte']:.3f} bits per byte, of all text, not hidden")
    console.print(f"written to {target}")


if __name__ == "__main__":
    main()
