"""Slow or missing parts of a machine, by the facts of `ldt.bench.doctor`, with advice."""

from collections.abc import Iterator
from math import ceil
from typing import Any, NamedTuple

from ldt.errors import plural

LITTLE_MEMORY, LITTLE_DISK = 4 << 30, 5 << 30  # bytes
WRONG_ASSEMBLER = "12.8.93"  # of float32 by wgmma, see `ldt.attention.triton.devices`


class MachineFinding(NamedTuple):
    """Something that costs time or may end a run, and what would do."""

    what: str
    remedy: str


def slow(parts: dict[str, dict[str, Any]]) -> Iterator[MachineFinding]:
    """Findings by part; a part that failed is one."""
    for name, facts in parts.items():
        if "failed" in facts:
            yield MachineFinding(
                f"{name} could not be looked at ({facts['failed']})",
                "installing the packages of pyproject.toml anew may help",
            )
        elif name in _OF:
            yield from _OF[name](facts)


def _of_processor(facts: dict[str, Any]) -> Iterator[MachineFinding]:
    has = facts["instructions"]
    if facts["architecture"].lower() in ("x86_64", "amd64") and "AVX-512" not in has:
        instructions = "AVX2 alone" if "AVX2" in has else "not even AVX2"
        yield MachineFinding(
            f"the processor has {instructions}, no AVX-512: products run at half the width or less",
            "another machine, or a smaller model",
        )
    if not facts["bf16 instructions"]:
        yield MachineFinding(
            "the processor has no bf16 instructions: bf16 is slower than fp32 here",
            "training.bf16=auto takes fp32; ldt predict --precision int8 is faster",
        )


def _of_threads(facts: dict[str, Any]) -> Iterator[MachineFinding]:
    usable, quota, taken = facts["usable"], facts["quota"], facts["torch"]
    granted = usable if quota is None else min(usable, quota)
    why = f"a quota of {quota:g}" if quota is not None and quota < usable else f"{usable} usable"
    if taken > ceil(granted):
        yield MachineFinding(
            f"{taken} threads share {granted:g} of {facts['processors']} processors ({why})",
            f"OMP_NUM_THREADS={ceil(granted)}",
        )
    elif taken < int(granted) and "OMP_NUM_THREADS" in facts:
        yield MachineFinding(
            f"{plural(taken, 'thread')} on {granted:g} processors that may be used",
            f"OMP_NUM_THREADS={int(granted)}",
        )
    elif granted < 1:
        yield MachineFinding(f"{why}, less than a processor", "a larger one")
    if facts["busy"] > facts["processors"] / 2:
        fits = max(1, int(granted - facts["busy"]))
        fewer = f"LDT_THREADS={fits}, as threads wait for one another, or " if fits < taken else ""
        yield MachineFinding(
            f"other programs are a load of {facts['busy']:g} on {facts['processors']} processors, "
            "so the figures of speed are too low",
            f"{fewer}end them, or wait",
        )


def _of_memory(facts: dict[str, Any]) -> Iterator[MachineFinding]:
    granted, allowed = facts["control group"], facts["ulimit -v"]
    if facts["available"] < LITTLE_MEMORY:
        yield MachineFinding(
            f"{facts['available']} of memory available", "free some before training"
        )
    if granted is not None and granted < facts["total"]:
        limit = f"the control group allows {granted} of {facts['total']} of memory"
        yield MachineFinding(limit, "a container with a larger limit")
    if allowed is not None:
        yield MachineFinding(f"ulimit -v allows {allowed} of memory", "ulimit -v unlimited")
    if facts.get("huge pages") == "never":
        yield MachineFinding(
            "huge pages are off, which slows large tensors down",
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, as root",
        )
    if facts["free disk here"] < LITTLE_DISK:
        yield MachineFinding(
            f"{facts['free disk here']} of free disk here, and checkpoints take gigabytes",
            "free some, or another training.output_dir",
        )


def _of_gpu(facts: dict[str, Any]) -> Iterator[MachineFinding]:
    if facts.get("driver") and "gpu" in facts:
        built = facts["torch built for"]
        yield MachineFinding(
            f"a driver {facts['driver']} of NVIDIA, but torch, built for {built}, sees no GPU",
            "a build of torch for the driver's CUDA (pytorch.org), or CUDA_VISIBLE_DEVICES unset",
        )
    assembler, gpus = facts.get("assembler", ""), [str(facts[name]) for name in facts]
    if f" {WRONG_ASSEMBLER} " in assembler and any(gpu.endswith("sm_90") for gpu in gpus):
        yield MachineFinding(
            f"{assembler} makes wrong code of float32 products by warpgroup units (wgmma) on sm_90;"
            " the kernels of ldt make none",
            "triton 3.8 for kernels of your own, or a ptxas from 12.9.86 on as TRITON_PTXAS_PATH",
        )


def _of_attention(facts: dict[str, Any]) -> Iterator[MachineFinding]:
    if any("triton is not installed" in str(value) for value in facts.values()):
        yield MachineFinding("no fused kernels without triton", "pip install 'ldt-toolkit[cuda]'")


def _of_hub(facts: dict[str, Any]) -> Iterator[MachineFinding]:
    if facts["offline"]:
        names = ", ".join(facts["offline"])
        yield MachineFinding(f"{names}: hub ids are found in the cache alone", f"unset {names}")
    elif facts["reachable"].startswith("no"):
        why = facts["reachable"].removeprefix("no: ")
        yield MachineFinding(
            f"the hub does not answer ({why}): hub ids are found in the cache alone",
            "HTTPS_PROXY or HF_ENDPOINT, if there is a way out; HF_HUB_OFFLINE=1, if there is none",
        )


_OF = {
    "processor": _of_processor,
    "threads": _of_threads,
    "memory": _of_memory,
    "gpu": _of_gpu,
    "attention": _of_attention,
    "hub": _of_hub,
}
