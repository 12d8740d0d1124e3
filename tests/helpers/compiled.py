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

import torch

CAPABILITIES = (80, 90)
OPTIONS = ("num_warps", "num_stages", "enable_fp_fusion")


def compile_launches(*names):
    """One dictionary per kernel, call and compute capability, of the named functions of launches.

    Each has: call, kernel, capability, warps, stages, registers (of a thread), spilled (bytes of a
    thread), shared (bytes of a program), wgmma (whether Hopper's matrix units are used), fused
    (whether the launch itself asks for products and sums in one instruction).
    """
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    helpers = Path(__file__).parent
    environment["PYTHONPATH"] = os.pathsep.join([str(helpers), str(helpers.parents[1])])
    command = [sys.executable, __file__, *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout)


def as_table(rows):
    """The dictionaries of `compile_launches` as lines for people."""
    columns = [name for name in rows[0] if name not in ("wgmma", "fused")]
    lines = [columns] + [[str(row[name]) for name in columns] for row in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        for line in lines
    )


@contextmanager
def recorded():
    """Context in which launches are noted in the list that it gives, and nothing runs."""
    from triton.runtime.jit import JITFunction

    launches, run = [], JITFunction.run
    JITFunction.run = lambda self, *args, **kwargs: launches.append((self, args, kwargs))
    try:
        yield launches
    finally:
        JITFunction.run = run


def compiled(kernel, args, kwargs, capability):
    """Figures of the compiler on one launch.

    Every pointer is taken as divisible by 16, and None, 1 and multiples of 16 are compiled in, as
    at a launch.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

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
    result = triton.compile(
        ASTSource(kernel, signature, constants, attributes),
        target=GPUTarget("cuda", capability, 32),
        options={name: kwargs[name] for name in OPTIONS if name in kwargs},
    )
    usage = _usage(result.asm["cubin"])
    return {
        "kernel": kernel.__name__,
        "capability": capability,
        "warps": result.metadata.num_warps,
        "stages": result.metadata.num_stages,
        "registers": usage["REG"],
        "spilled": usage["STACK"] + usage["LOCAL"],
        "shared": result.metadata.shared,
        "wgmma": "wgmma" in result.asm["ptx"],
        "fused": kwargs.get("enable_fp_fusion", False),
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
    """Name -> number of what a kernel's code takes, as cuobjdump reports it."""
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [tool, "--dump-resource-usage", file.name]
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {name: int(number) for name, number in re.findall(r"\b([A-Z]+):(\d+)", out)}


def _main(names):
    import launches

    found = []
    for name in names:
        for capability in CAPABILITIES:
            for label, call in getattr(launches, name)(capability):
                with recorded() as noted:
                    call()
                for kernel, args, kwargs in noted:
                    result = compiled(kernel, args, kwargs, capability)
                    if {"call": label, **result} not in found:
                        found.append({"call": label, **result})
    print(json.dumps(found))


if __name__ == "__main__":
    _main(sys.argv[1:])
