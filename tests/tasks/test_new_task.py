"""The task in CONTRIBUTING is one file, one row and one recipe, and every command knows it."""

import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from served import assert_same
from serving import running
from typed import typed, write_lines

from ldt import tasks
from ldt.serve.model import Served

PAGE = Path(__file__).parents[2] / "docs" / "CONTRIBUTING.md"
KINDS = ("python", "yaml")


@pytest.fixture
def agreement(monkeypatch, tmp_path):
    """24 records in the current folder; the task of the example has its row."""
    blocks = re.findall(r"```(python|yaml)\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    (source,), (recipe,) = ([text for name, text in blocks if name == kind] for kind in KINDS)
    module = ModuleType("ldt.tasks.agreement")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(source, vars(module))
    (tmp_path / "agreement.yaml").write_text(recipe)
    monkeypatch.setitem(tasks.TASKS.data, "agreement", "agreement:Agreement")
    monkeypatch.chdir(tmp_path)
    verdicts = ("yes", "no", "open")
    records = [
        {
            "id": n,
            "text": f"party {n} agrees. " * 9,
            "statement": "it is",
            "verdict": verdicts[n % 3],
        }
        for n in range(24)
    ]
    write_lines(tmp_path / "all.jsonl", records)
    return records


@pytest.mark.slow
def test_every_command_knows_a_task_of_one_file_one_row_and_one_recipe(
    agreement, capsys, tiny_longformer
):
    def ldt(*words):
        code, out, err = typed(capsys, *map(str, words))
        assert code == 0, err
        return out + err

    recipe = "agreement.yaml"
    small = [f"model.path={tiny_longformer}", "data.max_length=32", "data.train=all.jsonl"]
    ldt("init", "all.jsonl", "--yes", "--model", tiny_longformer, "--output", "drafted.yaml")
    assert "name: agreement" in Path("drafted.yaml").read_text("utf-8")
    assert "24" in ldt("check", recipe, *small)
    ldt("finetune", recipe, *small, "training.output_dir=run", "training.max_steps=2")
    ldt("predict", "all.jsonl", "--model", "run", "--output", "answers.jsonl")
    answers = [json.loads(line) for line in Path("answers.jsonl").read_text("utf-8").splitlines()]
    assert {answer["verdict"] for answer in answers} <= {"yes", "no", "open"}
    assert len(answers) == 24
    right = sum(a["verdict"] == r["verdict"] for a, r in zip(answers, agreement, strict=True))
    figures = ldt("evaluate", "run", "--gold", "all.jsonl").splitlines()
    assert any(line.split()[:2] == ["accuracy", f"{100 * right / 24:.2f}"] for line in figures)
    ldt("report", "run", "--gold", "all.jsonl", "--output", "page.html")
    assert "agreement" in Path("page.html").read_text("utf-8")
    with running(Served("run")) as server:
        assert_same(server.ask("/answer", {"documents": agreement})[1], answers)
    ldt("export", "run", "exported", "--format", "torch")
    ldt(
        "predict",
        "all.jsonl",
        "--model",
        "exported",
        "--runtime",
        "pt2",
        "--output",
        "again.jsonl",
    )
    again = [json.loads(line) for line in Path("again.jsonl").read_text("utf-8").splitlines()]
    assert_same(again, answers)
