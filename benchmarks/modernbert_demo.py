"""A small ModernBERT from scratch, made long: what global tokens and windows do to it.

    python benchmarks/modernbert_demo.py FOLDER    # cuad/ and sotu/, .train.jsonl and .dev.jsonl

Trains what FOLDER/runs does not have yet, an interrupted run goes on: a masked LM by
recipes/modernbert_small.yaml at 1,024 tokens; converted to 32,768 tokens with windows of 512 in its
full layers; trained on at 4,096 tokens with global tokens nowhere, in the layers that were full, in
all, and in all with distances clipped; and fine-tuned on the demo's contracts, the first 512 tokens
and the whole. All masked LMs are scored on the same hidden words of the held-out text, in inputs of
several lengths, with no global token, with the first one, and with as many as a question has.
Writes results/modernbert.json. Some 15 minutes of a CPU core; seconds are those of the processor.
"""

import argparse
import json
import resource
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path

import commands
import numpy as np
from rich.console import Console
from rich.table import Table

from ldt.inference.perplexity import MaskedText, score, texts
from ldt.model import LdtForMaskedLM, load, load_tokenizer

ROOT = Path(__file__).parents[1]
SHORT, LONG, WINDOW, FURTHER = 1024, 32_768, 512, 4096
SCORED = SHORT, 8192
GLOBALS = 0, 1, 32  # tokens at the beginning of an input that are global
PARTS = "cuad", "sotu"
WHERE = {  # name -> changes of the converted model's config
    "none": {"global_layers": "none"},
    "full": {"global_layers": "full"},
    "all": {"global_layers": "all"},
    "all, clipped": {"global_layers": "all", "clip_global_distances": True},
}
# Of all runs: checkpoints to go on from, no evaluation on the way.
SAVED = {
    "data.eval_fraction": "null",
    "training.eval_strategy": "no",
    "training.load_best_model_at_end": "false",
    "training.save_strategy": "steps",
    "training.save_steps": 100,
}
TRAINED_ON = {
    "data.max_length": FURTHER,
    "data.tokens_per_step": FURTHER,
    "training.max_steps": 40,
    "training.warmup_steps": 10,
    "training.learning_rate": 5e-4,
    "training.per_device_train_batch_size": 1,
    "training.bf16": "false",
    "training.logging_steps": 10,
    "training.seed": 0,
}
CONTRACTS = {"train": range(200), "test": range(10_000, 10_064)}  # numbers of the demo's
FINE_TUNED = {
    "task.pooling": "max",
    "model.path": "long",
    "data.train": "contracts.train.jsonl",
    "data.eval_fraction": 0.1,
    "data.overflow": "truncate",
    "training.per_device_train_batch_size": 4,
    "training.gradient_accumulation_steps": 1,
    "training.num_train_epochs": 2,
    "training.learning_rate": 1e-3,
    "training.weight_decay": 1e-5,
    "training.early_stopping_patience": "null",
    "training.eval_strategy": "no",
    "training.load_best_model_at_end": "false",
    "training.save_strategy": "no",
    "training.seed": 0,
}


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    default = ROOT / "benchmarks" / "results" / "modernbert.json"
    parser.add_argument("--json", type=Path, default=default)
    parser.add_argument("--steps", type=int, help="of every run, to try it out")
    parser.add_argument("--characters", type=int, default=500_000, help="of the text to score")
    args = parser.parse_args(argv)
    folder = args.folder.absolute()
    steps = {} if args.steps is None else {"training.max_steps": args.steps}
    train = [str(find(folder, f"{part}.train.jsonl")) for part in PARTS]
    source = {"data.train": json.dumps(train)} | SAVED | steps
    timed = partial(_timed, folder)
    timed("pretrain", commands.train, folder, "runs/short", "modernbert_small", source, "pretrain")
    if not (folder / "long").exists():
        options = ("--max-length", LONG, "--window", WINDOW)
        timed("convert", commands.ldt, folder, "convert", "runs/short", "long", *options)
    for name, changes in WHERE.items():
        start = variant(folder, name, changes)
        further = {"data.train": json.dumps(train), "model.path": start} | SAVED | TRAINED_ON
        further["task.global_attention"] = "[cls]" if name != "none" else "[]"
        run = f"runs/{start}"
        each = further | steps
        timed(start, commands.train, folder, run, "modernbert_pretrain", each, "pretrain")
    tasks = {name: contracts(folder, name, length, steps) for name, length in LENGTHS.items()}
    scores = timed("score", scored, folder, args.characters)
    write(folder, tasks, scores, args.json)


def find(folder, name):
    """A file of the data, as it lies there or in a folder of its set."""
    found = [path for path in sorted(folder.rglob(f"{name}*")) if path.is_file()]
    if not found:
        sys.exit(f"{folder}: no {name}")
    return found[0]


def _timed(folder, name, act, *arguments):
    """What ``act`` returns; its processor seconds are added to those in FOLDER/seconds.json."""
    file = folder / "seconds.json"
    kinds = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN

    def spent():
        return sum(sum(resource.getrusage(kind)[:2]) for kind in kinds)

    begin = spent()
    try:
        return act(*arguments)
    finally:
        seconds = json.loads(file.read_text("utf-8")) if file.exists() else {}
        seconds[name] = round(seconds.get(name, 0) + spent() - begin, 1)
        file.write_text(json.dumps(seconds), encoding="utf-8")


def variant(folder, name, changes):
    """The name of a folder of the converted model with changes of its config."""
    target = folder / f"long-{name.replace(', ', '-')}"
    if not target.exists():
        target.mkdir()
        for path in (folder / "long").iterdir():
            (target / path.name).write_bytes(path.read_bytes())
        config = json.loads((target / "config.json").read_text("utf-8")) | changes
        (target / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    return target.name


# -- the demo's contracts

LENGTHS = {"the first 512 tokens": 512, "the whole contract": 4096}


def contracts(folder, name, length, steps):
    """Metrics of the demo's job at one length of input, and the processor seconds of training."""
    sys.path.insert(0, str(ROOT / "examples" / "demo"))
    import contracts as made
    from demo import score as agreement
    from demo import write as write_lines

    held_out = made.contracts(CONTRACTS["test"], 0)
    for part, documents in (("train", made.contracts(CONTRACTS["train"], 0)), ("new", held_out)):
        if not (folder / f"contracts.{part}.jsonl").exists():
            write_lines(folder / f"contracts.{part}.jsonl", documents)
    run, answers = f"runs/contracts-{length}", folder / f"contracts-{length}.jsonl"
    changes = FINE_TUNED | {"data.max_length": length} | steps
    train = partial(commands.train, folder, run, "classification", changes)
    _timed(folder, f"contracts at {length}", train)
    if not answers.exists():
        commands.ldt(folder, "predict", "contracts.new.jsonl", "--model", run, "--output", answers)
    predicted = [json.loads(line)["label"] for line in answers.read_text("utf-8").splitlines()]
    accuracy, macro_f1 = agreement([contract["label"] for contract in held_out], predicted)
    read = json.loads((folder / run / "metrics.json").read_text("utf-8"))
    row = {"length": length, "accuracy": accuracy, "macro_f1": macro_f1, "steps": read["steps"]}
    return row | {"documents": len(predicted)}


# -- masked words of held-out text


def scored(folder, characters):
    """Rows of scores: of the source, of the converted model and of those that were trained on."""
    documents = [text for part in PARTS for text in texts(str(find(folder, f"{part}.dev.jsonl")))]
    # Long ones: inputs of all lengths are then of one document mostly.
    documents = sorted(documents, key=len)[-(len(documents) // 4) :]
    total, kept = 0, []
    for text in documents:
        kept.append(text[: characters - total])
        total += len(kept[-1])
        if total >= characters:
            break
    tokenizer = load_tokenizer(folder / "long", load(folder / "long", LdtForMaskedLM).config)
    text = MaskedText(kept, tokenizer, list(SCORED))
    rows = []

    def add(model, name, trained, length, first):
        found = score(_scorer(model, first), text, length, pad=model.config.pad_token_id)
        rows.append({"model": name, "trained on": trained, "globals": first} | asdict(found))

    source = load(folder / "runs" / "short", LdtForMaskedLM)
    add(source, "source", False, SHORT, 0)
    source.config.max_position_embeddings = LONG
    for length in SCORED[1:]:
        add(source, "source", False, length, 0)
    for trained in (False, True):
        for name in WHERE:
            start = f"long-{name.replace(', ', '-')}"
            place = folder / "runs" / start if trained else folder / start
            model = load(place, LdtForMaskedLM)
            for length in SCORED:
                for first in GLOBALS if name != "none" else (0,):
                    add(model, name, trained, length, first)
    return {"rows": rows, "tokens": text.tokens, "bytes": text.size}


def _scorer(model, first):
    """As `ldt.inference.perplexity.scorer`, with so many global tokens at the beginning."""

    def logits(batch):
        mask = batch["global_attention_mask"].clone()
        mask[:, :first] = batch["attention_mask"][:, :first]
        return model(**batch | {"global_attention_mask": mask}, at_labels=True).logits

    return logits


def write(folder, tasks, scores, target):
    """Print the tables, write the file."""
    kept = ("steps", "tokens", "parameters", "versions")
    read = json.loads((folder / "runs" / "short" / "metrics.json").read_text("utf-8"))
    result = {
        "contracts": tasks,
        "masked": scores,
        "source": {key: read[key] for key in kept if key in read},
        "cpu_seconds": json.loads((folder / "seconds.json").read_text("utf-8")),
    }
    target.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    console = Console()
    table = Table("what was read", "accuracy", "macro-F1", "steps", box=None)
    for name, row in tasks.items():
        table.add_row(name, f"{row['accuracy']:.1f}", f"{row['macro_f1']:.1f}", str(row["steps"]))
    console.print(table)
    table = Table("global tokens", "trained on", "how many", "input", "bits per token", box=None)
    for row in scores["rows"]:
        trained, many = "yes" if row["trained on"] else "no", str(row["globals"])
        bits = f"{row['bits_per_token']:.3f}"
        table.add_row(row["model"], trained, many, f"{row['length']:,}", bits)
    console.print(table)
    seconds = np.array(list(result["cpu_seconds"].values()))
    console.print(f"{seconds.sum() / 60:.0f} minutes of the processor; written to {target}")


if __name__ == "__main__":
    main()
