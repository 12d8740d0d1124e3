"""ldt doctor: what it finds, and that it names nobody."""

import json
import os
import socket
import sys
from pathlib import Path

import pytest
import torch
from groups import tree
from typed import typed

from ldt import system
from ldt.cli import doctor
from ldt.cli.doctor import Size

PROCESSOR = {
    "architecture": "x86_64",
    "instructions": ["AVX2", "AVX-512"],
    "bf16 instructions": True,
}
THREADS = {"processors": 8, "usable": 8, "quota": None, "torch": 8, "busy": 0.5}
MEMORY = {
    "total": Size(64 << 30),
    "available": Size(60 << 30),
    "control group": None,
    "ulimit -v": None,
    "huge pages": "madvise",
    "free disk here": Size(100 << 30),
}
GPU = {"torch built for": "CPU", "gpu": None}
HOPPER = GPU | {
    "gpu 0": "NVIDIA H200, 139.8 GiB, sm_90",
    "assembler": "ptxas 12.8.93 of triton 3.7.1",
}
ATTENTION = {"cpu, float32": "blocked: the fast one on cpu"}


def found(part, facts, **changes):
    """The findings of a part whose facts are changed."""
    return [": ".join(each) for each in doctor.slow({part: facts | changes})]


def test_of_a_good_machine_nothing_is_said():
    good = {"processor": PROCESSOR, "threads": THREADS, "memory": MEMORY}
    assert list(doctor.slow(good | {"gpu": GPU, "attention": ATTENTION})) == []


@pytest.mark.parametrize(
    ("part", "facts", "changes", "words"),
    [
        ("processor", PROCESSOR, {"instructions": ["AVX2"]}, "no AVX-512"),
        ("processor", PROCESSOR, {"bf16 instructions": False}, "training.bf16=auto takes fp32"),
        (
            "threads",
            THREADS,
            {"quota": 1.5},
            "8 threads on 1.5 of 8 processors (a quota of 1.5): OMP_NUM_THREADS=2",
        ),
        ("threads", THREADS, {"usable": 4}, "(4 usable): OMP_NUM_THREADS=4"),
        ("threads", THREADS, {"torch": 16}, "16 threads on 8"),
        ("threads", THREADS, {"torch": 1, "OMP_NUM_THREADS": "1"}, "1 thread on 8 of 8 processors"),
        ("threads", THREADS, {"busy": 6.0}, "are a load of 6 on 8 processors"),
        ("memory", MEMORY, {"available": Size(1 << 30)}, "1.0 GiB of memory available"),
        ("memory", MEMORY, {"control group": Size(2 << 30)}, "allows 2.0 GiB of 64.0 GiB"),
        ("memory", MEMORY, {"ulimit -v": Size(8 << 30)}, "ulimit -v allows 8.0 GiB"),
        ("memory", MEMORY, {"huge pages": "never"}, "huge pages are off"),
        ("memory", MEMORY, {"free disk here": Size(1 << 30)}, "1.0 GiB of free disk here"),
        ("gpu", GPU, {"driver": "550.54"}, "built for CPU, sees no GPU"),
        ("gpu", HOPPER, {}, "ptxas 12.8.93 of triton 3.7.1 makes wrong code of float32 products"),
        ("attention", {"cuda": "blocked: the package triton is not installed"}, {}, "pip install"),
        ("gpu", {"failed": "ImportError: no libcudart"}, {}, "gpu could not be looked at (Import"),
    ],
)
def test_what_is_slow_is_named_with_what_would_do(part, facts, changes, words):
    (said,) = found(part, facts, **changes)
    assert words in said


@pytest.fixture
def quick(monkeypatch):
    """The report with small matrices."""
    monkeypatch.setattr(doctor, "MEASURED", 0.01)
    monkeypatch.setattr(doctor, "SIDE", 64)
    monkeypatch.setattr(doctor, "TOKENS", 64)


PRINTS = "#!/bin/sh\necho 'Cuda compilation tools, release 12.8, V12.8.93'\n"


@pytest.mark.parametrize(
    ("tool", "assembler"),
    [
        (PRINTS, "ptxas 12.8.93 of triton 3.7.1"),
        ("#!/bin/sh\nexit 1\n", None),
        ("no program", None),
        (None, None),
    ],
)
def test_the_assembler_of_triton_is_named_without_importing_it(
    tool, assembler, monkeypatch, tmp_path
):
    monkeypatch.delenv("TRITON_PTXAS_PATH", raising=False)
    (tmp_path / "triton/backends/nvidia/bin").mkdir(parents=True)
    (tmp_path / "triton/__init__.py").write_text("raise ImportError('not to be imported')")
    (tmp_path / "triton-3.7.1.dist-info").mkdir()
    (tmp_path / "triton-3.7.1.dist-info/METADATA").write_text("Name: triton\nVersion: 3.7.1\n")
    place = tmp_path / "triton/backends/nvidia/bin/ptxas"
    if tool is not None:
        place.write_text(tool)
        place.chmod(0o755)
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    assert doctor.gpu().get("assembler") == assembler
    other = tmp_path / "another"
    other.write_text(PRINTS.replace("8.93", "9.86"))
    other.chmod(0o755)
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(other))
    assert doctor.gpu()["assembler"] == "ptxas 12.9.86 of triton 3.7.1"


def test_a_quota_is_reported(quick, monkeypatch, tmp_path):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(system, "ROOT", tree(tmp_path, "0::/", {"cpu.max": "50000 100000"}))
    lines = list(doctor.examine().lines())
    assert any(line.split() == ["quota", "0.5"] for line in lines)
    assert any(line.split() == ["limited", "by", "OMP_NUM_THREADS"] for line in lines)
    slow = " ".join(lines[lines.index("slow or missing here:") :])
    assert "2 threads on 0.5 of" in slow
    assert "OMP_NUM_THREADS=1" in slow
    assert any(line.endswith(" TFLOP/s") for line in lines)
    assert any("tokens a second" in line for line in lines)


def test_torch_takes_the_threads_of_the_commands(monkeypatch):
    taken = []
    monkeypatch.setattr(torch, "set_num_threads", taken.append)
    monkeypatch.setenv("LDT_THREADS", "3")
    assert doctor.threads()["limited by"] == "LDT_THREADS"
    assert doctor.threads()["LDT_THREADS"] == "3"
    assert taken == [3, 3]


def test_the_report_has_no_secret_and_no_name_of_a_user(quick, monkeypatch, capsys):
    home = str(Path.home())
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("HTTPS_PROXY", "http://me:secret@proxy")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    code, text, _ = typed(capsys, "doctor")
    assert code == 0
    assert "secret" not in text
    assert home not in text
    assert socket.gethostname() not in text
    words = {tuple(line.split()) for line in text.splitlines()}
    assert {("token", "set"), ("proxy", "set"), ("OMP_NUM_THREADS", "3")} <= words


def test_json_has_the_same_parts_with_bytes_as_numbers(quick, capsys):
    report = json.loads(typed(capsys, "doctor", "--json")[1])
    assert isinstance(report["memory"]["total"], int)
    assert report["threads"]["processors"] == os.cpu_count()
    assert {"what", "remedy"} == set(report["slow"][0])


def test_a_part_that_fails_is_a_line_and_the_others_go_on(quick, monkeypatch):
    def broken():
        raise ImportError("no libcudart in " + str(Path.home()))

    monkeypatch.setattr(doctor, "speed", broken)
    report = doctor.examine()
    assert report.parts["broken"] == {"failed": "ImportError: no libcudart in ~"}
    assert "python" in report.parts["versions"]
    assert report.slow[-1].what.startswith("broken could not be looked at")
