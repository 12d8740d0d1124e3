"""Tiny runs of any task, and the answers of ``ldt predict`` for records, to serve and compare."""

import json

import torch
from recipe_data import LINES

from ldt.data.tokenization import add_tokens
from ldt.inference.predict import predict
from ldt.io.records import Example
from ldt.model import load, load_tokenizer
from ldt.model.loading import draw_embeddings
from ldt.recipe import recipe
from ldt.recipe.recipe import DataSection
from ldt.tasks import TASKS

LONG = "the party of the first part and the other party agree that this agreement ends. " * 60


def make_run(source, folder, name, task="", **data):
    """A run of a task with random weights, whose answers differ for different texts.

    Args:
        source: folder of a tiny encoder or, for a task that writes, of a LED.
        task: further keys of the task, as YAML.
        data: keys of the data section.
    """
    keys = {"train": "train.jsonl", "max_length": 64, "stride": 8} | data
    usual = TASKS[name].inputs.overflows[0]
    if usual != "chunks":
        keys.pop("stride")
        keys["overflow"] = usual
    section = ", ".join(f"{key}: {json.dumps(value)}" for key, value in keys.items())
    more = f", {task}" if task else ""
    folder.mkdir(exist_ok=True)
    (folder / "recipe.yaml").write_text(
        f"task: {{name: {name}{more}}}\nmodel: {{path: somewhere}}\ndata: {{{section}}}\n"
    )
    examples = [Example(LINES[name](n), n, f"train.jsonl:{n}") for n in range(1, 13)]
    made = recipe.load(folder / "recipe.yaml", search=False).task
    learnt = made.learn(examples, DataSection())
    torch.manual_seed(0)
    model = load(source, made.head(), **learnt)
    tokenizer = load_tokenizer(source, model.config)
    draw_embeddings(model, add_tokens(tokenizer, TASKS[name].inputs.markers))
    for weight in model.parameters():
        if weight.dim() == 2:
            torch.nn.init.normal_(weight, std=0.7)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def predicted(folder, records, tmp_path, **options):
    """The answers of ``ldt predict`` for a file of records."""
    source, target = tmp_path / "docs.jsonl", tmp_path / "answers.jsonl"
    source.write_text("".join(json.dumps(record) + "\n" for record in records))
    predict(str(source), model=str(folder), output=str(target), overwrite=True, **options)
    return [json.loads(line) for line in target.read_text().splitlines()]


def assert_same(found, expected):
    """Answers are the same: numbers within 2e-5, all else exactly."""
    assert type(found) is type(expected), (found, expected)
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        found, expected = list(found.values()), list(expected.values())
    if isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, float):
        assert abs(found - expected) <= 2e-5, (found, expected)
    else:
        assert found == expected
