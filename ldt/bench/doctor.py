"""Facts of a machine and its speed, as text that can be pasted into an issue.

Torch is imported when a part needs it: a broken one is a line of the report.
"""

import json
import os
import platform
import re
import shutil
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ldt import __version__, system
from ldt.bench import findings
from ldt.bench.findings import MachineFinding
from ldt.errors import first_line, plural

PACKAGES = (
    *("torch", "transformers", "tokenizers", "datasets", "accelerate", "huggingface-hub"),
    *("safetensors", "numpy", "pydantic", "triton", "peft"),
)
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
SWITCHES = (
    "LDT_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "LDT_ONEDNN",
    "CUDA_VISIBLE_DEVICES",
)
OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
DRIVER = Path("/proc/driver/nvidia/version")
PATIENCE = 2.0  # seconds for the hub to answer
TOKENS, SIDE = 2048, 1024  # of the measured document, and of the measured matrices
MEASURED = 0.7  # seconds for each speed figure


class Size(int):
    """Bytes, shown in GiB."""

    def __str__(self) -> str:
        return f"{self / (1 << 30):.1f} GiB"


@dataclass(frozen=True)
class MachineReport:
    """A report on a machine: facts by part and name, and what is slow here."""

    parts: dict[str, dict[str, Any]]
    slow: list[MachineFinding]

    def lines(self) -> Iterator[str]:
        """The report in words."""
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
        """The report for programs."""
        slow = [finding._asdict() for finding in self.slow]
        return json.dumps({"ldt": __version__, **self.parts, "slow": slow}, indent=2)


def examine() -> MachineReport:
    """Look at the machine, ask the hub for an answer, measure; some 5 seconds without the imports.

    A part that fails says why, and the others go on.
    """
    looks = (versions, processor, threads, memory, gpu, attention, hub, speed)
    parts = {look.__name__: _facts(look) for look in looks}
    return MachineReport(parts, list(findings.slow(parts)))


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
    """The processor and the instructions that speed depends on."""
    import torch

    from ldt.attention.matmul import has_bfloat16
    from ldt.bench.measure import machine

    has: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return {
        "model": machine()["cpu"],
        "architecture": platform.machine(),
        "instructions": [word for name, word in INSTRUCTIONS.items() if has.get(name)],
        "taken by torch": torch.backends.cpu.get_cpu_capability(),
        "bf16 instructions": has_bfloat16(),
    }


def threads() -> dict[str, Any]:
    """Processors that are there and may be used, and the threads of commands, which torch takes."""
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
    """Memory, its limits, and the disk of the current folder."""
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
    """``ptxas 12.9.86 of triton 3.9.0``; None where triton or its assembler is not there."""
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
    """The kernels that ``auto`` takes, and the libraries of matrix products on the CPU."""
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
    """The hub's cache and switches, and whether it answers; no token and no user's name."""
    from huggingface_hub import constants, get_token

    cache = Path(constants.HF_HUB_CACHE)
    models = sorted(cache.glob("models--*")) if cache.is_dir() else []
    offline = [name for name in OFFLINE if os.environ.get(name, "0") not in ("", "0")]
    return {
        "cache": f"{_without_home(str(cache))}, {plural(len(models), 'model')}",
        "token": "set" if get_token() else "none",
        "proxy": "set" if urllib.request.getproxies() else "none",
        "offline": offline,
        "reachable": "not asked" if offline else reachable(constants.ENDPOINT),
    }


def reachable(address: str) -> str:
    """``yes, in 0.2 s``, or ``no`` and why, of a server that is asked for at most `PATIENCE`."""
    result = [f"no: nothing in {PATIENCE:g} s"]

    def ask():
        begin = time.perf_counter()
        try:
            request = urllib.request.Request(address, method="HEAD")
            urllib.request.urlopen(request, timeout=PATIENCE).close()
        except urllib.error.HTTPError as error:
            error.close()  # an answer, too
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            result.append(f"no: {getattr(reason, 'strerror', None) or reason}")
            return
        result.append(f"yes, in {time.perf_counter() - begin:.1f} s")

    # In a thread, as the look-up of a name has no timeout of its own.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(PATIENCE + 0.5)
    return result[-1]


def speed() -> dict[str, Any]:
    """Tokens a second through a small encoder, and the speed of matrix products."""
    import torch

    from ldt.attention.matmul import has_bfloat16
    from ldt.bench import measure

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
