"""Tiles that a search found, in a file: when they take the place of those of the table."""

import json
import logging
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

pytest.importorskip("triton")

import triton

from ldt.attention import Layout
from ldt.attention.triton import devices, tuned
from ldt.attention.triton.devices import KNOWN, TILES, Tile
from ldt.attention.triton.pattern import windows
from ldt.attention.triton.tuned import fits
from ldt.bench.setting import Setting

ROOT = Path(__file__).parents[3]
HOPPER = KNOWN["H100, H200"]
FOUND = Tile(128, 32, 4, 4)
KERNELS = "forward", "dq", "dkv"


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setenv("LDT_TILES", str(tmp_path / "some.json"))
    return tmp_path / "some.json"


@pytest.fixture
def tune(monkeypatch):
    """The module gpu_tune of the benchmarks."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import gpu_tune

    yield gpu_tune
    for name in ("gpu_tune", "gpu_correctness", "gpu_pooling"):
        sys.modules.pop(name, None)


def row(tile=FOUND, **changes):
    about = {"gpu": "a GPU", "kernel": "forward", "bytes": 2, "dims": 64, "dropout": False}
    return about | asdict(tile) | changes


def write(file, *rows, made_with=triton.__version__):
    file.write_text(json.dumps({"triton": made_with, "tiles": rows}))


def tile(kernel="forward", dtype=torch.bfloat16, dim=64, dropout=0.0, device="cuda:0"):
    """The tile of a launch on a GPU that is pretended."""
    with FakeTensorMode():
        layout = Layout(torch.tensor([0, 9]), total_tokens=9)
        q = torch.empty(9, 2, dim, dtype=dtype, device=device)
        return windows(layout, 4, (1, 1)).tile(kernel, q, dropout)


def of_table(kernel="forward", dtype=torch.bfloat16, dim=64, dropout=False):
    return devices.find(kernel, dtype, dim, dropout, HOPPER)


def test_a_tile_that_was_found_is_taken_for_what_it_was_found_for(gpu, file, caplog):
    gpu(HOPPER)
    caplog.set_level(logging.INFO, "ldt")
    dropped = replace(FOUND, warps=8)
    write(file, row(), row(dropped, dropout=True), row(kernel="dq", bytes=4, dims=128))
    for dtype in (torch.bfloat16, torch.float16):
        for dim in (33, 64):  # one padded width
            assert tile(dtype=dtype, dim=dim) == FOUND
            assert tile(dtype=dtype, dim=dim, dropout=0.1) == dropped
    assert tile("dq", torch.float32, 96) == FOUND
    for other in ({"kernel": "dkv"}, {"dtype": torch.float32}, {"dim": 32}, {"dim": 65}):
        assert tile(**other) == of_table(**other)
    assert tile(device="cpu") == of_table()
    assert caplog.messages == [f"the kernels take 3 tiles of {file}"]


def test_tiles_lie_in_the_folder_of_caches_unless_told_otherwise(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("LDT_TILES")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert tuned.file() == tmp_path / ".cache/ldt/tiles.json"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    assert tuned.file() == tmp_path / "caches/ldt/tiles.json"
    monkeypatch.setenv("LDT_TILES", "other.json")
    assert tuned.file() == Path("other.json")


def test_tiles_of_another_gpu_are_not_taken(gpu, file, caplog):
    gpu(HOPPER)
    caplog.set_level(logging.INFO, "ldt")
    write(file, row(gpu="a larger GPU"), row(gpu="a larger GPU", kernel="dq", columns=4096))
    assert tile() == of_table()
    assert caplog.records == []
    gpu(HOPPER, "a larger GPU")
    write(file, row(gpu="a larger GPU"))
    assert tile() == FOUND


def test_a_file_is_read_once_and_one_that_is_not_there_changes_nothing(gpu, file, caplog):
    gpu(HOPPER)
    assert tile() == of_table()
    write(file, row())
    assert tile() == of_table()
    assert caplog.records == []
    gpu(HOPPER)
    assert tile() == FOUND
    file.unlink()
    assert tile() == FOUND


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "JSONDecodeError: Expecting value"),
        ('{"triton": "3', "JSONDecodeError: "),
        ("[]", "TypeError: list indices"),
        ("{}", "KeyError: 'triton'"),
        (b"\xff\xfe", "UnicodeDecodeError: "),
        ("made with 2.0", "ValueError: made with triton 2.0, this is "),
        ({"rows": None}, "TypeError: "),
        ({"rows": 128.0}, "TypeError: "),
        ({"bytes": "2"}, "TypeError: "),
        ({"rows": 48}, "ValueError: forward has no room for Tile(rows=48, "),
        ({"rows": 0}, "ValueError: forward has no room for Tile(rows=0, "),
        ({"columns": 8}, "ValueError: forward has no room for "),
        ({"warps": 64}, "ValueError: forward has no room for "),
        ({"stages": 0}, "ValueError: forward has no room for "),
        ({"stages": 40}, "ValueError: forward has no room for "),
        ({"rows": 512}, "ValueError: forward has no room for "),
    ],
)
def test_what_is_damaged_or_does_not_fit_leaves_the_table_and_one_line(
    gpu, file, caplog, text, why
):
    gpu(HOPPER)
    if isinstance(text, dict):
        write(file, row(kernel="dq"), row(**text))
    elif text == "made with 2.0":
        write(file, row(), made_with="2.0")
    else:
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with caplog.at_level(logging.WARNING, "ldt"):
        for kernel in KERNELS * 2:
            assert tile(kernel) == of_table(kernel)
    (record,) = caplog.records
    assert record.message.startswith(f"tiles of {file} are not taken ({why}")
    assert record.message.endswith("); gpu.py --only tune finds others")


def test_a_folder_in_the_place_of_the_file_is_told(gpu, file, caplog):
    gpu(HOPPER)
    file.mkdir()
    assert tile() == of_table()
    assert "IsADirectoryError" in caplog.text


@pytest.mark.parametrize("name", KNOWN)
def test_every_tile_of_the_table_fits_what_it_is_for(name):
    limits = KNOWN[name]
    for kernel in KERNELS:
        for (size, most), classes in TILES[kernel].items():
            fitting = [least for least in classes if least * devices.KIB <= limits.shared]
            for one in classes[max(fitting)]:
                assert fits(one, kernel, size, most, limits), (kernel, one)


def test_what_the_compiler_needs_is_no_less_than_what_is_asked_for():
    """Each program that was compiled fits a GPU that has what it took, and no more."""
    made = json.loads((ROOT / "benchmarks/results/aot.json").read_text("utf-8"))
    names = {"forward._forward": "forward", "backward._bwd_dq": "dq", "backward._bwd_dkv": "dkv"}
    checked = 0
    for name, found in made["gpus"].items():
        for kernel in (one for one in found["kernels"] if one["kernel"] in names):
            took = replace(
                KNOWN[name],
                shared=kernel["shared"],
                registers=kernel["registers"] * kernel["warps"] * KNOWN[name].warp,
            )
            size = {"half": 2, "fp32": 4}[kernel["dtype"]]
            about = names[kernel["kernel"]], size, triton.next_power_of_2(kernel["dims"])
            one = Tile(*kernel["tile"], kernel["warps"], kernel["stages"])
            assert fits(one, *about, took), (name, kernel)
            checked += 1
    assert checked > 200


def test_dkv_has_two_sums_and_its_loads_two_blocks():
    limits = replace(HOPPER, shared=2 * 2 * 64 * 64 * 2, registers=64 * (2 * 64 + 64))
    one = Tile(64, 64, 8, 3)
    assert fits(one, "dkv", 2, 64, limits)
    assert not fits(one, "dkv", 2, 64, replace(limits, registers=limits.registers - 1))
    assert fits(one, "dq", 2, 64, replace(limits, registers=64 * (64 + 64)))
    assert not fits(one, "dkv", 2, 64, replace(limits, shared=limits.shared - 1))
    assert not fits(one, "dkv", 4, 64, limits)
    assert not fits(one, "dkv", 2, 128, limits)


class Sizes:
    """A GPU to be searched."""

    def __init__(self, cuda=True):
        self.cuda, self.device = cuda, "cuda" if cuda else "cpu"
        self.rounds, self.tuned, self.cases, self.pooled_cases = 1, (4, 8), (), ()

    def setting(self):
        return Setting(self.device, "bf16")


@pytest.fixture
def search(tune, monkeypatch):
    """A function that has the suite search where one tile is the fastest of all; it returns what
    was timed: the tile of the table and the candidates, by kernel and dropout."""

    def operation(given, what, backend, dropout):
        return SimpleNamespace(run=lambda kind: dropout)

    def run(best, cuda=True):
        met = {}

        def timed(kernel, run, candidates, sizes):
            met[kernel, run()] = tile(kernel, dropout=run()), candidates
            yield {"kernel": kernel, "tile": "table", "seconds": 1.0}
            for one in candidates:
                seconds = 0.5 if one == best else 1.0
                yield {"kernel": kernel, "tile": str(one), "seconds": seconds}

        monkeypatch.setattr(tune, "timed", timed)
        tune.tune(Sizes(cuda))
        return met

    for name in ("band", "level"):
        monkeypatch.setattr(tune, name, operation)
    monkeypatch.setattr(tune, "right", lambda *given: True)
    return run


def test_what_a_search_finds_is_taken_from_then_on(gpu, file, search):
    gpu(HOPPER)
    write(file, row(), row(kernel="dq", bytes=4), row(gpu="another"))
    best = Tile(64, 64, 8, 4)
    met = search(best)
    # the one that an earlier search found is not what others are compared with
    assert {key: of for key, (of, _) in met.items()} == {
        (kernel, dropout): of_table(kernel, dropout=dropout)
        for kernel in KERNELS
        for dropout in (0.0, 0.1)
    }
    gpu(HOPPER)
    for kernel in KERNELS:
        for dropout in (0.0, 0.1):
            assert tile(kernel, dropout=dropout) == best
            other = {"dtype": torch.float32, "dropout": dropout}
            assert tile(kernel, **other) == of_table(kernel, **other)
    rows = json.loads(file.read_text())["tiles"]
    assert [one["gpu"] for one in rows] == ["another", *["a GPU"] * 6]
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_search_without_a_gpu_writes_nothing(gpu, file, search):
    gpu(HOPPER)
    assert len(search(Tile(16, 16, 4, 1), cuda=False)) == 6
    assert list(file.parent.iterdir()) == []


def test_only_what_may_fit_is_timed(gpu, file, search, tune):
    gpu(replace(KNOWN["A100"], shared=64 * devices.KIB))
    met = search(FOUND)
    for (kernel, _), (_, candidates) in met.items():
        assert 0 < len(candidates) < len(tune.FULL)
        assert Tile(64, 128, 8, 4) not in candidates  # 96 KiB of keys and values
        assert (Tile(128, 128, 4, 2) in candidates) == (kernel != "dkv")  # 255 registers a thread


def test_a_file_that_cannot_be_written_stays_as_it_was(gpu, file, search, monkeypatch, capsys):
    gpu(HOPPER)
    write(file, row())
    before = file.read_bytes()

    def full(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    search(Tile(64, 64, 8, 4))
    assert "could not be written: [Errno 28] No space left on device" in capsys.readouterr().out
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_candidate_is_timed_in_the_place_of_the_table(gpu, file, tune, monkeypatch):
    gpu(HOPPER)
    candidates, met = [Tile(64, 32, 4, 2), Tile(128, 64, 8, 4)], []

    def medians(runs, rounds, device):
        met.append((tile("dq"), tile("dkv")))
        if met[-1][0].rows == 128:
            raise RuntimeError("out of resource: shared memory")
        return {"run": 1.0}

    monkeypatch.setattr(tune, "medians", medians)
    rows = list(tune.timed("dq", None, candidates, Sizes()))
    assert [row["tile"] for row in rows] == ["table", str(candidates[0])]
    assert met == [(one, of_table("dkv")) for one in (of_table("dq"), *candidates)]


A, B, C = (Tile(64, 64, warps, 2) for warps in (4, 8, 1))


@pytest.mark.parametrize(
    ("windows", "levels", "wrong", "best"),
    [
        # seconds of tiles A and B, where the table's takes 1 and 2
        ((0.5, 0.9), (1.8, 0.4), (), B),  # shares of 0.5 * 0.9 and 0.9 * 0.2
        ((0.5, 0.9), (1.8, 0.4), (B,), A),
        ((0.5, 0.9), (1.8, 0.4), (A, B), None),
        ((0.98, 1.1), (1.96, 2.0), (), None),  # less than 3 % faster
        ((0.5, 0.9), (None, 1.8), (), B),  # A does not run everywhere
    ],
)
def test_the_tile_of_the_least_mean_share_that_is_right_is_chosen(
    tune, monkeypatch, windows, levels, wrong, best
):
    monkeypatch.setattr(tune, "FULL", [A, B, C])
    monkeypatch.setattr(tune, "right", lambda kernel, tile, sizes: tile not in wrong)
    rows = [
        {"what": what, "tokens": 4, "tile": tile if tile == "table" else str(tile), "seconds": s}
        for what, seconds in (("windows", (1.0, *windows)), ("level 2", (2.0, *levels)))
        for tile, s in zip(("table", A, B), seconds, strict=True)
        if s is not None
    ]
    assert tune.choose("dq", rows, Sizes()) == best


def test_a_tile_is_right_where_all_kernels_agree_with_the_definition(gpu, file, tune, monkeypatch):
    gpu(HOPPER)
    met = []

    def correctness(device, dtypes, cases, pooled_cases):
        met.append((tile("dq"), tile("dkv"), device, dtypes, cases, pooled_cases))
        return [{"backend": "triton", "ok": True}, {"backend": "triton", "ok": fine}] + [
            {"backend": "blocked", "ok": False}
        ]

    monkeypatch.setattr(tune, "correctness", correctness)
    sizes = Sizes()
    sizes.cases = ((9,), 4, 64, {}), ((9,), 4, 80, {}), ((9,), 4, 32, {})
    sizes.pooled_cases = ((9,), (5, 4), 4, 80, {}), ((9,), (5, 4), 4, 64, {})
    for fine in (True, False):
        assert tune.right("dq", A, sizes) == fine
    cases = [sizes.cases[0], sizes.cases[2]], [sizes.pooled_cases[1]]
    assert met == [(A, of_table("dkv"), "cuda", (torch.bfloat16,), *cases)] * 2
