"""How well passages name what a label rests on, what they cost, and in which memory.

    python benchmarks/passages.py FOLDER      # where data/cuad lies
    python benchmarks/passages.py FOLDER --deletion 5

A model with ``pooling: max`` for each of three sets is trained by `ldt finetune`, from real MiniLM
weights, on pieces of documents, and read on whole documents that it was not trained on:

- clause: whether a contract of CUAD has a cap on liability; gold are the spans that lawyers marked;
- disputes: court or arbitration in the contracts of the demo; gold is the clause on disputes;
- facts: whether a licence is of one kind and of another, said in two articles of such
  contracts; both sentences are gold, neither decides alone.

Where a document is longer than ``LENGTHS[set]``, its windows are read apart and the highest logit
counts. For the label that a document has, whatever the answer, sentences are ranked by ``gradient``
and ``occlusion`` as `ldt predict passages_by=` does, by the ``attention`` that their tokens get in
the last layer (mean of its heads), and at random among the sentences of the window that counts,
which is an expectation. ``chunks`` ranks windows, and is left out where a document has one.
Occlusion takes a pass a sentence, and is measured on the first ``--occluded`` documents; the others
on these too. A hit is a sentence among the first k that shares a character with gold. Intervals are
of a bootstrap over documents, 95 %.

With ``--deletion K`` the model is asked again without the first 1, 2, … K passages of each method,
and by them alone. ``comprehensiveness`` is how far the probability of the label falls without all K
(the more, the better), ``sufficiency`` how far by them alone (the less, the better), both of ERASER
(DeYoung et al. 2020, arXiv:1911.03429, section 4); ``deletion`` is the mean curve of the
probability, ``aopc`` the mean fall along it (Samek et al. 2017, arXiv:1509.06321). Random passages
are drawn anew for each document among all that are read. That takes K + 1 forward passes a method.

Time is that of the CPU on the answer of one document, methods in turn in one process (with
OMP_NUM_THREADS=1 it is the time that an idle machine takes); memory is the peak of a process of its
own for each, less that of the loaded model. Writes results/passages.json.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from math import comb
from pathlib import Path

import commands
import decisions
import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from ldt.benchmarks.passages import hit
from ldt.inference.engine import read_recipe
from ldt.inference.options import PredictOptions
from ldt.inference.passages import Explaining, gradients, hiding, occlusions
from ldt.inference.predictor import EncoderPredictor
from ldt.io.files import write_whole
from ldt.io.records import Example
from ldt.recipe import recipe as recipes
from ldt.recipe.run import Run

ROOT = Path(__file__).parents[1]
METHODS = ("gradient", "occlusion", "attention", "random", "chunks")
KS = (1, 3)
DRAWS = 2000  # of a bootstrap
BATCH = 16384
COSTS = (4096, 16384, 32768)  # tokens
OCCLUDED = 4096  # tokens of a document on which the time of occlusion is measured
CLAUSE = "Cap On Liability"
TRAINED = 165  # contracts of CUAD, the others are read
PIECE = 1000  # characters of a contract that the model of the clause learns from at a time
# The class is "sole" where both sentences are of the first kind.
FACTS = (
    (
        ("The customer is the sole licensee.", "The licence belongs to the customer alone."),
        ("Several competitors share the licence.", "Many rival firms hold the same licence."),
    ),
    (
        ("The licence is valid worldwide.", "The licence covers every country on earth."),
        ("The licence stops at the border.", "The licence is limited to the home market."),
    ),
)
ARTICLES = {"learned": 2, "read": 6}  # of a contract with two facts
LENGTHS = {"clause": 1024, "disputes": 4096, "facts": 4096}
EPOCHS = {"clause": 3, "disputes": 2, "facts": 3}
BATCHES = {"clause": 4, "disputes": 2, "facts": 2}
RECIPE = """\
task: {{name: classification, pooling: max}}
model: {{path: minilm-4096}}
data: {{train: {name}.train.jsonl, eval: {name}.eval.jsonl, max_length: 4096, overflow: truncate}}
training:
  output_dir: runs/{name}
  learning_rate: 1.0e-4
  num_train_epochs: {epochs}
  per_device_train_batch_size: {batch}
  gradient_accumulation_steps: 1
  save_strategy: "no"
  eval_strategy: "no"
  seed: 0
"""


def clause(rows, seed):
    """Pieces of contracts: one around the clause, where there is one, and one anywhere."""
    draw, found = random.Random(seed), []
    for row in rows:
        text, gold = row["text"], row["spans"][CLAUSE]
        starts = [draw.randrange(max(len(text) - PIECE, 1))]
        if gold:
            starts.append(max(min(a for a, _ in gold) - draw.randrange(PIECE // 2), 0))
        for start in starts:
            end = start + PIECE
            there = any(a < end - 100 and start < b - 20 for a, b in gold)  # enough of it to tell
            label = "yes" if there else "no"
            found.append({"id": f"{row['id']}-{start}", "text": text[start:end], "label": label})
    draw.shuffle(found)
    return found


def disputes(numbers, whole=False):
    """Contracts of the demo, or three of their articles with that on disputes."""
    found = []
    for row in demo().contracts(numbers):
        paragraphs, text = row["text"].split("\n\n"), row["text"]
        place = text.count("\n\n", 0, row["clause"])
        gold = [row["clause"], row["clause"] + len(paragraphs[place])]
        if not whole:
            first = place - random.Random(row["id"]).randrange(3)
            text = "\n\n".join(paragraphs[first : first + 3])
        found.append({key: row[key] for key in ("id", "label")} | {"text": text, "spans": [gold]})
    return found


def facts(numbers, articles):
    """Articles of contracts of the demo, two of which have a sentence more."""
    found = []
    for number, row in enumerate(demo().contracts(numbers)):
        draw = random.Random(row["id"])
        paragraphs = row["text"].split("\n\n")[2:-1]
        paragraphs = draw.sample([p for p in paragraphs if ". Disputes." not in p[:20]], articles)
        kinds = draw.choice(((0, 1), (1, 0), (1, 1))) if number % 2 == 0 else (0, 0)
        said = [draw.choice(fact[kind]) for fact, kind in zip(FACTS, kinds, strict=True)]
        for place, sentence in zip(draw.sample(range(articles), 2), said, strict=True):
            paragraphs[place] += f" {sentence}"
        text = "\n\n".join(paragraphs)
        spans = [[text.index(each), text.index(each) + len(each)] for each in said]
        label = "shared" if any(kinds) else "sole"
        found.append({"id": row["id"], "text": text, "label": label, "spans": spans})
    random.Random(0).shuffle(found)
    return found


def demo():
    """The module that makes the contracts of the demo."""
    sys.path.insert(0, str(ROOT / "examples" / "demo"))
    import contracts

    sys.path.pop(0)
    return contracts


def documents(folder, name):
    """(to learn from, to evaluate the training by, to read), rows of a set."""
    if name == "clause":
        rows = decisions.contracts(folder)
        some, others = rows[:TRAINED], rows[TRAINED:]
        read = [
            {"id": row["id"], "text": row["text"], "label": "yes", "spans": row["spans"][CLAUSE]}
            for row in sorted(others, key=lambda row: len(row["text"]))
            if row["spans"][CLAUSE]
        ]
        return clause(some, 0), clause(others, 1)[:60], read
    if name == "disputes":
        made = disputes(range(120)), disputes(range(1000, 1040))
        return *made, disputes(range(10_000, 10_064), whole=True)
    made = [facts(numbers, ARTICLES["learned"]) for numbers in (range(240), range(1000, 1060))]
    read = facts(range(10_000, 10_100), ARTICLES["read"])
    return *made, [row for row in read if row["label"] == "sole"]


def trained(folder, name, learned, evaluated):
    """The predictor of a set, which reads documents whole."""
    run = folder / "runs" / name
    if not commands.is_trained(folder, run):
        for part, rows in (("train", learned), ("eval", evaluated)):
            lines = [json.dumps({key: row[key] for key in ("id", "text", "label")}) for row in rows]
            write_whole(folder / f"{name}.{part}.jsonl", "".join(f"{line}\n" for line in lines))
        recipe = RECIPE.format(name=name, epochs=EPOCHS[name], batch=BATCHES[name])
        write_whole(folder / f"{name}.yaml", recipe)
        commands.ldt(folder, "finetune", f"{name}.yaml", "--overwrite")
    recipe = read_recipe(run)
    changes = {"overflow": "chunks", "stride": 128, "max_length": LENGTHS[name]}
    data = recipe.data.model_copy(update=changes)
    task = recipe.task.model_copy(update={"merge": "max"})
    return EncoderPredictor(run, replace(recipe, task=task, data=data))


def attention(predictor, feature, reading):
    """[passages], the attention that tokens get from all in the last layer, NaN if not read."""
    with torch.inference_mode():
        seen = predictor.model(**predictor.collate([feature]), output_attentions=True)
    weights = seen.attentions[-1][0].double().mean(0).numpy()  # of [1, heads, tokens, window + 1]
    tokens, width = weights.shape
    got = np.zeros(tokens + width)
    for place in range(width):
        got[place : place + tokens] += weights[:, place]
    got = got[width // 2 :]
    first, start, end = feature["read"]
    owners = reading.owners()[start:end]
    inside = owners >= 0
    found = np.full(len(reading.passages), np.nan)
    found[owners[inside]] = 0
    np.add.at(found, owners[inside], got[first : first + end - start][inside])
    return found


def best(scores, number):
    """Numbers of the best passages, best first; those that are not read are none."""
    order = np.argsort(-np.nan_to_num(scores, nan=-np.inf), kind="stable")[:number].tolist()
    return [n for n in order if not np.isnan(scores[n])]


def first(spans, scores):
    """The best passages, as `hit` takes them."""
    return [{"start": spans[n][0], "end": spans[n][1]} for n in best(scores, max(KS))]


def scored(named, gold):
    """hit@k, and the share of the gold spans that one of the first three touches."""
    scores = {f"hit@{k}": hit(named, gold, k) for k in KS}
    return scores | {"recall@3": statistics.mean(hit(named, [span], 3) for span in gold)}


def by_chance(places, gold):
    """The expectation of `scored` where passages are drawn from those at ``places``."""

    def drawn(spans, k):
        right = sum(bool(hit([place], spans, 1)) for place in places)
        some = min(k, len(places))
        return 1 - comb(len(places) - right, some) / comb(len(places), some)

    scores = {f"hit@{k}": drawn(gold, k) for k in KS}
    return scores | {"recall@3": statistics.mean(drawn([span], 3) for span in gold)}


def without(predictor, features, outputs, gone):
    """Outputs for all inputs of a document where nothing attends to some of its tokens.

    Args:
        outputs: for the inputs as they are; those without such tokens are not run again.
        gone: [tokens of the document] bool.
    """
    parts = {}
    for row, feature in enumerate(features):
        first, start, end = feature["read"]
        if gone[start:end].any():
            parts[row] = feature, first + np.flatnonzero(gone[start:end])
    changed = dict(zip(parts, hiding(predictor, list(parts.values()), BATCH), strict=True))
    return [changed.get(row, output) for row, output in enumerate(outputs)]


def faithfulness(probability, chosen, every):
    """How far the probability of a label rests on some passages, as ERASER has it.

    Args:
        probability: gives it where nothing attends to some tokens, by their numbers.
        chosen: [passages] arrays of token numbers, best first.
        every: the same of all passages that are read.
    """
    nothing = np.array([], int)
    hidden = [np.concatenate([nothing, *chosen[:k]]) for k in range(len(chosen) + 1)]
    curve = [probability(tokens) for tokens in hidden]
    alone = probability(np.setdiff1d(np.concatenate([nothing, *every]), hidden[-1]))
    return {
        "comprehensiveness": curve[0] - curve[-1],
        "sufficiency": curve[0] - alone,
        "deletion": curve,
    }


def deletions(predictor, example, features, outputs, reading, label, scores, number):
    """{method: `faithfulness` of its first passages}, and of as many that are drawn at random."""

    def probability(hidden):
        gone = np.zeros(len(reading.offsets), bool)
        gone[hidden] = True
        changed = without(predictor, features, outputs, gone)
        return predictor.task.decode(changed, predictor.config, example, features)["scores"][label]

    owners = reading.owners()
    places = [feature["read"][1:] for feature in features]
    windows = [start + np.flatnonzero(owners[start:end] >= 0) for start, end in places]
    sentences = [np.flatnonzero(owners == n) for n in range(len(reading.passages))]
    read = [sentences[n] for n in np.flatnonzero(reading.seen(features))]
    draw = np.random.default_rng(len(reading.text))  # the same in each run
    drawn = [read[n] for n in draw.permutation(len(read))[:number]]
    found = {"random": faithfulness(probability, drawn, read)}
    for name, each in scores.items():
        parts, every = (windows, windows) if name == "chunks" else (sentences, read)
        chosen = [parts[n] for n in best(each, number)]
        found[name] = faithfulness(probability, chosen, every)
    return found


def measured(predictor, row, occluded, hidden):
    """(scores and deletions by method, sentences of the window that counts) for a document's label.

    Args:
        hidden: passages of each method that are hidden one after the other.
    """
    example = Example(row, row["id"], row["id"])
    features = predictor.encode(example)
    outputs = [predictor.outputs([feature])[0] for feature in features]
    reading = predictor.task.reading(example, predictor.tokenizer, predictor.data)
    answer = predictor.decode(outputs, example, features)
    (target,) = predictor.task.targets(answer, predictor.config, features, [row["label"]])
    (winner,) = target.shares(outputs)
    # Without a passage of another window the highest logit can only rise.
    target = replace(target, rows=[winner])
    args = predictor, features, outputs, reading, [target], BATCH
    scores = {"gradient": gradients(*args)[0]}
    scores["attention"] = attention(predictor, features[winner], reading)
    if occluded:
        scores["occlusion"] = occlusions(*args)[0]
    gold = [{"start": start, "end": end} for start, end in row["spans"]]
    made = {name: scored(first(reading.passages, each), gold) for name, each in scores.items()}
    here = [reading.passages[n] for n in np.flatnonzero(~np.isnan(scores["attention"]))]
    made["random"] = by_chance([{"start": a, "end": b} for a, b in here], gold)
    if len(features) > 1:
        places = [reading.span(*feature["read"][1:]) for feature in features]
        scores["chunks"] = np.array([output["logits"][target.index] for output in outputs])
        made["chunks"] = scored(first(places, scores["chunks"]), gold)
    args = predictor, example, features, outputs, reading, row["label"], scores, hidden
    return made, deletions(*args) if hidden else {}, len(here)


def hits(predictor, rows, occluded, hidden):
    """For each method its documents, and the mean and interval of each score in percent."""
    found = [measured(predictor, row, place < occluded, hidden) for place, row in enumerate(rows)]
    made, deleted, sizes = zip(*found, strict=True)
    summary = {"sentences": statistics.median(sizes), "documents": len(found)}
    summary["methods"] = by_method(made, occluded, interval)
    return summary | ({"deletion": by_method(deleted, occluded, curves)} if hidden else {})


def by_method(found, occluded, summary):
    """The summary of each method, of all documents and of the first ones, which are occluded."""
    table = {}
    for method in METHODS:
        for name, part in ((method, found), (f"{method}, the same", found[:occluded])):
            listed = [made[method] for made in part if method in made]
            if listed and (part is not found or method != "occlusion"):
                table[name] = {"documents": len(listed)} | summary(listed)
    return table


def curves(listed):
    """The intervals of `faithfulness` and of the area over its curve, and the mean curve."""
    mean = mean_curve([each["deletion"] for each in listed])
    scores = [
        {key: each[key] for key in ("comprehensiveness", "sufficiency")}
        | {"aopc": aopc(mean_curve([each["deletion"]], len(mean)))}
        for each in listed
    ]
    return interval(scores) | {"deletion": [100 * value for value in mean]}


def mean_curve(curves, points=0):
    """The mean of deletion curves at each number of hidden passages.

    A shorter curve goes on at the height of its end, where there is no passage left to hide.

    Args:
        points: of the mean, where it is to have more than the longest curve.
    """
    size = max(points, *map(len, curves))
    longer = [[*curve, *[curve[-1]] * (size - len(curve))] for curve in curves]
    return [sum(values) / len(values) for values in zip(*longer, strict=True)]


def aopc(deletion):
    """The area over a deletion curve: the mean of how far the probability has fallen on it."""
    return deletion[0] - sum(deletion) / len(deletion)


def interval(listed):
    """{score: mean, low and high end of its 95 % interval}, in percent."""
    draw = np.random.default_rng(0)
    places = draw.integers(len(listed), size=(DRAWS, len(listed)))
    found = {}
    for name in listed[0]:
        values = 100 * np.array([scores[name] for scores in listed])
        low, high = np.percentile(values[places].mean(1), (2.5, 97.5))
        found[name] = [float(values.mean()), float(low), float(high)]
    return found


def long_model(folder):
    """A model of 32,768 tokens with a head of 18 labels; what it answers does not matter here."""
    from ldt.model import LdtForSequenceClassification, load

    source, target = folder / f"minilm-{COSTS[-1]}", folder / "long"
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
    wanted = None if by == "plain" else wanted_by(by)
    answer(*made, wanted)
    return (peak() - before) / 2**20


def peak():
    """The most memory of this process since it was forgotten, KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def cost(folder, text, rounds):
    """Seconds and memory of an answer, and of one with passages for one label."""
    rows = []
    for length in COSTS:
        made = ready(folder, text, length)
        passages = len(made[0].task.reading(made[1], made[0].tokenizer, made[0].data).passages)
        ways = {"plain": None, "gradient": wanted_by("gradient")}
        seconds = {way: [] for way in ways}
        for number in range(rounds + 1):
            for way, wanted in ways.items():
                taken = timed(made, wanted)
                if number:  # the first round warms up
                    seconds[way].append(taken)
        middle = {way: statistics.median(each) for way, each in seconds.items()}
        if length == OCCLUDED:
            middle["occlusion"] = timed(made, wanted_by("occlusion"))
        row = {"tokens": length, "sentences": passages, "seconds": middle, "gib": {}}
        for way in ways:
            command = [sys.executable, __file__, folder, "--one", f"{length},{way}"]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            row["gib"][way] = float(done.stdout.splitlines()[-1])
        rows.append(row)
    return rows


def wanted_by(method):
    """Options of two passages of the first label."""
    options = {"passages": 2, "passages_by": method, "passages_of": ["label 0"]}
    return PredictOptions.of(options | {"batch_tokens": BATCH})


def timed(made, wanted):
    """Seconds of this process on an answer: those of others on the machine do not count."""
    start = time.process_time()
    answer(*made, wanted)
    return time.process_time() - start


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--documents", type=int, default=64, help="of a set, at most")
    parser.add_argument("--occluded", type=int, default=20, help="of them, by occlusion too")
    parser.add_argument("--deletion", type=int, default=0, help="passages to hide one by one")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks/results/passages.json")
    args = parser.parse_args(argv)
    folder = args.folder.absolute()
    text = "\n\n".join(row["text"] for row in decisions.contracts(folder)[:20])
    if args.one:
        length, by = args.one.split(",")
        print(one(folder, text, int(length), by))
        return
    commands.convert(folder, "minilm-4096")
    made = {"sets": {}}
    for name in LENGTHS:
        learned, evaluated, read = documents(folder, name)
        predictor = trained(folder, name, learned, evaluated)
        right = Run(folder / "runs" / name).results()["metrics"]["eval_accuracy"]
        found = hits(predictor, read[: args.documents], args.occluded, args.deletion)
        made["sets"][name] = {"right": right} | found
        write_whole(args.json, json.dumps(made, indent=1) + "\n")
    long_model(folder)
    made["cost"] = cost(folder, text, args.rounds)
    write_whole(args.json, json.dumps(made, indent=1) + "\n")
    show(made)
    Console().print(f"written to {args.json}")


def show(made):
    """Print the tables."""
    console = Console()
    for name, found in made["sets"].items():
        title = f"{name}: {found['right']:.0f} % right on pieces, {found['sentences']:g} sentences"
        scores = [f"hit@{k}" for k in KS] + ["recall@3"]
        table = Table("passages by", "documents", *scores, title=title)
        for method, row in found["methods"].items():
            cells = ("{:.1f} ({:.0f} to {:.0f})".format(*row[score]) for score in scores)
            table.add_row(method, str(row["documents"]), *cells)
        console.print(table)
        if "deletion" in found:
            console.print(deletion_table(found["deletion"]))
    table = Table("tokens", "plain s", "gradient s", "ratio", "plain GiB", "gradient GiB")
    for row in made["cost"]:
        plain, gradient = row["seconds"]["plain"], row["seconds"]["gradient"]
        figures = plain, gradient, gradient / plain, *row["gib"].values()
        table.add_row(f"{row['tokens']:,}", *(f"{figure:.2f}" for figure in figures))
        if "occlusion" in row["seconds"]:
            console.print(f"occlusion at {row['tokens']:,}: {row['seconds']['occlusion']:.0f} s")
    console.print(table)


def deletion_table(methods):
    """The areas over the deletion curves, and the probabilities on them."""
    scores = "comprehensiveness", "sufficiency", "aopc"
    table = Table("passages by", "documents", *scores, "without the first 0, 1, 2, …")
    for method, row in methods.items():
        cells = ["{:.1f} ({:.0f} to {:.0f})".format(*row[score]) for score in scores]
        curve = ", ".join(f"{value:.1f}" for value in row["deletion"])
        table.add_row(method, str(row["documents"]), *cells, curve)
    return table


if __name__ == "__main__":
    main()
