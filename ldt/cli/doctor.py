"""ldt doctor: facts of this machine and its speed, what is slow on it, and advice.

Torch is imported when a part needs it: a broken one is a line of the report.
"""

import itertools
import json
import os
import platform
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

from ldt import __version__, system
from ldt.cli.console import say, stdout
from ldt.errors import first_line, plural

PACKAGES = (
    "torch transformers tokenizers datasets accelerate huggingface-hub safetensors numpy pydantic "
    "triton peft"
).split()
INSTRUCTIONS = {  # as torch calls them -> as people do
    "avx2": "AVX2",
    "avx512_f": "AVX-512",
    "avx512_vnni": "VNNI",
    "avx512_bf16": "AVX-512 bf16",
    "amx_tile": "AMX",
    "neon": "NEON",
    "sve": "SVE",
    "bf16": "bf16",
}
SWITCHES = "LDT_THREADS OMP_NUM_THREADS MKL_NUM_THREADS LDT_ONEDNN CUDA_VISIBLE_DEVICES".split()
OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
DRIVER = Path("/proc/driver/nvidia/version")
TOKENS, SIDE = 2048, 1024  # of the measured document, and of the measured matrices
MEASURED = 0.7  # seconds for each speed figure
PATIENCE = 2.0  # seconds for the assembler to answer
WRONG_ASSEMBLER = "12.8.93"  # of float32 by wgmma, see `ldt.attention.triton.devices`
LITTLE_MEMORY, LITTLE_DISK = 4 << 30, 5 << 30  # bytes


class MachineFinding(NamedTuple):
    """Something on this machine that costs time or may end a run, and its remedy."""

    what: str
    remedy: str


class Size(int):
    """Bytes, shown in GiB."""

    def __str__(self) -> str:
        return f"{self / (1 << 30):.1f} GiB"


@dataclass(frozen=True)
class _MachineReport:
    """Facts by part and name, and what is slow here."""

    parts: dict[str, dict[str, Any]]
    slow: list[MachineFinding]

    def lines(self) -> Iterator[str]:
        yield f"ldt {__version__} on {platform.system()} {platform.release()}"
        for part, facts in self.parts.items():
            yield f"{part}:"
            width = max(map(len, facts), default=0)
            for name, value in facts.items():
                yield f"  {name:<{width}}  {_shown(value)}"
        yield f"slow or missing here:{'' if self.slow else ' nothing found'}"
        for finding in self.slow:
            yield f"  {finding.what}; {finding.remedy}"

    def json(self) -> str:
        slow = [finding._asdict() for finding in self.slow]
        return json.dumps({"ldt": __version__, **self.parts, "slow": slow}, indent=2)


def examine() -> _MachineReport:
    """Facts of this machine by part, and what is slow on it; takes some 3 seconds without the
    imports, and sets torch's number of threads as commands do. A part that fails has only
    ``failed``, the reason."""
    looks = (versions, processor, threads, memory, gpu, attention, hub, speed)
    parts = {look.__name__: _facts(look) for look in looks}
    return _MachineReport(parts, list(slow(parts)))


def versions() -> dict[str, Any]:
    """Versions of Python and of what ldt builds on."""
    facts: dict[str, Any] = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            facts[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            facts[name] = "not installed"
    return facts


def processor() -> dict[str, Any]:
    """Model, architecture and vector instructions of the processor."""
    import torch

    from ldt.attention.matmul import has_bfloat16
    from ldt.inference.measure import machine

    has: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return {
        "model": machine()["cpu"],
        "architecture": platform.machine(),
        "instructions": [word for name, word in INSTRUCTIONS.items() if has.get(name)],
        "taken by torch": torch.backends.cpu.get_cpu_capability(),
        "bf16 instructions": has_bfloat16(),
    }


def threads() -> dict[str, Any]:
    """Numbers of processors in the machine and usable here, and of threads that commands give
    torch, which are set."""
    import torch

    quota, (number, why) = system.cpu_quota(), system.threads()
    if number is not None:
        torch.set_num_threads(number)
    facts: dict[str, Any] = {
        "processors": os.cpu_count(),
        "usable": len(system.processors()),
        "quota": None if quota is None else round(quota, 2),
        "torch": torch.get_num_threads(),
        "limited by": why or None,
        "busy": round(system.load(), 1),
    }
    return facts | {name: os.environ[name] for name in SWITCHES if name in os.environ}


def memory() -> dict[str, Any]:
    """Memory, its limits, and the free disk of the current folder, in bytes (`Size`); None: no
    limit."""
    import psutil

    there = psutil.virtual_memory()
    facts: dict[str, Any] = {
        "total": Size(there.total),
        "available": Size(there.available),
        "control group": _size(system.memory_limit()),
        "ulimit -v": _size(system.address_space()),
        "free disk here": Size(shutil.disk_usage(".").free),
    }
    with suppress(OSError):
        chosen = re.search(r"\[(\w+)\]", HUGE_PAGES.read_text())
        facts["huge pages"] = chosen and chosen[1]
    return facts


def gpu() -> dict[str, Any]:
    """GPUs that torch sees, the driver, and the assembler of the kernels."""
    import torch

    facts: dict[str, Any] = {"torch built for": f"CUDA {torch.version.cuda}"}
    if torch.version.cuda is None:
        facts = {"torch built for": "ROCm" if torch.version.hip else "CPU"}
    with suppress(OSError):
        version = re.search(r"Kernel Module\s+(?:for \S+\s+)?([\d.]+)", DRIVER.read_text())
        facts["driver"] = version and version[1]
    if assembled := assembler():
        facts["assembler"] = assembled
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for number in range(count):
        properties = torch.cuda.get_device_properties(number)
        capability = f"sm_{properties.major}{properties.minor}"
        facts[f"gpu {number}"] = f"{properties.name}, {Size(properties.total_memory)}, {capability}"
    return facts | ({} if count else {"gpu": None})


def assembler() -> str | None:
    """Version of the assembler of GPU kernels, such as ``ptxas 12.9.86 of triton 3.9.0``; None if
    there is none."""
    package = find_spec("triton")
    if package is None or not package.origin:
        return None
    of_triton = Path(package.origin).parent / "backends/nvidia/bin/ptxas"
    command = [os.environ.get("TRITON_PTXAS_PATH") or of_triton, "--version"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = re.search(r"\bV(\d+(?:\.\d+)+)", done.stdout)
    return f"ptxas {version[1]} of triton {metadata.version('triton')}" if version else None


def attention() -> dict[str, Any]:
    """Choices for the GPU, if there is one, else the CPU: the attention backend that ``auto`` takes
    in float32 and bfloat16, and on the CPU the library (oneDNN or torch's own) of each kind of
    product."""
    import torch

    from ldt.attention import choose, matmul

    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtypes = (torch.float32, torch.bfloat16)
    facts: dict[str, Any] = {}
    for dtype in dtypes:
        name, why = choose(device, dtype)
        facts[f"{device}, {str(dtype).removeprefix('torch.')}"] = f"{name}: {why}"
    default = "MKL" if torch.backends.mkl.is_available() else "torch's own library"
    words = {"linear": "linear layers", "bmm": "batched products"}
    for kind, onednn in matmul.choices().items():
        facts[words[kind]] = "oneDNN" if onednn else default
    return facts


def hub() -> dict[str, Any]:
    """Cache folder of the Hugging Face hub, and if a token, a proxy and offline mode are set."""
    from huggingface_hub import constants, get_token

    cache = Path(constants.HF_HUB_CACHE)
    models = sorted(cache.glob("models--*")) if cache.is_dir() else []
    offline = [name for name in OFFLINE if os.environ.get(name, "0") not in ("", "0")]
    return {
        "cache": f"{_without_home(str(cache))}, {plural(len(models), 'model')}",
        "token": "set" if get_token() else "none",
        "proxy": "set" if urllib.request.getproxies() else "none",
        "offline": offline,
    }


def speed() -> dict[str, Any]:
    """Tokens a second through a small encoder, and the speed of matrix products."""
    import torch

    from ldt.attention.matmul import has_bfloat16
    from ldt.inference import measure

    device = "cuda" if torch.cuda.is_available() else "cpu"
    names = ("fp32", "bf16") if device == "cuda" or has_bfloat16() else ("fp32",)
    facts = {}
    for name in names:
        dtype = torch.float32 if name == "fp32" else torch.bfloat16
        matrix = torch.ones(SIDE, SIDE, device=device, dtype=dtype)
        seconds = min(measure.times(partial(torch.matmul, matrix, matrix), MEASURED, device))
        facts[f"{name} products"] = f"{2 * SIDE**3 / seconds / 1e12:.2f} TFLOP/s"
    run = measure.load("ldt", TOKENS, device, heads=6, vocabulary=1000)
    run()
    seconds = min(measure.times(run, MEASURED, device))
    facts["encoder"] = (
        f"{TOKENS / seconds:,.0f} tokens a second (2 layers of width 384, a document of "
        f"{TOKENS:,} tokens, fp32, forward)"
    )
    return facts


def _facts(look: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return look()
    except Exception as error:  # a broken installation is what is looked for
        return {"failed": f"{type(error).__name__}: {_without_home(first_line(error))}"}


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)


def _size(size: int | None) -> Size | None:
    return None if size is None else Size(size)


def _without_home(text: str) -> str:
    return text.replace(str(Path.home()), "~")


def slow(parts: dict[str, dict[str, Any]]) -> Iterator[MachineFinding]:
    """Yield findings about slow or failed parts of a machine; ``parts`` are the facts by part and
    name."""
    for name, facts in parts.items():
        if "failed" in facts:
            what = f"{name} could not be looked at ({facts['failed']})"
            yield MachineFinding(what, "installing the packages of pyproject.toml anew may help")
        elif name in _OF:
            yield from itertools.starmap(MachineFinding, _OF[name](facts))


def _of_processor(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    intel = facts["architecture"].lower() in ("x86_64", "amd64")
    if intel and "AVX-512" not in facts["instructions"]:
        what = "the processor has no AVX-512: products run at half the width or less"
        yield what, "another machine, or a smaller model"
    if not facts["bf16 instructions"]:
        what = "the processor has no bf16 instructions: bf16 is slower than fp32 here"
        yield what, "training.bf16=auto takes fp32; ldt predict --precision int8 is faster"


def _of_threads(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    usable, quota, taken, all_of = (facts[k] for k in ("usable", "quota", "torch", "processors"))
    granted = usable if quota is None else min(usable, quota)
    why = f"a quota of {quota:g}" if quota is not None and quota < usable else f"{usable} usable"
    if (taken < int(granted) and "OMP_NUM_THREADS" in facts) or taken > ceil(granted):
        what = f"{plural(taken, 'thread')} on {granted:g} of {all_of} processors ({why})"
        yield what, f"OMP_NUM_THREADS={ceil(granted)}"
    if facts["busy"] > all_of / 2:
        what = f"other programs are a load of {facts['busy']:g} on {all_of} processors"
        remedy = "LDT_THREADS=1, as threads wait for one another, or end them"
        yield f"{what}, so the figures of speed are too low", remedy


def _of_memory(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    available, granted, allowed = (facts[k] for k in ("available", "control group", "ulimit -v"))
    if available < LITTLE_MEMORY:
        yield f"{available} of memory available", "free some before training"
    if granted is not None and granted < facts["total"]:
        what = f"the control group allows {granted} of {facts['total']} of memory"
        yield what, "a container with a larger limit"
    if allowed is not None:
        yield f"ulimit -v allows {allowed} of memory", "ulimit -v unlimited"
    if facts.get("huge pages") == "never":
        remedy = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, as root"
        yield "huge pages are off, which slows large tensors down", remedy
    if (free := facts["free disk here"]) < LITTLE_DISK:
        what = f"{free} of free disk here, and checkpoints take gigabytes"
        yield what, "free some, or another training.output_dir"


def _of_gpu(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if facts.get("driver") and "gpu" in facts:
        built = f"torch, built for {facts['torch built for']}, sees no GPU"
        remedy = "a build of torch for the driver's CUDA (pytorch.org), or CUDA_VISIBLE_DEVICES"
        yield f"a driver {facts['driver']} of NVIDIA, but {built}", f"{remedy} unset"
    assembler = facts.get("assembler", "")
    if f" {WRONG_ASSEMBLER} " in assembler and any(
        str(x).endswith("sm_90") for x in facts.values()
    ):
        what = "makes wrong code of float32 products by warpgroup units (wgmma) on sm_90"
        remedy = "triton 3.8 for kernels of your own, or a ptxas from 12.9.86 on"
        yield f"{assembler} {what}; the kernels of ldt make none", f"{remedy} as TRITON_PTXAS_PATH"


def _of_attention(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if any("triton is not installed" in str(value) for value in facts.values()):
        yield "no fused kernels without triton", "pip install 'ldt-toolkit[cuda]'"


_OF = {
    "processor": _of_processor,
    "threads": _of_threads,
    "memory": _of_memory,
    "gpu": _of_gpu,
    "attention": _of_attention,
}


def doctor(json: bool = False) -> None:
    """Report this machine, its speed, and what is slow on it.

    The report is made to be pasted into an issue: it names no user, token or proxy.

    Example: ldt doctor --json > doctor.json

    Args:
        json: Print the report as JSON, for programs.
    """
    report = examine()
    if json:
        say(report.json(), console=stdout)
        return
    for line in report.lines():
        say(line, console=stdout)
