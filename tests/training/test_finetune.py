import gc
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from training_runs import documents, rows, train, weights

from ldt.errors import (
    EXIT_RECIPE,
    EXIT_RESOURCES,
    DataError,
    RecipeError,
    ResourceError,
    UserError,
)
from ldt.io import files
from ldt.io.records import Example, read
from ldt.model import LdtForSequenceClassification, load, load_tokenizer
from ldt.recipe import recipe as recipes
from ldt.training.arguments import settings
from ldt.training.finetune import Finetuning


def test_a_run_folder_describes_itself(recipe, capsys):
    metrics = train(recipe(), keep_checkpoints=True)
    run = Path("runs/r")
    out, err = capsys.readouterr()
    assert "macro_f1" in out
    assert "support" in out
    assert "train: 12 documents: " in err
    assert "train labels: a 6, b 6" in err
    assert "'doc-0', global tokens in stars:\n  *<s>*|" in err
    assert "step 8/8  epoch 2.00  lr " in err
    results = json.loads((run / "metrics.json").read_text())
    assert results["metrics"] == metrics
    assert metrics.keys() == {
        "eval_loss",
        "eval_accuracy",
        "eval_macro_f1",
        "eval_micro_f1",
        "train_loss",
    }
    assert results["steps"] == 8
    assert [row["class"] for row in results["table"]] == ["a", "b"]
    assert results["data"]["train"]["sha256"] == files.digest(Path("train.jsonl"))
    model = load(run, LdtForSequenceClassification)
    assert model.config.id2label == {0: "a", 1: "b"}
    best = run / f"checkpoint-{results['step_of_weights']}" / "model.safetensors"
    assert best.read_bytes() == (run / "model.safetensors").read_bytes()
    assert load_tokenizer(run, model.config).model_max_length == 128
    card = (run / "README.md").read_text()
    assert f"| macro_f1 | {metrics['eval_macro_f1']:.4g} |" in card
    assert results["data"]["eval"]["sha256"] in card
    assert os.readlink("runs/latest") == "r"
    assert {path.name for path in run.iterdir() if path.is_file()} == {
        "README.md",
        "config.json",
        "metrics.json",
        "metrics.jsonl",
        "model.safetensors",
        "recipe.yaml",
        "run.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }


def test_each_figure_has_its_baseline_beside_it(recipe, capsys):
    train(recipe("training.max_steps=1", "training.learning_rate=0.0"))
    out, err = capsys.readouterr()
    results = json.loads(Path("runs/r/metrics.json").read_text())
    baseline = results["baseline"]
    assert baseline["accuracy"] == {"answer": "always 'a'", "value": pytest.approx(400 / 7)}
    assert baseline.keys() == {"accuracy", "macro_f1", "micro_f1"}
    found, trivial = results["metrics"]["eval_macro_f1"], baseline["macro_f1"]["value"]
    assert f"macro_f1  {found:.2f} (always 'a': {trivial:.2f})" in out.splitlines()
    assert (
        f"| macro_f1 | {found:.2f} | {trivial:.2f} (always 'a') |"
        in Path("runs/r/README.md").read_text()
    )
    assert "nothing will tell" not in err


def test_a_model_that_is_no_better_than_the_most_frequent_class_is_warned_of(recipe, place, capsys):
    rows = [{"text": "the party", "label": "cap" if n % 7 == 0 else "no cap"} for n in range(14)]
    Path("train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("dev.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    metrics = train(recipe("training.num_train_epochs=1"))
    assert metrics["eval_accuracy"] == 1200 / 14
    err = capsys.readouterr().err
    assert "warning: no better than always 'no cap': macro_f1 46.15\n" in err
    card = Path("runs/r/README.md").read_text()
    assert "**The model is no better than always 'no cap': macro_f1 46.15.**" in card


@pytest.mark.parametrize("kept", [1, 2])  # one document; several of one class, or of none
@pytest.mark.parametrize("label", ["classes", "several", "number"])
def test_what_a_tiny_evaluation_set_leaves_undefined_is_null(recipe, label, kept):
    documents("train.jsonl", 12, 0, label)
    documents("dev.jsonl", 4, 1, label)
    lines = Path("dev.jsonl").read_text().splitlines()[1::2]  # of the kind b
    Path("dev.jsonl").write_text("\n".join(lines[:kept]) + "\n")
    problem = "regression" if label == "number" else "null"
    train(recipe("training.max_steps=1", f"task.problem={problem}"))
    results = json.loads(Path("runs/r/metrics.json").read_text())
    assert np.isfinite(list(results["metrics"].values())).all()
    rows = {row["class"]: (row["recall"], row["support"]) for row in results["table"]}
    missing = {"classes": ["a"], "several": ["a", "x"], "number": []}[label]
    assert {name for name, row in rows.items() if row == (None, 0)} == set(missing)
    assert "NaN" not in Path("runs/r/metrics.jsonl").read_text()


@pytest.mark.parametrize("dry_run", [True, False])
def test_without_an_evaluation_set_that_is_said_before_the_first_step(recipe, capsys, dry_run):
    train(recipe("data.eval=null", "training.max_steps=1"), dry_run=dry_run)
    before, _, _ = capsys.readouterr().err.partition("step 1/1")
    line = "no data.eval and no data.eval_fraction: nothing will tell how well it works\n"
    assert before.count(line) == 1


def test_several_labels_are_scored_by_exact_match_and_accuracy_names_it(recipe, place):
    documents("train.jsonl", 12, 0, label="several")
    documents("dev.jsonl", 7, 1, label="several")
    metrics = train(recipe("training.max_steps=1", "training.metric_for_best_model=exact_match"))
    assert "eval_exact_match" in metrics
    assert "eval_accuracy" not in metrics
    with pytest.raises(RecipeError, match="no metric 'accuracy', there are exact_match, loss"):
        train(recipe("training.metric_for_best_model=accuracy", "training.output_dir=runs/two"))


def test_evaluation_merges_the_windows_of_each_document(recipe):
    train(recipe("data.max_length=16", "training.max_steps=2", "data.stride=4"))
    results = json.loads(Path("runs/r/metrics.json").read_text())
    evaluated = results["data"]["eval"]
    assert evaluated["documents"] == 7
    assert evaluated["inputs"] > 7
    assert evaluated["windowed"] > 0
    assert sum(row["support"] for row in results["table"]) == 7


@pytest.mark.parametrize(
    ("label", "problem", "metric"),
    [
        ("several", "multi_label_classification", "macro_f1"),
        ("number", "regression", "mse"),
    ],
)
def test_all_kinds_of_labels_are_learnt(recipe, label, problem, metric):
    documents("train.jsonl", 12, 0, label)
    documents("dev.jsonl", 7, 1, label)
    kind = problem.removesuffix("_classification")  # two numbers can be classes as well
    metrics = train(recipe("training.max_steps=4", f"task.problem={kind}"))
    results = json.loads(Path("runs/r/metrics.json").read_text())
    assert (results["problem"], results["metric"]) == (problem, metric)
    seen = [row[f"eval_{metric}"] for row in rows("runs/r") if f"eval_{metric}" in row]
    better = min if problem == "regression" else max
    assert metrics[f"eval_{metric}"] == better(seen)


ANSWERED = """
task: {{name: {task}}}
model: {{path: {model}}}
data: {{train: asked.jsonl}}
training: {{max_steps: 1, save_strategy: 'no'}}
"""


@pytest.mark.parametrize("task", ["squad", "triviaqa"])
def test_answers_that_cannot_be_given_are_told_before_the_first_step(
    task, place, tiny_longformer, capsys
):
    words = "the party of first part and other agree that this agreement ends " * 4
    rows = [
        {"id": n, "question": "?", "context": f"{n} {words[: 9 + 170 * (n % 2)]}"} for n in range(4)
    ]
    for row in rows:
        row["answers"] = [row["context"][2:].strip()]
    Path("asked.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    Path("asked.yaml").write_text(ANSWERED.format(task=task, model=tiny_longformer))

    def told(*overrides):
        capsys.readouterr()
        train(recipes.load("asked.yaml", overrides, command="finetune"), dry_run=True)
        return " ".join(capsys.readouterr().err.split())

    assert "train: of 4 questions with an answer 2 have an answer of more tokens than" in told()
    assert "task.max_answer" not in told("task.max_answer=200")
    if task == "squad":  # triviaqa leaves such documents out, and says so
        assert "2 have an answer that no input holds whole" in told("data.max_length=16")
        Path("asked.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows[1::2]))
        with pytest.raises(DataError, match="inputs has an answer: all of 2 are longer than what"):
            told("data.max_length=16")


def test_what_is_decided_about_labels_and_split_stands_first(recipe, capsys):
    train(recipe("data.eval=null", "data.eval_fraction=0.34"), dry_run=True)
    said = " ".join(capsys.readouterr().err.split())
    assert (
        "labels: one class a document, 2 classes sorted as text (task.labels names them in order; "
        "data.label_separator parts a cell, task.problem=regression reads numbers) 8 documents to "
        "train on and 4 to evaluate on, data.eval_fraction=0.34 drawn by training.seed=42 "
        "(data.eval names others)" in said
    )
    assert said.index("labels: one class") < said.index("tokens in the median")
    documents("train.jsonl", 12, 0, "number")
    train(recipe("data.eval=null", "task.problem=regression"), dry_run=True)
    assert "labels: a number a document (task.problem=single_label reads" in capsys.readouterr().err


def test_without_an_evaluation_set_the_last_weights_are_kept(recipe):
    metrics = train(recipe("data.eval=null", "training.max_steps=3"), keep_checkpoints=True)
    assert metrics.keys() == {"train_loss"}
    last = load_file("runs/r/checkpoint-3/model.safetensors")
    assert all(torch.equal(last[name], value) for name, value in weights().items())
    assert "There was no evaluation set." in Path("runs/r/README.md").read_text()


@pytest.mark.parametrize("kind", ["files", "split"])
def test_no_document_stays_in_memory(recipe, kind):
    split = ["data.eval=null", "data.eval_fraction=0.34"] if kind == "split" else []
    job = Finetuning(recipe(*split))
    inputs = job.open(settings(job.recipe), None)
    gc.collect()
    before = sum(isinstance(value, Example) for value in gc.get_objects())
    prepared = job.prepare(inputs, None)
    gc.collect()
    assert sum(isinstance(value, Example) for value in gc.get_objects()) == before
    names = list(prepared.names)
    assert names == [each.id for each in read("train.jsonl") if each.id in names]
    assert len(names) == (8 if kind == "split" else 12)
    assert len(prepared.measure.examples) == (4 if kind == "split" else 7)


def test_a_position_table_that_is_too_short_names_the_command_that_helps(recipe, tiny_longformer):
    with pytest.raises(RecipeError) as raised:
        train(recipe("data.max_length=512"))
    assert raised.value.exit_code == EXIT_RECIPE
    path = tiny_longformer
    assert f"ldt convert {path} {path}-512 --max-length 512" in str(raised.value)
    assert str(raised.value).startswith("data.max_length=512: ")


def test_values_that_transformers_refuses_are_errors_of_the_recipe(recipe):
    with pytest.raises(RecipeError, match="training: .*save and eval strategy to match"):
        train(recipe("training.eval_strategy=epoch", "training.load_best_model_at_end=true"))


def test_a_dry_run_shows_everything_and_writes_nothing(recipe, capsys):
    made = recipe()
    before = sorted(Path().rglob("*"))
    assert train(made, dry_run=True) == {}
    err = capsys.readouterr().err
    assert "12 documents" in err
    assert "nothing is trained and nothing written" in err
    assert sorted(Path().rglob("*")) == before
    Path("file").touch()
    with pytest.raises(UserError, match="is a file or lies in one"):
        train(recipe("training.output_dir=file/run"), dry_run=True)


def test_too_small_a_disk_is_told_before_the_start(recipe, monkeypatch):
    usage = type("Usage", (), {"free": 100_000})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    with pytest.raises(ResourceError, match="needed for 4 checkpoints and the model") as raised:
        train(recipe())
    assert raised.value.exit_code == EXIT_RESOURCES
    assert not Path("runs/r").exists()


def test_a_run_has_its_metric_by_length(recipe):
    documents("dev.jsonl", 7, 1)
    text = [json.loads(line) for line in Path("dev.jsonl").read_text().splitlines()]
    for number, row in enumerate(text):
        row["text"] = " ".join([row["text"]] * (100 if number % 2 else 1))
    Path("dev.jsonl").write_text("".join(json.dumps(row) + "\n" for row in text))
    metrics = train(recipe("training.max_steps=2"))
    results = json.loads(Path("runs/r/metrics.json").read_text())
    rows = results["by_length"]
    assert len(rows) > 1
    assert sum(row["documents"] for row in rows) == 7
    right = sum(row["documents"] * row["metrics"]["accuracy"] for row in rows) / 7
    assert right == pytest.approx(metrics["eval_accuracy"])
