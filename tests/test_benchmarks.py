import json
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def run(script, *arguments):
    command = [sys.executable, BENCHMARKS / script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_gpu_suite_runs_tiny_on_the_cpu_and_writes_its_results(tmp_path):
    done = run("gpu.py", "--dry-run", "--out", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    found = {file.stem: json.loads(file.read_text()) for file in tmp_path.glob("gpu-*.json")}
    sections = ("correctness", "attention", "encoder", "finetune")
    assert set(found) == {f"gpu-{section}" for section in sections}
    rows = found["gpu-correctness"]["correctness"]
    assert {row["backend"] for row in rows} >= {"blocked"}
    assert all(row["ok"] for row in rows)
    assert found["gpu-finetune"]["finetune"]["documents"] == 12


def test_the_gpu_suite_without_a_gpu_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    done = run("gpu.py", "--out", tmp_path)
    assert done.returncode == 1
    assert "no CUDA device here; --dry-run" in done.stderr


def test_the_cpu_comparison_runs_and_measures_time_and_memory(tmp_path):
    file = tmp_path / "result.json"
    sizes = ("--lengths", 64, "--growth", "--passes", "forward", "--layers", 1, "--rounds", 1)
    done = run("encoder_cpu.py", *sizes, "--json", file)
    assert done.returncode == 0, done.stderr
    row = json.loads(file.read_text())["compare"][0]
    assert set(row["seconds"]) == set(row["mib"]) == {"ldt", "longformer", "roberta"}
    assert row["times_faster"]["roberta"] == row["seconds"]["roberta"] / row["seconds"]["ldt"]
