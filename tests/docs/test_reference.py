"""The generated pages have every key, option and name, and fail on one without a meaning."""

import re
import types

import reference
import typer

from ldt import attention, cli, model
from ldt.data import options
from ldt.recipe.sections import MODELS, OWN_TRAINING_KEYS
from ldt.tasks import TASKS


def test_the_page_of_recipes_has_every_key():
    page = reference.recipe_page()
    for name, task in TASKS.items():
        text = page.partition(f"## task: {name}\n")[2].partition("\n## ")[0]
        for key in set(task.model_fields) - {"name"}:
            assert f"| `{key}` |" in text, (name, key)
    for title, classes in (("model", MODELS), ("data", options.OPTIONS)):
        assert set(classes) == {task.reads.kind for task in TASKS.values()}
        for kind, cls in classes.items():
            text = page.partition(f"## {title}, for {kind}\n")[2].partition("\n## ")[0]
            for key in cls.model_fields:
                assert f"| `{key}` |" in text, (cls, key)
    for key in OWN_TRAINING_KEYS:
        assert f"| `{key}` |" in page


def test_the_page_of_commands_has_every_option():
    page = reference.cli_page()
    found = list(reference.commands(typer.main.get_command(cli.app), "ldt"))
    assert {name.split()[1] for name, _ in found} == set(cli.COMMANDS)
    for name, command in found:
        text = page.partition(f"## {name}\n")[2].partition("\n## ")[0]
        for parameter in command.params:
            for flag in parameter.opts:
                if flag.startswith("--") and flag != "--help":
                    assert f"`{flag}`" in text, (name, flag)


def test_the_page_of_python_names_has_the_public_classes():
    page = reference.api_page()
    names = {"LdtModel", "LdtForSequenceClassification", "sliding_window_attention"}
    public = [(module, name) for module in (attention, model) for name in module.__all__]
    made = {n for m, n in public if isinstance(getattr(m, n), type | types.FunctionType)}
    assert names < made
    for name in made:
        (summary,) = re.findall(rf"^\| `{name}` \| (.+) \|$", page, re.M)
        assert summary
