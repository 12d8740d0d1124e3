"""An exported model beside ldt on this CPU: time, memory, and what int8 changes of the answers.

    python benchmarks/export.py                           # a quarter of an hour on 2 cores
    python benchmarks/export.py --only time               # one part anew; the others' results stay
    python benchmarks/export.py --only int8 --cuad DATA   # with CUAD's contracts as well

Time and memory: a random Longformer for classes at base shape (12 layers, width 768, windows of
512, 8,192 words), a document at a time. ldt, ONNX Runtime and, where it is installed, OpenVINO
answer in turn in one process, by one thread and by all, after one short input; a ratio is that of
the medians. Memory: peak resident memory over that of the loaded model, each in a process of its
own, with all threads.

int8: MiniLM made long and trained by recipes, exported with ``--precision int8``: the answers for
documents that it was not trained on, beside those of the file in fp32. On the demo's contracts, by
the demo's recipe; and on CUAD's (DATA holds cuad.train.jsonl.gz and cuad.dev.jsonl.gz), six kinds
of contract by their first 1,024 tokens. The interval is that of Clopper and Pearson (1934) with 95
per cent.

Writes results/export.json.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import commands
import torch
from loading import BASE, HERE, TINY, make
from measure import in_turn
from rich.console import Console
from rich.table import Table

from ldt.export import export
from ldt.inference.measure import STATUS, machine, peak_mib
from ldt.inference.runtimes import FORMATS
from ldt.io.files import write_whole
from ldt.metrics.decisions import upper_bound
from ldt.recipe.run import Run

RESULT = Path(__file__).parent / "results" / "export.json"
PARTS = ("time", "memory", "int8")
LENGTHS = {"time": (512, 4096, 8192), "memory": (4096, 8192, 16384)}
MINILM = "minilm-2048"
CONTRACTS = {"train": range(120), "new": range(10_000, 10_200)}  # numbers of the demo's
CUAD = {
    "model.path": MINILM,
    "data.max_length": 1024,
    "training.num_train_epochs": 3,
    "training.bf16": "false",
}


def exported(folder, shape, lengths):
    """{name: file or folder} of a random model of ldt and of what is exported of it."""
    model = folder / "ldt"
    model.mkdir()
    make(model, shape | {"max_position_embeddings": max(lengths) + 2})
    found = {"ldt": model}
    for name in ("onnx", "openvino"):
        row = FORMATS[name]
        if all(importlib.util.find_spec(package) for package in (*row.writes, row.package)):
            export(model, folder / name, format=name)
            found[name] = folder / name / row.file
    return found


def loaded(name, place):
    """Function of a number of tokens that answers for one document, by as many threads as torch
    has."""
    if name == "ldt":
        from ldt.model import LdtForSequenceClassification, load

        model = load(place, LdtForSequenceClassification).eval()
    else:
        from ldt.inference.runtimes import session

        model = session(FORMATS[name], place, torch.get_num_threads())

    def run(tokens):
        ids = torch.randint(3, 200, (1, tokens), generator=torch.Generator().manual_seed(tokens))
        with torch.inference_mode():
            inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
            model(inputs) if name != "ldt" else model(**inputs)

    return run


def times(places, lengths, rounds):
    """Rows of seconds for a document, and of how many times those of ldt they are."""
    rows, every = [], torch.get_num_threads()
    for threads in sorted({1, every}):
        torch.set_num_threads(threads)
        runs = {name: loaded(name, place) for name, place in places.items()}
        for run in runs.values():
            run(64)
        for tokens in lengths:
            calls = {name: lambda run=run, tokens=tokens: run(tokens) for name, run in runs.items()}
            seconds = {name: median(each) for name, each in in_turn(calls, rounds).items()}
            of_ldt = {name: value / seconds["ldt"] for name, value in seconds.items()}
            rows.append({"threads": threads, "tokens": tokens} | seconds | {"of ldt": of_ldt})
            print(rows[-1], flush=True)
    torch.set_num_threads(every)
    return rows


def memory(places, lengths):
    """Rows of peak MiB over the loaded model."""
    rows = []
    for tokens in lengths:
        row = {"tokens": tokens}
        for name, place in places.items():
            command = [sys.executable, __file__, "--peak", name, str(place), str(tokens)]
            path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
            environment = os.environ | {"PYTHONPATH": path}
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
            row[name] = float(done.stdout.splitlines()[-1])
        rows.append(row)
        print(row, flush=True)
    return rows


def demo_run(folder, tiny):
    """(run folder, documents) of the demo, trained on whole contracts."""
    sys.path.insert(0, str(HERE / "examples" / "demo"))
    import demo
    from contracts import contracts

    texts = {name: contracts(numbers) for name, numbers in CONTRACTS.items()}
    if tiny:
        texts = {name: documents[:8] for name, documents in texts.items()}
    for name, documents in texts.items():
        demo.write(folder / f"{name}.jsonl", documents)
    (folder / "recipe.yaml").write_text(demo.recipe(demo.MINILM), "utf-8")
    start = convert(folder, tiny, [document["text"] for document in texts["train"]])
    changes = {"data.train": "train.jsonl", "model.path": start, "training.output_dir": "run-demo"}
    finetune(folder, "recipe.yaml", changes, tiny)
    return folder / "run-demo", folder / "new.jsonl"


def cuad_run(folder, data, tiny):
    """(run folder, documents) of the kinds of CUAD's contracts."""
    files = {name: data.absolute() / f"cuad.{name}.jsonl.gz" for name in ("train", "dev")}
    changes = CUAD | {"data.train": files["train"], "data.eval": files["dev"]}
    changes |= {"model.path": convert(folder, tiny), "training.output_dir": "run-cuad"}
    finetune(folder, commands.RECIPES / "cuad_group.yaml", changes, tiny)
    return folder / "run-cuad", files["dev"]


def convert(folder, tiny, texts=("this agreement ends",)):
    """Name of the model to train in a folder: MiniLM at 2,048 tokens, or a tiny one."""
    if not tiny:
        commands.convert(folder, MINILM)
        return MINILM
    if not (folder / "tiny").exists():
        (folder / "tiny").mkdir()
        make(folder / "tiny", TINY)
    return "tiny"


def finetune(folder, recipe, changes, tiny):
    if tiny:
        changes = changes | {"data.max_length": 128, "training.max_steps": 1}
    options = [f"{key}={value}" for key, value in changes.items()]
    commands.ldt(folder, "finetune", recipe, *options)


def int8(run, documents, target):
    """What the file in int8 changes of the answers for documents."""
    found = export(run, target, precision="int8", check=str(documents), max_changed=1).comparison
    equal = found.documents - found.changed
    edges = 1 - upper_bound(found.changed, found.documents, 0.025)
    row = {
        "documents": found.documents,
        "equal": equal / found.documents,
        "interval": [edges, upper_bound(equal, found.documents, 0.025)],
        "drift": found.drift,
        "size": found.size,
        "speed": found.speed,
        "accuracy": Run(run).results()["metrics"]["eval_accuracy"],
    }
    print(row, flush=True)
    return row


def show(result, console):
    for part, title in (
        ("time", "seconds for a document, base shape (times ldt)"),
        ("memory", "peak memory over the loaded model, MiB"),
        ("int8", "answers in int8 beside those in fp32"),
    ):
        rows = result.get(part)
        if not rows:
            continue
        table = Table(title=title)
        for name in rows[0]:
            if name != "of ldt":
                table.add_column(name, justify="right")
        for row in rows:
            of_ldt = row.get("of ldt", {})
            table.add_row(
                *(cell(value, of_ldt.get(k)) for k, value in row.items() if k != "of ldt")
            )
        console.print(table)


def cell(value, times=None):
    if isinstance(value, list):
        return " to ".join(map(cell, value))
    if isinstance(value, (str, dict)):
        return str(value)
    said = f"{value:.3g}" if isinstance(value, float) and value < 100 else f"{value:,.0f}"
    return said if times in (None, 1) else f"{said} ({times:.2f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cuad", type=Path, metavar="DATA", help="folder of CUAD's documents")
    parser.add_argument("--tiny", action="store_true", help="that it runs; figures mean nothing")
    parser.add_argument("--json", type=Path, default=RESULT)
    parser.add_argument("--peak", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peak:
        name, place, tokens = args.peak
        run = loaded(name, Path(place))
        print(peak_mib(lambda: run(int(tokens)), lambda: run(64)))
        return
    result = json.loads(args.json.read_text()) if args.json.exists() else {}
    result.setdefault("machine", {})
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        lengths = {k: (64, 128) if args.tiny else v for k, v in LENGTHS.items() if k in args.only}
        if lengths:
            longest = [tokens for each in lengths.values() for tokens in each]
            places = exported(folder, TINY if args.tiny else BASE, longest)
        for part in args.only:
            if part == "time":
                result[part] = times(places, lengths[part], args.rounds)
            elif part == "memory" and STATUS.exists():
                result[part] = memory(places, lengths[part])
            elif part == "int8":
                runs = {"demo": demo_run(folder, args.tiny)}
                if args.cuad:
                    runs["cuad"] = cuad_run(folder, args.cuad, args.tiny)
                result[part] = [
                    {"what": name} | int8(*run, folder / f"int8-{name}")
                    for name, run in runs.items()
                ]
            result["machine"][part] = machine()
            write_whole(args.json, json.dumps(result, indent=1) + "\n")
    show(result, Console(width=None if sys.stdout.isatty() else 120))


if __name__ == "__main__":
    main()
