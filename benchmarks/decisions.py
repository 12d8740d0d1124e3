"""Thresholds, weights, calibration and abstention: what each brings on documents of no other use.

    python benchmarks/decisions.py FOLDER      # where data/cuad lies
    python benchmarks/decisions.py FOLDER --seeds 5 --length 1024 --epochs 3

Which of 18 clauses a contract of CUAD has, by real MiniLM weights made long. Each seed draws anew
which contracts are trained on (3/5), decided on (1/5) and tested on (1/5). A model is trained as it
is and one with class_weights: balanced, both by `ldt finetune` and evaluated on the contracts that
are decided on; `ldt evaluate --choose-thresholds` then decides, without training. Coverage is
measured by splitting the contracts that the plain model was not trained on, of all seeds, in
halves: one decides, one tests, `SPLITS` times. Writes results/decisions.json.
"""

import argparse
import gzip
import json
import shutil
import statistics
from pathlib import Path

import commands
import numpy as np
from rich.console import Console
from rich.table import Table

from ldt.io.files import write_whole
from ldt.metrics.calibration import expected_calibration_error
from ldt.metrics.classification import class_metrics
from ldt.metrics.curves import average_precision
from ldt.metrics.decisions import COVERAGES, Rules, decide, risk_coverage, upper_bound

ROOT = Path(__file__).parents[1]
SPLITS = 20
TARGETS = (0.8, 0.9, 0.95)
METRICS = ("macro_f1", "micro_f1", "macro_ap", "ece", "ece_by_chance")
RECIPE = """\
task: {{name: classification, problem: multi_label, pooling: max, class_weights: {weights}}}
model: {{path: minilm-{length}}}
data:
  train: seed-{seed}/train.jsonl
  eval: seed-{seed}/decide.jsonl
  label: [{labels}]
  max_length: {length}
  overflow: truncate
training:
  output_dir: {run}
  learning_rate: 2.0e-4
  num_train_epochs: {epochs}
  per_device_train_batch_size: 4
  gradient_accumulation_steps: 1
  seed: {seed}
  save_total_limit: 1
"""


def contracts(folder):
    """All contracts, in the order of the files."""
    rows = []
    for part in ("train", "dev"):
        file = folder / "data" / "cuad" / f"cuad.{part}.jsonl.gz"
        rows += map(json.loads, gzip.decompress(file.read_bytes()).splitlines())
    return rows


def divide(folder, rows, seed):
    """Write the contracts that are trained, decided and tested on."""
    place = folder / f"seed-{seed}"
    place.mkdir(exist_ok=True)
    order = np.random.default_rng(seed).permutation(len(rows))
    third, fourth = len(rows) * 3 // 5, len(rows) * 4 // 5
    parts = {"train": order[:third], "decide": order[third:fourth], "test": order[fourth:]}
    for name, numbers in parts.items():
        lines = [json.dumps({k: rows[n][k] for k in ("id", "text", "clauses")}) for n in numbers]
        write_whole(place / f"{name}.jsonl", "".join(f"{line}\n" for line in lines))


def train(folder, labels, seed, weights, args):
    """The run of a seed, trained unless it is there."""
    run = Path("runs", f"{weights}-{seed}")
    if not commands.is_trained(folder, run):
        recipe = folder / f"{weights}-{seed}.yaml"
        names = ", ".join(f"clauses.{label}" for label in labels)
        text = RECIPE.format(
            weights=weights,
            length=args.length,
            epochs=args.epochs,
            seed=seed,
            labels=names,
            run=run,
        )
        write_whole(recipe, text)
        commands.ldt(folder, "finetune", recipe, "--overwrite")
    return run


def decided(folder, run, name, *options):
    """A copy of a run that decides anew."""
    copy = Path("runs", f"{run.name}-{name}")
    if not (folder / copy).exists():
        shutil.copytree(folder / run, folder / copy)
        commands.ldt(folder, "evaluate", copy, "--choose-thresholds", *options)
    return copy


def answers(folder, run, file, *options):
    """The answers of a run for a file."""
    output = Path(f"{run}-{Path(file).stem}{''.join(options)}.jsonl")
    if not (folder / output).exists():
        commands.ldt(folder, "predict", file, "--model", run, "--output", output, *options)
    return [json.loads(line) for line in (folder / output).read_text("utf-8").splitlines()]


def truth(folder, file, labels):
    rows = [json.loads(line) for line in (folder / file).read_text("utf-8").splitlines()]
    return np.array([[row["clauses"][label] for label in labels] for row in rows], bool)


def figures(found, right, labels):
    """The metrics of answers, from 0 to 100 but for those of calibration."""
    scores = np.array([[answer["scores"][label] for label in labels] for answer in found])
    given = np.array([[label in answer["label"] for label in labels] for answer in found])
    metrics = class_metrics(right, given, several=True)
    precisions = [
        average_precision(*pair) for pair in zip(scores.T, right.T, strict=True) if pair[1].any()
    ]
    metrics["macro_ap"] = float(np.mean(precisions))
    metrics["ece"] = expected_calibration_error(scores.ravel(), right.ravel())
    metrics["ece_by_chance"] = by_chance(scores.ravel())
    return {name: metrics[name] for name in METRICS}


def by_chance(scores):
    """The ece of as many answers whose probabilities are exactly right, in the mean over draws."""
    draws = np.random.default_rng(0).random((SPLITS, len(scores))) < scores
    return float(np.mean([expected_calibration_error(scores, right) for right in draws]))


def one_seed(folder, labels, seed, args):
    """The metrics of each way on the contracts that are tested on."""
    file = f"seed-{seed}/test.jsonl"
    right = truth(folder, file, labels)
    plain, weighted = (train(folder, labels, seed, w, args) for w in ("none", "balanced"))
    runs = {
        "plain, 0.5": plain,
        "class weights": weighted,
        "thresholds": decided(folder, plain, "thresholds"),
        "thresholds, calibration": decided(folder, plain, "calibrated", "task.calibration=auto"),
        "weights, thresholds, calibration": decided(
            folder, weighted, "calibrated", "task.calibration=auto"
        ),
    }
    return {name: figures(answers(folder, run, file), right, labels) for name, run in runs.items()}


def held_out(folder, labels, seed):
    """Merged logits and truth of the contracts that the plain model was not trained on."""
    logits, right = [], []
    for part in ("decide", "test"):
        file = f"seed-{seed}/{part}.jsonl"
        for answer in answers(folder, Path("runs", f"none-{seed}"), file, "raw_scores=true"):
            logits.append([answer["scores"][label] for label in labels])
        right.append(truth(folder, file, labels))
    return np.array(logits), np.concatenate(right)


def coverage(logits, right):
    """Measured on the second half of `SPLITS` splits: label sets, and coverage of answers."""
    rows = []
    for target in TARGETS:
        sets, sizes, given, bounded = [], [], [], []
        for split in range(SPLITS):
            order = np.random.default_rng(split).permutation(len(logits))
            own, other = np.array_split(order, 2)
            found = decide(logits[own], right[own], Rules(True, abstain=("coverage", target)))
            scores = found.policy.scores(logits[other])
            inside = 1 - scores <= found.policy.quantiles[COVERAGES.index(target)]
            sets.append(float((inside | ~right[other]).all(1).mean()))
            sizes.append(float(inside.sum(1).mean()))
            sure = found.policy.confidence(scores, found.policy.predicted(scores))
            given.append(float((sure >= found.policy.least).mean()))
            bounded.append(len(other))
        rows.append(
            {
                "target": target,
                "label_sets": {"mean": float(np.mean(sets)), "splits": sets},
                "labels_in_a_set": float(np.mean(sizes)),
                "answered": {"mean": float(np.mean(given)), "splits": given},
                # Of so many test documents in all, at least this share by the binomial bound.
                "least_by_chance": 1
                - upper_bound(round((1 - target) * bounded[0]), bounded[0], 0.05),
            }
        )
    return rows


def risks(logits, right):
    """Coverage and risk of answers about one clause, out of fold, in the mean over the clauses."""
    risks = []
    for scores, there in zip(logits.T[..., None], right.T[..., None], strict=True):
        found = decide(scores, there, Rules(True))
        share, risk = risk_coverage(found.confidence, (found.labels == there).all(1))
        risks.append(risk)
    mean = np.mean(risks, 0)
    places = np.linspace(0, len(mean) - 1, 20).round().astype(int)
    points = [{"coverage": float(share[n]), "risk": float(mean[n])} for n in places]
    return {"aurc": float(mean.mean()), "curve": points}


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--epochs", type=int, default=3)
    results = ROOT / "benchmarks" / "results" / "decisions.json"
    parser.add_argument("--json", type=Path, default=results)
    args = parser.parse_args(argv)
    folder = args.folder.absolute()
    commands.convert(folder, f"minilm-{args.length}")
    rows = contracts(folder)
    labels = sorted(rows[0]["clauses"])
    seeds = []
    made = {"length": args.length, "epochs": args.epochs, "labels": len(labels), "seeds": seeds}
    for seed in range(args.seeds):
        divide(folder, rows, seed)
        seeds.append(one_seed(folder, labels, seed, args))
        parts = [held_out(folder, labels, each) for each in range(seed + 1)]
        made["coverage"] = [coverage(*part) for part in parts]
        made["risk"] = [risks(*part) for part in parts]
        write_whole(args.json, json.dumps(made, indent=1) + "\n")
    show(made)
    Console().print(f"written to {args.json}")


def show(made):
    """Print the tables."""
    console, seeds = Console(), made["seeds"]
    table = Table("way", *METRICS, title=f"{made['labels']} clauses, {len(seeds)} seeds")
    for name in seeds[0]:
        cells = []
        for metric in METRICS:
            values = [seed[name][metric] for seed in seeds]
            digits = 3 if metric.startswith("ece") else 1
            low, high = min(values), max(values)
            middle = statistics.mean(values)
            cells.append(f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})")
        table.add_row(name, *cells)
    console.print(table)
    table = Table("target", "label sets", "labels in a set", "answered", title="coverage")
    for rows in zip(*made["coverage"], strict=True):
        sets = [x for row in rows for x in row["label_sets"]["splits"]]
        given = [x for row in rows for x in row["answered"]["splits"]]
        table.add_row(
            f"{rows[0]['target']:g}",
            f"{np.mean(sets):.3f} ({min(sets):.2f} to {max(sets):.2f})",
            f"{np.mean([row['labels_in_a_set'] for row in rows]):.1f}",
            f"{np.mean(given):.3f} ({min(given):.2f} to {max(given):.2f})",
        )
    console.print(table)
    table = Table("answered", "wrong", title="risk of answers about one clause")
    for points in zip(*(each["curve"] for each in made["risk"]), strict=True):
        risk = statistics.mean(point["risk"] for point in points)
        table.add_row(f"{points[0]['coverage']:.2f}", f"{risk:.3f}")
    console.print(table)


if __name__ == "__main__":
    main()
