"""What loading takes of memory, and what the first answer of `ldt predict` takes of time, on Linux.

    python benchmarks/loading.py                    # this ldt beside transformers, minutes
    python benchmarks/loading.py --before FOLDER    # and another ldt, of the sources in FOLDER
    python benchmarks/loading.py --tiny             # that it runs; the figures mean nothing

Memory: a model of random weights with the shape of longformer-base and 8,192 words, 465 MB, in a
folder on the disk. A fresh process each loads a small model of the same class and then this one;
counted is what is added, at the peak and afterwards, and how much of that is private (anonymous),
which no other process shares and the system cannot drop. Time: CPU seconds and seconds of whole
processes that answer for a line of 6 words with a model of two layers, beside two imports: of torch
and transformers, and of the class that every model of transformers has as its base. All run in
turn; figures are medians.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

RESULT = Path(__file__).parent / "results" / "loading.json"
HERE = Path(__file__).parents[1]
WAYS = ("ldt", "ldt, mapped", "transformers")
BASE = {
    "vocab_size": 8192,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "attention_window": 512,
    "max_position_embeddings": 4098,
}
TINY = {
    "vocab_size": 300,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "attention_window": 8,
    "max_position_embeddings": 130,
}
TEXT = "the party of this agreement ends"
RECIPE = "task: {name: classification}\nmodel: {path: any}\ndata: {train: any.jsonl}\n"
IMPORTS = {
    "import torch, transformers": "import torch, transformers",
    "import PreTrainedModel": "import torch; from transformers import PreTrainedModel",
}


def make(folder, shape):
    """Write a random LdtForSequenceClassification with its tokenizer and recipe."""
    import torch
    from tokenizers import ByteLevelBPETokenizer
    from transformers import RobertaTokenizer

    from ldt.model import LdtConfig, LdtForSequenceClassification

    torch.manual_seed(0)
    LdtForSequenceClassification(LdtConfig(**shape)).save_pretrained(folder)
    bpe = ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    bpe.train_from_iterator([TEXT] * 9, vocab_size=300, special_tokens=special, show_progress=False)
    with TemporaryDirectory() as parts:
        vocab, merges = bpe.save_model(parts)
        RobertaTokenizer(vocab=vocab, merges=merges).save_pretrained(folder)
    (folder / "recipe.yaml").write_text(RECIPE)


def read(way, folder):
    """The model of a folder, loaded in a way of `WAYS`."""
    import transformers

    import ldt.model

    if way == "transformers":
        return transformers.LongformerForSequenceClassification.from_pretrained(folder)
    options = {"mapped": True} if way == "ldt, mapped" else {}
    return ldt.model.load(folder, ldt.model.LdtForSequenceClassification, **options)


def megabytes(file, field):
    """A field of a file of /proc/self, in MB."""
    lines = Path("/proc/self", file).read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith(field))


def measured(way, small, large):
    """MB that loading adds in this process, and its CPU seconds."""
    kept = [read(way, small)]
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before = megabytes("status", "VmRSS"), megabytes("smaps_rollup", "Anonymous")
    start = time.process_time()
    kept.append(read(way, large))
    seconds = time.process_time() - start
    return {
        "peak_mb": megabytes("status", "VmHWM") - before[0],
        "private_mb": megabytes("smaps_rollup", "Anonymous") - before[1],
        "cpu_seconds": seconds,
    }


def in_fresh_process(way, small, large, sources):
    """`measured` in a process of its own, with the ldt of a folder of sources."""
    command = [sys.executable, __file__, "--measure", way, str(small), str(large)]
    environment = os.environ | {"PYTHONPATH": str(sources)}
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout.splitlines()[-1])


def cost(command, sources):
    """(CPU seconds, seconds) of a process from start to end."""
    start = time.perf_counter()
    process = subprocess.Popen(
        command,
        env=os.environ | {"PYTHONPATH": str(sources)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return used.ru_utime + used.ru_stime, time.perf_counter() - start


def costs(run, sources, rounds):
    """{name: medians} of imports and of `ldt predict` for one line, by each of the sources."""
    line = run / "line.jsonl"
    line.write_text(json.dumps({"id": "1", "text": TEXT}) + "\n")
    predict = [sys.executable, "-m", "ldt", "predict", str(line), "--model", str(run)]
    commands = {name: ([sys.executable, "-c", code], HERE) for name, code in IMPORTS.items()}
    commands |= {f"{name} predict": (predict, place) for name, place in sources.items()}
    found = {name: [] for name in commands}
    for _ in range(rounds):
        for name, (command, place) in commands.items():
            found[name].append(cost(command, place))
    return {
        name: {
            "cpu_seconds": statistics.median(spent for spent, _ in each),
            "seconds": statistics.median(passed for _, passed in each),
        }
        for name, each in found.items()
    }


def show(result):
    """Print both tables."""
    from rich.console import Console
    from rich.table import Table

    memory = Table("loading", "peak, MB", "of the file", "private, MB", "of the file", "CPU s")
    size = result["file_mb"]
    for name, row in result["memory"].items():
        peak, private = row["peak_mb"], row["private_mb"]
        shares = f"{peak / size:.2f}", f"{private / size:.2f}"
        memory.add_row(
            name,
            f"{peak:,.0f}",
            shares[0],
            f"{private:,.0f}",
            shares[1],
            f"{row['cpu_seconds']:.2f}",
        )
    times = Table("process", "CPU s", "times the first", "s")
    least = next(iter(result["time"].values()))["cpu_seconds"]
    for name, row in result["time"].items():
        spent = row["cpu_seconds"]
        times.add_row(name, f"{spent:.2f}", f"{spent / least:.2f}", f"{row['seconds']:.2f}")
    for table in (memory, times):
        Console().print(table)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, help="folder with the sources of another ldt")
    parser.add_argument("--rounds", type=int, default=5, help="processes of each kind, for times")
    parser.add_argument("--tiny", action="store_true", help="a small model, once")
    parser.add_argument("--json", type=Path, default=RESULT, help="file for the figures")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measured(*options.measure)))
        return
    from ldt.inference.measure import machine
    from ldt.io.files import write_whole

    sources = {"ldt": HERE} | ({"before, ldt": options.before.absolute()} if options.before else {})
    with TemporaryDirectory() as scratch:
        small, large = Path(scratch, "small"), Path(scratch, "large")
        make(small, TINY)
        make(large, TINY if options.tiny else BASE)
        memory = {way: in_fresh_process(way, small, large, HERE) for way in WAYS}
        if options.before:
            memory["before, ldt"] = in_fresh_process("ldt", small, large, options.before)
        result = {
            "machine": machine(),
            "file_mb": (large / "model.safetensors").stat().st_size / 1e6,
            "memory": memory,
            "rounds": 1 if options.tiny else options.rounds,
        }
        result["time"] = costs(small, sources, result["rounds"])
    write_whole(options.json, json.dumps(result, indent=1) + "\n")
    show(result)


if __name__ == "__main__":
    main()
