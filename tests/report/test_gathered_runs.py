"""Documents of what a run of every task answers, read as its recipe reads them."""

import json

import pytest
from recipe_data import LINES
from training_runs import train

from ldt.inference.predict import predict
from ldt.recipe import load
from ldt.report.documents import gather
from ldt.tasks import TASKS
from ldt.tasks.explained import ByLogits
from ldt.tasks.writing import WritingTask

RECIPES = {name: name for name, task in TASKS.items() if task.reads.kind == "examples"} | {
    "evidence_classification": "contractnli",
    "passage_qa": "tydiqa",
    "qasper_generation": "led_qasper",
    "summarization": "bart_summarization",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_answers_of_a_run_are_documents_with_the_figures_of_its_evaluation(
    name, tiny_longformer, tiny_led, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    lines = [json.dumps({"id": f"d{n}"} | LINES[name](n)) + "\n" for n in range(12)]
    (tmp_path / "data.jsonl").write_text("".join(lines), encoding="utf-8")
    keys = {
        "model.path": tiny_led if issubclass(TASKS[name], WritingTask) else tiny_longformer,
        **dict.fromkeys(("data.train", "data.eval"), tmp_path / "data.jsonl"),
        **{"data.format": "jsonl", "data.max_length": 64, "training.output_dir": "run"},
        **{"training.max_steps": 1, "data.eval_fraction": "null"},
    }
    more = {"task.max_target_tokens": 32, "task.generation": "{max_length: 6}"}
    more |= {"data.text": "text", "data.fields": "{}", "data.overflow": "truncate"}
    if name == "qasper_generation":
        keys |= {"task.generation": "{max_length: 6}", "model.window": 8}
    else:
        keys |= more if name == "summarization" else {"data.stride": 8}
    overrides = [f"{key}={value}" for key, value in keys.items()]
    trained = train(load(RECIPES[name], overrides, command="finetune"))
    task = TASKS[name]
    passages = 2 if issubclass(task, ByLogits) else 0
    assert predict("data.jsonl", model="run", output="answers.jsonl", passages=passages) == 0

    result, documents = gather("answers.jsonl", gold="data.jsonl", recipe="run")
    same = {key: trained[f"eval_{key}"] for key in result.metrics if f"eval_{key}" in trained}
    assert same
    assert {key: result.metrics[key] for key in same} == pytest.approx(same, abs=0.005)
    assert [each.id for each in documents] == [f"d{n}" for n in range(12)]
    for each in documents:
        assert each.text.strip()
        assert each.words > 2
        assert each.gold
        assert each.answer
        assert each.scores
        assert all(0 <= m.start < m.end <= len(each.text) for m in each.marks)
    assert {m.kind for each in documents for m in each.marks} >= (
        {"passage"} if passages else set()
    )
    _, unscored = gather("answers.jsonl", documents="data.jsonl", recipe="run")
    for each, other in zip(documents, unscored, strict=True):
        assert (each.text, each.answer, each.asks) == (other.text, other.answer, other.asks)
        assert [m for m in each.marks if m.kind != "gold"] == other.marks
        assert other.gold is other.right is None
