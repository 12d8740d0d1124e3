"""Token stores and tokenizers on the disk that are damaged are made again, with a warning."""

import pickle
import shutil
from pathlib import Path

import pytest
from faults import sample

OF_A_STORE = {
    "tokens are cut off": lambda store: cut(store / "tokens.rows"),
    "tokens are gone": lambda store: (store / "tokens.rows").unlink(),
    "a bit of the tokens is another": lambda store: flip(store / "tokens.rows"),
    "the list is cut off": lambda store: cut(store / "tokens.index"),
    "the list is empty": lambda store: (store / "tokens.index").write_bytes(b""),
    "the list is a pickle": lambda store: (store / "tokens.index").write_bytes(poison()),
    "a bit of the list is another": lambda store: flip(store / "tokens.index"),
    "whole.json is a list": lambda store: (store / "whole.json").write_text("[]"),
    "whole.json has no keys": lambda store: (store / "whole.json").write_text("{}"),
    "whole.json is nested deep": lambda store: (store / "whole.json").write_text("[" * 10**5),
    "the tokens are a folder": lambda store: (
        (store / "tokens.rows").unlink(),
        (store / "tokens.rows").mkdir(),
    ),
}
COMMAND = ("pretrain", "mlm.yaml")


class Poison:
    def __reduce__(self):
        return Path.touch, (Path("executed"),)


def poison():
    return pickle.dumps(Poison())


def cut(path):
    path.write_bytes(path.read_bytes()[:-2])


def flip(path):
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)


@pytest.fixture(scope="module")
def trained(ldt, made, tmp_path_factory):
    """A folder with a store, the run that was trained on it, and the weights."""
    home = tmp_path_factory.mktemp("trained") / "home"
    shutil.copytree(made, home, symlinks=True)
    outcome = ldt(*COMMAND, cwd=home)
    assert outcome.code == 0, outcome.err
    return home


@pytest.fixture
def home(trained, tmp_path):
    folder = tmp_path / "home"
    shutil.copytree(trained, folder, symlinks=True)
    return folder


def weights(home):
    return (home / "runs/r/model.safetensors").read_bytes()


@pytest.mark.parametrize("damage", sample(OF_A_STORE, 4))
def test_a_damaged_store_is_made_again(damage, ldt, home, trained):
    """The path of the text is part of its name, so it is the same file for all homes."""
    recipe = home / "mlm.yaml"
    recipe.write_text(recipe.read_text().replace("text.txt", str(trained / "text.txt")))
    assert ldt(*COMMAND, "--overwrite", cwd=home).code == 0
    (store,) = (home / ".ldt/tokens").glob("*/text.txt-*")
    before = {path.name: path.read_bytes() for path in store.iterdir()}
    OF_A_STORE[damage](store)
    outcome = ldt(*COMMAND, "--overwrite", cwd=home)
    assert outcome.code == 0, outcome.err
    (line,) = (line for line in outcome.err.splitlines() if "damaged" in line)
    assert line.startswith("warning: .ldt/tokens/")
    assert "tokenized again" in line
    assert {path.name: path.read_bytes() for path in store.iterdir()} == before
    assert weights(home) == weights(trained)
    assert not (home / "executed").exists()


OF_A_TOKENIZER = {
    "tokenizer.json is cut off": lambda folder: cut(folder / "tokenizer.json"),
    "a bit of tokenizer.json is another": lambda folder: flip(folder / "tokenizer.json"),
    "tokenizer.json is gone": lambda folder: (folder / "tokenizer.json").unlink(),
    "the manifest is a list": lambda folder: (folder / "manifest.json").write_text("[]"),
    "without manifest, cut off": lambda folder: (
        (folder / "manifest.json").unlink(),
        cut(folder / "tokenizer.json"),
    ),
    "the folder is a file": lambda folder: (shutil.rmtree(folder), folder.write_text("x")),
}


@pytest.mark.parametrize("damage", sample(OF_A_TOKENIZER, 2))
def test_a_damaged_tokenizer_is_trained_again(damage, ldt, home):
    command = (*COMMAND, "model.tokenizer={vocab_size: 300}", "training.output_dir=runs/t")
    outcome = ldt(*command, cwd=home)
    assert outcome.code == 0, outcome.err
    before = (home / "runs/t/model.safetensors").read_bytes()
    (folder,) = (home / ".ldt/tokens").glob("tokenizer-*")
    whole = {path.name: path.read_bytes() for path in folder.iterdir()}
    OF_A_TOKENIZER[damage](folder)
    outcome = ldt(*command, "--overwrite", cwd=home)
    assert outcome.code == 0, outcome.err
    assert f"{folder.relative_to(home)}: damaged" in outcome.err
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == whole
    assert (home / "runs/t/model.safetensors").read_bytes() == before
