"""Summaries of what lies far behind the opening: a long encoder-decoder beside one that is cut.

    LDT_TEST_DATA=DATA python benchmarks/summaries.py FOLDER
    LDT_TEST_DATA=DATA python benchmarks/summaries.py FOLDER --seeds 5 --steps 300
    LDT_TEST_DATA=DATA python benchmarks/summaries.py FOLDER --tiny --json tiny.json

DATA has State of the Union addresses as sotu. A document is made here: sentences of an address, and
between them at random places six terms of an agreement, in words and with values of the demo's
contracts. Its summary states the six terms. By far the most of them stand behind token 1,024.

For each seed a BART of two and two layers with random weights is made long by `ldt convert`, learns
by `ldt finetune` from short documents what a term and a summary are (``--short`` steps), and then
three times from long ones (``--steps`` steps with as many documents), of which it reads 4,096
tokens, or the first 1,024, or 4,096 with a second level of attention (Poolingformer), which
`ldt convert` adds with its gate shut. `ldt predict` answers for documents with terms and addresses
it has not seen, with 4 beams, `ldt evaluate` scores (`pip install 'ldt-toolkit[summaries]'`).
``usual`` is the summary with the most frequent value of each term. ``terms`` is how many of all
have their value in the summary, ``late`` of those behind token 1,024.
Writes results/summaries.json: figures of all seeds, and one document with its summaries.
"""

import argparse
import gzip
import json
import os
import random
import re
import statistics
import sys
from collections import Counter
from pathlib import Path

import commands
from rich.console import Console
from rich.table import Table

from ldt.io.files import write_whole

ROOT = Path(__file__).parents[1]
LENGTHS = (4096, 1024)  # tokens that are read
ARMS = {  # row -> its run, the model that it goes on with, tokens that are read
    "4,096 tokens": ("read-4096", "runs/short", 4096),
    "1,024 tokens": ("read-1024", "runs/short", 1024),
    "4,096 tokens, two levels": ("two-levels", "pooled", 4096),
}
WINDOW = 128
FIGURES = ("rouge1", "rouge2", "rougeLsum")
SHARES = ("terms", "late")
TERMS = {  # field of the demo's contracts -> ways to say it, and how a summary does
    "city": (
        (
            "This Agreement is governed by the law in force in {}.",
            "The law of {} applies to this Agreement.",
        ),
        "The law of {} applies.",
    ),
    "goods": (
        (
            "The supplier shall deliver {} as ordered.",
            "The customer buys {} from the supplier.",
        ),
        "It is about {}.",
    ),
    "years": (
        (
            "This Agreement runs for {} years.",
            "The parties are bound for {} years.",
        ),
        "It runs for {} years.",
    ),
    "days": (
        (
            "Invoices are payable within {} days.",
            "The customer pays within {} days after receipt.",
        ),
        "Invoices are due after {} days.",
    ),
    "months": (
        (
            "The warranty ends {} months after delivery.",
            "The supplier cures defects for {} months.",
        ),
        "The warranty is {} months.",
    ),
    "month": (
        (
            "Prices stay fixed until {}.",
            "No price is raised before {}.",
        ),
        "Prices are fixed until {}.",
    ),
}
NUMBERS = {"years": range(2, 10), "days": range(10, 61, 10), "months": (6, 12, 18, 24, 36)}
WORDS = {"short": (0, 40), "long": (2200, 2800)}  # of the address in a document
SETS = {"short": 20000, "train": 1600, "test": 60}  # documents
TINY = {"short": 200, "train": 8, "test": 2}
BART = {
    "vocab_size": 4096,
    "d_model": 128,
    "max_position_embeddings": 1024,
    "scale_embedding": False,
    "dropout": 0.0,
    **{f"{part}_layers": 2 for part in ("encoder", "decoder")},
    **{f"{part}_attention_heads": 4 for part in ("encoder", "decoder")},
    **{f"{part}_ffn_dim": 512 for part in ("encoder", "decoder")},
}
BEAMS = 4


# -- documents


def values():
    """{term: its values}, those of words as the demo's contracts have them."""
    sys.path.insert(0, str(ROOT / "examples" / "demo"))
    from contracts import CITY, GOODS, MONTH

    return NUMBERS | {"city": CITY, "goods": GOODS, "month": MONTH}


def addresses(data, part):
    """The sentences of each address of a part of the set."""
    with gzip.open(data / "sotu" / f"sotu.{part}.jsonl.gz", "rt", encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in lines]
    return [re.split(r"(?<=[.!?])\s+", " ".join(text.split())) for text in texts]


def document(draw, sentences, words):
    """An id-less record: ``text``, ``summary``, ``values`` of the terms, ``places`` of them.

    Args:
        draw: random numbers.
        sentences: of addresses.
        words: of an address, from and to.
    """
    address, size = draw.choice(sentences), draw.randint(*words)
    parts, begin = [], draw.randrange(len(address))
    for sentence in address[begin:] + address[:begin]:
        parts.append(sentence)
        if sum(len(each.split()) for each in parts) > size:
            break
    chosen = {term: str(draw.choice(list(some))) for term, some in values().items()}
    said = {term: draw.choice(TERMS[term][0]).format(value) for term, value in chosen.items()}
    for sentence in draw.sample(list(said.values()), len(said)):
        parts.insert(draw.randrange(len(parts) + 1), sentence)
    text = " ".join(parts)
    return {
        "text": text,
        "summary": summary(chosen),
        "values": chosen,
        "places": {term: text.index(sentence) for term, sentence in said.items()},
    }


def summary(chosen):
    """The terms in words, always in the same order."""
    return " ".join(TERMS[term][1].format(chosen[term]) for term in TERMS)


def make_sets(folder, data, seed, sizes):
    """Write FOLDER/short.jsonl, train.jsonl and test.jsonl of so many documents."""
    for name, size in sizes.items():
        file = folder / f"{name}.jsonl"
        if file.exists():
            continue
        draw = random.Random(f"{seed}-{name}")
        sentences = addresses(data, "dev" if name == "test" else "train")
        words = WORDS["short" if name == "short" else "long"]
        rows = ({"id": i} | document(draw, sentences, words) for i in range(size))
        write_whole(file, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def rows(file):
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


# -- models


def make_bart(folder, seed):
    """Write FOLDER/bart, random, with a vocabulary of the documents, and make it long."""
    target = folder / "bart"
    if not target.exists():
        import torch
        from transformers import BartConfig, BartForConditionalGeneration, RobertaTokenizer

        texts = [f"{row['text']} {row['summary']}" for row in rows(folder / "short.jsonl")]
        start = {f"<{name}>": i for i, name in enumerate(("s", "pad", "/s", "unk", "mask"))}
        empty = RobertaTokenizer(vocab=start, merges=[])
        tokenizer = empty.train_new_from_iterator(texts, BART["vocab_size"])
        ids = {
            f"{name}_token_id": getattr(tokenizer, f"{name}_token_id")
            for name in ("bos", "eos", "pad")
        }
        torch.manual_seed(seed)
        config = BartConfig(
            **BART | {"vocab_size": len(tokenizer)},
            **ids,
            decoder_start_token_id=ids["eos_token_id"],
            forced_eos_token_id=None,
        )
        BartForConditionalGeneration(config).save_pretrained(target)
        tokenizer.save_pretrained(target)
    made_long(folder, "bart", "led")


def made_long(folder, source, target, *options):
    """Convert FOLDER/source to FOLDER/target, unless that is there."""
    if not (folder / target).exists():
        sizes = ["--max-length", max(LENGTHS), "--window", WINDOW]
        commands.ldt(folder, "convert", source, target, *sizes, *options)


def trained(folder, run, model, data, length, batch, steps, rate, seed):
    """Train FOLDER/run, unless it is there."""
    recipe = {
        "task": {"name": "summarization", "generation": {"num_beams": BEAMS}},
        "model": {"path": model},
        "data": {"train": data, "max_length": length, "overflow": "truncate"},
        "training": {
            "output_dir": run,
            "max_steps": steps,
            "per_device_train_batch_size": batch,
            "learning_rate": rate,
            "warmup_steps": steps // 10,
            "save_strategy": "no",
            "eval_strategy": "no",
            "seed": seed,
        },
    }
    if not commands.is_trained(folder, run):
        write_whole(folder / f"{Path(run).name}.yaml", json.dumps(recipe, indent=1))
        commands.ldt(folder, "finetune", f"{Path(run).name}.yaml", "--overwrite")
    return run


def scored(folder, found):
    """Figures of a file of answers by `ldt evaluate`, in percent, and shares of right terms."""
    target = found.with_suffix(".figures.json")
    options = ["--gold", "test.jsonl", "--pred", found, "--format", "summarization"]
    commands.ldt(folder, "evaluate", *options, "--json", target)
    metrics = json.loads(target.read_text("utf-8"))["metrics"]
    right, late = [], []
    answers = {row["id"]: row["summary"] for row in rows(found)}
    behind = places_behind(folder)
    for row in rows(folder / "test.jsonl"):
        for term, value in row["values"].items():
            hit = TERMS[term][1].format(value) in answers[row["id"]]
            right.append(hit)
            if row["places"][term] >= behind[row["id"]]:
                late.append(hit)
    shares = {"terms": 100 * statistics.mean(right), "late": 100 * statistics.mean(late)}
    return {name: metrics[name] for name in FIGURES} | shares


def places_behind(folder):
    """{id: character of the test document at which token 1,024 begins}."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder / "led")
    found = {}
    for row in rows(folder / "test.jsonl"):
        offsets = tokenizer(row["text"], return_offsets_mapping=True).offset_mapping
        found[row["id"]] = offsets[min(LENGTHS)][0]
    return found


def usual(folder):
    """Answers without reading: the most frequent value of each term in training."""
    seen = {term: Counter() for term in TERMS}
    for row in rows(folder / "train.jsonl"):
        for term, value in row["values"].items():
            seen[term][value] += 1
    same = summary({term: counts.most_common(1)[0][0] for term, counts in seen.items()})
    found = folder / "usual.jsonl"
    lines = [json.dumps({"id": row["id"], "summary": same}) for row in rows(folder / "test.jsonl")]
    write_whole(found, "".join(f"{line}\n" for line in lines))
    return found


def one_seed(folder, data, args, seed):
    """({row: {figure: percent}}, an example) of a seed."""
    folder.mkdir(parents=True, exist_ok=True)
    make_sets(folder, data, seed, TINY if args.tiny else SETS)
    make_bart(folder, seed)
    short = trained(folder, "runs/short", "led", "short.jsonl", 512, 32, args.short, 1e-3, seed)
    found = {"usual": usual(folder)}
    made_long(folder, short, "pooled", "--architecture", "poolingformer")
    for row, (name, model, length) in ARMS.items():
        run = trained(
            folder, f"runs/{name}", model, "train.jsonl", length, 4, args.steps, 3e-4, seed
        )
        found[row] = folder / f"{name}.jsonl"
        if not found[row].exists():
            answers = ["--model", run, "--output", found[row].name]
            commands.ldt(folder, "predict", "test.jsonl", *answers)
    figures = {name: scored(folder, file) for name, file in found.items()}
    first = rows(folder / "test.jsonl")[0]
    written = {name: rows(file)[0]["summary"] for name, file in found.items()}
    return figures, {"reference": first["summary"], "places": first["places"]} | written


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--short", type=int, default=1500, help="steps with short documents")
    parser.add_argument("--steps", type=int, default=300, help="steps with long documents")
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks/results/summaries.json")
    parser.add_argument("--tiny", action="store_true", help="a few documents and steps: a trial")
    args = parser.parse_args()
    if args.tiny:
        args.seeds, args.short, args.steps = 1, 4, 2
    if not (data := os.environ.get("LDT_TEST_DATA")):
        parser.error("LDT_TEST_DATA is not set: the folder that has sotu")
    made = {"short": args.short, "steps": args.steps, "seeds": [], "examples": []}
    for seed in range(args.seeds):
        figures, example = one_seed(args.folder.absolute() / str(seed), Path(data), args, seed)
        made["seeds"].append(figures)
        made["examples"].append(example)
        write_whole(args.json, json.dumps(made, indent=1, ensure_ascii=False) + "\n")
    names = (*FIGURES, *SHARES)
    table = Table("mean (lowest to highest seed)", *names)
    for row in made["seeds"][0]:
        columns = [[seed[row][name] for seed in made["seeds"]] for name in names]
        table.add_row(
            row, *(f"{statistics.mean(c):.1f} ({min(c):.1f} to {max(c):.1f})" for c in columns)
        )
    Console().print(table)
    for name, text in made["examples"][0].items():
        print(f"{name}: {text}")


if __name__ == "__main__":
    main()
