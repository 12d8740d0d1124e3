from pathlib import Path

import pytest
from processes import ldt

from ldt import cli
from ldt.cli.recipes import summary
from ldt.recipe import shipped


@pytest.fixture
def recipes(monkeypatch, tmp_path, capsys):
    """Runs `ldt recipes ...` in an empty folder: (exit code, output, messages)."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            cli.main(["recipes", *arguments])
        out, err = capsys.readouterr()
        return ended.value.code, out, err

    return run


def test_recipes_are_listed_with_a_line_each(recipes):
    code, out, err = recipes()
    lines = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert (code, err) == (0, "")
    assert list(lines) == list(shipped())
    assert lines["wikihop"] == "WikiHop with Longformer-base, the paper's settings"
    assert lines["cuad_clauses"] == "Which clauses does a contract have?"
    assert not any(line.endswith((".", ",", "and", "of")) for line in lines.values())


def test_a_summary_ends_with_the_first_sentence_or_its_first_half():
    assert summary("# A model of Beltagy et al. 2020. For a GPU.\ntask: x\n") == (
        "A model of Beltagy et al. 2020"
    )
    assert summary("# Two\n# lines; the rest\n# ldt finetune\n\n# more") == "Two lines"
    assert summary("task: {name: squad}\n") == ""


def test_a_recipe_is_shown_as_it_is(recipes):
    assert recipes("show", "wikihop") == (0, shipped()["wikihop"].read_text("utf-8"), "")


def test_a_recipe_is_copied_and_never_over_a_file_unless_told(recipes):
    content = shipped()["wikihop"].read_text("utf-8")
    assert recipes("copy", "wikihop") == (0, "", "wikihop.yaml: written\n")
    assert Path("wikihop.yaml").read_text("utf-8") == content
    Path("wikihop.yaml").write_text("mine")
    refused = "error: wikihop.yaml exists already; --overwrite replaces it\n"
    assert recipes("copy", "wikihop") == (2, "", refused)
    assert recipes("copy", "wikihop", ".") == (2, "", refused)
    assert Path("wikihop.yaml").read_text("utf-8") == "mine"
    assert recipes("copy", "wikihop", "--overwrite")[0] == 0
    assert Path("wikihop.yaml").read_text("utf-8") == content
    assert recipes("copy", "squad", "my.yaml")[0] == 0
    assert Path("my.yaml").read_text("utf-8") == shipped()["squad"].read_text("utf-8")
    assert recipes("copy", "squad", "no/my.yaml")[0] == 2


def test_a_wrong_name_gets_a_hint(recipes):
    line = "error: no recipe is called 'wikihp', did you mean 'wikihop'?; ldt recipes lists them\n"
    assert recipes("show", "wikihp") == (2, "", line)
    assert recipes("copy", "wikihp") == (2, "", line)


@pytest.mark.parametrize("arguments", [[], ["show"], ["copy"]])
def test_each_command_has_help_with_an_example(arguments):
    text = ldt("recipes", *arguments, "-h").stdout.decode()
    assert f"Example: ldt {' '.join(['recipes', *arguments])} " in text
