"""The parts of a layer add up, and what is said of threads and libraries follows from times."""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch


@pytest.fixture
def parts(script, monkeypatch):
    """The script, its encoder of one head."""
    module = script("parts")
    monkeypatch.setattr(module, "HEADS", 1)
    monkeypatch.setattr(module, "WIDTH", 64)
    monkeypatch.setattr(module, "WIDE", 256)
    maps = {name: (a // 12, b // 12) for name, (a, b) in module.MAPS.items()}
    monkeypatch.setattr(module, "MAPS", maps)
    monkeypatch.setattr(module, "LAYERS", {40: 3})
    monkeypatch.setattr(module.layers, "CHUNK", 16)
    return module


@pytest.fixture
def run(parts, monkeypatch, tmp_path):
    """A function that runs the script for a round and gives what it writes."""

    def run(*options):
        file = tmp_path / "found.json"
        words = ["--json", file, "--rounds", 1, "--dtypes", "fp32", *options]
        monkeypatch.setattr(sys, "argv", ["parts.py", *map(str, words)])
        parts.main()
        return json.loads(file.read_text())

    return run


def test_parts_and_rest_are_the_layer_and_other_cases_stay(run, parts, tmp_path):
    run("--lengths", 40, "--passes", "forward")
    found = run("--lengths", 9, "--passes", "training")
    assert list(found["cases"]) == ["forward-40-fp32", "training-9-fp32"]
    for row, count, products in zip(found["cases"].values(), (3, 2), (1, 3), strict=True):
        ms = row["ms"]
        assert ms["layer"] == pytest.approx((ms["model"] - ms["embeddings"]) / count)
        assert sum(ms.get(name, 0) for name in (*parts.PARTS, "rest")) == pytest.approx(ms["layer"])
        assert ("computed again" in ms) == (row["pass"] == "training")
        assert sum(row["band"].values()) == pytest.approx(1)
        assert min(row["band"].values()) > 0
        work = products * 2 * row["tokens"] * 64 * 256
        assert row["gflops"]["feed-forward in"] == pytest.approx(work / ms["feed-forward in"] / 1e6)
        assert row["layer_to_limit"] == pytest.approx(ms["layer"] / row["limit_ms"])
    picture = tmp_path / "found.png"
    picture.unlink()
    assert run("--plot") == found
    assert picture.read_bytes()[1:4] == b"PNG"


def test_some_parts_alone_are_shown_and_not_kept(run, tmp_path, capsys):
    with pytest.raises(FileNotFoundError):
        run("--lengths", 9, "--passes", "forward", "--only", "band", "GELU")
    assert not list(tmp_path.iterdir())
    said = capsys.readouterr().out
    assert "band" in said
    assert "norms" not in said


def test_without_a_result_nothing_is_drawn(run, capsys):
    with pytest.raises(SystemExit):
        run("--plot")
    assert "no result" in capsys.readouterr().err


def test_operators_are_counted_by_layer_and_threads_compared(run, parts, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    before = torch.get_num_threads()
    options = ("--passes", "forward", "--profile", "--threads")
    try:
        found = run("--lengths", 40, *options)
    finally:
        torch.set_num_threads(before)
    assert found["cases"] == {}
    operators = found["profile"]["forward-40-fp32"]["operators"]
    assert sum(row["share"] for row in operators.values()) == pytest.approx(1)
    norms = operators["aten::native_layer_norm"]["calls_a_layer"]
    assert norms >= 2
    monkeypatch.setattr(parts, "LAYERS", {40: 1})
    single = parts.profile(parts.Case("forward", 40, "fp32"))["operators"]
    assert single["aten::native_layer_norm"]["calls_a_layer"] == norms
    working = found["profile"]["forward-40-fp32"]["working"]
    assert norms < working["by_caller"] <= working["calls_a_layer"]
    row = found["threads"]["forward-40-fp32"]["rows"]["layer"]
    assert row["one"] > 0
    assert 0 < row["path"] <= row["cpu"] * 1.01


def test_a_part_runs_all_tokens_a_chunk_at_a_time_and_backward_once(parts):
    seen = []

    def call(x, y):
        seen.append((len(x), torch.is_grad_enabled()))
        return x * y

    x, y = torch.randn(2, 40, 8)
    parts.run_of(parts.Case("forward", 40, "fp32"), call, x, y, chunk=16)()
    assert seen == [(16, False), (16, False), (8, False)]
    training = parts.run_of(parts.Case("training", 40, "fp32"), call, x, y, chunk=16)
    seen.clear()
    passed = []
    x.register_hook(lambda grad: passed.append(grad.shape))
    training()
    assert seen == [(40, True)]
    assert passed == [x.shape]


def test_what_runs_in_one_thread_follows_from_wall_and_from_cpu_time(parts):
    # 2 s in one thread and 8 s of work for all of four, with a neighbour that doubles wall time.
    found = parts.alone({"one": 10, "all": 8, "cpu": 10, "path": 4}, 4)
    assert found["by_cpu"]["serial"] == pytest.approx(2)
    assert found["by_cpu"]["share"] == pytest.approx(0.2)
    assert found["by_cpu"]["seconds"]["64"] == pytest.approx(2 + 8 / 64)
    assert found["by_cpu"]["serial_share"]["8"] == pytest.approx(2 / 3)
    assert found["by_wall"]["serial"] == pytest.approx((4 * 8 - 10) / 3)
    quiet = parts.alone({"one": 10, "all": 2.4, "cpu": 10, "path": 2.4}, 4)
    assert quiet["by_wall"] == quiet["by_cpu"]
    assert quiet["by_cpu"]["serial"] == 0  # faster than threads can make it: noise


@pytest.mark.parametrize("apart", [True, False])
def test_work_of_other_threads_of_python_is_shared_by_all(parts, apart, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)

    def work():
        start = time.thread_time()
        while time.thread_time() < start + 0.1:
            pass

    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        run = (lambda: pool.submit(work).result()) if apart else work
        _, cpu, path = parts.clocks_of(run)
    assert path / cpu == pytest.approx(0.5 if apart else 1, abs=0.2)


@pytest.mark.parametrize("rounds", [True, False])
def test_a_library_that_rounds_is_no_limit(parts, rounds, monkeypatch):
    taken = []

    @contextmanager
    def onednn():
        taken.append(True)
        yield
        taken.clear()

    def linear(x, weight):
        if taken and rounds:
            x, weight = x.bfloat16().float(), weight.bfloat16().float()
        return x @ weight.T

    monkeypatch.setattr(parts.matmul, "onednn", onednn)
    monkeypatch.setattr(parts.F, "linear", linear)
    assert parts.onednn_is_exact() is not rounds
    by_onednn = []

    def default():
        by_onednn.append(bool(taken))

    monkeypatch.setattr(parts, "seconds_of", lambda run: (run(), 1 if by_onednn[-1] else 2)[1])
    assert (parts.fastest(default) is default) is rounds


def test_operators_of_all_threads_are_counted_and_those_of_the_caller_apart(script):
    x = torch.randn(8, 8)
    with ThreadPoolExecutor(1) as pool:

        def run():
            pool.submit(torch.mm, x, x).result()
            torch.mm(x, x).relu()

        found = script("parts_operators").operators(run)
    assert {name: found[name][1:] for name in ("aten::mm", "aten::relu")} == {
        "aten::mm": (2, 1),
        "aten::relu": (1, 1),
    }
    assert min(seconds for seconds, *_ in found.values()) >= 0


@pytest.mark.parametrize(
    ("operator", "kind", "works"),
    [
        ("aten::baddbmm", "products", True),
        ("aten::mm", "products", True),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "products", True),
        ("aten::_softmax_backward_data", "softmax", True),
        ("aten::exp_", "softmax", True),
        ("aten::copy_", "copies and masks", True),
        ("aten::expand", "copies and masks", False),
        ("aten::linear", "copies and masks", False),  # calls addmm, which is counted
        ("Blocked", "copies and masks", False),
    ],
)
def test_operators_are_told_apart(script, operator, kind, works):
    module = script("parts_operators")
    assert (module.kind_of(operator), module.is_work(operator)) == (kind, works)


@pytest.mark.parametrize(
    ("maker", "family", "model", "flags", "name"),
    [
        ("GenuineIntel", 6, "Intel(R) Xeon(R) Processor", "avx2 avx512f amx_tile", "xeon-amx"),
        ("GenuineIntel", 6, "Intel(R) Xeon(R) CPU @ 2.20GHz", "avx2 avx512f", "xeon-avx512"),
        ("GenuineIntel", 6, "Intel(R) Core(TM) i5-2500", "avx", "core"),
        ("AuthenticAMD", 25, "AMD EPYC 7763 64-Core Processor", "avx2", "zen3"),
        ("AuthenticAMD", 25, "AMD EPYC 9R14", "avx2 avx512f", "zen4"),
        ("AuthenticAMD", 26, "AMD EPYC 9755", "avx2 avx512f", "zen5"),
        ("AuthenticAMD", 21, "AMD Opteron(tm) 6376", "avx", "amd-opteron-6376"),
    ],
)
def test_a_cpu_has_a_name_fit_for_a_file(parts, maker, family, model, flags, name):
    lines = f"vendor_id\t: {maker}", f"cpu family\t: {family}", f"model name\t: {model}"
    text = "\n".join([*lines, f"flags\t\t: fpu {flags}", "", "processor\t: 1"])
    assert parts.cpu_name(text) == name
    assert parts.cpu_name("") == "cpu"
