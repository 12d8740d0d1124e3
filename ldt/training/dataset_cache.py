"""Cache of encoded large labelled sets on disk.

``data.cache`` holds a folder for each combination of file contents, reading options, task,
tokenizer, input length, seed and ldt's own code. It contains the documents, their inputs
(`ldt.io.record_store`) and finally ``sets.pickle`` with everything derived from them, so that a
later run reads no documents before training. A killed run's encoding is continued.
"""

import functools
import hashlib
import logging
import os
import pickle
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import tokenizers
import transformers

from ldt.data.features import Features
from ldt.data.options import DataSection
from ldt.errors import ResourceError, UserError, first_line
from ldt.io import files
from ldt.io.record_store import RecordStore, values
from ldt.io.records import Example
from ldt.io.sources import each
from ldt.metrics.baseline import Baseline, Baselines
from ldt.model.loading import find_folder
from ldt.recipe.recipe import Recipe
from ldt.training.summary import LengthReport

log = logging.getLogger("ldt")

LARGE = 8 << 20  # bytes of the files, from which on sets are kept, and several processes encode
WHOLE = "sets.pickle"
_CODE = ("data", "io", "metrics", "tasks", "training")  # packages by which inputs come about
_BESIDE_WEIGHTS = (".json", ".txt", ".model")  # files of a model's folder that tell its tokenizer


class Examples(RecordStore[Example]):
    """Documents in a file."""

    noun = "documents"

    def pack(self, item: Example) -> tuple[dict[str, Any], Any]:
        """Split a document into its fields and the tuple (id, where, folder)."""
        return item.fields, (item.id, item.where, item.folder)

    def unpack(self, fields: dict[str, Any], more: Any) -> Example:
        """Document from its fields and (id, where, folder)."""
        return Example(fields, *more)


@dataclass
class LabelledSets:
    """Labelled sets, train and eval, with everything derived from them.

    Args:
        examples: documents by set; eval may be empty.
        changes: changes of the model's config, from the task and the recipe.
        features: their inputs in order; empty until encoded, like the rest.
        weighing: further changes of the config (`Task.config_changes`).
        lengths: document lengths by non-empty set.
        labels: number of documents by label, by set.
        baselines: metrics of trivial answers.
        remarks, weights, doubts: notices about the inputs, class weights, and the documents.
    """

    examples: Mapping[str, Examples]
    changes: dict[str, Any]
    features: Mapping[str, Features] = field(default_factory=dict)
    weighing: dict[str, Any] = field(default_factory=dict)
    lengths: dict[str, LengthReport] = field(default_factory=dict)
    labels: dict[str, Counter[str]] = field(default_factory=dict)
    baselines: Baselines = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    weights: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)


def is_large(data: DataSection) -> bool:
    """True if the local files of the training and evaluation sets have 8 MiB or more in all."""
    names = [name for part in (data.train, data.eval) if part for name in each(part)]
    return sum(os.path.getsize(name) for name in names if os.path.isfile(name)) >= LARGE


def folder_of(recipe: Recipe, hashes: Mapping[str, str | None], seed: int) -> Path | None:
    """Cache folder of a recipe's sets, existing or not; None if their content is not known because
    of remote files or a model that is not on this machine.

    Args:
        recipe: the recipe.
        hashes: hashes of the files under ``train`` and ``eval``; None for what is no local file.
        seed: seed of the split and of sampled inputs.

    Raises:
        UserError: the evidence folder cannot be listed.
    """
    data, path = recipe.data, recipe.model.path
    sets = {name: hashes[name] for name in ("train", "eval") if getattr(data, name)}
    names_files = recipe.task.reads.files or data.text_files
    if path is None or None in sets.values() or (names_files and not data.evidence):
        return None
    try:
        model = find_folder(path)
    except UserError:  # who loads it says so
        return None
    decisive = [file for file in sorted(model.iterdir()) if file.suffix in _BESIDE_WEIGHTS]
    parts = {
        "code": _code(),
        "versions": [transformers.__version__, tokenizers.__version__],
        "sets": sets,
        "data": data.model_dump(mode="json", exclude={"cache", "workers"}),
        "evidence": _listing(Path(data.evidence)) if data.evidence else None,
        "task": recipe.task.model_dump(mode="json"),
        "model": recipe.model.model_dump(mode="json", exclude={"path"}),
        "tokenizer": {file.name: files.digest(file) for file in decisive},
        "seed": seed,
    }
    return Path(data.cache) / f"{recipe.task.name}-{files.key_of(parts)}"


@functools.cache
def _code() -> str:
    total = hashlib.sha256()
    for package in _CODE:
        for path in sorted((Path(__file__).parents[1] / package).rglob("*.py")):
            total.update(path.read_bytes())
    return total.hexdigest()


def _listing(folder: Path) -> str:
    """Hash of names, sizes and modification times of the files in a folder."""
    total = hashlib.sha256()
    for path, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            facts = os.stat(os.path.join(path, name))
            total.update(f"{path}/{name}\0{facts.st_size}\0{facts.st_mtime_ns}\n".encode())
    return total.hexdigest()


def load(folder: Path | None) -> LabelledSets | None:
    """Load the sets of a cache folder, whose `files.Lock` the caller holds; None if ``folder`` is
    None or missing, or its sets are missing, or damaged, which is logged.

    A folder without usable sets is emptied; only inputs that a killed run has encoded stay.
    """
    if folder is None or not folder.is_dir():
        return None
    try:
        sets = _read(folder)
    except FileNotFoundError:
        pass
    except Exception as error:  # whatever somebody else has put there
        log.warning("%s: damaged (%s), made again", folder, first_line(error))
    else:
        log.info("%s has the documents encoded, by an earlier run", folder)
        return sets
    whole = (folder / WHOLE).exists()
    for path in folder.iterdir():
        if not path.name.startswith(".lock") and (whole or "-inputs." not in path.name):
            files.remove(path)
    return None


def _read(folder: Path) -> LabelledSets:
    content = (folder / WHOLE).read_bytes()
    if zlib.crc32(content[4:]) != int.from_bytes(content[:4], "little"):
        raise ValueError(f"{WHOLE} has changed since it was written")
    facts = values(content[4:])
    rows, trained = facts.pop("rows"), facts.pop("trained")
    examples = {
        name: Examples.reopen(folder / file).only(rows[name]) if file else Examples()
        for name, file in facts.pop("files").items()
    }
    features = {name: Features.reopen(folder / f"{name}-inputs") for name in examples}
    features["train"] = features["train"].only(trained)
    for key, cls in (("lengths", LengthReport), ("baselines", Baseline)):
        facts[key] = {name: cls(**each) for name, each in facts[key].items()}
    facts["labels"] = {name: Counter(counts) for name, counts in facts["labels"].items()}
    return LabelledSets(examples=examples, features=features, **facts)


def save(folder: Path | None, sets: LabelledSets) -> None:
    """Complete a cache folder, which has the documents and their inputs, by the rest of the sets;
    with ``folder`` None do nothing.

    Raises:
        ResourceError: the disk is full or failed.
    """
    if folder is None:
        return
    of_eval = "eval" if (folder / "eval.rows").exists() else "train"  # of which it is a part
    names = {"train": "train", "eval": of_eval}
    names = {name: names[name] if len(part) else "" for name, part in sets.examples.items()}
    rows = {
        name: Examples.reopen(folder / file).numbers_of(sets.examples[name])
        for name, file in names.items()
        if file
    }
    inputs = Features.reopen(folder / "train-inputs")
    facts = {
        name: part for name, part in vars(sets).items() if name not in ("examples", "features")
    }
    facts |= {
        "files": names,
        "rows": rows,
        "trained": inputs.numbers_of(sets.features["train"]),
        "lengths": {name: asdict(report) for name, report in sets.lengths.items()},
        "labels": {name: dict(counts) for name, counts in sets.labels.items()},
        "baselines": {name: each._asdict() for name, each in sets.baselines.items()},
    }
    content = pickle.dumps(facts, 5)
    try:
        check = zlib.crc32(content).to_bytes(4, "little")
        files.write_whole(folder / WHOLE, check + content)
    except OSError as error:
        raise ResourceError(
            f"{folder}: {files.unwritten(error)}; data.cache names another folder"
        ) from error
