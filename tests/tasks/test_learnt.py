"""Sixteen documents are learnt by heart; training, `predict` and `evaluate` agree on them."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from training_runs import train

from ldt import benchmarks
from ldt.inference import evaluate
from ldt.inference.predict import predict
from ldt.model import LdtModel, load, load_tokenizer
from ldt.model.loading import read_config
from ldt.recipe import recipe as recipes


def squad():
    """12 questions with an answer, 4 without."""
    towns = "York Bath Hull Deal Ely Wells Ripon Truro Derby Leeds Poole Luton".split()
    paragraphs = []
    for number in range(16):
        town, letter = towns[number % 12], chr(97 + number)
        context = f"“{town}”\r\nand the {towns[(number + 5) % 12]}."
        answers = [{"text": town, "answer_start": context.index(town)}] if number < 12 else []
        question = {"id": f"q{number}", "question": f"the {letter} of {letter}?"}
        paragraphs.append({"context": context, "qas": [question | {"answers": answers}]})
    return json.dumps({"data": [{"title": "x", "paragraphs": paragraphs}]})


def hotpotqa():
    """Questions that say the kind of their answers, and so which two paragraphs these are from."""
    lines, rng = [], np.random.default_rng(0)
    for number in range(16):
        names = rng.permutation(["ZZ", "QQ", "XX"]).tolist()
        answer, facts = ((names[0], [0, 2]), ("yes", [1, 2]))[number % 2]
        lines.append(
            {
                **{"_id": f"q{number}", "question": ("AAAAA", "BBBBB")[number % 2]},
                "context": [[name, [f"the {name}.", f" party {name}."]] for name in names],
                **{"answer": answer, "supporting_facts": [[names[place], 1] for place in facts]},
            }
        )
    return json.dumps(lines)


def wikihop():
    """Questions whose right candidate is always the same, but never in the same place."""
    lines = []
    for number in range(16):
        one, *more = (chr(97 + n) for n in np.random.default_rng(number).permutation(26)[:4])
        line = {"id": f"q{number}", "query": one, "candidates": [more[0], "Z"], "answer": "Z"}
        lines.append(line | {"supports": [f"{one} Z", f"{more[1]} {more[2]}"]})
    return json.dumps(lines)


def multiple_choice():
    """Questions whose right choice is always the same; of some the label is its text."""
    lines = []
    for number in range(16):
        choices = ["party", "ends", "ZZ", "other"][: 3 + number % 2]
        place = number % 3
        choices[2], choices[place] = choices[place], "ZZ"
        fields = {"question": "x", "context": "the party", "choices": choices}
        lines.append({"id": number, "label": place if number % 4 else "ZZ"} | fields)
    return "\n".join(map(json.dumps, lines))


def token_classification():
    """Documents of several windows with two entities each."""
    documents, rng = [], np.random.default_rng(0)
    for _ in range(16):
        tokens = rng.choice("the party of first part and".split(), 20).tolist()
        tags = ["O"] * 20
        for start, words, label in ((3, ["ZZ", "YY"], "PER"), (11, ["QQ"], "ORG")):
            place = start + int(rng.integers(5))
            tokens[place : place + len(words)] = words
            tags[place : place + len(words)] = [f"B-{label}", f"I-{label}"][: len(words)]
        rows = "".join(f"{word} {tag}\n" for word, tag in zip(tokens, tags, strict=True))
        documents.append(f"-DOCSTART- O\n\n{rows}\n")
    return "".join(documents)


# Of each task: keys of the task and of data, epochs, questions of a step, learning rate, the least
# of a metric, the format of ldt evaluate, and its figure that is this metric.
TASKS = {
    squad: ("", "format: squad", 50, 16, 0.02, ("exact_match", 93), ("squad2", "exact")),
    hotpotqa: (
        *(", weights: {class: 3}", "format: hotpotqa", 22, 4, 0.02),
        *(("joint_f1", 90), ("hotpotqa", "joint_f1")),
    ),
    wikihop: (
        *("", "format: wikihop, max_length: 64", 60, 8, 0.01),
        *(("accuracy", 93), ("wikihop", "accuracy")),
    ),
    multiple_choice: (
        *("", "label: label", 4, 8, 0.01, ("accuracy", 99)),
        ("multiple_choice", "accuracy"),
    ),
    token_classification: (
        *("", "format: conll, max_length: 24, stride: 4", 15, 8, 0.02),
        *(("f1", 97), ("conll", "f1")),
    ),
}


@pytest.fixture
def model(request, tmp_path, tiny_longformer):
    """A tiny model; of wikihop with larger weights, that learns soon where in the input to look."""
    if request.node.callspec.params["task"] is not wikihop:
        return tiny_longformer
    changes = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = load(tiny_longformer, LdtModel, initializer_range=0.3, **changes)
    torch.manual_seed(0)
    for weight in model.parameters():
        if weight.dim() == 2:
            torch.nn.init.normal_(weight, std=0.3)
    model.save_pretrained(tmp_path / "eager")
    load_tokenizer(tiny_longformer, model.config).save_pretrained(tmp_path / "eager")
    return tmp_path / "eager"


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.__name__)
def test_what_is_learnt_by_heart_is_predicted_and_scored_alike(task, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    more, data, epochs, batch, rate, (metric, least), (format, figure) = TASKS[task]
    Path("all").write_text(task(), "utf-8")
    Path("r.yaml").write_text(f"""
task: {{name: {task.__name__}{more}}}
model: {{path: {model}}}
data: {{train: all, eval: all, {data}}}
training:
  output_dir: run
  num_train_epochs: {epochs}
  per_device_train_batch_size: {batch}
  gradient_accumulation_steps: 1
  learning_rate: {rate}
  lr_scheduler_type: {"constant" if task is hotpotqa else "linear"}
  eval_strategy: "no"
  save_strategy: "no"
""")
    metrics = train(recipes.load("r.yaml", command="finetune"))
    assert metrics[f"eval_{metric}"] >= least
    lines = task is multiple_choice
    output = "found.jsonl" if lines else "found.json"
    assert predict("all", model="run", output=output) == 0
    scored = evaluate.evaluate if lines else benchmarks.evaluate
    result = scored("all", output, format=format)
    assert result.metrics[figure] == pytest.approx(metrics[f"eval_{metric}"])
    if task is squad:
        threshold = read_config(Path("run")).no_answer_threshold
        assert threshold == metrics["eval_no_answer_threshold"]
        assert result.metrics["NoAns_exact"] >= 75
