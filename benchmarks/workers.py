"""What `ldt predict --workers` gives and takes, on a CPU under Linux.

    python benchmarks/workers.py    # 100,000 documents, a base model: half an hour of two cores
    python benchmarks/workers.py --tiny --documents 500    # that it runs; figures mean nothing

Speed: documents of 1 to 120 words, answered by a random Longformer of two layers, 128 wide, and
300 words, by one process of one thread, by `--workers 2` of one thread each, by one process of two
threads, and by two processes of one thread side by side, each on a half (`--shard`). The first two
have to write the same bytes. Memory: the proportional set size (PSS) of all processes of a run, in
which each page counts in parts for those that share it, at its highest; of a random model of the
shape of longformer-base with batches of 2,048 tokens, by one process and by two.
"""

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
from loading import BASE, HERE, TINY, make

RESULT = Path(__file__).parent / "results" / "workers.json"
SMALL = TINY | {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 512,
    "attention_window": 64,
    "max_position_embeddings": 514,
}
WORDS = "the party of this agreement ends and other first part".split()
PRECISIONS = ("fp32", "bf16", "int8")


def write_documents(path, count, longest):
    """Lines of 1 to ``longest`` words."""
    rng = random.Random(0)
    with open(path, "w") as file:
        for number in range(count):
            text = " ".join(rng.choices(WORDS, k=rng.randint(1, longest)))
            file.write(json.dumps({"id": f"d{number}", "text": text}) + "\n")


def start(model, documents, output, threads, *options):
    """A run of `ldt predict` with so many threads in all; its log is beside its output."""
    command = [sys.executable, "-m", "ldt", "predict", str(documents), "--model", str(model)]
    command += ["--output", str(output), "--device", "cpu", "--overwrite", *options]
    # One library for matrix products, whichever the clock of each process would choose.
    environment = os.environ | {"PYTHONPATH": str(HERE), "LDT_ONEDNN": "0"}
    environment["LDT_THREADS"] = str(threads)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        environment.pop(name, None)
    with open(f"{output}.log", "w") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log)


def finish(process, output):
    """Wait for a run.

    Raises:
        RuntimeError: it failed, with the end of its log.
    """
    if process.wait():
        raise RuntimeError(Path(f"{output}.log").read_text()[-2000:])


def sha256(path):
    """Of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def speed(model, documents, folder):
    """{way: seconds}, and whether one process and two workers wrote the same bytes."""
    ways = {
        "one process, one thread": [(1, ())],
        "two workers, one thread each": [(2, ("--workers", "2"))],
        "one process, two threads": [(2, ())],
        "two processes on halves": [(1, ("--shard", f"{half}/2")) for half in (1, 2)],
    }
    seconds, sums = {}, []
    for number, (way, runs) in enumerate(ways.items()):
        output = folder / f"{number}.jsonl"
        logs = [folder / f"{number}.{half}" for half in range(len(runs))]
        begun = time.perf_counter()
        processes = []
        for half, (threads, options) in enumerate(runs):
            place = output if len(runs) == 1 else folder / f"{half}-{number}.jsonl"
            logs[half] = place
            processes.append(start(model, documents, place, threads, *options))
        for process, place in zip(processes, logs, strict=True):
            finish(process, place)
        seconds[way] = time.perf_counter() - begun
        if number < 2:
            sums.append(sha256(output))
        print(f"{way}: {seconds[way]:.1f} s", flush=True)
    return seconds, sums


def highest_pss(process, output):
    """The highest PSS in MB of a run's processes together, looked up ten times a second."""
    highest = 0.0
    while process.poll() is None:
        total = 0
        try:
            parent = psutil.Process(process.pid)
            for each in (parent, *parent.children(recursive=True)):
                lines = Path(f"/proc/{each.pid}/smaps_rollup").read_text().splitlines()
                total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        except (OSError, psutil.NoSuchProcess, StopIteration):  # one has just ended
            continue
        highest = max(highest, total * 1024 / 1e6)
        time.sleep(0.1)
    finish(process, output)
    return highest


def memory(model, documents, folder):
    """{precision: {processes: MB}}."""
    found = {}
    for precision in PRECISIONS:
        options = ["--batch-tokens", "2048", "--precision", precision, "max_changed=1"]
        found[precision] = {}
        for count in (1, 2):
            output = folder / f"{precision}-{count}.jsonl"
            run = start(model, documents, output, count, *options, "--workers", str(count))
            found[precision][count] = highest_pss(run, output)
        print(precision, {count: f"{mb:,.0f} MB" for count, mb in found[precision].items()})
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, default=100_000, help="for the speed")
    parser.add_argument("--tiny", action="store_true", help="a small model for the memory")
    parser.add_argument("--json", type=Path, default=RESULT, help="file for the figures")
    options = parser.parse_args()
    from ldt.inference.measure import machine
    from ldt.io.files import write_whole

    count = options.documents
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for name, shape in {"small": SMALL, "large": TINY if options.tiny else BASE}.items():
            (folder / name).mkdir()
            make(folder / name, shape)
        write_documents(folder / "docs.jsonl", count, 120)
        write_documents(folder / "few.jsonl", 64, 120)
        seconds, sums = speed(folder / "small", folder / "docs.jsonl", folder)
        result = {
            "machine": machine(),
            "documents": count,
            "seconds": seconds,
            "sha256": sums,
            "memory_mb": memory(folder / "large", folder / "few.jsonl", folder),
        }
    write_whole(options.json, json.dumps(result, indent=1) + "\n")
    if sums[0] != sums[1]:
        sys.exit("two workers and one process wrote other bytes")


if __name__ == "__main__":
    main()
