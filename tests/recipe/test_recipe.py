import sys
from pathlib import Path
from textwrap import dedent
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import cases
from pydantic import BaseModel, ConfigDict

import ldt.tasks.base  # noqa: F401  # which the fixture would hide
from ldt.errors import RecipeError, UserError
from ldt.recipe.recipe import DataSection, ModelSection, Recipe, check_training, dump, load
from ldt.recipe.sections import REFUSED


class Sorting(BaseModel):
    model_config = ConfigDict(extra="forbid")
    reads: ClassVar[Any] = SimpleNamespace(
        kind="examples", fields=(), label_keys=("label", "label_separator"), files=True
    )
    inputs: ClassVar[Any] = SimpleNamespace(overflows=("chunks", "truncate", "error"))
    name: str
    global_attention: list[str] = ["cls"]
    merge: Literal["mean", "max"] = "mean"
    labels: list[str] | None = None
    threshold: float = 0.5
    costs: dict[str, float] = {}


GOOD = """\
# a comment
task:
  name: sorting
model:
  path: some/model
data:
  train: train.jsonl
training:
  learning_rate: 3e-5
"""


@pytest.fixture(autouse=True)
def tasks(monkeypatch):
    """A task of the tests instead of those of ldt, which have tests of their own."""
    module = ModuleType("ldt.tasks")
    module.TASKS = {"sorting": Sorting}
    monkeypatch.setitem(sys.modules, "ldt.tasks", module)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(text, *overrides, command=None):
    with open("r.yaml", "w", encoding="utf-8", errors="surrogatepass") as file:
        file.write(dedent(text))
    return load("r.yaml", overrides, command)


def problems(text, *overrides, command=None):
    """The lines of the error."""
    with pytest.raises(RecipeError) as raised:
        read(text, *overrides, command=command)
    assert raised.value.exit_code == 3
    return str(raised.value).split("\n")


def test_a_recipe_holds_its_sections_and_the_defaults(folder):
    recipe = read(GOOD, command="finetune")
    assert recipe.task == Sorting(name="sorting")
    assert recipe.model == ModelSection(path="some/model", attention="auto", window=None)
    assert recipe.data == DataSection(train="train.jsonl", text=None, overflow="chunks")
    assert recipe.training == {"learning_rate": 3e-5}
    assert recipe.path.name == "r.yaml"


def test_all_problems_come_at_once_in_the_order_of_the_file(folder):
    lines = problems(
        """\
        task:
          name: sorting
          merge: median
        model:
          pth: some/model
          window: [256, wide]
        data:
          train: d.jsonl
          max_length: long
          label: [a, 1]
          stride: true
        modle: {}
        max_chunks: 4
        training:
          lr: 3e-5
          seed: x
          bf16: no
          eval_strategy: epochs
          early_stopping_patience: 0
        """,
        "training.epochs=2e0",
        "data.overflow=cut",
        command="finetune",
    )
    assert lines == [
        "r.yaml:3: task: merge: expected 'mean' or 'max', got 'median'",
        "r.yaml:4: model: path: missing, a folder or the hub id of a model",
        "r.yaml:5: model: pth: unknown key, did you mean 'path'?",
        "r.yaml:6: model: window: item 2: expected an integer, got 'wide'",
        "r.yaml:9: data: max_length: expected an integer, got 'long'",
        "r.yaml:10: data: label: item 2: expected text, got 1; quotes make it text",
        "r.yaml:11: data: stride: expected an integer, got true",
        "r.yaml:12: modle: unknown key, did you mean 'model'?",
        "r.yaml:13: max_chunks: unknown key, did you mean 'data.max_chunks'?",
        "r.yaml:15: training: lr: unknown key, did you mean 'learning_rate'?",
        "r.yaml:16: training: seed: expected an integer, got 'x'",
        "r.yaml:17: training: bf16: expected true or false or 'auto', got 'no'",
        "r.yaml:18: training: eval_strategy: expected 'no', 'steps' or 'epoch', got 'epochs'",
        "r.yaml:19: training: early_stopping_patience: expected greater than or equal to 1, got 0",
        "training.epochs=2e0: unknown key, did you mean 'num_train_epochs'?",
        "data.overflow=cut: expected 'chunks', 'truncate' or 'error', got 'cut'",
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "r.yaml: expected the keys task, model, data, training, got an empty file"),
        ("# only\n", "r.yaml: expected the keys task, model, data, training, got an empty file"),
        ("- a\n- b\n", 'r.yaml: expected the keys task, model, data, training, got ["a", "b"]'),
        (
            "task: !!a [b]",
            "r.yaml:1: tag 'tag:yaml.org,2002:a' is not allowed; quotes make a value text",
        ),
        ("task:\n\tname: x\n", "r.yaml:2: tab in the indentation; YAML indents with spaces"),
        (GOOD + "model: {}\n", "r.yaml:10: model: repeated key, also on line 4"),
        (GOOD + "data: 5\n", "r.yaml:10: data: repeated key, also on line 6"),
    ],
)
def test_a_broken_file_is_named_with_its_line(folder, text, line):
    assert problems(text) == [line]


def test_finetune_needs_a_task_a_model_and_training_data(folder):
    assert problems("training: {}\n", command="finetune") == [
        "r.yaml: task: name: missing, one of sorting",
        "r.yaml: model: path: missing, a folder or the hub id of a model",
        "r.yaml: data: train: missing, a file of training examples",
    ]
    assert read("task: {name: sorting}\nmodel:\n").model.path is None


@pytest.mark.parametrize(
    ("written", "what"),
    [
        ("task={name: sortin}", "unknown task 'sortin', did you mean 'sorting'?"),
        ("task={name: 7}", "unknown task 7, expected one of sorting"),
        ("task=sorting", "expected keys and values, got 'sorting'"),
        ("data.max_length=10.0", "expected an integer, got 10.0"),
        ("data.max_length=0", "expected greater than or equal to 1, got 0"),
        ("data.cache=null", "expected text, got null"),
        ("data.format=squat", "expected one of jsonl, csv, tsv, parquet"),
        ("data.fields={size: s}", "no such field of the task; sorting has none"),
        ("data.label=[]", "expected text or at least 1 item"),
        ("model.window=511", "expected a multiple of 2 or a list, got 511"),
        ("model.window=[512, 0]", "expected greater than or equal to 2, got 0"),
        ("model.window=wide", "expected an integer or a list, got 'wide'"),
        ("data={max_length: 8, stride: 8}", "stride must be below max_length, got 8"),
        ("data={eval: e, eval_fraction: 0.1}", "eval and eval_fraction exclude each other"),
        ("data.eval_fraction=1", "expected less than 1, got 1"),
        ("task.costs.a=b", "expected a number, got 'b'"),
    ],
)
def test_a_wrong_value_is_shown_with_what_would_do(folder, written, what):
    lines = problems(GOOD, written)
    assert any(line.startswith(f"{written}: ") and what in line for line in lines), lines


def test_overrides_replace_what_the_file_says(folder):
    recipe = read(
        GOOD,
        "training.learning_rate=1E-4",
        "training.lr_scheduler_kwargs.num_cycles=2",
        "data.max_length=512",
        "data.label=[clauses.Cap, clauses.Audit Rights]",
        "task={name: sorting, labels: [no, 007]}",
        "model.window=",
        command="finetune",
    )
    assert recipe.training == {"learning_rate": 1e-4, "lr_scheduler_kwargs": {"num_cycles": 2}}
    assert recipe.data.max_length == 512
    assert recipe.data.label == ["clauses.Cap", "clauses.Audit Rights"]
    assert recipe.task.labels == ["no", "007"]
    assert recipe.model.window is None


@pytest.mark.parametrize(
    ("written", "separator"),
    [(text, text) for text in ("|", ",", " / ", "::", "-")] + [("'|'", "|"), ('"\\n"', "\n")],
)
def test_punctuation_on_the_command_line_is_text(folder, written, separator):
    assert read(GOOD, f"data.label_separator={written}").data.label_separator == separator


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("max_length=8", "max_length=8: unknown key, did you mean 'data.max_length'?"),
        ("model.max_length=8", "model.max_length=8: unknown key, did you mean 'data.max_length'?"),
        ("merge=max", "merge=max: unknown key, did you mean 'task.merge'?"),
        ("lr=1", "lr=1: unknown key, did you mean 'training.learning_rate'?"),
        ("zzz=1", "zzz=1: unknown key, expected one of task, model, data, training"),
        ("data.tekst=a", "data.tekst=a: unknown key, did you mean 'text'?"),
        ("data.train.x=1", "data.train.x=1: train is 'train.jsonl' and has no keys"),
        ("seed", "seed: expected key=value, as in training.seed=1"),
        ("training..seed=1", "training..seed=1: expected key=value, as in training.seed=1"),
        ("data.text=@x", "data.text=@x: not valid YAML: found character '@' that cannot start "),
        ("data.text=!!str x", "data.text=!!str x: tag 'tag:yaml.org,2002:str' is not allowed"),
        ("data.text={a: 1, a: 2}", "data.text={a: 1, a: 2}: a: repeated key, also on line 1"),
    ],
)
def test_a_wrong_override_is_named_as_it_was_typed(folder, override, line):
    assert problems(GOOD, override)[0].startswith(line)


def test_a_problem_is_one_line_whatever_the_keys_hold(folder):
    lines = problems(GOOD + '"a\\nb\\e[31m": 1\n', f"{'k' * 1000}=1")
    assert lines[0].startswith("r.yaml:10: 'a\\nb\\x1b[31m': unknown key")
    assert len(lines) == 2
    assert len(lines[1]) < 200


def test_what_cannot_be_read_is_not_also_called_wrong_or_missing(folder):
    assert problems(
        "task: {name: sorting}\nmodel: 5\ndata: {train: 1e999}\n",
        "training.seed=@",
        command="finetune",
    ) == [
        "r.yaml:2: model: expected keys and values, got 5",
        "r.yaml:3: data: train: number out of range, 5 characters",
        "training.seed=@: not valid YAML: found character '@' that cannot start any token",
    ]


def test_the_number_of_lines_is_bounded(folder):
    lines = problems(GOOD + "".join(f"\x20\x20zz{i}: 1\n" for i in range(80)), command="finetune")
    assert len(lines) == 51
    assert lines[-1] == "and 30 more problems"


def test_a_file_that_is_not_there_is_a_usage_error_with_the_nearest_name(folder):
    read(GOOD)
    with pytest.raises(UserError, match=r"r\.yml: No such file.*did you mean 'r\.yaml'") as raised:
        load("r.yml")
    assert raised.value.exit_code == 2


def test_what_is_no_recipe_is_a_line_that_says_what_it_is(folder):
    with pytest.raises(UserError, match=r"^\.: a folder; a recipe is a YAML file, ldt init"):
        load(".")
    Path("recipe.yaml").touch()
    with pytest.raises(UserError, match=r", recipe\.yaml is the one of this run$") as raised:
        load(".")
    assert raised.value.exit_code == 2
    for name in ("contracts.csv", "a.JSONL", "a.tsv.gz", "a.parquet", "a.txt", "a.pdf"):
        Path(name).write_bytes(b"id,text\n\xff,x\n")
        with pytest.raises(UserError, match=f"^{name}: a file of data; a recipe is a YAML file"):
            load(name)


def test_home_is_expanded_and_variables_are_not(folder, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    recipe = read(
        GOOD, "model.path=~/m", "data.eval=~/e", "training.output_dir=~/o", "data.train=$HOME/t"
    )
    assert recipe.model.path == "/home/me/m"
    assert recipe.data.eval == "/home/me/e"
    assert recipe.training["output_dir"] == "/home/me/o"
    assert recipe.data.train == "$HOME/t"


def test_paths_are_of_the_current_directory_else_beside_the_recipe(folder):
    recipe_folder = folder / "recipes"
    recipe_folder.mkdir()
    (recipe_folder / "r.yaml").write_text(GOOD + "\n")
    for name in ("train.jsonl", "eval.jsonl", "hf:x"):
        (recipe_folder / name).touch()
    (folder / "train.jsonl").touch()
    data = load("recipes/r.yaml", ["data.eval=eval.jsonl"]).data
    assert (data.train, data.eval) == ("train.jsonl", "recipes/eval.jsonl")
    assert load("recipes/r.yaml", ["data.eval=hf:x"]).data.eval == "hf:x"
    assert load("recipes/r.yaml").model.path == "some/model"


def test_where_names_the_line_or_the_override(folder):
    recipe = read(GOOD, "training.seed=1")
    assert recipe.where("training", "learning_rate") == "r.yaml:9: training: learning_rate"
    assert recipe.where("training", "seed") == "training.seed=1"
    assert recipe.where("data", "eval") == "r.yaml:6: data: eval"
    assert Recipe(task=None).where("data", "eval") == "recipe: data: eval"


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@cases(100)
@given(
    labels=st.lists(text) | st.none(),
    field=text,
    window=st.none() | st.lists(st.integers(1, 10**6).map(lambda n: 2 * n), max_size=3),
    fraction=st.none() | st.floats(0, 1, exclude_min=True, exclude_max=True),
    threshold=st.floats(allow_nan=False),
)
def test_any_recipe_survives_dump_and_load(
    tmp_path_factory, labels, field, window, fraction, threshold
):
    recipe = Recipe(
        task=Sorting(name="sorting", labels=labels, threshold=threshold),
        model=ModelSection(path="m", window=window),
        data=DataSection(train="-", text=field, eval_fraction=fraction),
        training={"run_name": field, "weight_decay": threshold},
    )
    path = tmp_path_factory.getbasetemp() / "dumped.yaml"
    path.write_bytes(dump(recipe).encode())
    assert load(path) == recipe


fragments = st.sampled_from(
    ["task", "model", "data", "training", "name", "sorting", "train", "label", "window", ": ", ":"]
    + ["\n", "\n  ", "\n    ", "- ", "[", "]", "{", "}", ", ", "&a ", "*a", "!!int ", '"\\ud800"']
    + ["<<: ", "~", "3e-5", "1e999", "9" * 400, "true", "'", "\t", "no", "x", "-", "\x85", ".inf"]
)


@cases(300)
@given(
    start=st.integers(0, len(GOOD)),
    end=st.integers(0, len(GOOD)),
    middle=st.lists(fragments | st.text(max_size=2), max_size=12).map("".join),
    override=st.lists(fragments | st.text(max_size=2), max_size=6).map("".join),
)
def test_no_file_and_no_override_raises_anything_but_a_recipe_error(
    tmp_path_factory, start, end, middle, override
):
    path = tmp_path_factory.getbasetemp() / "fuzz.yaml"
    path.write_bytes((GOOD[:start] + middle + GOOD[end:]).encode(errors="surrogatepass"))
    for overrides in ([], [override], [f"data.label={override}"], [f"task={override}"]):
        try:
            recipe = load(path, overrides)
        except RecipeError as error:
            lines = str(error).split("\n")
        else:
            lines = []
            path.with_suffix(".again").write_bytes(dump(recipe).encode())
            assert load(path.with_suffix(".again")) == recipe
        starts = (str(path), "and ", "'", '"', *[text[:50] for text in overrides])
        assert all(line.startswith(starts) for line in lines)


@pytest.mark.parametrize(
    ("training", "line"),
    [
        ({"num_epochs": 3}, "num_epochs: unknown key, did you mean 'num_train_epochs'?"),
        ({"num_train_epochs": "three"}, "num_train_epochs: expected a number, got 'three'"),
        ({"max_steps": 1e3}, "max_steps: expected an integer, got 1000.0"),
        ({"seed": True}, "seed: expected an integer, got true"),
        ({"optim": "adamw"}, "optim: expected 'adamw_torch', "),
        ({"early_stopping_threshold": -0.1}, "early_stopping_threshold: expected greater than"),
        ({"report_to": {}}, "report_to: expected text or a list, got keys and values"),
        ({"liger_kernel_config": {"a": 1}}, "liger_kernel_config: Liger has no kernels for this"),
    ],
)
def test_training_arguments_are_checked_by_name_and_type(training, line):
    with pytest.raises(RecipeError) as raised:
        check_training(training)
    assert str(raised.value).startswith(f"recipe: training: {line}")
    assert "\n" not in str(raised.value)


def test_every_default_of_training_arguments_passes():
    from dataclasses import MISSING, fields

    from transformers import TrainingArguments

    for item in fields(TrainingArguments):
        if item.init and item.default is not MISSING and item.name not in REFUSED:
            check_training({item.name: getattr(item.default, "value", item.default)})
