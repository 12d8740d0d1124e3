"""Registers and memory that Triton kernels take of a GPU, by compiling ahead of time without one.

As a script it compiles what the calls of `launches.py` launch and writes JSON. It must be a process
of its own: under TRITON_INTERPRET=1 kernels are Python for good once their module is imported.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import torch

UNSHOWN = "precision", "wgmma", "fused"
OPTIONS = ("num_warps", "num_stages", "enable_fp_fusion", "maxnreg")
INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@\S+\s+)?([A-Z]\w*)", re.M)


def compile_launches(wanted, tiles=()):
    """One dictionary per kernel that differs of the calls of `launches.calls`.

    Args:
        wanted: {name of a device of `devices.KNOWN`: labels}; None for all labels.
        tiles: (key of `devices.TILES`, bytes of a number, dims of a head, fields of a `Tile`) that
            stand for those of the table, on every device.

    Each has: device, call (the first one with that kernel), kernel, tile (rows x columns, None
    where it has none), warps, stages, registers (of a thread), spilled (bytes of a thread), shared
    (bytes of a program), instructions (of its code, without those that only fill it up), precision
    (of products of float32, None where it is not asked for), wgmma (whether Hopper's matrix units
    are used), fused (whether the launch itself asks for products and sums in one instruction).
    """
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    helpers = Path(__file__).parent
    paths = os.environ.get("PYTHONPATH"), str(helpers), str(helpers.parents[1])
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))  # first another triton, if any
    command = [sys.executable, __file__, *map(json.dumps, (wanted, tiles))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()]


def as_table(rows):
    """The dictionaries of `compile_launches` as lines for people."""
    columns = [name for name in rows[0] if name not in UNSHOWN]
    lines = [columns] + [[str(row[name]) for name in columns] for row in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        for line in lines
    )


@contextmanager
def recorded():
    """Context in which launches are noted in the list that it gives, and nothing runs."""
    from ldt.attention.triton.launch import Launch

    launches = []

    def note(self, *tensors):
        launches.append((self.kernel.kernel, (*tensors, *self.fixed), self.options))

    with patch.object(Launch, "__call__", note):
        yield launches


def signed(kernel, args, kwargs):
    """(signature, constants, attributes, options) of a launch, as JSON would have them.

    Every pointer is taken as divisible by 16, and None, 1 and multiples of 16 are compiled in, as
    at a launch.
    """
    given = dict(zip(kernel.arg_names, args, strict=False))
    given |= {name: value for name, value in kwargs.items() if name in kernel.arg_names}
    signature, constants, attributes = {}, {}, {}
    for place, parameter in enumerate(kernel.params):
        value = given[parameter.name]
        whole = type(value) is int and not parameter.do_not_specialize
        if parameter.is_constexpr or value is None or (whole and value == 1):
            signature[parameter.name] = "constexpr"
            constants[(place,)] = value
            continue
        signature[parameter.name] = _type(value)
        if isinstance(value, torch.Tensor) or (whole and value % 16 == 0):
            attributes[(place,)] = [["tt.divisibility", 16]]
    options = {name: kwargs[name] for name in OPTIONS if name in kwargs}
    return signature, constants, attributes, options


def compiled(kernel, signature, constants, attributes, options, capability):
    """Figures of the compiler on one launch of `signed`."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    result = triton.compile(
        ASTSource(kernel, signature, constants, attributes),
        target=GPUTarget("cuda", capability, 32),
        options=options,
    )
    cubin, by_warpgroups = result.asm["cubin"], "wgmma" in result.asm["ptx"]
    usage, sass = _usage(cubin), _dumped(cubin, "-sass")
    sizes = {kernel.arg_names[place]: value for (place,), value in constants.items()}
    return {
        "kernel": f"{kernel.__module__.rsplit('.', 1)[-1]}.{kernel.__name__}",
        "tile": [sizes.get("BLOCK_M"), sizes.get("BLOCK_N")],
        "warps": result.metadata.num_warps,
        "stages": result.metadata.num_stages,
        "registers": usage["REG"],
        "spilled": usage["STACK"] + usage["LOCAL"],
        "shared": result.metadata.shared,
        "instructions": sum(name != "NOP" for name in INSTRUCTION.findall(sass)),
        "precision": sizes.get("PRECISION"),
        "wgmma": by_warpgroups,
        "fused": options.get("enable_fp_fusion", False),
    }


def _type(value):
    if isinstance(value, torch.Tensor):
        names = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "uint8": "u8"}
        name = str(value.dtype).removeprefix("torch.")
        return "*" + names.get(name, name.replace("int", "i"))
    if isinstance(value, float):
        return "fp32"
    return "i32" if abs(value) < 2**31 else "i64"


def _usage(cubin):
    """Name -> number of what a kernel's code takes."""
    out = _dumped(cubin, "--dump-resource-usage")
    return {name: int(number) for name, number in re.findall(r"\b([A-Z]+):(\d+)", out)}


def _dumped(cubin, option):
    """The text of cuobjdump about a kernel's code."""
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [tool, option, file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _main(wanted, tiles):
    import launches

    from ldt.attention.triton import devices

    for kernel, size, dims, fields in tiles:
        devices.TILES[kernel][size, dims] = {0: (devices.Tile(*fields),) * 2}
    done = set()
    for name, labels in wanted.items():
        devices.LATEST = limits = devices.KNOWN[name]
        major, minor = limits.capability
        half = torch.bfloat16 if limits.capability >= devices.BFLOAT16 else torch.float16
        calls = launches.calls(half)
        for label in calls if labels is None else labels:
            with recorded() as noted:
                calls[label]()
            for kernel, args, kwargs in noted:
                launch = signed(kernel, args, kwargs)
                key = str((kernel.__module__, kernel.__name__, *launch, major, minor))
                if key not in done:
                    done.add(key)
                    figures = compiled(kernel, *launch, 10 * major + minor)
                    print(json.dumps({"device": name, "call": label, **figures}), flush=True)


if __name__ == "__main__":
    _main(*map(json.loads, sys.argv[1:]))
