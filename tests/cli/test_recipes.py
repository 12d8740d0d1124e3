import json
from functools import partial
from pathlib import Path

import pytest
from typed import typed

from ldt.cli.recipes import summary
from ldt.recipe import load, shipped
from ldt.recipe.recipe import COMMANDS
from ldt.tasks.writing import WritingTask


@pytest.fixture
def recipes(monkeypatch, tmp_path, capsys):
    """Runs `ldt recipes ...` in an empty folder: (exit code, output, messages)."""
    monkeypatch.chdir(tmp_path)
    return partial(typed, capsys, "recipes")


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


@pytest.fixture
def reading(tiny_longformer, tiny_modernbert, tiny_led, tmp_path):
    """Makes the folder of a model of a kind that reads so many tokens; it has no weights."""
    kinds = {
        "longformer": (tiny_longformer, "max_position_embeddings", 2),
        "modernbert": (tiny_modernbert, "max_position_embeddings", 0),
        "led": (tiny_led, "max_encoder_position_embeddings", 0),
    }

    def make(kind, length):
        source, key, unused = kinds[kind]
        config = json.loads((source / "config.json").read_text())
        folder = tmp_path / "models" / kind
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config | {key: length + unused}))
        return folder

    return make


@pytest.mark.parametrize("name", shipped())
def test_a_copy_with_another_model_differs_in_model_length_and_run_folder(recipes, reading, name):
    own = load(name)
    for kind in ["led"] if isinstance(own.task, WritingTask) else ["longformer", "modernbert"]:
        model = reading(kind, 1024)
        code, out, err = recipes("copy", name, "--model", str(model), "--overwrite")
        if own.model.path is None:
            said = f"error: {name} makes a new model by model.config; --model has no place there\n"
            assert (code, out, err) == (2, "", said)
            continue
        command = COMMANDS[own.task.reads.kind]
        head = [f"ldt check {name}.yaml", f"ldt {command} {name}.yaml"]
        said = "\n  ".join([f"{name}.yaml: written; next:", *head])
        assert (code, out, err) == (0, "", said + "\n")
        made = load(f"./{name}.yaml", command=command)
        assert made.model.path == str(model)
        assert made.training["output_dir"] == f"{own.training['output_dir']}-{kind}"
        before = shipped()[name].read_text("utf-8").splitlines()
        after = Path(f"{name}.yaml").read_text("utf-8").splitlines()
        top = [f"{name} of ldt, with {model}:", *head, f"With {own.model.path}, as ldt brings it:"]
        assert after[:4] == [f"# {line}" for line in top]
        pairs = zip(before, after[4:], strict=True)
        changed = [line.split(":")[0].strip() for line, other in pairs if line != other]
        assert changed in (["path", "output_dir"], ["path", "max_length", "output_dir"])


@pytest.mark.parametrize(
    ("name", "own", "longest", "found"),
    [
        ("qasper", 4096, 8192, 8192),  # as much as its model can
        ("cuad_qa", 4096, 8192, 8192),
        ("led_qasper", 15360, 16384, 15360),  # less than that
        ("nq_wikihop", 2048, 8192, 2048),
        ("cuad", 512, 8192, 512),
        ("nq_wikihop", 2048, 1024, 1024),
        ("squad", None, 8192, None),  # the model's own
    ],
)
def test_the_length_of_a_copy_is_one_that_the_model_reads(
    recipes, reading, name, own, longest, found
):
    model = reading("led" if isinstance(load(name).task, WritingTask) else "modernbert", longest)
    assert recipes("copy", name, "--model", str(model))[0] == 0
    assert (load(name).data.max_length, load(f"{name}.yaml").data.max_length) == (own, found)


def test_of_a_model_that_is_not_here_its_name_tells(recipes, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    err = recipes("copy", "qasper", "--model", "answerdotai/ModernBERT-base")[2]
    assert "ModernBERT-base: not on this machine; by its name taken for one of 8,192 tokens" in err
    assert load("./qasper.yaml").data.max_length == 8192
    err = recipes("copy", "contractnli", "--model", "nobody/bert")[2]
    assert "bert: not on this machine; by its name taken for a short model, to be converted" in err
    assert "; next:\n  ldt convert nobody/bert bert-4096 --max-length 4096\n  ldt check" in err
    made = load("./contractnli.yaml")
    assert (made.model.path, made.data.max_length) == ("./bert-4096", 4096)


def test_a_model_of_another_kind_is_refused(recipes, tiny_led, tiny_modernbert):
    said = "writes text; this task needs an encoder, as a BERT or RoBERTa\n"
    assert recipes("copy", "squad", "--model", str(tiny_led))[2].endswith(said)
    said = "writes no text; this task needs a BART or LED\n"
    assert recipes("copy", "led_qasper", "--model", str(tiny_modernbert))[2].endswith(said)
    assert not list(Path().iterdir())


def test_a_wrong_name_gets_a_hint(recipes):
    line = "error: no recipe is called 'wikihp', did you mean 'wikihop'?; ldt recipes lists them\n"
    assert recipes("show", "wikihp") == (2, "", line)
    assert recipes("copy", "wikihp") == (2, "", line)
