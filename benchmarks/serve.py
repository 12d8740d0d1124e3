"""What `ldt serve` gives under load beside `ldt predict`, and its memory over many requests.

    python benchmarks/serve.py                  # minutes of two cores
    python benchmarks/serve.py --documents 40 --rounds 1 --requests 300    # that it runs

A random Longformer of four layers, 128 wide, that reads 512 tokens at a time, answered by one
thread in a process of its own; the load comes from this process over the loopback, and its CPU time
is stated. Documents of 50 to 20,000 tokens, their lengths spread evenly over the logarithm.

Load, in rounds: `ldt predict` in a process of one thread, without its start, then all documents by
1, 8 and 64 clients, each with one request at a time; documents in a second by the median of the
rounds, the ratio of the medians, the seconds to an answer by length. Overtaking: short documents by
four clients while one of a hundred chunks is answered. Soak: requests of short documents, some of
them refused, to a tiny model: the resident memory of the server after a tenth and at the end.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
from loading import HERE, RECIPE, TINY, make
from workers import SMALL, WORDS

RESULT = Path(__file__).parent / "results" / "serve.json"
CLASSES = {"up to 512": (0, 512), "up to 4,096": (512, 4096), "beyond": (4096, 10**9)}
CLIENTS = (1, 8, 64)
HEAD = "POST {} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {}"
READ = RECIPE.replace("any.jsonl}", "any.jsonl, max_length: 512, stride: 32}")


def text(rng, tokens):
    """Words of so many tokens, roughly: the tokenizer of the model has some for a word."""
    return " ".join(rng.choices(WORDS, k=max(1, round(tokens / 1.25))))


def documents(count):
    """Texts of 50 to 20,000 tokens."""
    rng = random.Random(0)
    return [text(rng, 50 * 400 ** rng.random()) for _ in range(count)]


class Server:
    """``ldt serve`` of one thread in a process of its own."""

    def __init__(self, model, *options):
        command = [sys.executable, "-m", "ldt", "serve", str(model), "--port", "0", *options]
        environment = os.environ | {"PYTHONPATH": path(), "LDT_THREADS": "1", "LDT_ONEDNN": "0"}
        environment.pop("OMP_NUM_THREADS", None)
        self.process = subprocess.Popen(
            command, env=environment, stderr=subprocess.PIPE, text=True, bufsize=1
        )
        for line in self.process.stderr:
            if "http://" in line:
                self.port = int(line.rsplit(":", 1)[1])
                return
        raise RuntimeError("ldt serve did not start")

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.terminate()
        if code := self.process.wait(120):
            raise RuntimeError(f"ldt serve ended with {code}")

    def megabytes(self):
        """Its resident memory."""
        return psutil.Process(self.process.pid).memory_info().rss / 1e6


def path():
    """PYTHONPATH of a process with this ldt."""
    return os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])


class Client:
    """A connection that is kept, with one request at a time."""

    def __init__(self, port):
        self.port, self.reader = port, None

    async def ask(self, route, value):
        """(status, headers, value) of an answer."""
        if self.reader is None:
            place = "127.0.0.1", self.port
            self.reader, self.writer = await asyncio.open_connection(*place)
        body = json.dumps(value).encode()
        self.writer.write(HEAD.format(route, len(body)).encode() + b"\r\n\r\n" + body)
        await self.writer.drain()
        first, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines if line)
        body = await self.reader.readexactly(int(headers["content-length"]))
        return int(first.split()[1]), headers, json.loads(body)


async def load(port, texts, clients):
    """[(tokens, seconds)] and labels of all texts, in their order."""
    waiting, found = iter(enumerate(texts)), [None] * len(texts)

    async def work():
        client = Client(port)
        for number, each in waiting:
            began = time.perf_counter()
            status, headers, value = await client.ask("/answer", {"text": each})
            assert status == 200, value
            seconds = time.perf_counter() - began
            found[number] = (int(headers["x-compute-tokens"]), seconds, value["label"])

    await asyncio.gather(*(work() for _ in range(clients)))
    return found


async def overtaking(port, clients=4):
    """Seconds of a document of a hundred chunks, and of short ones that come meanwhile."""
    rng = random.Random(1)
    long, over, seconds = text(rng, 100 * 478), asyncio.Event(), []

    async def work():
        client = Client(port)
        while not over.is_set():
            began = time.perf_counter()
            await client.ask("/answer", {"text": text(rng, 60)})
            seconds.append(time.perf_counter() - began)

    working = [asyncio.create_task(work()) for _ in range(clients)]
    began = time.perf_counter()
    _, headers, value = await Client(port).ask("/answer", {"text": long})
    total = time.perf_counter() - began
    over.set()
    await asyncio.gather(*working)
    return {"chunks": value["chunks"], "seconds": total, "short": spread(seconds)}


async def soak(server, requests, clients=8):
    """Megabytes after a tenth of the requests and at the end, and how many were refused."""
    rng, left, codes = random.Random(2), iter(range(requests)), {}
    memory = {}

    async def work():
        client = Client(server.port)
        for number in left:
            wrong = number % 50 == 49
            value = {"txt": 1} if wrong else {"text": text(rng, rng.randint(1, 400))}
            status, *_ = await client.ask("/answer", value)
            codes[status] = codes.get(status, 0) + 1
            if number == requests // 10:
                memory["after a tenth"] = server.megabytes()

    await asyncio.gather(*(work() for _ in range(clients)))
    return {"requests": requests, "codes": codes} | memory | {"at the end": server.megabytes()}


def spread(seconds):
    """Count, median and the 99th of a hundred, in seconds."""
    if len(seconds) < 2:
        return {"count": len(seconds)} | dict.fromkeys(("p50", "p95", "p99"), *seconds or [None])
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return {"count": len(seconds), "p50": cuts[49], "p95": cuts[94], "p99": cuts[98]}


def by_length(found):
    """{class of length: spread of seconds}."""
    return {
        name: spread([seconds for tokens, seconds, _ in found if low < tokens <= high])
        for name, (low, high) in CLASSES.items()
    }


def predicted(model, texts):
    """Seconds that `ldt predict` takes without its start, in this process, and the labels."""
    import ldt

    ask = ldt.load(str(model))
    ask(texts[:2])
    began = time.perf_counter()
    answers = ask(texts)
    return time.perf_counter() - began, [answer["label"] for answer in answers]


def under_load(model, texts, folder, rounds):
    """Figures of `ldt predict` and of the server under each load, by rounds that take turns."""
    predict, taken, found = [], {each: [] for each in CLIENTS}, {each: [] for each in CLIENTS}
    own = dict.fromkeys(CLIENTS, 0.0)
    with Server(model) as server:
        asyncio.run(load(server.port, texts[:4], 1))
        for _ in range(rounds):
            seconds, labels = in_a_process(model, texts, folder)
            predict.append(seconds)
            print("predict", seconds, flush=True)
            for clients in CLIENTS:
                began, cpu = time.perf_counter(), time.process_time()
                answers = asyncio.run(load(server.port, texts, clients))
                taken[clients].append(time.perf_counter() - began)
                own[clients] += time.process_time() - cpu
                assert [label for *_, label in answers] == labels, "other labels than ldt predict"
                found[clients] += answers
                print(clients, taken[clients][-1], flush=True)
        over = asyncio.run(overtaking(server.port))
    middle = statistics.median(predict)
    return {
        "predict": {"documents a second": len(texts) / middle, "seconds": predict},
        "load": {
            clients: {
                "documents a second": len(texts) / statistics.median(taken[clients]),
                "of ldt predict": middle / statistics.median(taken[clients]),
                "rounds": taken[clients],
                "seconds of CPU of the load": own[clients] / rounds,
                "seconds": by_length(found[clients]),
            }
            for clients in CLIENTS
        },
        "overtaking": over,
    }


def in_a_process(model, texts, folder):
    """`predicted` in a process of one thread."""
    file = folder / "texts.json"
    file.write_text(json.dumps(texts))
    environment = os.environ | {"PYTHONPATH": path(), "LDT_ONEDNN": "0", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--predict", str(model), str(file)]
    out = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    return json.loads(out.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, default=150, help="for the load")
    parser.add_argument("--rounds", type=int, default=5, help="of the load")
    parser.add_argument("--requests", type=int, default=5000, help="for the soak")
    parser.add_argument("--json", type=Path, default=RESULT, help="file for the figures")
    parser.add_argument("--predict", nargs=2, metavar=("MODEL", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.predict:
        model, file = options.predict
        print(json.dumps(predicted(model, json.loads(Path(file).read_text()))))
        return
    from ldt.inference.measure import machine
    from ldt.io.files import write_whole

    result = {"machine": machine(), "documents": options.documents}
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for name, shape in {"small": SMALL, "tiny": TINY}.items():
            (folder / name).mkdir()
            make(folder / name, shape)
        (folder / "small" / "recipe.yaml").write_text(READ)
        texts = documents(options.documents)
        result |= under_load(folder / "small", texts, folder, options.rounds)
        print(result["load"], result["overtaking"], flush=True)
        with Server(folder / "tiny") as server:
            result["soak"] = asyncio.run(soak(server, options.requests))
            print(result["soak"], flush=True)
    write_whole(options.json, json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
