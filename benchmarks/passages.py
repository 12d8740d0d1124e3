"""How well passages name the clause that a label rests on, what they cost, and in which memory.

    python benchmarks/passages.py FOLDER      # the folder of benchmarks/decisions.py, models made

Contracts of CUAD that the model of a seed was not trained on are read whole, in windows whose
highest logit counts. For each label that a contract has and gold spans mark, the sentences of the
contract are ranked: by ``gradient`` and ``occlusion`` as `ldt predict --passages-by` does, by the
``attention`` of the first token in the last layer (mean of its heads, in the window that counts),
at ``random``, and by chunks, whose passages are whole windows. A hit is a passage among the first k
that shares a character with a gold span. Faithfulness is that of `ldt predict --passages-test`.

Time is that of the answers of one document, methods in turn in one process; memory is the peak of a
process of its own for each, less that of the loaded model. Writes results/passages.json.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import commands
import decisions
import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from ldt.data.records import Example
from ldt.files import write_whole
from ldt.inference.passages import Explaining, Wanted, gradients, occlusions
from ldt.inference.predictor import EncoderPredictor
from ldt.inference.run_folder import read_recipe
from ldt.metrics.passages import KS, aopc, hit
from ldt.recipe import recipe as recipes

ROOT = Path(__file__).parents[1]
METHODS = ("gradient", "occlusion", "attention", "random", "chunks")
BATCH = 16384
LENGTHS = (4096, 16384, 32768)


def reader(run):
    """The predictor of a run that reads contracts whole."""
    recipe = read_recipe(run)
    data = recipe.data.model_copy(update={"overflow": "windows", "stride": 128})
    task = recipe.task.model_copy(update={"merge": "max"})
    return EncoderPredictor(run, replace(recipe, task=task, data=data))


def attention(predictor, features, reading, target, outputs):
    """[passages], the attention of the first token of the input that counts, in the last layer."""
    (row,) = target.shares(outputs)
    inputs = predictor.collate([features[row]])
    with torch.inference_mode():
        seen = predictor.model(**inputs, output_attentions=True).global_attentions[-1]
    scores = seen[0, :, :, 0].mean(0)  # of [1, heads, tokens, global tokens]
    first, start, end = features[row]["read"]
    owners = reading.owners()[start:end]
    found = np.zeros(len(reading.passages))
    inside = owners >= 0
    values = scores[first : first + end - start].double().numpy()
    np.add.at(found, owners[inside], values[inside])
    return found


def ranked(spans, scores):
    """The passages from the best on, as `hit` takes them."""
    order = np.argsort(-np.nan_to_num(scores, nan=-np.inf), kind="stable")
    return [{"start": spans[n][0], "end": spans[n][1]} for n in order]


def hits(predictor, rows, generator):
    """For each method, of each label of each contract whether there is a hit, by k."""
    found = {method: [] for method in METHODS}
    sizes = {"sentences": [], "chunks": []}
    for row in rows:
        example = Example(row, row["id"], row["id"])
        features = predictor.encode(example)
        outputs = [predictor.outputs([feature])[0] for feature in features]
        reading = predictor.task.reading(example, predictor.tokenizer, predictor.data)
        labels = [name for name, there in row["clauses"].items() if there and row["spans"][name]]
        answer = predictor.decode(outputs, example, features)
        targets = predictor.task.targets(answer, predictor.config, features, labels)
        args = predictor, features, outputs, reading, targets, BATCH
        scores = {"gradient": gradients(*args), "occlusion": occlusions(*args)}
        places = [reading.span(*feature["read"][1:]) for feature in features]
        sizes["sentences"].append(len(reading.passages))
        sizes["chunks"].append(len(places))
        for number, (label, target) in enumerate(zip(labels, targets, strict=True)):
            gold = [{"start": start, "end": end} for start, end in row["spans"][label]]
            listed = {
                method: ranked(reading.passages, each[number]) for method, each in scores.items()
            }
            chance = generator.random(len(reading.passages))
            seen = attention(predictor, features, reading, target, outputs)
            listed["random"] = ranked(reading.passages, chance)
            listed["attention"] = ranked(reading.passages, seen)
            listed["chunks"] = ranked(places, target.logits(outputs))
            for method in METHODS:
                found[method].append({k: hit(listed[method], gold, k) for k in KS})
    share = {
        method: {f"hit@{k}": 100 * float(np.mean([each[k] for each in rows])) for k in KS}
        for method, rows in found.items()
    }
    sizes = {name: statistics.median(counts) for name, counts in sizes.items()}
    return {"pairs": len(found["random"]), "contracts": len(rows), "median": sizes, "hits": share}


def faithfulness(predictor, rows, ks):
    """The figures of `ldt predict --passages-test` for the first k passages, and for as many at
    random, with the area over the deletion curve in its place."""
    found = {}
    for by in ("gradient", "occlusion"):
        for k in ks:
            made = []
            explaining = Explaining(predictor, Wanted(k, by, test=True, batch_tokens=BATCH))
            for row in rows:
                example = Example(row, row["id"], row["id"])
                features = predictor.encode(example)
                outputs = [predictor.outputs([feature])[0] for feature in features]
                facts = explaining.decode(outputs, example, features)["faithfulness"]
                if facts:
                    facts |= {"aopc": aopc(facts.pop("deletion"))}
                    made.append(facts | {"random_aopc": aopc(facts.pop("random_deletion"))})
            found[f"{by}, {k}"] = {key: float(np.mean([m[key] for m in made])) for key in made[0]}
    return found


def long_model(folder):
    """A model of 32,768 tokens with a head of 18 labels; what it answers does not matter here."""
    from ldt.model import LdtForSequenceClassification, load

    source, target = folder / f"minilm-{LENGTHS[-1]}", folder / "long"
    commands.convert(folder, source.name)
    if not target.exists():
        names = {number: f"label {number}" for number in range(18)}
        model = load(
            source,
            LdtForSequenceClassification,
            id2label=names,
            label2id={name: number for number, name in names.items()},
            num_labels=18,
            problem_type="multi_label_classification",
        )
        model.save_pretrained(target)
        for file in source.glob("*token*"):
            (target / file.name).write_bytes(file.read_bytes())
    return target


def ready(folder, text, length):
    """What answers a document of a length: (its predictor, example and inputs)."""
    path = folder / "long.yaml"
    write_whole(path, f"task: {{name: classification}}\nmodel: {{path: {folder / 'long'}}}\n")
    recipe = recipes.load(path, [f"data.max_length={length}", "data.overflow=truncate"])
    predictor = EncoderPredictor(folder / "long", recipe)
    whole = predictor.task.reading(
        Example({"text": text}, "whole", "whole"), predictor.tokenizer, recipe.data
    )
    text = text[: whole.offsets[length - 3, 1]]  # no more than is read
    example = Example({"text": text}, "long", "long")
    return predictor, example, predictor.encode(example)


def answer(predictor, example, features, wanted=None):
    outputs = predictor.outputs(features)
    return (Explaining(predictor, wanted) if wanted else predictor).decode(
        outputs, example, features
    )


def one(folder, text, length, by):
    """The peak memory of one answer over that of the loaded model, GiB."""
    made = ready(folder, text, length)
    Path("/proc/self/clear_refs").write_text("5")  # the peak of what is loaded is forgotten
    before = peak()
    wanted = None if by == "plain" else Wanted(2, by, batch_tokens=BATCH, of=("label 0",))
    answer(*made, wanted)
    return (peak() - before) / 2**20


def peak():
    """The most memory of this process since it was forgotten, KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def cost(folder, text, rounds):
    """Seconds and memory of an answer, and of one with passages for one label."""
    rows = []
    for length in LENGTHS:
        made = ready(folder, text, length)
        passages = len({*made[0].task.reading(made[1], made[0].tokenizer, made[0].data).passages})
        ways = {"plain": None, "gradient": Wanted(2, "gradient", of=("label 0",))}
        seconds = {way: [] for way in ways}
        for number in range(rounds + 1):
            for way, wanted in ways.items():
                start = time.perf_counter()
                answer(*made, wanted)
                if number:  # the first round warms up
                    seconds[way].append(time.perf_counter() - start)
        middle = {way: statistics.median(each) for way, each in seconds.items()}
        row = {"tokens": length, "sentences": passages, "seconds": middle}
        row["ratio"] = middle["gradient"] / middle["plain"]
        row["gib"] = {}
        for way in ways:
            command = [sys.executable, __file__, folder, "--one", f"{length},{way}"]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            row["gib"][way] = float(done.stdout.splitlines()[-1])
        rows.append(row)
    return rows


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--contracts", type=int, default=8, help="of a seed, the shortest ones")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks/results/passages.json")
    args = parser.parse_args(argv)
    folder = args.folder.absolute()
    rows = decisions.contracts(folder)
    text = "\n\n".join(row["text"] for row in rows[:20])
    if args.one:
        length, by = args.one.split(",")
        print(one(folder, text, int(length), by))
        return
    by_id = {row["id"]: row for row in rows}
    made = {"cuad": []}
    for seed in range(args.seeds):
        predictor = reader(folder / "runs" / f"none-{seed}")
        lines = (folder / f"seed-{seed}" / "test.jsonl").read_text("utf-8").splitlines()
        own = [by_id[json.loads(line)["id"]] for line in lines]
        own.sort(key=lambda row: len(row["text"]))
        own = own[: args.contracts]
        found = hits(predictor, own, np.random.default_rng(seed))
        found["faithfulness"] = faithfulness(predictor, own[: args.contracts // 3], (3,))
        made["cuad"].append(found)
    long_model(folder)
    made["cost"] = cost(folder, text, args.rounds)
    write_whole(args.json, json.dumps(made, indent=1) + "\n")
    show(made)
    Console().print(f"written to {args.json}")


def show(made):
    """Print the tables."""
    console, seeds = Console(), made["cuad"]
    pairs = sum(seed["pairs"] for seed in seeds)
    table = Table("passages by", *(f"hit@{k}" for k in KS), title=f"{pairs} labels of contracts")
    for method in METHODS:
        cells = [sum(s["hits"][method][f"hit@{k}"] * s["pairs"] for s in seeds) / pairs for k in KS]
        table.add_row(method, *(f"{cell:.1f}" for cell in cells))
    console.print(table)
    keys = list(next(iter(seeds[0]["faithfulness"].values())))
    table = Table("passages by, number", *keys, title="faithfulness")
    for name in seeds[0]["faithfulness"]:
        values = [[seed["faithfulness"][name][key] for seed in seeds] for key in keys]
        table.add_row(name, *(f"{statistics.mean(value):.3f}" for value in values))
    console.print(table)
    table = Table("tokens", "plain s", "gradient s", "ratio", "plain GiB", "gradient GiB")
    for row in made["cost"]:
        figures = row["seconds"]["plain"], row["seconds"]["gradient"], row["ratio"]
        table.add_row(
            f"{row['tokens']:,}",
            *(f"{figure:.2f}" for figure in figures),
            *(f"{row['gib'][way]:.2f}" for way in ("plain", "gradient")),
        )
    console.print(table)


if __name__ == "__main__":
    main()
