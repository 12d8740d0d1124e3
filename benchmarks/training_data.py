"""What labelled documents beyond memory cost before and while a model is trained on them.

    python benchmarks/training_data.py                      # 1,000,000 short documents: 30 minutes
    python benchmarks/training_data.py --documents 2000 --few 500   # that it runs

Documents of 2 to 16 words of three syllables, in two classes, and a tiny model. Each figure is of a
process of its own:

- first step: the whole `ldt finetune` of a single step, with no evaluation, at the first start,
  which reads and encodes all, and at the second, which finds that done; and its peak memory, as
  the system counts it, beside that of fewer documents.
- epoch: batches of 32 as training takes them, in random order, by the loader of the data alone.
- encoding: tokens a second by one process and by two, in turn.
- stores: 100,000 inputs written to a file of ldt's and to one of `datasets` (Arrow), and read from
  each in random order, in turn.
"""

import argparse
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from loading import HERE, TINY, make

RESULT = Path(__file__).parent / "results" / "training_data.json"
SYLLABLES = "ba de fi go lu ma ne pi ro su ta ve wi zo".split()
RECIPE = """
task: {{name: classification}}
model: {{path: model}}
data: {{train: {file}, cache: cache, max_length: 128}}
training:
  output_dir: run
  max_steps: 1
  per_device_train_batch_size: 32
  gradient_accumulation_steps: 1
  save_strategy: "no"
"""
STAGES = ("epoch", "encoding", "stores")
STORED = 100_000  # inputs


def write_documents(path, count):
    """Lines of JSON, of 2 to 16 words."""
    rng = random.Random(0)
    with open(path, "w") as file:
        for number in range(count):
            words = ["".join(rng.choices(SYLLABLES, k=3)) for _ in range(rng.randint(2, 16))]
            row = {"id": f"d{number}", "text": " ".join(words), "label": rng.choice("ab")}
            file.write(json.dumps(row) + "\n")


def measured(command, folder):
    """Seconds and peak memory in MB of a command, all its processes but for the largest's sum.

    Raises:
        RuntimeError: it failed, with the end of its log.
    """
    environment = os.environ | {"PYTHONPATH": f"{HERE}{os.pathsep}{Path(__file__).parent}"}
    begun = time.perf_counter()
    with open(folder / "log", "w+") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=log, text=True
        )
        out = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = status
        if status:
            log.seek(0)
            raise RuntimeError(f"{command}: {log.read()[-2000:]}")
    return time.perf_counter() - begun, usage.ru_maxrss / 1024, out


def starts(folder, count):
    """Seconds and MB of the first and the second start, and the bytes on the disk."""
    write_documents(folder / "docs.jsonl", count)
    (folder / "r.yaml").write_text(RECIPE.format(file="docs.jsonl"))
    command = [sys.executable, "-m", "ldt", "finetune", "r.yaml"]
    found = {"documents": count, "bytes": (folder / "docs.jsonl").stat().st_size}
    for start in ("first", "second"):
        seconds, peak, _ = measured(command, folder)
        found[start] = {"seconds": round(seconds, 2), "mb": round(peak)}
        shutil.rmtree(folder / "run")
        print(f"{count:,} documents, {start} start: {seconds:.1f} s, {peak:,.0f} MB", flush=True)
    found["kept bytes"] = sum(path.stat().st_size for path in (folder / "cache").rglob("*.*"))
    return found


def job_of(recipe):
    """The prepared run of a recipe."""
    from ldt.recipe.recipe import load
    from ldt.training.arguments import settings
    from ldt.training.finetune import Finetuning

    job = Finetuning(load(recipe, command="finetune"))
    return job.prepare(job.open(settings(job.recipe), None), None)


def epoch():
    """Inputs a second of an epoch, and MB by which memory grew in it."""
    from torch.utils.data import DataLoader

    prepared = job_of("r.yaml")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun, inputs, tokens = time.perf_counter(), 0, 0
    loader = DataLoader(prepared.train_items, 32, shuffle=True, collate_fn=prepared.collate)
    for batch in loader:
        inputs += len(batch["input_ids"])
        tokens += int(batch["attention_mask"].sum())
    seconds = time.perf_counter() - begun
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {
        "inputs": inputs,
        "tokens": tokens,
        "seconds": round(seconds, 2),
        "grown_mb": round(grown / 1024),
    }


def encoding():
    """Seconds to encode the first 100,000 documents, by one process and by two, in turn."""
    from transformers import AutoTokenizer

    from ldt.benchmarks.formats import read
    from ldt.data.options import DataSection
    from ldt.model.loading import read_config
    from ldt.tasks import Classification
    from ldt.training.labelled import DocumentEncoder, encode_all, unique

    data, task = DataSection(train="docs.jsonl", max_length=128), Classification()
    documents = unique(read("docs.jsonl", data))
    documents = documents.only(range(min(100_000, len(documents))))
    config = read_config(Path("model"), **task.learn(documents, data))
    tokenizer = AutoTokenizer.from_pretrained("model")
    found = {1: [], 2: []}
    for _ in range(3):
        for workers, seconds in found.items():
            begun = time.perf_counter()
            encoder = DocumentEncoder(task, tokenizer, data, 128, config)
            features = encode_all(documents, encoder, workers=workers)
            seconds.append(round(time.perf_counter() - begun, 2))
    return {"tokens": int(features.lengths.sum()), "seconds": found}


def stores():
    """{store: bytes on the disk, seconds to write, seconds to read}, of `STORED` inputs."""
    from datasets import Dataset, Features, Sequence, Value, load_from_disk

    from ldt.data.features import Features as Ours

    inputs = job_of("r.yaml").train_items
    items = [inputs[number] for number in range(min(STORED, len(inputs)))]
    order = random.Random(0).sample(range(len(items)), len(items))
    kinds = {"input_ids": "int32", "global_attention_mask": "uint8"}
    columns = Features(
        {name: Sequence(Value(kind)) for name, kind in kinds.items()} | {"labels": Value("int64")}
    )
    rows = [{name: item[name] for name in columns} for item in items]
    places = {"ldt": Path("ours"), "arrow": Path("arrow")}
    found = {name: {"write": [], "read": []} for name in places}
    for _ in range(3):
        for name, place in places.items():
            shutil.rmtree(place, ignore_errors=True)
            begun = time.perf_counter()
            if name == "ldt":
                store = Ours(items, place / "inputs")
            else:
                Dataset.from_generator(
                    lambda: iter(rows), features=columns, cache_dir=str(place / "cache")
                ).save_to_disk(place / "set")
                shutil.rmtree(place / "cache")
                store = load_from_disk(place / "set").with_format("numpy")
            found[name]["write"].append(round(time.perf_counter() - begun, 2))
            begun = time.perf_counter()
            tokens = sum(len(store[number]["input_ids"]) for number in order)
            found[name]["read"].append(round(time.perf_counter() - begun, 2))
            assert tokens == sum(len(item["input_ids"]) for item in items)
            size = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
            found[name]["bytes"] = size
    return {"inputs": len(items)} | found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--few", type=int, default=10_000, help="documents to compare with")
    parser.add_argument("--json", type=Path, default=RESULT, help="file for the figures")
    parser.add_argument("--stage", choices=STAGES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.stage:
        print(json.dumps(globals()[options.stage]()))
        return
    from ldt.inference.measure import machine
    from ldt.io.files import write_whole

    result = {"machine": machine(), "starts": []}
    for count in (options.few, options.documents):
        with TemporaryDirectory(dir=Path.cwd()) as scratch:
            folder = Path(scratch)
            (folder / "model").mkdir()
            make(folder / "model", TINY)
            result["starts"].append(starts(folder, count))
            if count == options.documents:
                for stage in STAGES:
                    command = [sys.executable, str(Path(__file__).resolve()), "--stage", stage]
                    result[stage] = json.loads(measured(command, folder)[2].splitlines()[-1])
    by = {count: statistics.median(s) for count, s in result["encoding"]["seconds"].items()}
    rates = {count: round(result["encoding"]["tokens"] / seconds) for count, seconds in by.items()}
    print("tokens a second by one process and two:", rates)
    seconds = result["epoch"]["seconds"]
    print(f"an epoch: {seconds} s, {result['epoch']['inputs'] / seconds:,.0f} inputs a second")
    result["encoding"]["tokens_per_second"] = rates
    write_whole(options.json, json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
