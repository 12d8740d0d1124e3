"""The JSON Schema of recipes and the loader say the same, as far as a schema can say it."""

import functools
import json

import jsonschema
import pytest
from processes import ldt
from pydantic import BaseModel

from ldt.benchmarks.formats import FORMATS
from ldt.data.options import OPTIONS
from ldt.errors import RecipeError, UserError
from ldt.recipe import load, shipped, yaml
from ldt.recipe.recipe import COMMANDS
from ldt.recipe.schema import schema
from ldt.recipe.sections import MODELS, meanings, training_meanings, training_section
from ldt.tasks import TASKS

GOOD = {
    "task": {"name": "classification"},
    "model": {"path": "some/model"},
    "data": {"train": "d.jsonl"},
    "training": {"learning_rate": 1e-5},
}
WIKIHOP, MLM = {"task.name": "wikihop"}, {"task.name": "mlm", "model.path": "m"}
NEW = {"task.name": "mlm", "model.path": ..., "model.tokenizer.vocab_size": 300}
CHARLM = {"task.name": "charlm", "model.config.hidden_size": 8}
# What a recipe says otherwise than `GOOD`, by dotted keys; ... takes a key out.
RIGHT = [
    {},
    {"training": ...},
    {"training": None},
    {"task.name": "charlm", "model": None},
    {"training.learning_rate": 1},
    {"training.bf16": "auto", "training.lora.r": 4, "training.eval_strategy": "epoch"},
    {"data.label": ["a", "b"], "data.stride": 16, "model.window": [16, 32]},
    {"data.format": "squad", "task.name": "squad", "data.fields.question": "query"},
    {"model.window": 16, "model.attention": "blocked", "task.global_attention": ["cls"]},
    MLM | {"data.train": ["a.txt", "b/*.txt"], "data.tokens_per_step": 512},
    CHARLM | {"model.path": ..., "task.phases": [{"steps": 1}]},
    NEW | {"model.config.model_type": "modernbert", "model.config.local_attention": 8},
    NEW | {"model.config.model_type": "ldt", "model.config.hidden_act": "gelu"},
]
WRONG = [
    {"task.name": ...},
    {"task.name": "sorting"},
    {"task.merge": "median"},
    {"task.threshold": 2},
    {"task.labels": ["a", "a"]},
    {"task.labels": []},
    {"task.global_attention": ["title"]},
    {"task.max_spans": 3},
    WIKIHOP | {"task.threshold": 0.5},
    {"model.path": ...},
    {"model": None},
    {"data.train": None},
    {"model.pth": "m"},
    {"model.path": " "},
    {"model.path": 7},
    {"model.window": 255},
    {"model.window": [256, "wide"]},
    {"model.attention": "fast"},
    {"model.config": {}},
    {"data.train": ...},
    {"data.train": []},
    {"data.max_length": "4096"},
    {"data.max_length": 0},
    {"data.stride": True},
    {"data.overflow": "cut"},
    {"data.eval_fraction": 1.5},
    {"data.format": "xml"},
    {"data.fields.answer": "a"},
    {"data.document_unit": "line"},
    MLM | {"data.label": "a"},
    MLM | {"task.mask_fraction": 0},
    CHARLM | {"model.path": ..., "model.config.hidden_size": "8"},
    CHARLM | {"model.path": ..., "model.config.width": 8},
    CHARLM | {"model.path": ..., "model.config.model_type": "ldt"},
    NEW | {"model.config.model_type": "modernbert", "model.config.hidden_act": "gelu"},
    NEW | {"model.config.local_attention": 8},
    NEW | {"model.config.model_type": "neobert"},
    CHARLM | {"model.path": ..., "task.phases": [{"lenght": 4}]},
    {"training.lr": 3e-5},
    {"training.seed": "x"},
    {"training.bf16": "no"},
    {"training.learning_rate": "1e-5x"},
    {"training.eval_strategy": "epochs"},
    {"training.lora.rank": 8},
    {"training": [1]},
    {"modle": {}},
]


def recipe(changes):
    """YAML of the good recipe with these changes."""
    root = json.loads(json.dumps(GOOD))
    for dotted, value in changes.items():
        *above, key = dotted.split(".")
        inside = root
        for name in above:
            inside = inside.setdefault(name, {})
        if value is ...:
            inside.pop(key, None)
        else:
            inside[key] = value
    return yaml.dump(root)


def loads(path):
    """The loader's verdict, by the command that trains the task."""
    try:
        task = load(path).task
        load(path, command=COMMANDS[task.reads.kind])
    except RecipeError:
        return False
    return True


whole = functools.cache(schema)


def allows(text):
    """The schema's verdict on what the loader reads in the text."""
    validator = jsonschema.Draft202012Validator(whole())
    return validator.is_valid(yaml.parse(text).value)


def test_the_schema_is_one_of_its_draft():
    for task in (None, *TASKS):
        jsonschema.Draft202012Validator.check_schema(schema(task))


@pytest.mark.parametrize("name", shipped())
def test_the_schema_allows_every_shipped_recipe(name):
    assert allows(shipped()[name].read_text("utf-8"))


@pytest.mark.parametrize("changes", RIGHT, ids=str)
def test_the_schema_allows_what_the_loader_takes(changes, tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text(recipe(changes), "utf-8")
    assert loads(path)
    assert allows(path.read_text("utf-8"))


@pytest.mark.parametrize("changes", WRONG, ids=str)
def test_the_schema_refuses_what_the_loader_refuses(changes, tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text(recipe(changes), "utf-8")
    assert not loads(path)
    assert not allows(path.read_text("utf-8"))


@pytest.mark.parametrize("name", TASKS)
def test_a_task_brings_its_sections_with_every_key_and_its_meaning(name):
    task = TASKS[name]
    (branch,) = schema(name)["allOf"]
    assert branch["if"]["properties"]["task"]["properties"]["name"] == {"const": name}
    for section, cls in (
        ("task", task),
        ("model", MODELS[task.reads.kind]),
        ("data", OPTIONS[task.reads.kind]),
    ):
        made = branch["then"]["properties"][section]
        assert made["additionalProperties"] is False
        assert set(made["properties"]) == set(cls.model_fields)
        for key, meaning in meanings(cls).items():
            if key in cls.model_fields:
                assert made["properties"][key]["description"] == meaning.replace("``", "`")
    if task.reads.kind == "examples":
        data = branch["then"]["properties"]["data"]["properties"]
        assert data["format"]["enum"] == [*FORMATS, None]
        assert data["fields"]["propertyNames"]["enum"] == list(task.reads.fields)


def test_the_training_keys_are_those_of_the_loader_with_what_transformers_says_of_them():
    made = schema()["$defs"]["Training"]
    assert set(made["properties"]) == set(training_section().model_fields)
    assert made["additionalProperties"] is False
    for key in ("learning_rate", "num_train_epochs", "lora", "early_stopping_patience"):
        assert made["properties"][key]["description"] == training_meanings()[key]
    assert "initial learning rate" in training_meanings()["learning_rate"]


def test_meanings_are_those_of_a_class_and_its_bases():
    class Base(BaseModel):
        """A base.

        Args:
            a, b: one thing,
                or another.
        """

    class Derived(Base):
        """A class.

        Args:
            b: its own.

        Raises:
            x: no argument.
        """

    assert meanings(Derived) == {"a": "one thing, or another.", "b": "its own."}


@pytest.mark.slow
def test_the_command_prints_the_schema_of_a_task():
    printed = ldt("recipes", "schema", "--task", "squad").stdout.decode()
    assert json.loads(printed) == json.loads(json.dumps(schema("squad")))
    with pytest.raises(UserError, match="unknown task 'sqaud', did you mean 'squad'"):
        schema("sqaud")
