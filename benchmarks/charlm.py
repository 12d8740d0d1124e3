"""Windows that grow, shrink or stay over the layers of a character model: table 4 of Longformer.

    python benchmarks/charlm.py FOLDER               # text files in FOLDER, such as tinyshakespeare
    python benchmarks/charlm.py FOLDER --size paper  # text8 in FOLDER; days on a large GPU

Trains what FOLDER/runs does not have yet: each row once a seed, on the same text and for the same
number of characters, by recipes/charlm_tiny.yaml or charlm_small.yaml in one phase. Bits per
character of the last weights on the 5 % of the text behind the training part. Writes
results/charlm.json. Beltagy et al. 2020 (arXiv:2004.05150), table 4, have one seed a row.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ldt import training
from ldt.recipe.recipe import load

ROOT = Path(__file__).parents[1]
# recipe, overrides, steps, windows from the bottom to the top, gaps of the last row
SIZES = {
    "cpu": (
        "charlm_tiny",
        {
            "model.config": {
                "hidden_size": 64,
                "num_hidden_layers": 4,
                "num_attention_heads": 4,
                "intermediate_size": 256,
                "hidden_dropout_prob": 0.0,
            },
            "data.max_length": 128,
            "task.eval_length": 256,
            "task.eval_step": 192,
            "training.per_device_train_batch_size": 4,
            "training.per_device_eval_batch_size": 16,
            "training.learning_rate": 3e-3,
        },
        1000,
        [8, 16, 32, 64],
        [1, 1, [2, 2, 1, 1], [3, 3, 1, 1]],
    ),
    "paper": (
        "charlm_small",
        {},
        150_000,
        [32, 32, 64, 64, 128, 128, 256, 256, 256, 512, 512, 512],
        [1] * 6 + [[gap, gap, 1, 1, 1, 1, 1, 1] for gap in (2, 2, 3, 3, 4, 4)],
    ),
}
PAPER = {  # bits per character on text8's development part
    "decreasing": 1.24,
    "fixed": 1.23,
    "increasing": 1.21,
    "increasing, two heads dilated": 1.20,
}
# 97.5 % quantile of Student's t by number of pairs; more than 7 are taken as 7.
T = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45}
BASE = "increasing"  # what the others are compared with, seed by seed


def rows(windows, gaps):
    """{name of a row: (windows, gaps)}."""
    mean = round(sum(windows) / len(windows) / 2) * 2
    return {
        "decreasing": (windows[::-1], 1),
        "fixed": (mean, 1),
        "increasing": (windows, 1),
        "increasing, two heads dilated": (windows, gaps),
    }


def train(folder, size, name, pattern, seed, steps):
    """What metrics.json says of a run, which is trained unless it is there."""
    stem, changes, *_ = SIZES[size]
    run = folder / "runs" / f"{size}-{steps}-{name.replace(', ', '-').replace(' ', '-')}-{seed}"
    if not (run / "metrics.json").exists():
        texts = [str(path) for path in sorted(folder.iterdir()) if path.is_file()]
        if not texts:
            sys.exit(f"{folder}: no text file in it")
        overrides = {
            **changes,
            "model.window": pattern[0],
            "model.config.attention_dilation": pattern[1],
            "data.train": texts,
            "task.phases": [{"steps": steps}],
            "training.eval_steps": steps,
            "training.seed": seed,
            "training.output_dir": str(run),
        }
        recipe = load(
            ROOT / "recipes" / f"{stem}.yaml",
            [f"{key}={json.dumps(value)}" for key, value in overrides.items()],
            command="pretrain",
        )
        training.train(recipe, resume=(run / "run.json").exists())
    return json.loads((run / "metrics.json").read_text("utf-8"))


def compared(bits):
    """{row: {mean, spread, and the difference from `BASE` in bits}} of {row: bits by seed}.

    ``spread`` is the standard deviation over seeds, ``difference_error`` the standard error of the
    mean difference between runs of the same seed.
    """
    found = {}
    for name, own in bits.items():
        pairs = [a - b for a, b in zip(own, bits[BASE], strict=True)]
        found[name] = {
            "bits_per_character": own,
            "mean": statistics.mean(own),
            "spread": statistics.stdev(own),
            "difference": statistics.mean(pairs),
            "difference_error": statistics.stdev(pairs) / len(pairs) ** 0.5,
            "paper": PAPER[name],
        }
    return found


def verdict(found):
    """In words, what differs from `BASE`: two-sided t test of the pairs, 95 %."""
    lines = []
    for name, row in found.items():
        if name == BASE:
            continue
        what = f"{row['difference']:+.4f} bits from {BASE}, error {row['difference_error']:.4f}"
        factor = T[min(len(row["bits_per_character"]), max(T))]
        clear = abs(row["difference"]) > factor * row["difference_error"]
        direction = "better" if row["difference"] < 0 else "worse"
        lines.append(f"{name}: {what}: {direction if clear else 'no difference shows'}")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", choices=SIZES, default="cpu")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each row, 2 or more")
    parser.add_argument("--steps", type=int, help="of each run, if not those of the size")
    default = ROOT / "benchmarks" / "results" / "charlm.json"
    parser.add_argument("--json", type=Path, default=default)
    args = parser.parse_args()
    if args.seeds < 2:
        parser.error("--seeds: a spread needs 2")
    _, changes, steps, windows, gaps = SIZES[args.size]
    steps, bits, last = args.steps or steps, {}, None
    for seed in range(args.seeds):
        for name, pattern in rows(windows, gaps).items():
            last = train(args.folder, args.size, name, pattern, seed, steps)
            bits.setdefault(name, []).append(last["metrics"]["eval_bits_per_character"])
    found = compared(bits)
    kept = ("steps", "tokens", "parameters", "versions", "data")
    patterns = {name: {"windows": w, "gaps": g} for name, (w, g) in rows(windows, gaps).items()}
    about = {"size": args.size, "overrides": changes, "patterns": patterns}
    about |= {key: last[key] for key in kept}
    text = json.dumps(about | {"rows": found, "verdict": verdict(found)}, indent=1) + "\n"
    args.json.write_text(text, encoding="utf-8")
    table = Table(title="bits per character; spread and error over seeds")
    for title in ("windows from bottom to top", "mean", "spread", "from increasing", "paper"):
        table.add_column(title)
    for name, row in found.items():
        difference = f"{row['difference']:+.4f} ± {row['difference_error']:.4f}"
        cells = f"{row['mean']:.4f}", f"{row['spread']:.4f}", difference, f"{row['paper']:.2f}"
        table.add_row(name, *cells)
    console = Console()
    console.print(table)
    for line in verdict(found):
        console.print(line)
    console.print(f"written to {args.json}")


if __name__ == "__main__":
    main()
