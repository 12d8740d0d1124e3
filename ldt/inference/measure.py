"""Time and memory of ldt's encoder and of RoBERTa by length, each in its own process."""

import ctypes
import math
import multiprocessing
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from ldt.errors import first_line, out_of_memory

ENCODERS = {"ldt": "ldt", "roberta": "RoBERTa"}
LENGTHS = {"cpu": (512, 1024, 2048, 4096), "cuda": (1024, 4096, 16384, 65536)}
LAYERS = {"cpu": 2, "cuda": 12}
DTYPES = {"cpu": torch.float32, "cuda": torch.bfloat16}
WINDOW = 512  # of ldt
WARM_UP = 64  # tokens of the call that lets libraries load their code
SECONDS = 2.0  # for which a pass is repeated
SAMPLE = 0.005  # seconds; a shorter call is repeated that long, or starting it is what is timed
STATUS = Path("/proc/self/status")  # has the memory of a process, on Linux alone
PRELOADED = ["ldt.inference.measure", "ldt.model", "transformers.models.roberta.modeling_roberta"]


@dataclass(frozen=True)
class Measurement:
    """Time and memory of one encoder at one length.

    Attributes:
        encoder: a name in `ENCODERS`.
        tokens: length of the document.
        seconds: median time of a pass; None if it failed.
        mib: peak memory of a pass, without the loaded model; None if it failed or is unknown.
        error: reason of the failure; None if it succeeded.
    """

    encoder: str
    tokens: int
    seconds: float | None = None
    mib: float | None = None
    error: str | None = None


def compare(
    lengths: Sequence[int], training: bool, device: str
) -> Iterator[tuple[Measurement, ...]]:
    """Measure each encoder at each length, in new processes; yields a row per length, shortest
    first.

    A row has a measurement of each of `ENCODERS`; a failure, such as too little memory, is in its
    ``error``.

    Args:
        lengths: lengths in tokens; empty for `LENGTHS`.
        training: True measures forward and backward.
        device: ``cpu`` or ``cuda``.
    """
    options = training, device, torch.get_num_threads()
    for tokens in sorted(set(lengths)) or LENGTHS[device]:
        rows = []
        for name in ENCODERS:
            try:
                rows.append(Measurement(name, tokens, *fresh(_measure, name, tokens, *options)))
            except RuntimeError as error:
                rows.append(Measurement(name, tokens, error=str(error)))
        yield tuple(rows)


def _measure(
    name: str, tokens: int, training: bool, device: str, threads: int
) -> tuple[float, float | None]:
    """Median seconds of a pass, and its peak in MiB."""
    torch.set_num_threads(threads)
    run = load(name, tokens, device, training, LAYERS[device], dtype=DTYPES[device])
    mib = None
    if device == "cuda" or STATUS.exists():
        mib = peak_mib(run, partial(run, min(tokens, WARM_UP)), device)
    return statistics.median(times(run, SECONDS, device)), mib


def load(
    name: str,
    tokens: int,
    device: str,
    training: bool = False,
    layers: int = 2,
    heads: int = 12,
    vocabulary: int = 50265,
    dtype: torch.dtype = torch.float32,
) -> Callable[..., None]:
    """Random encoder: a function of a length (default all) that runs it on so many tokens of a
    document.

    Args:
        name: one of `ENCODERS`; in ldt's the first token is global.
        tokens: length of the document.
        training: True runs forward and backward, without dropout.
        device, dtype: device and type of the encoder.
        layers, heads, vocabulary: size of the encoder; heads have width 64.
    """
    from transformers import RobertaConfig, RobertaModel

    from ldt.model import LdtConfig, LdtModel

    shape: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": 64 * heads,
        "intermediate_size": 256 * heads,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "max_position_embeddings": tokens + 2,
        "type_vocab_size": 1,
        "pad_token_id": 1,
    }
    torch.manual_seed(0)
    model: torch.nn.Module
    if name == "roberta":
        shape["attn_implementation"] = "sdpa"
        model = RobertaModel(RobertaConfig(**shape), add_pooling_layer=False)
    else:
        shape["attention_window"] = WINDOW
        model = LdtModel(LdtConfig(**shape), add_pooling_layer=False)
    model.eval().to(device, dtype)
    inputs = {"input_ids": torch.randint(5, vocabulary, (1, tokens), device=device)}
    if name == "ldt":
        inputs["global_attention_mask"] = (torch.arange(tokens, device=device) == 0).long()[None]

    def run(length: int = tokens) -> None:
        cut = {name: x[:, :length] for name, x in inputs.items()}
        with torch.inference_mode(not training):
            out = model(**cut).last_hidden_state
        if training:
            out.float().square().mean().backward()
            model.zero_grad()

    return run


def times(run: Callable[[], Any], seconds: float, device: str = "cpu") -> list[float]:
    """Call ``run`` for some ``seconds``, at least once; returns each call's duration in seconds."""
    end = time.perf_counter() + seconds
    durations = [seconds_of(run, device)]
    while time.perf_counter() < end:
        durations.append(seconds_of(run, device))
    return durations


def seconds_of(run: Callable[[], Any], device: str = "cpu", calls: int = 1) -> float:
    """Wall time of one call in seconds, with the device's work.

    It is the mean of ``calls``, and where one is shorter than `SAMPLE`, of as many as take that
    long.
    """
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        run()
    synchronize()
    taken = (time.perf_counter() - start) / calls
    if calls == 1 and taken < SAMPLE:
        return seconds_of(run, device, math.ceil(SAMPLE / max(taken, 1e-6)))
    return taken


def peak_mib(run: Callable[[], Any], warm_up: Callable[[], Any], device: str = "cpu") -> float:
    """Peak memory of ``run()`` in MiB beyond what is held after ``warm_up()``.

    On a CPU it is the peak of the process, so it needs a `fresh` one.
    """
    warm_up()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
    with suppress(OSError):  # a kernel that keeps the peak of the warm-up
        Path("/proc/self/clear_refs").write_text("5")
    resident = _status_mib("VmRSS")
    run()
    return _status_mib("VmHWM") - resident


def _status_mib(field: str) -> float:
    lines = STATUS.read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) / 1024


def fresh(call: Callable[..., Any], *arguments: Any) -> Any:
    """Result of ``call(*arguments)`` in a new process; RuntimeError with the reason if it fails."""
    has_server = "forkserver" in multiprocessing.get_all_start_methods()
    context: Any = multiprocessing.get_context("forkserver" if has_server else "spawn")
    context.set_forkserver_preload(PRELOADED)
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(sender, call, arguments), daemon=True)
    process.start()
    sender.close()
    try:
        result, error = receiver.recv()
    except EOFError:
        result, error = None, "out of memory: the system ended the process"
    finally:
        process.kill()
        process.join()
        receiver.close()
    if error:
        raise RuntimeError(error)
    return result


def _answer(sender: Connection, call: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    answer: tuple[Any, str | None]
    try:
        answer = call(*arguments), None
    except Exception as error:
        answer = None, "out of memory" if out_of_memory(error) else first_line(error)
    sender.send(answer)


def machine() -> dict[str, Any]:
    """Facts that measurements depend on: cpu, gpu or None, threads, and versions of libraries."""
    import transformers

    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text().splitlines() if cpu.exists() else []
    names = [line.split(":")[1].strip() for line in lines if "model name" in line]
    return {
        "cpu": names[0] if names else platform.processor(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
