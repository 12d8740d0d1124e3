"""What `ldt predict --workers` gives and takes, on a CPU under Linux.

    python benchmarks/workers.py    # 100,000 documents, a base model: half an hour of two cores
    python benchmarks/workers.py --tiny --documents 500    # that it runs; figures mean nothing

Speed: documents of 1 to 120 words, answered by a random Longformer of two layers, 128 wide, and
300 words, by one process of one thread, by `--workers 2` of one thread each, by one process of two
threads, and by two processes of one thread side by side, each on a half (`--shard`). The first two
have to write the same bytes. Memory: the proportional set size (PSS) of all processes of a run, in
which each page counts in parts for those that share it, at its highest; of a random model of the
shape of longformer-base with batches of 2,048 tokens, by one process and by two.

Scaling: the seconds of each group of a fifth of them in a process of one thread, and the CPU time
of the command itself for a group beside two workers, for reading, tokenizing and writing. By them a
simulation: 10,000 groups drawn from these and more workers, each as fast as one alone; at most two
groups a worker are under way, and answers are taken back in order. Cores that share caches and
memory are slower than that.
"""

import argparse
import hashlib
import heapq
import json
import os
import random
import statistics
import subprocess
import sys
import time
from contextlib import suppress
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
WORKERS = (1, 2, 4, 8, 16, 32, 64, 128)  # that are simulated
SIMULATED = 10_000  # groups


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


def groups(model, documents):
    """Seconds of each group of documents in this process."""
    from ldt.inference import group
    from ldt.inference.predict import predict

    seconds, real = [], group.Answering.__call__

    def timed(self, *args, **kwargs):
        begun = time.perf_counter()
        try:
            return real(self, *args, **kwargs)
        finally:
            seconds.append(time.perf_counter() - begun)

    group.Answering.__call__ = timed
    predict([documents], model=model, output=f"{documents}.timed", device="cpu", overwrite=True)
    return seconds


def own_seconds(process, output):
    """CPU seconds of a run's first process, without those that it has started."""
    seconds = 0.0
    while process.poll() is None:
        with suppress(psutil.NoSuchProcess):
            times = psutil.Process(process.pid).cpu_times()
            seconds = max(seconds, times.user + times.system)
        time.sleep(0.1)
    finish(process, output)
    return seconds


def simulated(groups, beside, workers):
    """Seconds that groups take with so many workers.

    Args:
        groups: seconds of each.
        beside: seconds of the command for each.
    """
    free, ends, now = [0.0] * workers, [], 0.0
    for seconds in groups:
        now += beside
        if len(ends) >= 2 * workers:
            now = max(now, ends[-2 * workers])
        end = max(now, heapq.heappop(free)) + seconds
        heapq.heappush(free, end)
        ends.append(max([end, *ends[-1:]]))  # behind those before it
    return ends[-1]


def scaling(model, folder, count):
    """What more workers would do, by the groups of so many documents and a tenth of them."""
    measured, own = [], []
    for part in (count // 10, count):
        documents = folder / f"{part}.jsonl"
        write_documents(documents, part, 120)
        command = [sys.executable, __file__, "--groups", str(model), str(documents)]
        environment = os.environ | {"PYTHONPATH": str(HERE), "LDT_ONEDNN": "0"}
        environment["OMP_NUM_THREADS"] = "1"
        out = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
        measured.append(json.loads(out.stdout.splitlines()[-1]))
        output = folder / f"own-{part}.jsonl"
        own.append(own_seconds(start(model, documents, output, 2, "--workers", "2"), output))
    beside = (own[1] - own[0]) / (len(measured[1]) - len(measured[0]))  # the start is in both
    many = random.Random(0).choices(measured[1], k=SIMULATED)
    one = simulated(many, beside, 1)
    return {
        "groups": len(measured[1]),
        "quarters of seconds of a group": statistics.quantiles(measured[1], n=4),
        "seconds beside a group": beside,
        "times faster": {n: round(one / simulated(many, beside, n), 2) for n in WORKERS},
    }


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
        options = ["--batch-tokens", "2048", "--precision", precision, "int8_bound=1"]
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
    parser.add_argument("--groups", nargs=2, metavar=("MODEL", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.groups:
        print(json.dumps(groups(*options.groups)))
        return
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
        faster = scaling(folder / "small", folder, count // 5)
        print(faster, flush=True)
        result = {
            "machine": machine(),
            "documents": count,
            "seconds": seconds,
            "sha256": sums,
            "scaling": faster,
            "memory_mb": memory(folder / "large", folder / "few.jsonl", folder),
        }
    write_whole(options.json, json.dumps(result, indent=1) + "\n")
    if sums[0] != sums[1]:
        sys.exit("two workers and one process wrote other bytes")


if __name__ == "__main__":
    main()
