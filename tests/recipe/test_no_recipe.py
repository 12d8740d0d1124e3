"""Files that are no recipes."""

from pathlib import Path

import pytest

from ldt.errors import UserError
from ldt.recipe.recipe import load


def test_what_is_no_recipe_is_a_line_that_says_what_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"^\.: a folder; a recipe is a YAML file, ldt recipes"):
        load(".")
    Path("recipe.yaml").touch()
    with pytest.raises(UserError, match=r", recipe\.yaml is the one of this run$") as raised:
        load(".")
    assert raised.value.exit_code == 2
    for name in ("contracts.csv", "a.JSONL", "a.tsv.gz", "a.parquet", "a.txt", "a.pdf"):
        Path(name).write_bytes(b"id,text\n\xff,x\n")
        with pytest.raises(UserError, match=f"^{name}: a file of data; a recipe is a YAML file"):
            load(name)
