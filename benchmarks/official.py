"""The published benchmarks in small, on a CPU: figures of their own metrics, on samples of them.

    LDT_TEST_DATA=DATA python benchmarks/official.py FOLDER              # all, two seeds
    LDT_TEST_DATA=DATA python benchmarks/official.py FOLDER cuad nq --steps 100 --documents 20

DATA has the samples as cuad_v1_layout, contractnli, qasper and nq. Models are MiniLM made long and
trained in FOLDER by `ldt finetune`, each once; answers are written by `ldt predict --output-format`
and scored by `ldt evaluate`:

- cuad: AUPR and precision at 80 % recall where a contract is read in chunks of 512 tokens, and of
  4,096. A step has as many tokens in both, and a chunk without answer is trained on as often as one
  with.
- contractnli: evidence and classes of the model against TF-IDF: the cosine of hypothesis and span,
  and the most frequent class of each hypothesis.
- words: the same by TF-IDF on all of ContractNLI's dev set, and how often gold evidence is among
  the first spans, or the first paragraphs of QASPER's sample; no model, no seed.
- hits: is gold evidence among the first spans or paragraphs of the evidence head, and, of
  ContractNLI, among the first sentences that `ldt predict --passages` names for a classification
  of hypothesis and contract? Chance is an expectation.
- nq: long and short answers by chunks of 512 tokens, by the whole page, and by the whole page with
  two levels of attention, 128 and 512 tokens pooled.

Else the shortest documents are taken, ``--trained`` and ``--documents`` of a set. Samples are
small, pages of NQ are made up, papers of QASPER are their evidence alone: no figure is comparable
with a published one. Writes results/official.json, in which an experiment that is not asked for
stays as it was.
"""

import argparse
import json
import os
import statistics
from collections import Counter
from pathlib import Path

import commands
import passages
from official_data import RANKED, Words, claims, parts, sample
from rich.console import Console
from rich.table import Table

from ldt.benchmarks.contractnli import LABELS
from ldt.io.files import write_whole

ROOT = Path(__file__).parents[1]
SETS = {  # folder of the data, files to train and to evaluate on
    "cuad": ("cuad_v1_layout", "train.json.gz", "test.json.gz"),
    "contractnli": ("contractnli", "train_truncated.json.gz", "dev.json.gz"),
    "qasper": ("qasper", "evidence_only.train.json.gz", "evidence_only.dev.json.gz"),
    "nq": ("nq", "nq-made-up-train-00.jsonl.gz", "nq-made-up-dev-00.jsonl.gz"),
}
TASKS = {
    "cuad": {"name": "squad", "max_answer": 256, "null_chunks": "balanced"},
    "contractnli": {"name": "evidence_classification", "weights": {"class": 0.1}},
    "qasper": {"name": "qasper"},
    "nq": {"name": "passage_qa"},
}
TITLES = {"contractnli": "ContractNLI", "qasper": "QASPER"}
PROBABILITIES = {"contractnli": "span_probs", "qasper": "paragraph_probs"}
LAYOUTS = {"cuad": "cuad-nbest"}  # others are called as their set
FIGURES = {
    "cuad": ("aupr", "prec_at_80_recall"),
    "contractnli": ("span.map", "span.precision@recall80", "class.accuracy"),
    "hits": ("hit@1", "hit@3"),
    "nq": ("long-best-threshold-f1", "short-best-threshold-f1"),
}
FIGURES["words"] = FIGURES["contractnli"] + FIGURES["hits"]
SIZE = ("steps", "trained", "documents")
ALL = dict.fromkeys(SIZE)  # of what needs no model
LENGTHS = {"cuad": (512, 4096), "contractnli": (4096,), "qasper": (4096,), "nq": (512, 2048)}
TOKENS = 8192  # of a step, at any length
MODEL, POOLED = "minilm-4096", "minilm-poolingformer-4096"
TRAINING = {
    "learning_rate": 0.0001,
    "per_device_train_batch_size": 1,
    "save_strategy": "no",
    "eval_strategy": "no",
}


def samples(folder, name, args):
    """The files of a set to train and to evaluate on."""
    place, *files = SETS[name]
    counts = {"train": args.trained, "eval": args.documents}
    return [
        sample(
            args.data / place / file, folder / f"{name}.{part}-{count or 'all'}.json{end}", count
        )
        for (part, count), file in zip(counts.items(), files, strict=True)
        for end in ["l" if ".jsonl" in file else ""]
    ]


# -- models


def trained(folder, run, task, data, model, length, args, seed):
    """Train FOLDER/runs/run, unless it is there."""
    run = Path("runs", f"{run}-{args.steps}-{args.trained}-{seed}")
    training = TRAINING | {
        "output_dir": str(run),
        "max_steps": args.steps,
        "gradient_accumulation_steps": TOKENS // length,
        "seed": seed,
    }
    data = {"stride": 128, "max_length": length} | data
    recipe = {"task": task, "model": {"path": model}, "data": data, "training": training}
    if not commands.is_trained(folder, run):
        path = folder / f"{run.name}.yaml"
        write_whole(path, json.dumps(recipe, indent=1))
        commands.ldt(folder, "finetune", path, "--overwrite")
    return run


def reader(folder, name, args, seed, length, model=MODEL):
    """A model of a set that reads so many tokens at once."""
    options = [] if model == MODEL else ["--architecture", "poolingformer"]
    commands.convert(folder, model, *options)
    train, _ = samples(folder, name, args)
    data = {"train": train.name, "format": name}
    run = f"{name}-{model}-{length}"
    return trained(folder, run, TASKS[name], data, model, length, args, seed)


def answers(folder, run, file, end, *options):
    """The file of the answers of a run, in a layout or, with the end jsonl, a line each."""
    output = Path(f"{run}.{file.stem}.{end}")
    if not (folder / output).exists():
        commands.ldt(folder, "predict", file, "--model", run, "--output", output, *options)
    return folder / output


def figures(folder, name, gold, predictions):
    """The figures of a set in percent."""
    target = predictions.with_suffix(".figures.json")
    options = ["--gold", gold, "--pred", predictions, "--format", name, "--json", target]
    commands.ldt(folder, "evaluate", *options)
    metrics = json.loads(target.read_text("utf-8"))["metrics"]
    return {figure: metrics[figure] for figure in FIGURES[name]}


def published(folder, name, args, seed, length, model=MODEL):
    """Figures of a model of a set, by its answers in the published layout."""
    run = reader(folder, name, args, seed, length, model)
    _, gold = samples(folder, name, args)
    found = answers(folder, run, gold, "json", "--output-format", LAYOUTS.get(name, name))
    return figures(folder, name, gold, found)


# -- experiments: {row: {figure: percent}} of a seed


def cuad(folder, args, seed):
    return {
        f"{length:,} tokens": published(folder, "cuad", args, seed, length)
        for length in LENGTHS["cuad"]
    }


def nq(folder, args, seed):
    short, long = LENGTHS["nq"]
    return {
        f"chunks of {short}": published(folder, "nq", args, seed, short),
        "whole page": published(folder, "nq", args, seed, long),
        "whole page, two levels": published(folder, "nq", args, seed, long, POOLED),
    }


def contractnli(folder, args, seed):
    (length,) = LENGTHS["contractnli"]
    return {
        "evidence_classification": published(folder, "contractnli", args, seed, length),
        "TF-IDF, most frequent class": words_figures(folder, args),
    }


def words_figures(folder, args):
    """The figures of `by_words` on the sample."""
    train, gold = samples(folder, "contractnli", args)
    found = gold.with_suffix(".words.json")
    write_whole(found, json.dumps(by_words(claims(train), claims(gold))))
    return figures(folder, "contractnli", gold, found)


def words(folder, args, seed):
    found = {}
    for name in RANKED:
        found |= words_hits(name, *samples(folder, name, args))
    return found | {
        "ContractNLI, TF-IDF": words_figures(folder, args) | found["ContractNLI, TF-IDF"]
    }


def words_hits(name, train, gold):
    """Hits of evidence by TF-IDF and by chance, of files of a set."""
    texts = dict.fromkeys(text for each in RANKED[name](train) for text in each.passages)
    known, found, chance = Words(texts), [], []
    for each in RANKED[name](gold):
        right = list(map(place, each.right))
        found.append(passages.scored(best(known.cosines(each.question, each.passages)), right))
        chance.append(passages.by_chance(list(map(place, range(len(each.passages)))), right))
    return {
        f"{TITLES[name]}, TF-IDF": hit_rates(found),
        f"{TITLES[name]}, by chance": hit_rates(chance),
    }


def by_words(learned, asked):
    """Predictions in ContractNLI's layout: cosines, and the classes of each hypothesis in training.

    Args:
        learned, asked: examples of `claims`.
    """
    seen = {}
    for example in learned:
        seen.setdefault(example.fields["key"], Counter())[example.fields["label"]] += 1
    words, found = Words(dict.fromkeys(text for each in learned for text in parts(each))), {}
    for example in asked:
        key, id = (example.fields[name] for name in ("key", "document"))
        counts = seen[key]
        probs = {label: counts[label] / counts.total() for label in LABELS}
        spans = words.cosines(example.fields["hypothesis"], parts(example))
        found.setdefault(id, {})[key] = {"class_probs": probs, "span_probs": spans}
    return [{"id": id, "annotation_sets": [{"annotations": each}]} for id, each in found.items()]


def hits(folder, args, seed):
    found = {}
    for name in RANKED:
        train, gold = samples(folder, name, args)
        asked, (length,) = RANKED[name](gold), LENGTHS[name]
        head = rows(answers(folder, reader(folder, name, args, seed, length), gold, "jsonl"))
        scored = [
            passages.scored(best(head[each.id][PROBABILITIES[name]]), list(map(place, each.right)))
            for each in asked
        ]
        found[f"{TITLES[name]}, evidence head"] = hit_rates(scored)
        if name == "contractnli":
            named = rows(classified(folder, args, seed))
            found["ContractNLI, classification, --passages"] = passage_hits(claims(gold), named)
        found |= words_hits(name, train, gold)
    return found


def passage_hits(examples, named):
    """Hits of evidence by passages of a model that read the hypothesis before the contract.

    Args:
        examples: of `claims`.
        named: {id: answer} of those with evidence.
    """
    found = []
    for each in examples:
        if each.fields["evidence"]:
            shift = len(joined(each)) - len(each.fields["text"])
            likely = [
                {side: passage[side] - shift for side in ("start", "end")}
                for passage in named[each.id]["passages"]
            ]
            spans = [each.fields["spans"][number] for number in each.fields["evidence"]]
            right = [{"start": start, "end": end} for start, end in spans]
            found.append(passages.scored(likely, right))
    return hit_rates(found)


def classified(folder, args, seed):
    """Answers of a classification of hypothesis and contract, with the passages they rest on."""
    (length,) = LENGTHS["contractnli"]
    files = []
    for part, file in zip(("train", "eval"), samples(folder, "contractnli", args), strict=True):
        lines = [
            json.dumps({"id": e.id, "text": joined(e), "label": e.fields["label"]})
            for e in claims(file)
            if part == "train" or e.fields["evidence"]
        ]
        files.append(folder / f"claims.{file.stem}.jsonl")
        write_whole(files[-1], "".join(f"{line}\n" for line in lines))
    task = {"name": "classification", "pooling": "max"}
    data = {"train": files[0].name, "overflow": "truncate"}
    run = trained(folder, "claims", task, data, MODEL, length, args, seed)
    return answers(folder, run, files[1], "jsonl", "--passages", str(max(passages.KS)))


def joined(example):
    return f"{example.fields['hypothesis']}\n\n{example.fields['text']}"


def place(number):
    """A passage by its number, as hits are counted."""
    return {"start": number, "end": number + 1}


def best(scores):
    """The passages of the highest scores, best first, as many as hits are counted for."""
    order = sorted(range(len(scores)), key=lambda number: -scores[number])
    return [place(number) for number in order[: max(passages.KS)]]


def hit_rates(listed):
    """The mean of each figure, in percent."""
    return {name: 100 * statistics.mean(each[name] for each in listed) for name in FIGURES["hits"]}


def rows(file):
    """{id: answer} of a file of lines."""
    lines = map(json.loads, file.read_text("utf-8").splitlines())
    return {line["id"]: line for line in lines}


EXPERIMENTS = {"cuad": cuad, "contractnli": contractnli, "words": words, "hits": hits, "nq": nq}


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("experiments", nargs="*", metavar="EXPERIMENT", help=" ".join(EXPERIMENTS))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=100, help=f"of {TOKENS:,} tokens")
    parser.add_argument("--trained", type=int, default=40, help="documents to train on, at most")
    parser.add_argument("--documents", type=int, default=15, help="that are scored, at most")
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks/results/official.json")
    args = parser.parse_args(argv)
    if unknown := set(args.experiments) - set(EXPERIMENTS):
        parser.error(
            f"no experiment {', '.join(sorted(unknown))}, there are {' '.join(EXPERIMENTS)}"
        )
    if not (data := os.environ.get("LDT_TEST_DATA")):
        parser.error("LDT_TEST_DATA is not set: the folder of the samples")
    args.data, folder = Path(data), args.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    made = json.loads(args.json.read_text("utf-8")) if args.json.exists() else {}
    for name in args.experiments or EXPERIMENTS:
        size = ALL if name == "words" else {key: getattr(args, key) for key in SIZE}
        sized = argparse.Namespace(**vars(args) | size)
        made[name] = {"size": size | {"tokens_per_step": TOKENS}, "seeds": []}
        for seed in range(1 if name == "words" else args.seeds):
            made[name]["seeds"].append(EXPERIMENTS[name](folder, sized, seed))
            write_whole(args.json, json.dumps(made, indent=1) + "\n")
    show(made)
    Console().print(f"written to {args.json}")


def spread(values):
    """The mean of some values, and from the lowest to the highest."""
    return f"{statistics.mean(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def show(made):
    """Print the tables: mean of the seeds, lowest to highest."""
    for name, found in made.items():
        seeds, size = found["seeds"], found["size"]
        title = f"{name}: {size['steps'] or 'no'} steps, {size['documents'] or 'all'} documents"
        table = Table(name, *FIGURES[name], title=title)
        for row in seeds[0]:
            found = ([seed[row].get(figure) for seed in seeds] for figure in FIGURES[name])
            table.add_row(row, *("" if None in values else spread(values) for values in found))
        Console().print(table)


if __name__ == "__main__":
    main()
