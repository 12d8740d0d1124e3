"""ldt init on a file of every layout: the recipe names it, and trains as it is written."""

from pathlib import Path

import pytest
from typed import typed, write_lines

from ldt.benchmarks.formats import FORMATS
from ldt.benchmarks.lexglue import TASKS
from ldt.recipe import load

DATA = Path(__file__).parents[1] / "helpers" / "snapshot_data"
FILES = {
    "jsonl": "classification.jsonl",
    "csv": "kinds/csv.csv",
    "tsv": "kinds/tsv.tsv",
    "parquet": "kinds/table.parquet",
    "text": "texts",
    "doccano": "kinds/doccano.jsonl",
    "label-studio": "kinds/studio.json",
    "summarization": "published/summarization.jsonl",
    "conll": "published/conll.txt",
    "coreference": "published/coreference.conll",
    **{name: f"published/{name}.jsonl" for name in ("nq", "tydiqa")},
    **{
        name: f"published/{name}.json"
        for name in ("hotpotqa", "squad", "triviaqa", "wikihop", "contractnli", "qasper")
    },
}
DETECTED = ("jsonl", "csv", "tsv", "parquet", "text")  # without data.format
KEYS = {"nq": ["task.max_question=32"], "tydiqa": ["task.max_question=32"]}  # letters are tokens


def courts(name):
    """Lines of a set of LexGLUE."""
    part, path = TASKS[name], Path("courts.jsonl")
    lists = isinstance(part.raw, str) and name != "scotus"
    rows = [
        {"text" if name in ("scotus", "eurlex") else "facts": [f"{n} the party agrees. " * 4]}
        | {part.raw: [part.classes[n % 2]] if lists else part.classes[n % 2]}
        for n in range(8)
    ]
    write_lines(path, rows)
    return path


def test_every_layout_is_tried():
    # By data.format: squad's, a folder, a table of no names, and one that no task learns from.
    named = {"cuad", "beir", "triples", "gap"}
    assert set(FORMATS) == {*FILES, *TASKS, *named}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*FILES, *TASKS])
def test_the_recipe_of_a_layout_trains_as_it_is_written(
    name, tmp_path, monkeypatch, tiny_longformer, tiny_led, capsys
):
    monkeypatch.chdir(tmp_path)
    source = DATA / FILES[name] if name in FILES else courts(name)
    model = tiny_led if name == "summarization" else tiny_longformer
    options = ("--model", str(model), "--max-length", "64", "--yes")
    code, _, err = typed(capsys, "init", str(source), *options)
    assert code == 0, err
    command = "pretrain" if name == "text" else "finetune"
    recipe = load("recipe.yaml", command=command)
    assert recipe.data.format == (None if name in DETECTED else name)
    keys = KEYS.get(name, [])
    code, _, err = typed(capsys, command, "recipe.yaml", "--dry-run", *keys)
    assert code == 0, err
