import gzip
import importlib.util
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from ldt.metrics.classification import class_table

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def run(script, *arguments):
    command = [sys.executable, BENCHMARKS / script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_gpu_suite_runs_tiny_on_the_cpu_and_writes_its_results(tmp_path):
    done = run("gpu.py", "--dry-run", "--out", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "DRY RUN, figures mean nothing" in done.stdout
    rows = json.loads((tmp_path / "gpu-none.json").read_text())["rows"]
    assert {row["step"] for row in rows} == {
        *("facts", "right", "compile", "launch", "kernels", "sweep", "chosen", "encoder"),
        *("tests", "finetune", "others", "reach"),
    }
    checked = [row for row in rows if "operation" in row]
    assert {row["backend"] for row in checked} >= {"triton", "blocked"}
    assert {row["operation"] for row in checked} >= {"band", "pooled-ldconv", "pooled-max", "far"}
    assert all(row["ok"] for row in checked)
    assert {row["kernel"] for row in rows if row["step"] == "chosen" and row.get("ok")} == {
        *("forward", "dq", "dkv")
    }
    of = lambda step: {row["what"] for row in rows if row["step"] == step and "what" in row}  # noqa: E731
    assert of("encoder") >= {"ldt", "roberta", "ldt, autocast, dropout, AdamW"}
    assert of("kernels") >= {"band", "second level, ldconv", "gelu", "sdpa"}
    assert any("skipped" in row.get("summary", "") for row in rows)


@pytest.mark.slow
def test_the_gpu_suite_without_a_gpu_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    done = run("gpu.py", "--out", tmp_path)
    assert done.returncode == 1
    assert "no CUDA device here; --dry-run" in done.stderr


def load(name, monkeypatch):
    """A script as a module."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


def test_macro_f1_of_yes_and_no_follows_from_the_row_of_yes(monkeypatch):
    module, random = load("cuad", monkeypatch), np.random.default_rng(0)
    for share in (0.0, 0.3, 1.0):
        gold, found = random.random((83, 1)) < 0.4, random.random((83, 1)) < share
        row = {name: float(values[0]) for name, values in class_table(gold, found).items()}
        expected = (row["f1"] + class_table(~gold, ~found)["f1"][0]) / 2
        assert module.yes_and_no(row, 83) == pytest.approx(expected)


def test_questions_are_trained_once_at_both_lengths_and_other_rows_stay(tmp_path, monkeypatch):
    module, commands = load("questions", monkeypatch), []

    def ldt(folder, command, *arguments):
        commands.append((command, *map(str, arguments)))
        if command == "convert":
            (folder / arguments[1]).mkdir()
            (folder / arguments[1] / "config.json").touch()
            return
        said = dict(argument.split("=") for argument in map(str, arguments[1:]))
        f1 = float(said.get("data.max_length", 0)) / 100 + float(said.get("training.seed", 0))
        found = {"metrics": {"eval_f1": f1}, "data": {"eval": {"documents": 7}}, "epochs": 3.0}
        found |= {"seconds": 1.0, "versions": {"device": "cpu"}}
        run = folder / said["training.output_dir"]
        run.mkdir(parents=True)
        (run / "metrics.json").write_text(json.dumps(found))

    monkeypatch.setattr(module.commands, "ldt", ldt)
    monkeypatch.setattr(module, "passages", lambda folder: commands.append(("passages",)))
    file = tmp_path / "questions.json"
    file.write_text(json.dumps({"nq_triviaqa": {}}))
    arguments = [str(tmp_path), "--only", "cuad_qa", "--seeds", "2", "--json", str(file)]
    module.main(arguments)
    found = json.loads(file.read_text())
    assert set(found) == {"nq_triviaqa", "cuad_qa"}
    assert {length: row["seeds"] for length, row in found["cuad_qa"].items()} == {
        "512": [5.12, 6.12],
        "4096": [40.96, 41.96],
    }
    assert [command[0] for command in commands] == ["convert", "passages", *["finetune"] * 5]
    strides = [argument for command in commands for argument in command if "stride" in argument]
    assert strides == [f"data.stride={overlap}" for overlap in (32, 32, 256, 256)]
    module.main(arguments)
    assert len(commands) == 7


def test_single_passages_come_first_and_none_of_the_questions_to_come(tmp_path, monkeypatch):
    module, commands = load("questions", monkeypatch), []
    monkeypatch.setattr(module.commands, "ldt", lambda folder, *said: commands.append(said[0]))
    for folder in ("nq/qa", "nq_open", "nq_wikihop_format"):
        (tmp_path / "data" / folder).mkdir(parents=True)
    for part in ("train", "dev"):
        text = json.dumps({"Data": [{"Question": f"who {part}s?"}]})
        (tmp_path / f"data/nq/qa/wikipedia-{part}.json").write_text(text)
        with gzip.open(tmp_path / f"data/nq_wikihop_format/{part}.json.gz", "wt") as file:
            json.dump([{"query": f"what {part}s?"}], file)
    contexts = [{"text": "another", "isgold": False}, {"text": "the one", "isgold": True}]
    with gzip.open(tmp_path / "data/nq_open/some.jsonl.gz", "wt") as file:
        for question in ("who devs?", "who trains?", "what devs?", "what trains?", "who else?"):
            row = {"question": question, "answers": ["one"], "ctxs": contexts}
            file.write(json.dumps(row) + "\n")
    module.make(tmp_path, "./runs/nq_open")
    assert commands == ["convert", "finetune"]
    (line,) = (tmp_path / "data/nq_open.jsonl").read_text().splitlines()
    assert json.loads(line) == {"question": "who else?", "answers": ["one"], "context": "the one"}


@pytest.mark.slow
def test_the_cpu_comparison_measures_time_and_memory_and_keeps_other_cases(tmp_path, monkeypatch):
    module = load("encoder_cpu", monkeypatch)
    cases = {
        "small": module.Case("forward", 64, 1, (2.0, 1.0), (1.0, 0.5)),
        "mixed": module.Case("training", 64, 1, lengths=(64, 9)),
        "modern": module.Case("forward", 64, 1, (1.0,), (1.5,), **module.WINDOWS),
    }
    monkeypatch.setattr(module, "CASES", cases)
    monkeypatch.setattr(module, "GROWTH", (64, 128))
    monkeypatch.setattr(module, "COMPILED", (64,))
    monkeypatch.setattr(module, "SHAPE", {"heads": 1, "vocabulary": 100})
    # A process would not know of these settings, and takes a while to begin.
    monkeypatch.setattr(module, "ProcessPoolExecutor", lambda size, how: ThreadPoolExecutor(size))
    file = tmp_path / "result.json"
    for only in (["small", "growth"], ["mixed", "compiled"], ["modern"]):
        options = ["--only", *only, "--rounds", "1", "--json", str(file)]
        monkeypatch.setattr(sys, "argv", ["encoder_cpu.py", *options])
        module.main()
    found = json.loads(file.read_text())
    row = found["cases"]["small"]
    assert set(row["seconds"]) == set(row["mib"]) == {"ldt", "longformer", "roberta", "modernbert"}
    assert row["times_faster"]["roberta"] == row["seconds"]["roberta"] / row["seconds"]["ldt"]
    assert found["cases"]["mixed"]["tokens"] == [64, 9]
    row = found["cases"]["modern"]
    assert set(row["seconds"]) == set(row["mib"]) == {"ldt-modernbert-windows", "modernbert"}
    assert [row["tokens"] for row in found["growth"]] == [64, 128]
    (row,) = found["compiled"]
    for kind in ("forward", "training"):
        seconds = row[kind]
        assert seconds["compiled_to_eager"] == seconds["compiled"] / seconds["eager"] > 0
