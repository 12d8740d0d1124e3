"""Any key of a recipe with any value: a line that begins with its place, never a traceback.

The keys are those of the option classes, so that a new one is tried as soon as it is there.
"""

import re
from collections import Counter

import pytest
from faults import sample

from ldt.data.options import OPTIONS
from ldt.errors import RecipeError, UserError
from ldt.recipe import recipe as recipes
from ldt.recipe.recipe import COMMANDS
from ldt.recipe.sections import MODELS, training_section
from ldt.tasks import TASKS
from ldt.tasks.base import config_fields

VALUES = (
    *("x", "''", "null", "true", "[1]", "{a: 1}", '"a\\0b"'),
    *("-1", "0", "1000000000", str(10**30), "1e308", ".inf", "z" * 5000),
)
FILES = {"examples": "ft", "corpus": "mlm", "characters": "ch"}  # the recipes of `made`
ENDS = (0, 2, 3, 4, 5, 6)  # 0: the value has a meaning


def keys(task):
    """Every key of the recipe of a task."""
    cls = TASKS[task]
    fields = config_fields(cls.model_construct())
    yield from (f"task.{key}" for key in cls.model_fields)
    yield from (f"model.{key}" for key in MODELS[cls.reads.kind].model_fields)
    yield from (f"data.{key}" for key in OPTIONS[cls.reads.kind].model_fields)
    if "config" in MODELS[cls.reads.kind].model_fields:
        yield from (f"model.config.{key}" for key in fields.model_fields)


def training_keys():
    """Every key of the training section."""
    return [f"training.{key}" for key in training_section().model_fields]


def cases():
    """(recipe, task, override) of every key and value, of each kind of training once."""
    for task, cls in TASKS.items():
        for key in keys(task):
            for value in VALUES:
                yield FILES[cls.reads.kind], task, f"{key}={value}"
    for key in training_keys():
        for value in VALUES:
            yield "ft", "classification", f"{key}={value}"


CASES = list(cases())
# Of the tasks by examples only classification has documents in `made`.
RUN = [
    case for case in CASES if TASKS[case[1]].reads.kind != "examples" or case[1] == "classification"
]


def lines_of(text):
    """The lines of an error, without the prefix of the command line."""
    return [line.removeprefix("error: ") for line in text.strip().splitlines()]


def shown(override):
    """How an override begins in a message."""
    return override[:40] if override.isprintable() else repr(override)[:40]


@pytest.fixture
def here(made, monkeypatch):
    monkeypatch.chdir(made)


def test_the_keys_are_there():
    found = Counter(case[2].partition("=")[0].partition(".")[0] for case in CASES)
    assert set(found) == {"task", "model", "data", "training"}
    assert len(CASES) > 4000


@pytest.mark.parametrize("task", TASKS)
def test_loading_any_value_is_a_recipe_or_lines_with_its_place(task, here):
    file = FILES[TASKS[task].reads.kind]
    command = COMMANDS[TASKS[task].reads.kind]
    mine = [override for _, name, override in CASES if name == task]
    for override in sample(mine, 60):
        overrides = [f"task={{name: {task}}}", override]
        try:
            recipes.load(f"{file}.yaml", overrides, command=command)
        except RecipeError as error:
            for line in lines_of(str(error)):
                assert line.startswith((shown(override), f"{file}.yaml", "task={name")), line


def test_any_training_value_makes_arguments_or_a_line_with_its_place(here, tmp_path):
    from ldt.training.arguments import arguments, settings

    mine = [override for _, _, override in CASES if override.startswith("training.")]
    for override in sample(mine, 60):
        try:
            recipe = recipes.load("ft.yaml", [override], command="finetune")
            arguments(recipe, settings(recipe), tmp_path, 16, "macro_f1")
        except RecipeError as error:
            for line in lines_of(str(error)):
                assert line.startswith((shown(override), "ft.yaml:")), line


def ends_well(outcome, override):
    """Assert that a command ended as a person may see it."""
    place = f"{override[:60]}: {outcome.code}: {outcome.err[-500:]}"
    assert not outcome.bug, place
    assert outcome.code in ENDS, place
    if outcome.code:
        last = outcome.err.strip().splitlines()[-1]
        assert last.startswith("error: "), place
        assert re.match(r"error: \S.*: ?\S", last) or outcome.code == 6, place


@pytest.mark.parametrize(("file", "task", "override"), sample(RUN, 16))
def test_a_dry_run_with_any_value_ends_with_a_line(file, task, override, ldt, made):
    command = COMMANDS[TASKS[task].reads.kind]
    outcome = ldt(command, f"{file}.yaml", "--dry-run", override, cwd=made, limit=60)
    ends_well(outcome, override)


ENDLESS = {"training.max_steps=1000000000"}  # as it was asked for


@pytest.mark.parametrize(
    ("file", "task", "override"), sample([case for case in RUN if case[2] not in ENDLESS], 3)
)
def test_a_training_with_any_value_ends_with_a_line(file, task, override, ldt, home):
    outcome = ldt(COMMANDS[TASKS[task].reads.kind], f"{file}.yaml", override, cwd=home, limit=100)
    if outcome.code != 8:  # what diverges has a line too
        ends_well(outcome, override)


@pytest.mark.parametrize(
    ("command", "override", "code", "line"),
    [
        ("finetune ft.yaml", "training.per_device_train_batch_size=0", 3, "expected greater than"),
        ("finetune ft.yaml", "training.adam_beta1=1e308", 3, "expected less than 1, got 1e+308"),
        ("finetune ft.yaml", "training.log_level=loud", 3, "expected 'passive', "),
        ("finetune ft.yaml", "training.lr_scheduler_kwargs={a: 1}", 3, "unexpected keyword"),
        ("finetune ft.yaml", "model.attention=triton", 3, "triton runs on CUDA"),
        ("finetune ft.yaml", 'data.train="a\\0b"', 3, "or with NUL"),
        ("finetune ft.yaml", "data.max_length=1000000000", 3, "expected less than or equal to"),
        ("pretrain mlm.yaml", "task.name=bert", 3, "unknown task 'bert'"),
        ("pretrain mlm.yaml", "data.cache=text.txt", 3, "text.txt is a file"),
        ("pretrain mlm.yaml", "model.config.hidden_size=10000000", 3, "expected less than or"),
        ("pretrain mlm.yaml", "model.config.hidden_size=1000000", 6, "GiB of memory"),
        ("pretrain mlm.yaml", "model.config.hidden_act=gelo", 3, "expected 'gelu'"),
        ("pretrain ch.yaml", "model.config.memory_length=-1", 3, "expected greater than or"),
        ("pretrain ch.yaml", "task.phases=[{length: 16777216}, {}]", 3, "at most 16,777,216"),
    ],
)
def test_a_value_without_a_meaning_is_named(command, override, code, line, ldt, made):
    env = {"TRITON_INTERPRET": "0"}
    outcome = ldt(*command.split(), "--dry-run", override, cwd=made, env=env)
    assert outcome.code == code, outcome.err
    last = outcome.err.strip().splitlines()[-1]
    assert line in last
    assert last.startswith("error: ")


def test_all_that_is_wrong_in_all_sections_comes_at_once(here):
    overrides = [
        "task.mask_fraction=2",
        "model.config.hidden_size=-1",
        "model.config.hidden_dropout_prob=1.5",
        "data.workers=0",
        "training.seed=-1",
        "training.warmup_steps=.inf",
    ]
    with pytest.raises(UserError) as raised:
        recipes.load("mlm.yaml", overrides, command="pretrain")
    lines = str(raised.value).splitlines()
    assert [line.partition(":")[0] for line in lines] == overrides
    assert lines[-1] == "training.warmup_steps=.inf: expected a finite number, got .inf"
