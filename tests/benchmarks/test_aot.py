"""What the compiler says of the kernels, put together."""

import json
import sys
import types
from pathlib import Path

import pytest

pytest.importorskip("triton")


@pytest.fixture
def aot(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    import aot

    yield aot
    sys.modules.pop("aot")


def form(call, **figures):
    """What is found of one form of a kernel."""
    found = {"kernel": "forward._forward", "tile": [64, 32], "warps": 8, "stages": 2}
    found |= {"precision": None, "registers": 100, "spilled": 0, "shared": 1000, "call": call}
    return found | {"instructions": 500} | figures


def test_forms_of_a_kernel_with_one_tile_are_one_row_with_the_largest_figures(
    aot, monkeypatch, tmp_path, capsys
):
    forms = [
        form("band half 64", registers=90, shared=20000, instructions=400),
        form("band half 64, globals, gaps"),
        form("band half 128", spilled=16),
    ]
    fake = types.SimpleNamespace(compile_launches=lambda wanted: forms)
    monkeypatch.setitem(sys.modules, "compiled", fake)
    file = tmp_path / "aot.json"
    file.write_text(json.dumps({"gpus": {"A100": {"auto": {}, "kernels": [forms[0]]}}}))
    with pytest.raises(SystemExit) as end:
        aot.main(["--gpu", "T4", "--json", str(file)])
    assert end.value.code == 1  # one spills
    found = json.loads(file.read_text())["gpus"]
    assert set(found) == {"A100", "T4"}
    names = "dims", "registers", "spilled", "shared", "instructions", "programs"
    figures = {tuple(row[name] for name in names) for row in found["T4"]["kernels"]}
    assert figures == {(64, 100, 0, 20000, 500, 2), (128, 100, 16, 1000, 500, 2)}
    auto = found["T4"]["auto"]
    assert auto["fp16, heads of 64"] == "triton"
    assert auto["bf16, heads of 64"].startswith("blocked: bfloat16 has no kernel")
    assert "'dims': 128" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "figures", "programs"),
    [
        ("T4", {"registers": 32}, 4),  # threads
        ("A100", {"registers": 32}, 8),
        ("A100", {"registers": 81, "warps": 4}, 5),  # 88 are given
        ("A100", {"registers": 128}, 2),
        ("T4", {"registers": 32, "shared": 32 * 1024}, 2),
        ("A100", {"registers": 32, "shared": 54 * 1024}, 2),  # each takes a KiB more
    ],
)
def test_programs_of_a_multiprocessor(aot, name, figures, programs):
    assert aot.programs(name, form("band half 64", **figures)) == programs


def test_what_is_over_a_limit(aot):
    row = form("band half 64", registers=255, shared=64 * 1024)
    assert not aot.over("T4", row)
    assert aot.over("T4", row | {"shared": 64 * 1024 + 1})
    assert aot.over("T4", row | {"spilled": 4})
    assert aot.over("T4", row | {"registers": 256})
    assert aot.over("T4", row | {"warps": 16})  # 255 x 512 threads are more than there are
