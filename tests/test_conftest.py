"""The suite's own ground: sockets are shut, the shared models are what the tests take them for."""

import importlib.util
import json
import os
import socket
import subprocess
import sys
from itertools import combinations, product
from pathlib import Path
from types import SimpleNamespace

import properties
import pytest
import since
import snapshots
import tiers
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st


def test_the_network_is_out_of_reach():
    with pytest.raises(PermissionError, match="look-up"):
        socket.create_connection(("example.org", 80), timeout=1)
    with socket.socket() as sock, pytest.raises(PermissionError, match="connect"):
        sock.connect(("192.0.2.1", 80))


def test_this_machine_is_within_reach():
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname(), timeout=5).close()


def test_files_that_take_longest_begin_first(request):
    here = Path(__file__).parent
    plugins = request.config.pluginmanager.get_plugins()
    (own,) = (x for x in plugins if getattr(x, "__file__", None) == str(here / "conftest.py"))
    assert all((here / name).exists() for name in own.LONGEST)
    short = ["tests/a.py::one", "tests/b.py::one", "tests/b.py::two[::]", "tests/c.py::one"]
    first, second = (f"tests/{name}::one" for name in own.LONGEST[:2])
    items = [SimpleNamespace(nodeid=name) for name in (*short, second, first)]
    own.pytest_collection_modifyitems(items)
    found = [item.nodeid for item in items]
    assert found == [first, second, *short[1:3], short[0], short[3]]


@pytest.mark.slow
def test_a_failure_is_in_its_file_before_the_run_ends(tmp_path):
    code = "import os\ndef test_a(): assert 1 == 2\ndef test_b(): os._exit(9)\n"
    (tmp_path / "test_two.py").write_text(code)
    tests, out = Path(__file__).parent, tmp_path / "failures"
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "--rootdir", tmp_path, tmp_path]
    environment = {key: x for key, x in os.environ.items() if not key.startswith("PYTEST_")}
    environment |= {"LDT_TEST_FAILURES": str(out), "PYTHONPATH": f"{tests}:{tests / 'helpers'}"}
    assert subprocess.run(command, env=environment, capture_output=True).returncode == 9
    (row,) = map(json.loads, out.read_text().splitlines())
    assert (row["test"], row["when"]) == ("test_two.py::test_a", "call")
    assert "assert 1 == 2" in row["failed"]


def test_gloo_works_over_loopback():
    code = (
        "import torch, torch.distributed as dist; dist.init_process_group('gloo', rank=0,"
        " world_size=1, init_method='tcp://127.0.0.1:0'); dist.all_reduce(torch.ones(1));"
        " dist.destroy_process_group()"  # else its threads may end the process with an abort
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_hub_is_switched_off_here_and_in_subprocesses():
    from huggingface_hub.constants import HF_HUB_OFFLINE

    assert HF_HUB_OFFLINE
    assert os.environ["TRANSFORMERS_OFFLINE"] == "1"


def test_the_tiny_longformer_reads_text(tiny_longformer):
    from transformers import AutoTokenizer, LongformerModel

    tokenizer = AutoTokenizer.from_pretrained(tiny_longformer)
    assert tokenizer.is_fast
    assert tokenizer.all_special_tokens == ["<s>", "</s>", "<unk>", "<pad>", "<mask>"]
    batch = tokenizer("The other party agrees.", return_tensors="pt")
    assert batch.input_ids[0, [0, -1]].tolist() == [0, 2]
    assert batch.input_ids.shape[1] < len("The other party agrees.")
    out = LongformerModel.from_pretrained(tiny_longformer).eval()(**batch)
    assert torch.isfinite(out.last_hidden_state).all()


def test_a_property_has_the_same_cases_whatever_else_its_process_has_loaded(tmp_path):
    found = []

    @properties.cases(100)
    @given(st.integers(0, 2**31))
    def draw(number):
        found.append((number, torch.rand(()).item()))

    def drawn():
        found.clear()
        draw()
        return list(found)

    first = drawn()
    (tmp_path / "another.py").write_text("NUMBERS = " + repr(list(range(1000, 2**31, 2**24))))
    spec = importlib.util.spec_from_file_location("another", tmp_path / "another.py")
    sys.modules["another"] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(sys.modules["another"])
        torch.rand(5)
        assert drawn() == first
    finally:
        del sys.modules["another"]


def test_properties_run_at_night_with_fresh_seeds_and_more_cases():
    class Item:
        def __init__(self, obj):
            self.obj, self.marks = obj, []
            self.add_marker = self.marks.append

    def config(expression):
        return SimpleNamespace(option=SimpleNamespace(markexpr=expression))

    drawn = {}
    before = settings.get_current_profile_name()
    try:
        for expression in ("not nightly", "nightly"):
            properties.pytest_configure(config(expression))

            @properties.cases(7)
            @given(st.integers(0, 2**62))
            def draw(number):
                drawn[expression][-1].append(number)  # noqa: B023

            drawn[expression] = []
            for _ in range(2):
                drawn[expression].append([])
                draw()
            items = [Item(draw), Item(print), SimpleNamespace()]
            properties.pytest_collection_modifyitems(config(expression), items)
            assert items[0].marks == (["nightly"] if expression == "nightly" else [])
            assert not items[1].marks
    finally:
        settings.load_profile(before)
    usual, fresh = drawn.values()
    assert [len(numbers) for numbers in usual + fresh] == [7, 7, 70, 70]
    assert usual[0] == usual[1]
    assert fresh[0] != fresh[1]


def test_a_case_that_failed_at_night_is_tried_by_day():
    tried = []

    @properties.cases(1, shrink=False)
    @example(-1)
    @given(st.integers(0, 5))
    def draw(number):
        tried.append(number)

    draw()
    assert tried[0] == -1


def test_usual_runs_are_of_the_fast_tier(pytestconfig):
    assert pytestconfig.getini("addopts")[-2:] == ["-m", "not slow and not nightly"]


def test_a_covering_array_has_each_pair_of_values():
    cases = [dict(zip("abc", place, strict=True)) for place in product(range(3), repeat=3)]
    kept = [cases[place] for place in tiers.covering(cases, 2)]
    assert len(kept) < 15
    for first, second in combinations("abc", 2):
        assert len({(case[first], case[second]) for case in kept}) == 9


def items_of_a_test(name, mark, cases):
    """Items as pytest has them, with one mark; ``marks`` has those that are added."""
    items = []
    for number, params in enumerate(cases):
        item = SimpleNamespace(nodeid=f"{name}[{number}]", marks=[])
        item.callspec = SimpleNamespace(params=params, id=str(number))
        item.get_closest_marker = lambda asked: mark if mark and mark.name == asked else None
        item.add_marker = item.marks.append
        items.append(item)
    return items


def test_marks_leave_the_fast_tier_some_cases():
    cases = [dict(zip("abc", place, strict=True)) for place in product(range(3), repeat=3)]
    marks = pytest.mark.covering(2).mark, pytest.mark.fast("4", "7").mark, None
    tests = [items_of_a_test(str(mark), mark, cases) for mark in marks]
    config = SimpleNamespace(args=["tests"])
    tiers.pytest_collection_modifyitems(config, sum(tests, []))
    pairs, fast, all_cases = [[item for item in test if not item.marks] for test in tests]
    assert len(pairs) == len(tiers.covering(cases, 2))
    assert [item.callspec.id for item in fast] == ["4", "7"]
    assert len(all_cases) == len(cases)
    with pytest.raises(pytest.UsageError, match="no case is called"):
        tiers.pytest_collection_modifyitems(config, tests[1][:4])
    config.args = ["tests/test_a.py::test[1]"]
    tiers.pytest_collection_modifyitems(config, tests[1][:4])


@pytest.mark.parametrize(
    ("path", "chosen", "left_out"),
    [
        ("ldt/serve/app.py", {"serve", "cli", "chaos"}, {"inference", "model", "training"}),
        (
            "ldt/model/config.py",
            {"model", "training", "inference", "cli"},
            {"attention", "metrics"},
        ),
        ("ldt/io/files.py", {"io", "data", "cli"}, {"attention"}),
        ("tests/serve/test_app.py", {"serve/test_app.py"}, {"serve"}),
        ("tests/serve/conftest.py", {"serve"}, {"cli"}),
        ("recipes/squad.yaml", {"recipe"}, {"model"}),
        ("README.md", {"test_readme.py"}, {"serve"}),
    ],
)
def test_a_change_selects_its_tests(path, chosen, left_out):
    tests = since.selected([path])
    assert tests >= chosen | since.ALWAYS
    assert not tests & left_out


@pytest.mark.parametrize("path", ["tests/helpers/dense.py", "pyproject.toml", "ldt/__init__.py"])
def test_what_all_tests_use_selects_all_tests(path):
    assert since.selected([path, "README.md"]) is None


def test_only_tests_of_a_change_run(request, monkeypatch):
    paths = ["tests/serve/test_app.py", "tests/serve/test_page.py", "tests/test_layers.py"]
    items = [SimpleNamespace(path=since.ROOT / path) for path in paths]
    left_out = []
    config = SimpleNamespace(
        getoption=lambda name: "HEAD",
        hook=SimpleNamespace(pytest_deselected=lambda items: left_out.extend(items)),
    )
    monkeypatch.setattr(since, "changed", lambda revision: ["tests/serve/test_page.py"])
    page, layers = items[1:]
    since.pytest_collection_modifyitems(config, items)
    assert items == [page, layers]
    assert len(left_out) == 1


def test_a_commit_that_is_none_is_refused():
    with pytest.raises(pytest.UsageError, match=r"--since nowhere: .*nowhere"):
        since.changed("nowhere")


def test_what_differs_between_snapshots_is_found(tmp_path, capsys):
    for name, changes in {
        "old": {},
        "same": {},
        "number": {"out": ["one", {"f1": 0.6}, "two"]},
        "line": {"out": ["one", {"f1": 0.5}, "more", "two"]},
        "renamed": {"files": {"chunks.json": []}},
    }.items():
        kept = {"out": ["one", {"f1": 0.5}, "two"], "files": {"windows.json": []}} | changes
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.json").write_text(json.dumps(kept))
    (tmp_path / "empty").mkdir()
    for name, *renamed, lines in [
        ("same", []),
        ("number", ["a.json: /out/1/f1: 0.5 -> 0.6"]),
        ("line", ['a.json: /out/2: "(missing)" -> "more"']),
        ("renamed", "windows=chunks", []),
    ]:
        assert snapshots.compare(tmp_path / "old", tmp_path / name, *renamed) == len(lines)
        assert capsys.readouterr().out.splitlines()[:-1] == lines
    for name in ("renamed", "empty"):
        assert snapshots.compare(tmp_path / "old", tmp_path / name) == 1
    with pytest.raises(SystemExit, match="nowhere: no such folder"):
        snapshots.compare(tmp_path / "old", tmp_path / "nowhere")


def test_snapshots_leave_out_what_no_two_runs_have_alike():
    values = {"seconds": 1.5, "id": "0123456789abcdef", "documents": 12, "f1": 0.25}
    assert snapshots.scrubbed(values) == {**values, "seconds": "~", "id": "~"}
    assert snapshots.printed('{"id": "a"}\n12 tokens in 0.3 s (9,876 tokens/s); a  b\n') == [
        {"id": "a"},
        "12 tokens in N s (N tokens/s); a  b",
    ]
