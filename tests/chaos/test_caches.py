"""Token stores and tokenizers on the disk that are damaged are made again, with a warning."""

import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from faults import sample

OF_A_SHARD = {
    "tokens.bin is cut off": lambda shard: cut(shard / "tokens.bin"),
    "tokens.bin is gone": lambda shard: (shard / "tokens.bin").unlink(),
    "a bit of tokens.bin is another": lambda shard: flip(shard / "tokens.bin"),
    "ids outside the vocabulary": lambda shard: too_high(shard),
    "documents.npy is cut off": lambda shard: cut(shard / "documents.npy"),
    "documents.npy is empty": lambda shard: (shard / "documents.npy").write_bytes(b""),
    "documents.npy is a pickle": lambda shard: (shard / "documents.npy").write_bytes(poison()),
    "documents.npy is an array of objects": lambda shard: np.save(
        shard / "documents.npy", np.array([{}, []], object), allow_pickle=True
    ),
    "a bit of documents.npy is another": lambda shard: flip(shard / "documents.npy"),
    "shard.json is a list": lambda shard: (shard / "shard.json").write_text("[]"),
    "shard.json has no keys": lambda shard: (shard / "shard.json").write_text("{}"),
    "shard.json is nested deep": lambda shard: (shard / "shard.json").write_text("[" * 10**5),
    "shard.json is gone": lambda shard: (shard / "shard.json").unlink(),
    "the shard is a file": lambda shard: (shutil.rmtree(shard), shard.write_text("x")),
    "without checksums, ids too high": lambda shard: (forget(shard), too_high(shard)),
    "without checksums, tokens.bin cut off": lambda shard: (
        forget(shard),
        cut(shard / "tokens.bin"),
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


def too_high(shard):
    path = shard / "tokens.bin"
    raw = bytearray(path.read_bytes())
    raw[:2] = b"\xff\xff"
    path.write_bytes(raw)


def forget(shard):
    """Make a shard one of the versions before checksums."""
    row = json.loads((shard / "shard.json").read_text())
    del row["crc32"]
    (shard / "shard.json").write_text(json.dumps(row))


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


@pytest.mark.parametrize("damage", sample(OF_A_SHARD, 4))
def test_a_damaged_store_is_made_again(damage, ldt, home, trained):
    """The path of the text is part of its name, so it is the same file for all homes."""
    recipe = home / "mlm.yaml"
    recipe.write_text(recipe.read_text().replace("text.txt", str(trained / "text.txt")))
    assert ldt(*COMMAND, "--overwrite", cwd=home).code == 0
    (shard,) = (home / ".ldt/tokens").glob("*/text.txt-*/000000")
    before = {path.name: path.read_bytes() for path in shard.iterdir()}
    OF_A_SHARD[damage](shard)
    outcome = ldt(*COMMAND, "--overwrite", cwd=home)
    assert outcome.code == 0, outcome.err
    (line,) = (line for line in outcome.err.splitlines() if "damaged" in line)
    assert line.startswith("warning: .ldt/tokens/")
    assert "tokenized again" in line
    assert {path.name: path.read_bytes() for path in shard.iterdir()} == before
    assert weights(home) == weights(trained)
    assert not (home / "executed").exists()


def test_a_store_without_checksums_is_taken(ldt, home, trained):
    recipe = home / "mlm.yaml"
    recipe.write_text(recipe.read_text().replace("text.txt", str(trained / "text.txt")))
    assert ldt(*COMMAND, "--overwrite", cwd=home).code == 0
    (shard,) = (home / ".ldt/tokens").glob("*/text.txt-*/000000")
    forget(shard)
    before = (shard / "tokens.bin").stat().st_mtime_ns
    outcome = ldt(*COMMAND, "--overwrite", cwd=home)
    assert outcome.code == 0
    assert "damaged" not in outcome.err
    assert (shard / "tokens.bin").stat().st_mtime_ns == before


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
