import json
import re
import shutil
import sys
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest
import torch

from ldt import cli, errors
from ldt.attention import BACKENDS
from ldt.bench import encoders, measure, operations, run, table
from ldt.bench.memory import FreshProcesses
from ldt.bench.setting import Setting

TINY = Setting(batch=2, window=16, heads=2, dim=8)
SHAPE = "--batch 2 --window 16 --heads 2 --dim 8 --device cpu --rounds 2"


def bench(arguments):
    """Run ``ldt bench …`` in this process and return its exit code."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["bench", *arguments.split()])
    return ended.value.code


@pytest.fixture
def quick(monkeypatch):
    """Without what takes seconds on a CPU."""
    monkeypatch.delitem(BACKENDS, "triton")  # its interpreter
    monkeypatch.delitem(operations.PEERS, "flex")  # its compiler


@pytest.fixture(scope="module")
def processes():
    with FreshProcesses() as processes:
        yield processes


def own(name, x, like):
    """``x`` [batch, tokens, heads, dim] in the layout of the tensor ``like`` of an operation."""
    if name in BACKENDS:
        x = x.flatten(0, 1)
    elif name == "longformer":
        x = torch.nn.functional.pad(x.flatten(2), (0, 0, 0, like.shape[1] - x.shape[1]))
    else:
        x = x.transpose(1, 2)
    return x.reshape(like.shape).clone()


def plain(name, x, given):
    """The reverse of `own`."""
    batch, tokens, heads = given.setting.batch, given.tokens, given.setting.heads
    if name in BACKENDS:
        return x.reshape(batch, tokens, heads, -1)
    if name == "longformer":
        return x[:, :tokens].unflatten(2, (heads, -1))
    return x.transpose(1, 2)


@pytest.mark.parametrize("kind", ["forward", "training"])
@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({}, ("blocked", "loop", "longformer", "flex")),
        ({"window": 160}, ("blocked", "longformer", "sdpa", "flex")),  # it covers everything
        ({"dilation": 3}, ("blocked", "flex")),
        ({"causal": True}, ("blocked", "flex")),
        ({"causal": True, "window": 160}, ("blocked", "sdpa", "flex")),
        ({"causal": True, "dilation": 3}, ("blocked", "flex")),
    ],
)
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_what_is_compared_computes_the_same(change, names, kind, monkeypatch):
    given = operations.Given(replace(TINY, **change), 70, kind == "training")
    x = torch.randn(2, 70, 2, 8, generator=torch.Generator().manual_seed(0))
    up = torch.randn(2, 70, 2, 8, generator=torch.Generator().manual_seed(1))
    # q, k, v and what the global row projects are equal, so every layout holds the same problem.
    monkeypatch.setattr(operations.Given, "_random", lambda *_: x.flatten(0, 1).clone())
    monkeypatch.setattr(torch, "compile", lambda f, **_: f)
    found = {}
    for name in ("reference", *names):
        if (name, kind) == ("flex", "training"):
            continue  # not on a CPU
        operation = operations.operation(name, given)
        operation = replace(operation, up=own(name, up, operation.up))
        result = operation.run(kind)
        if kind == "forward":
            found[name] = plain(name, result, given)
        else:
            total = sum(plain(name, g.reshape(operation.up.shape), given) for g in result)
            found[name] = total
    for name in found:
        torch.testing.assert_close(found[name], found["reference"], rtol=1e-4, atol=1e-5)


def test_the_table_the_reasons_and_the_json_file(quick, tmp_path, capfd):
    file = tmp_path / "found.json"
    assert bench(f"--length 40 --length 24 {SHAPE} --json {file}") == errors.EXIT_OK
    out = capfd.readouterr().out
    head = out.splitlines()[:3]
    assert re.fullmatch(r".+, \d+ threads?; torch \d+\..*", head[0])
    assert head[1] == "attention: fp32, batch 2, 2 heads of 8, window 16, first token global"
    assert head[2] == "auto takes blocked: " + run.choose("cpu", torch.float32)[1]
    assert "forward: milliseconds, and times those of ldt blocked\n" in out
    assert "forward and backward: peak memory, MiB\n" in out
    assert "no time: full (cuDNN): cuDNN runs on CUDA\n" in out
    assert re.search(r"│ tokens +┃ +24 ┃ +40 ┃".replace("│", "┃"), out)
    for name in ("ldt reference", "ldt loop", "ldt blocked", "Longformer (HF)", "full (SDPA)"):
        assert len(re.findall(rf"│ {re.escape(name)} +│ +[\d.,]+", out)) == 4, name
    found = json.loads(file.read_text())
    assert found["setting"]["window"] == 16
    assert found["machine"]["torch"] == torch.__version__
    assert found["auto"]["backend"] == "blocked"
    rows = found["rows"]
    assert {(row["kind"], row["tokens"]) for row in rows} == {
        (kind, tokens) for kind in ("forward", "training") for tokens in (24, 40)
    }
    assert {row["name"] for row in rows} == {*BACKENDS, *operations.PEERS}
    cannot = {
        "cudnn": "cuDNN runs on CUDA",
        "flex-flash": "FlexAttention by FlashAttention runs on CUDA",
        "varlen": "FlashAttention runs on CUDA, without dilation",
    }
    for row in rows:
        if row["name"] in cannot:
            assert (row["seconds"], row["why_no_time"]) == (None, cannot[row["name"]])
        else:
            assert 0 < row["fastest"] <= row["seconds"] <= row["slowest"]
            assert row["rounds"] == 2
            assert row["mib"] >= 0
    assert [file.name for file in tmp_path.iterdir()] == ["found.json"]


def test_encoders_are_compared_too(quick, tmp_path):
    file = tmp_path / "found.json"
    arguments = f"--encoder --layers 1 --length 32 --no-memory {SHAPE} --json {file}"
    assert bench(arguments) == errors.EXIT_OK
    rows = json.loads(file.read_text())["rows"]
    names = {"ldt", "poolingformer", *encoders.OWN_MODERNBERT, *encoders.PEERS}
    assert {row["name"] for row in rows} == names
    assert all(row["seconds"] > 0 and row["mib"] is None for row in rows)


def test_encoders_have_equal_width_and_depth():
    setting = replace(TINY, layers=3, vocabulary=50)
    for name in ("ldt", "loop", *encoders.PEERS):
        config = encoders.build(name, 20, setting).config
        assert (config.hidden_size, config.num_hidden_layers) == (16, 3)
        assert getattr(config, "attention_window", 16) in (16, [16, 16, 16])
    assert encoders.build("loop", 20, setting).config.attention_backend == "loop"


def test_the_two_modernberts_have_equal_weights_and_the_second_windows():
    setting = replace(TINY, layers=4, vocabulary=50, window=8)
    models = [
        encoders.build(name, 20, setting) for name in (*encoders.OWN_MODERNBERT, "modernbert")
    ]
    shapes = [{name: x.shape for name, x in model.state_dict().items()} for model in models]
    assert shapes[0] == shapes[1] == shapes[2]
    assert [model.config.model_type for model in models[:2]] == ["ldt_modernbert"] * 2
    assert models[0].config.attention_window == [40, 128, 128, 40]
    assert models[1].config.attention_window == [8, 128, 128, 8]


def test_the_poolingformer_beside_a_longformer_of_512_is_the_papers():
    setting = replace(TINY, layers=12, window=512, vocabulary=50)
    config = encoders.build("poolingformer", 20, setting).config
    assert (config.attention_window, config.pooling_window) == (128, 512)
    assert (config.pooling_layers, config.pooling) == ([7, 8, 9], "ldconv")
    assert not config.pooling_gate


@pytest.mark.skipif(not shutil.which("g++"), reason="FlexAttention is compiled by g++ on a CPU")
def test_flex_attention_is_compiled_and_has_no_backward_pass_on_a_cpu():
    setting = replace(TINY, device="cpu")
    for kind in ("forward", "training"):
        [row] = run.compare(("flex",), 64, kind, setting, 1, 1.0, {}, lambda *_: None)
        if kind == "forward":
            assert row.seconds > 0
        else:
            assert row.why_no_time == "torch has no backward pass of it on the CPU"


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_picture_has_a_labelled_line_for_each(suffix, tmp_path):
    from ldt.bench import plot

    rows = [
        run.Row(name, kind, tokens, factor * tokens, mib=tokens)
        for kind in ("forward", "training")
        for name, factor in (("blocked", 0.01), ("longformer", 0.05), ("sdpa", 0.0101))
        for tokens in (512, 4096)
        if (name, tokens) != ("longformer", 4096)
    ]
    rows.append(run.Row("triton", "forward", 512, why_no_time="runs on CUDA"))
    file = tmp_path / f"a.{suffix}"
    about = {"cpu": "Some CPU", "gpu": None, "threads": 2}
    plot.write(file, rows, about, Setting())
    assert [path.name for path in tmp_path.iterdir()] == [file.name]
    if suffix == "png":
        assert file.read_bytes().startswith(b"\x89PNG")
        return
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", file.read_text())
    for label in ("ldt blocked", "Longformer (HF)", "full (SDPA)"):
        assert texts.count(label) == 4  # two passes, time and memory
    assert "ldt triton" not in texts
    assert {"time of a call, ms", "peak memory, MiB", "length, tokens", "4,096"} <= set(texts)
    assert {"forward", "forward and backward", "Some CPU, 2 threads"} <= set(texts)
    assert "attention: fp32, batch 1, 12 heads of 64, window 512, first token global" in texts


def test_labels_do_not_lie_over_each_other():
    from matplotlib.figure import Figure

    from ldt.bench import plot

    axes = Figure().subplots()
    axes.plot([1, 2], [1, 100])
    ends = [(2, 50, "", ""), (2, 51, "", ""), (2, 49, "", ""), (1, 50, "", "")]
    a, b, c, alone = plot._heights(axes, ends)
    assert b - a >= plot.GAP - 1e-9
    assert a - c >= plot.GAP - 1e-9
    assert alone < b


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            "--backend nope",
            "--backend must be one of reference, loop, blocked, triton,",
        ),
        ("--backend cudnn --device cpu", "--backend cudnn: cuDNN runs on CUDA"),
        (f"--backend flex --pass training {SHAPE}", "--backend flex: torch has no backward pass"),
        (
            f"--backend longformer --causal {SHAPE}",
            "--backend longformer: transformers has neither",
        ),
        ("--encoder --backend sdpa", "--backend must be one of ldt, reference, loop, blocked,"),
        (f"--encoder --dilation 2 {SHAPE}", "nothing could run: no encoder here is dilated"),
        ("--window 7", "--window must be even and at least 2, got 7"),
        ("--plot a.jpg", "--plot a.jpg: the ending must be one of .png, .svg, .pdf"),
        ("--json nowhere/a.json", "nowhere: no such folder"),
        ("--json .", ".: a folder; name a file"),
        ("--length 0", "invalid value for '--length'"),
        ("--dtype fp8", "invalid value for '--dtype'"),
    ],
)
def test_what_cannot_work_is_one_line_and_exit_code_2(arguments, line, capfd, monkeypatch):
    monkeypatch.setattr(run, "compare", run.compare if "--encoder" in arguments else None)
    assert bench(arguments) == errors.EXIT_USAGE
    assert f"error: {line}" in capfd.readouterr().err.splitlines()[-1]


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without CUDA")
def test_cuda_asked_for_by_name_must_be_there(capfd):
    assert bench("--device cuda") == errors.EXIT_USAGE
    assert capfd.readouterr().err == (
        "error: --device cuda: torch finds no CUDA device; --device cpu runs here\n"
    )


def test_without_matplotlib_nothing_is_measured(capfd, monkeypatch):
    monkeypatch.setattr("ldt.bench.plot.find_spec", lambda name: None)
    monkeypatch.setattr(run, "compare", None)
    assert bench("--plot a.png") == errors.EXIT_USAGE
    assert capfd.readouterr().err == (
        "error: --plot needs matplotlib; pip install matplotlib adds it\n"
    )


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (ImportError("No module named 'x'"), "not installed: No module named 'x'"),
        (torch.OutOfMemoryError("Tried to allocate 9 GiB"), "out of memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "out of memory"),
        (RuntimeError("first line\nsecond line"), "first line"),
        (KeyError("heads"), "KeyError: 'heads'"),
        (AssertionError(), "AssertionError: no message"),
    ],
)
def test_a_peer_that_fails_is_a_row_that_says_why(error, why, monkeypatch):
    def fails(given):
        raise error

    monkeypatch.setitem(operations.PEERS, "sdpa", fails)
    arguments = (("sdpa", "blocked"), 16, "forward", TINY, 1, 1.0, {}, lambda *_: 1.5)
    peer, ours = run.compare(*arguments)
    assert (peer.seconds, peer.mib, peer.why_no_time) == (None, None, why)
    assert ours.seconds > 0
    assert ours.mib == 1.5
    assert list(table.reasons([peer, ours])) == [f"no time: full (SDPA): {why}"]


def test_a_peer_that_fails_later_has_no_time(monkeypatch):
    calls = []

    def call():
        calls.append(0)
        if len(calls) > 2:
            raise torch.OutOfMemoryError("Tried to allocate 9 GiB")
        time.sleep(measure.SAMPLE)

    failing = operations.Operation(call, (), torch.empty(0))
    monkeypatch.setitem(operations.PEERS, "sdpa", lambda given: failing)
    arguments = (("sdpa", "blocked"), 16, "forward", TINY, 3, 1.0, {}, lambda *_: None)
    peer, ours = run.compare(*arguments)
    assert (peer.seconds, peer.why_no_time, len(calls)) == (None, "out of memory", 3)
    assert ours.rounds == 3


def test_a_peak_that_cannot_be_told_is_a_row_with_a_time():
    def fails(*_):
        raise RuntimeError("ended by the system: out of memory")

    [row] = run.compare(("blocked",), 16, "forward", TINY, 1, 1.0, {}, fails)
    assert row.seconds > 0
    assert row.why_no_memory == "ended by the system: out of memory"
    assert list(table.reasons([row])) == [f"no memory: ldt blocked: {row.why_no_memory}"]


def test_the_reference_is_left_out_where_it_does_not_fit(monkeypatch):
    free = SimpleNamespace(available=2**30)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    given = operations.Given(replace(TINY, heads=12, dim=64), 2048, False)
    with pytest.raises(MemoryError, match="needs about 4 GiB, 1 are free"):
        operations.operation("reference", given)
    operations.operation("reference", operations.Given(TINY, 2048, False))


def test_what_would_take_too_long_is_not_run():
    before = {"blocked": (0.2, 16), "sdpa": (0.3, 16), "longformer": (9.0, 16)}
    compare = ("forward", TINY, 3, 0.5, before, lambda *_: None)
    blocked, sdpa, longformer, loop = run.compare(
        ("blocked", "sdpa", "longformer", "loop"), 32, *compare
    )
    assert blocked.rounds == loop.rounds == 3
    assert (sdpa.seconds, sdpa.rounds) == (None, 0)
    assert sdpa.why_no_time == "took 300 ms at 16 tokens, here it would be over --limit 0.5 s"
    assert longformer.why_no_time.startswith("took 9,000 ms at 16 tokens, ")
    assert before["blocked"] == (blocked.seconds, 32)
    assert before["sdpa"] == (0.3, 16)


def test_what_has_taken_too_long_is_not_run_again():
    [row] = run.compare(("blocked",), 16, "forward", TINY, 3, 0.0, {}, lambda *_: None)
    assert row.rounds == 1


def test_peak_memory_is_that_of_the_call_alone(processes):
    setting = Setting(window=64, threads=1)
    small, large = (processes.peak_mib("reference", n, "forward", setting) for n in (256, 768))
    scores = 12 * 768**2 * 4 / 2**20  # MiB of one [heads, tokens, tokens] in float32
    assert 2 * scores < large < 8 * scores
    assert 5 < large / small < 14


def test_a_call_that_fails_does_not_end_the_others(processes):
    with pytest.raises(RuntimeError, match="ValueError: cuDNN runs on CUDA"):
        processes.peak_mib("cudnn", 16, "forward", TINY)
    assert processes.peak_mib("sdpa", 16, "training", TINY) >= 0


def test_a_call_that_the_system_ends_is_told(processes):
    helper = psutil.Process(processes._helper.pid)

    def end():
        while not (children := helper.children()):
            time.sleep(0.01)
        children[0].kill()

    thread = threading.Thread(target=end)
    thread.start()
    with pytest.raises(RuntimeError, match="ended by the system: out of memory"):
        processes.peak_mib("loop", 8192, "training", Setting())
    thread.join()
    assert processes.peak_mib("sdpa", 16, "forward", TINY) >= 0


def test_elsewhere_than_on_linux_memory_is_left_out(quick, monkeypatch, tmp_path, capfd):
    monkeypatch.setattr("ldt.bench.memory.STATUS", tmp_path / "none")
    assert bench(f"--backend blocked --length 16 --pass forward {SHAPE}") == errors.EXIT_OK
    out, err = capfd.readouterr()
    assert "warning: no memory: peak memory on the CPU is read from /proc" in err
    assert "MiB" not in out


def test_a_missing_transformers_leaves_the_rest(monkeypatch):
    name = "transformers.models.longformer.modeling_longformer"
    monkeypatch.setitem(sys.modules, name, None)
    rows = run.compare(("longformer", "sdpa"), 16, "forward", TINY, 1, 1.0, {}, lambda *_: None)
    assert rows[0].why_no_time.startswith("not installed: ")
    assert rows[1].seconds > 0
