"""Which tiles a device gets, what `auto` takes there, and where a kernel is launched."""

import json
import logging
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from shutil import which

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

pytest.importorskip("triton")

import stub_launches
import triton
from device import there
from triton.runtime import driver

from ldt import attention
from ldt.attention import Layout, choose, pooled_attention, sliding_window_attention
from ldt.attention.triton import devices
from ldt.attention.triton.devices import (
    DTYPES,
    FOLDED,
    KIB,
    KNOWN,
    TILES,
    Limits,
    Tile,
    find,
    fits,
    lacking,
    tile,
)
from ldt.attention.triton.pattern import of_globals, windows

OF_HEADS = [name for name in TILES if name not in FOLDED]
OF_BANDS = "forward", "dq", "dkv"
T4, HOPPER = KNOWN["T4"], KNOWN["H100, H200"]
AOT = Path(__file__).parents[3] / "benchmarks/results/aot.json"


@pytest.mark.parametrize("name", KNOWN)
def test_a_known_gpu_has_a_tile_of_every_kernel_but_of_bfloat16_before_ampere(name):
    limits = KNOWN[name]
    for dtype in DTYPES:
        runs = dtype != torch.bfloat16 or name != "T4"
        for kernel in OF_HEADS:
            for dim in (1, 32, 64, 96, 128):
                for dropout in (False, True):
                    found = find(kernel, dtype, dim, dropout, limits)
                    assert (found is not None) == runs, (kernel, dtype, dim)


@pytest.mark.parametrize("kernel", TILES)
def test_a_tile_is_the_one_of_the_largest_class_that_fits(kernel):
    for (size, most), classes in TILES[kernel].items():
        dtype = {2: torch.float16, 4: torch.float32}[size]
        for shared in (48, 64, 98, 99, 162, 163, 226, 227, 300):
            found = find(kernel, dtype, most, True, Limits((9, 0), shared * KIB))
            fitting = [least for least in classes if least <= shared]
            assert found == (classes[max(fitting)][1] if fitting else None)


def test_widths_are_rounded_up_to_those_of_the_table():
    limits = KNOWN["A100"]
    for kernel in OF_HEADS:
        of = [find(kernel, torch.float16, dim, False, limits) for dim in (1, 64, 65, 128, 129)]
        assert of[0] == of[1]
        assert of[2] == of[3]
        assert of[4] is None
    of = [find("rows", torch.float16, width, False, limits) for width in (128, 1024, 1025)]
    assert (of[0] == of[1], of[2]) == (True, None)


@pytest.mark.parametrize("name", KNOWN)
def test_every_tile_of_the_table_fits_what_it_is_for(name):
    limits = KNOWN[name]
    for kernel in OF_BANDS:
        for (size, most), classes in TILES[kernel].items():
            fitting = [least for least in classes if least * KIB <= limits.shared]
            for one in classes[max(fitting)]:
                assert fits(one, kernel, size, most, limits), (kernel, one)


def test_what_the_compiler_needs_is_no_less_than_what_is_asked_for():
    """Each program that was compiled fits a GPU that has what it took, and no more."""
    names = {"forward._forward": "forward", "backward._bwd_dq": "dq", "backward._bwd_dkv": "dkv"}
    checked = 0
    for name, found in json.loads(AOT.read_text("utf-8"))["gpus"].items():
        for kernel in (one for one in found["kernels"] if one["kernel"] in names):
            took = replace(
                KNOWN[name],
                shared=kernel["shared"],
                registers=kernel["registers"] * kernel["warps"] * KNOWN[name].warp,
            )
            size = {"half": 2, "fp32": 4}[kernel["dtype"]]
            one = Tile(*kernel["tile"], kernel["warps"], kernel["stages"])
            dims = triton.next_power_of_2(kernel["dims"])
            assert fits(one, names[kernel["kernel"]], size, dims, took), (name, kernel)
            checked += 1
    assert checked > 200


def test_dkv_has_two_sums_and_its_loads_two_blocks():
    limits = replace(HOPPER, shared=3 * 64 * 64 * 2, registers=64 * (2 * 64 + 64))
    one = Tile(64, 64, 8, 3)
    assert fits(one, "dkv", 2, 64, limits)
    assert not fits(one, "dkv", 2, 64, replace(limits, registers=limits.registers - 1))
    assert fits(one, "dq", 2, 64, replace(limits, registers=64 * (64 + 64)))
    assert not fits(one, "dkv", 2, 64, replace(limits, shared=limits.shared - 1))
    assert not fits(replace(one, rows=32), "dkv", 4, 64, limits)
    assert not fits(one, "dkv", 2, 128, limits)


@pytest.mark.parametrize(
    "changes",
    [
        *({"rows": 48}, {"rows": 8}, {"rows": 0}, {"rows": 512}, {"columns": 8}),
        *({"warps": 64}, {"stages": 0}, {"stages": 40}, {"maxnreg": 63}),
    ],
)
def test_a_tile_of_no_program_does_not_fit(changes):
    one = Tile(64, 64, 4, 2, maxnreg=64)  # 64 sums and 64 scores of 64 rows, 64 registers a thread
    assert fits(one, "forward", 2, 64, HOPPER)
    assert not fits(replace(one, **changes), "forward", 2, 64, HOPPER)


@pytest.mark.parametrize("name", KNOWN)
def test_float32_never_goes_to_warpgroup_units(name):
    """From Hopper on no tile of float32 has the 64 rows of one."""
    for kernel in OF_BANDS:
        for rows, goes in ((32, True), (64, KNOWN[name].capability < (9, 0))):
            assert fits(Tile(rows, 16, 8, 1), kernel, 4, 64, KNOWN[name]) == goes
            assert fits(Tile(rows, 16, 8, 1), kernel, 2, 64, KNOWN[name])


@pytest.mark.parametrize("kernel", OF_BANDS)
def test_programs_of_few_rows_have_not_the_registers_of_others(kernel, monkeypatch):
    monkeypatch.setitem(TILES[kernel], (4, 64), {0: (Tile(32, 32, 8, 2, maxnreg=64),) * 2})
    layout = there(Layout(torch.tensor([0, 40]), None, torch.arange(40) == 0))
    q = torch.empty(1, 2, 64)
    tiles = [
        pattern.tile(kernel, q, 0.0) for pattern in (windows(layout, 4, (1, 1)), of_globals(layout))
    ]
    assert [tile.maxnreg for tile in tiles] == [64, None]


@pytest.fixture
def told():
    """A function that tells torch how to multiply float32 on a GPU."""
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    yield lambda name: setattr(matmul, "fp32_precision", name)
    matmul.fp32_precision = before


def test_float32_is_multiplied_as_torch_is_told(monkeypatch, told):
    q = torch.empty(3, 2, 16)
    for name, precision in (("none", "tf32x3"), ("ieee", "ieee"), ("tf32", "tf32")):
        told(name)
        assert devices.precision(q) == precision
        assert devices.precision(q.half()) == "ieee"
    monkeypatch.setattr(devices, "LATEST", T4)  # has no matrix units for it
    assert devices.precision(q) == "ieee"


def test_rows_and_the_blocks_they_meet_are_as_wide():
    for limits in KNOWN.values():
        for size in (torch.float16, torch.float32):
            for width in (128, 384, 768, 1024, 1025):
                both = (find(kind, size, width, False, limits) is None for kind in FOLDED)
                assert len(set(both)) == 1


@pytest.mark.parametrize(
    ("limits", "dtype", "dim", "why"),
    [
        (T4, torch.float16, 64, None),
        (T4, torch.bfloat16, 64, "bfloat16 has no kernel on compute capability 7.5, 64 KiB"),
        (T4, torch.float32, 129, "heads of more than 128 dims have no kernel"),
        (T4, torch.float64, 64, "float64 has no kernel"),
        (Limits((6, 1), 48 * KIB), torch.float32, 64, "no kernel fits compute capability 6.1, 48"),
        (Limits((8, 6), 99 * KIB, 32768), torch.float32, 64, "no kernel fits"),
        (Limits((9, 4), 64 * KIB, warp=64), torch.float32, 64, "no kernel fits"),
    ],
)
def test_a_device_that_lacks_something_says_what(limits, dtype, dim, why):
    found = lacking(dtype, dim, limits)
    assert (found is None) if why is None else found.startswith(why)


AUTO = {
    # what auto takes of float32, float16 and bfloat16
    "T4": "triton triton blocked",
    "A100": "triton triton triton",
    "A10, RTX 30": "triton triton triton",
    "L4, RTX 40": "triton triton triton",
    "H100, H200": "triton triton triton",
    "B200": "triton triton triton",
    "RTX 50": "triton triton triton",
}


@pytest.mark.parametrize("name", KNOWN)
def test_auto_takes_on_a_gpu_what_its_driver_tells_that_fits(name, gpu):
    gpu(KNOWN[name])
    dtypes = torch.float32, torch.float16, torch.bfloat16
    assert [choose("cuda:0", dtype)[0] for dtype in dtypes] == AUTO[name].split()
    assert choose("cuda", torch.float16, 128) == ("triton", "fused kernels on CUDA")
    assert choose("cuda", torch.float16, 129)[0] == "blocked"


def test_auto_does_without_kernels_where_triton_cannot_ask_the_gpu(monkeypatch, gpu):
    gpu(T4)

    def fail(index):
        raise RuntimeError("Failed to find C compiler.\nPlease specify via CC")

    monkeypatch.setattr(driver.active.utils, "get_device_properties", fail)
    name, why = choose("cuda", torch.float32)
    assert name == "blocked"
    assert why == "triton cannot ask the GPU (RuntimeError: Failed to find C compiler.)"
    with pytest.raises(ValueError, match="cannot ask the GPU"):
        devices.limits("cuda:0")


def test_a_gpu_without_its_kernels_is_logged_once_for_each_reason(gpu, caplog):
    gpu(T4)
    attention._say_once.cache_clear()
    with FakeTensorMode(), caplog.at_level(logging.WARNING, "ldt"):
        q = torch.empty(9, 2, 16, dtype=torch.bfloat16, device="cuda:0")
        wide = torch.empty(9, 2, 129, device="cuda:0")
        for x in (q, q, wide, q, wide, q.cpu()):
            assert attention.automatic(x) == "blocked"
        assert attention.automatic(q.half()) == "triton"
    start = "attention runs on the GPU without its kernels (blocked): "
    assert [record.message for record in caplog.records] == [
        f"{start}bfloat16 has no kernel on {T4.name}",
        f"{start}heads of more than 128 dims have no kernel",
    ]


def test_kernels_by_name_run_or_say_what_would_do(gpu):
    gpu(T4)
    with FakeTensorMode():
        layout = Layout(torch.tensor([0, 9]).to("cuda:0"), total=9)
        q = torch.empty(9, 2, 16, dtype=torch.bfloat16, device="cuda:0")
        how = {"layout": layout, "window": 4, "backend": "triton"}
        message = "bfloat16 of 16 dims: bfloat16 has no kernel on .* 7.5.*'blocked' takes any"
        with pytest.raises(ValueError, match=message):
            sliding_window_attention(q, q, q, **how)
        with pytest.raises(ValueError, match=message):
            pooled_attention(q, q, q, None, pooling="mean", size=5, stride=4, **how)
        with pytest.raises(ValueError, match="float16 of 2000 dims: rows has no tile so wide"):
            tile("rows", torch.empty(9, 1, 2000, dtype=torch.float16, device="cuda:0"))


@pytest.mark.plain
@pytest.mark.skipif(not which("cc"), reason="needs a C compiler")
@pytest.mark.parametrize("convention", ["own", "other"])
def test_a_kernel_is_held_where_triton_calls_it_as_known(convention, tmp_path):
    """By the launcher of the installed Triton; else all launches go through Triton itself."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, stub_launches.__file__, tmp_path, convention]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    found = json.loads(done.stdout)
    if convention == "own":
        held = {"again", "other numbers", "another dtype again"}
        expected = [(name, name not in held, True) for name, *_ in found["rows"]]
    else:
        expected = [(name, 1, False) for name, *_ in found["rows"]]
    assert [tuple(row) for row in found["rows"]] == expected
    assert found["devices"] == [1]
    assert found["direct"] == (convention == "own")  # without Triton's Python
