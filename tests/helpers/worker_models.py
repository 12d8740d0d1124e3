"""A model for workers that imports no torch: it does to itself what its documents say."""

import logging
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ldt.inference.stream import Answering
from ldt.io.records import Example


def documents(count, **acts):
    """Documents of one or two windows.

    Args:
        acts: what happens at the document of a number, ``n7="die"``; with ``" once"`` behind it
            the first time alone.
    """
    return [
        Example(
            {"chunks": [n % 7 + 1, n % 3 + 1][: 1 + n % 2], "act": acts.get(f"n{n}", "")},
            n,
            f"docs.jsonl:{n}",
        )
        for n in range(1, count + 1)
    ]


@dataclass(frozen=True)
class Lengths:
    """A `Maker` and the `DocumentPredictor` that it makes: answers with the tokens of a document.

    Args:
        folder: where a file for each process and for each act is made.
        begin: what happens where a process begins.
    """

    folder: str
    begin: str = ""
    max_length = 8

    def prepare(self):
        """It needs nothing."""

    def settings(self):
        Path(self.folder, f"pid-{os.getpid()}").touch()
        act(self.begin, self.folder, "begin")
        ends = signal.SIGINT, signal.SIGTERM
        return {
            "threads": [os.environ[f"{name}_NUM_THREADS"] for name in ("OMP", "MKL")],
            "processors": sorted(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else [],
            "heard": [n for n in ends if signal.getsignal(n) != signal.SIG_IGN],
            "handlers": len(logging.getLogger("ldt").handlers),
            "files": {n: os.readlink(f"/proc/self/fd/{n}") for n in open_files()},
        }

    def load(self, settings):
        print("a library prints")
        logging.getLogger("ldt").warning("each warns")
        return Answering(self, 8, Other(self.folder))

    def encode(self, example):
        return [{"input_ids": [0] * length} for length in example.fields["chunks"]]

    def outputs(self, features):
        return [{"tokens": np.array(len(each["input_ids"]), np.float32)} for each in features]

    def decode(self, outputs, example, features):
        answer = {"label": str(sum(float(each["tokens"]) for each in outputs))}
        done = act(example.fields["act"], self.folder, example.id)
        return answer | ({"answer": done} if done else {})


class Torch(Lengths):
    """Computes with torch where it begins."""

    def prepare(self):
        import torch  # noqa: F401

    def settings(self):
        imported = {"torch": "torch" in sys.modules}
        import torch

        torch.ones(2000, 2000) @ torch.ones(2000, 2000)  # by all of its threads
        return imported | {"computing": torch.get_num_threads()}


class Other(Lengths):
    """Another label for every tenth document."""

    def decode(self, outputs, example, features):
        return super().decode(outputs, example, features) if example.id % 10 else {"label": ""}


class ForeignError(Exception):
    """An error that is no more what it was after it was sent."""

    def __init__(self, one, other):
        super().__init__(f"{one} {other}")


def open_files():
    """Numbers of the files that this process has open."""
    return sorted(
        n for n in map(int, os.listdir("/proc/self/fd")) if os.path.exists(f"/proc/self/fd/{n}")
    )


def act(what, folder, name):
    """Do it."""
    what, _, once = what.partition(" ")
    if not what:
        return None
    mark = Path(folder, f"act-{name}")
    if once and mark.exists():
        return None
    mark.touch()
    if what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif what == "fail":
        raise ZeroDivisionError(f"document {name}")
    elif what in ("sleep", "nap"):
        time.sleep(60 if what == "sleep" else 1.5)
    elif what == "await":  # until document 20 is answered, by another process
        deadline = time.monotonic() + 60
        while not Path(folder, "act-20").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
    elif what == "count":
        sum(range(10**8 if once else 10**10))  # which lets no other thread run, for minutes
    elif what == "foreign":
        raise ForeignError("two", "words")
    elif what == "odd":
        return lambda: None  # which is no answer that can be sent
    return None
