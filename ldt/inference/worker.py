"""A process that answers groups of documents for another one, until that one ends.

It reads messages from standard input and writes replies to standard output, each as its length and
a pickle. Whatever happens to the other process, its end of the pipe is closed then, and with it
this process ends, also in the middle of a computation; on Linux the system ends it as well, also
where it is stopped or a library lets no other thread run. No torch here.
"""

import gc
import logging
import os
import pickle
import queue
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO, Any, NamedTuple, Protocol

from ldt.inference.group import Tell
from ldt.system import end_with_parent

BEAT = 1.0  # seconds
_SIZE = 8  # bytes of the length of a message

Settings = dict[str, Any]
Answers = Callable[..., Any]  # of a group, what comes with it and a `Tell`, such as `Answering`


class Maker(Protocol):
    """What makes the model of a worker, sent to it as a pickle."""

    def prepare(self) -> None:
        """Import what the model needs, for processes that go on from this one; compute nothing."""

    def settings(self) -> Settings:
        """What this machine would compute with; all workers get that of the first one."""

    def load(self, settings: Settings) -> Answers:
        """What answers groups."""


class Reply(NamedTuple):
    """What a worker says to a message.

    Args:
        value: of the message, or the exception that it ended in.
        windows, tokens: that were run since the reply before.
        said: levels and lines of the log since then.
        last: whether this is all; else it says that the work goes on.
    """

    value: Any
    windows: int = 0
    tokens: int = 0
    said: Sequence[tuple[int, str]] = ()
    last: bool = True


def main() -> None:
    """Answer messages: the processors to use and a `Maker`, then settings, then groups.

    SIGINT and SIGTERM are left to the other process, which gets them as well where they are sent to
    all processes of a terminal or of a container.
    """
    end_with_parent(signal.SIGINT, signal.SIGTERM)
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    gc.set_threshold(50_000)
    messages, replies = _pipes()
    inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(messages, inbox), daemon=True, name="messages").start()
    said = _Said()
    log = logging.getLogger("ldt")
    log.addHandler(said)
    log.setLevel(logging.INFO)
    work, told = _Work(), _Told(replies, said)
    while True:
        message = inbox.get()
        try:
            value = work(pickle.loads(message), told)
        except Exception as error:
            value = _portable(error)
        told.reply(value)


def send(file: IO[bytes], data: bytes) -> None:
    """Write a message.

    Raises:
        OSError: nobody reads it.
    """
    file.write(len(data).to_bytes(_SIZE, "little"))
    file.write(data)
    file.flush()


def receive(file: IO[bytes]) -> bytes:
    """The next message.

    Raises:
        EOFError: there is none, or a part of one.
        OSError: the pipe cannot be read.
    """
    head = file.read(_SIZE)
    size = int.from_bytes(head, "little")
    data = file.read(size) if len(head) == _SIZE else b""
    if len(head) < _SIZE or len(data) < size:
        raise EOFError
    return data


class _Work:
    """What a worker does with its messages, in their order."""

    def __init__(self) -> None:
        self.maker: Maker | None = None
        self.answers: Answers | None = None

    def __call__(self, message: tuple[Any, ...], tell: Tell) -> Any:
        kind, *content = message
        if kind == "begin":
            processors, self.maker = content
            if processors:
                with suppress(OSError, AttributeError):  # what the system does not allow or have
                    os.sched_setaffinity(0, processors)
            assert self.maker is not None
            return self.maker.settings()
        if kind == "load":
            assert self.maker is not None
            self.answers = self.maker.load(content[0])
            return None
        assert self.answers is not None
        return self.answers(*content, tell)


class _Told:
    """Replies to the other process; one a `BEAT` while a message takes longer."""

    def __init__(self, replies: IO[bytes], said: "_Said"):
        self.replies, self.said = replies, said
        self.windows = self.tokens = 0
        self.sent = time.monotonic()

    def __call__(self, windows: int, tokens: int) -> None:
        self.windows += windows
        self.tokens += tokens
        if time.monotonic() - self.sent >= BEAT:
            self.reply(None, last=False)

    def reply(self, value: Any, last: bool = True) -> None:
        reply = Reply(value, self.windows, self.tokens, self.said.taken(), last)
        try:
            data = pickle.dumps(reply)
        except Exception as error:  # of an answer that cannot be sent
            data = pickle.dumps(reply._replace(value=_portable(error)))
        try:
            send(self.replies, data)
        except OSError:
            os._exit(0)
        self.windows = self.tokens = 0
        self.sent = time.monotonic()


class _Said(logging.Handler):
    """Lines of the log, which the other process tells."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((record.levelno, record.getMessage()))

    def taken(self) -> list[tuple[int, str]]:
        """The lines since the last time."""
        lines, self.lines = self.lines, []
        return lines


def _pipes() -> tuple[IO[bytes], IO[bytes]]:
    """Standard input and output for messages alone: what else is printed goes to standard error."""
    messages, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return messages, replies


def _listen(messages: IO[bytes], inbox: "queue.SimpleQueue[bytes]") -> None:
    """Take in messages; without any more of them end the process, whatever it is doing."""
    with suppress(BaseException):
        while True:
            inbox.put(receive(messages))
    os._exit(0)


def _portable(error: Exception) -> Exception:
    """The error with its traceback as a note, or one of its words where it cannot be sent."""
    error.add_note(f"in a worker process:\n{traceback.format_exc()}")
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
