"""Run folders: create, find, read, fingerprint and describe them.

``run.json`` has the `identity` of the run, the versions with which it began, the files of its
model, the hashes of its weights, and whether it is finished. A folder without it was not made by
ldt and is left alone.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from ldt.data.options import CorpusSection
from ldt.errors import ModelError, UserError
from ldt.io import files
from ldt.recipe import recipe as recipes
from ldt.recipe.recipe import RECIPE, Recipe

log = logging.getLogger("ldt")

RUN = "run.json"
RESULTS = "metrics.json"
LOG = "metrics.jsonl"  # a JSON line for each log of the training
CARD = "README.md"
CONFIG = "config.json"
REPLACED = "decisions.json"  # files that changes of the decisions replaced
TENSORBOARD = "tensorboard"  # folder of its files, with training.report_to
LATEST = Path("runs/latest")
MOST_DIFFERENCES = 20
DEPTH = 3  # folders below one that is looked through

# Keys that change nothing in what is learned, of the training section where none is named; a
# resumed run may have others.
FREE = {
    *("data.cache", "data.workers", "output_dir", "run_name", "report_to", "use_cpu", "save_steps"),
    *("save_total_limit", "per_device_eval_batch_size", "eval_accumulation_steps"),
    *("disable_tqdm", "log_level", "log_level_replica", "log_on_each_node", "logging_dir"),
    *("logging_first_step", "logging_steps", "logging_strategy"),
    *("gradient_checkpointing", "gradient_checkpointing_kwargs"),
}
FREE_STARTS = ("dataloader_num_workers", "dataloader_p")  # prefetch, pin, persistent
_A_STEP = (
    "training.per_device_train_batch_size",
    "training.gradient_accumulation_steps",
    "processes",
)
_OURS = (
    *(RECIPE, RESULTS, CARD, LOG, CONFIG, "*.safetensors", "tokenizer*"),
    *("adapter", "checkpoint-*"),
)
_DECISIVE = (  # for the answers
    *(CONFIG, "generation_config.json", "adapter_config.json", "tokenizer*", "vocab*"),
    *("*.safetensors", "*.bin", "model.onnx", "model.xml", "model.pt2"),
    *("modules.json", "config_sentence_transformers.json", "*_Pooling/config.json", "*_Dense/*"),
)
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")
_SHA256 = re.compile("[0-9a-f]{64}")


class FolderLost(Exception):
    """Error: the run folder is no longer the one that the training began in; the message
    says why."""


@dataclass(frozen=True)
class Description:
    """The content of a run folder.

    Args:
        identity: the keys that decide what was trained, as run.json has them.
        results: metrics.json; empty of a run that is not finished.
        log: the lines of metrics.jsonl.
        decisions: decisions in force, from config.json.
    """

    folder: Path
    recipe: Recipe
    identity: Mapping[str, Any]
    results: Mapping[str, Any]
    log: list[dict[str, Any]]
    decisions: Mapping[str, Any]


class Run:
    """Run folder, which exists or is to be created.

    Args:
        folder: its path.
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        self._begun: tuple[str, tuple[int, int]] | None = None  # session and folder, by `begin`

    def __str__(self) -> str:
        return str(self.folder)

    @classmethod
    def of(cls, recipe: Recipe) -> Run:
        """Run folder of a recipe: its training.output_dir, else runs/NAME by the recipe's name."""
        name = recipe.path.stem if recipe.path else recipe.task.name
        return cls(recipe.training.get("output_dir") or f"runs/{name}")

    @classmethod
    def find(cls, model: str | Path | None) -> Run:
        """Find the folder of a fine-tuned model; None is ``runs/latest``, the newest run of the
        current directory, which is logged.

        Raises:
            UserError: it is a file.
            ModelError: there is no such folder.
        """
        folder = Path(model or LATEST).expanduser()
        if folder.is_file():
            raise UserError(
                f"--model {folder}: a file; --model takes the folder of a finished run, which "
                "ldt finetune RECIPE makes"
            )
        if not folder.is_dir():
            raise ModelError(
                f"{folder}: no such folder; ldt finetune RECIPE makes a run, hf download ID "
                "--local-dir FOLDER fetches one, --model FOLDER names it"
            )
        if model is None:
            log.info("model: %s -> %s", folder, os.path.relpath(os.path.realpath(folder)))
        return cls(folder)

    @classmethod
    def below(cls, folder: Path, depth: int = DEPTH) -> Iterator[Run]:
        """Yield the runs in a folder, the folder itself included, down to ``depth`` levels.

        A phase of a staged training lies in its run. Links are not followed.

        Raises:
            OSError: a folder cannot be read.
        """
        if os.path.lexists(folder / RUN):
            yield cls(folder)
        if depth:
            with os.scandir(folder) as entries:
                inside = sorted(each.name for each in entries if each.is_dir(follow_symlinks=False))
            for name in inside:
                if not name.startswith((".", "checkpoint-")) and ".tmp-" not in name:
                    yield from cls.below(folder / name, depth - 1)

    # -- reading

    def record(self) -> dict[str, Any] | None:
        """Content of run.json, None if there is none; ModelError if it is damaged."""
        file = self.folder / RUN
        if not os.path.lexists(file):
            return None
        record = _object(file)
        if record is None or not isinstance(record.get("identity"), dict):
            raise ModelError(f"{file}: cannot be read; remove the folder or choose another")
        return record

    def results(self) -> dict[str, Any]:
        """Content of metrics.json; {} for a run that is not finished; ModelError if it is
        damaged."""
        file = self.folder / RESULTS
        results = _object(file) if file.is_file() else {}
        if results is None:
            raise ModelError(f"{file}: cannot be read as an object of JSON")
        return results

    def config(self) -> dict[str, Any]:
        """Content of the model's config.json; {} if it is missing or cannot be read."""
        return _object(self.folder / CONFIG) or {}

    def decisions(self) -> dict[str, Any]:
        """Decisions (thresholds, calibration, abstention) in the model's config; {} if there are
        none."""
        decisions = self.config().get("decisions")
        return decisions if isinstance(decisions, dict) else {}

    def classes(self) -> list[str] | None:
        """Names of the model's classes in order, from its config; None if it has none."""
        labels = self.config().get("id2label")
        return list(map(str, labels.values())) if isinstance(labels, dict) else None

    def describe(self, overrides: Iterable[str] = ()) -> Description:
        """Read the folder of a run, finished or not.

        Args:
            overrides: ``key=value`` arguments that change its recipe, such as those for reading
                another gold file.

        Raises:
            ModelError: it is no folder of a run, or a file in it is damaged.
            RecipeError: the recipe with the overrides is wrong.
        """
        file = self.folder / RECIPE
        if not file.is_file():
            raise ModelError(
                f"{self}: no {RECIPE}, so this is no folder of a run; ldt finetune RECIPE makes one"
            )
        recipe = recipes.load(file, overrides)
        keys = (self.record() or {}).get("identity") or identity(recipe, recipe.training, {})
        more = self.results(), self.log(), self.decisions()
        return Description(self.folder, recipe, keys, *more)

    def size(self) -> int:
        """Total bytes of the files in the folder that can be read; links are not followed."""
        total = 0
        for path, _, names in os.walk(self.folder):
            for name in names:
                with suppress(OSError):  # gone meanwhile, as those of a training are
                    total += os.lstat(os.path.join(path, name)).st_size
        return total

    def fingerprint(self, recipe: Recipe) -> str:
        """SHA-256, in hex digits, of the files that decide what the model answers.

        Args:
            recipe: recipe of the run, read from a file.
        """
        decisive = {each for pattern in _DECISIVE for each in self.folder.glob(pattern)}
        written = [] if recipe.path is None else [recipe.path]
        try:
            known = (self.record() or {}).get("hashes")
        except ModelError:  # which the answers do not depend on
            known = None
        total = hashlib.sha256()
        for file in [*written, *sorted(each for each in decisive if each.is_file())]:
            total.update(bytes.fromhex(_known_digest(file, known) or files.digest(file)))
        return total.hexdigest()

    # -- checkpoints and log

    def checkpoints(self) -> dict[int, Path]:
        """Checkpoint folders by step, valid or not, oldest first; empty if there are none, or no
        run folder."""
        folders = {}
        for path in self.folder.glob("checkpoint-*"):
            match = _CHECKPOINT.fullmatch(path.name)
            if match and path.is_dir():
                folders[int(match[1])] = path
        return dict(sorted(folders.items()))

    def checkpoint(self, step: int) -> Path:
        """Path of the checkpoint of a step, whether it exists or not."""
        return self.folder / f"checkpoint-{step}"

    def log(self) -> list[dict[str, Any]]:
        """Read the lines of metrics.jsonl as dicts, each with a whole number as its ``step``;
        others are left out, such as one that is being written. Empty if there is no log.

        Raises:
            OSError: it is there and cannot be read.
        """
        return [row for row, _ in self._log_lines()]

    def cut_log(self, step: int) -> None:
        """Remove the log's lines after a step, its closing line (``train_loss``), and a cut one."""
        if (self.folder / LOG).exists():
            lines = [
                text
                for row, text in self._log_lines()
                if row["step"] <= step and "train_loss" not in row
            ]
            files.write_whole(self.folder / LOG, "".join(f"{text}\n" for text in lines))

    def _log_lines(self) -> list[tuple[dict[str, Any], str]]:
        try:
            text = (self.folder / LOG).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return []
        lines = []
        for line in text.split("\n"):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(row, dict) and isinstance(row.get("step"), int):
                lines.append((row, line))
        return lines

    # -- leave to use the folder

    def check_use(self, wanted: dict, *, resume: bool, overwrite: bool) -> bool:
        """Check that a training may use the folder: True if the same run is finished already, False
        to train.

        Args:
            wanted: the `identity` of the run to be.
            resume, overwrite: options of the user.

        Raises:
            UserError: the folder holds something else, or a run that these options do not allow
                for.
        """
        record = self.record()
        if record is None:
            foreign = sorted({path.name for name in _OURS for path in self.folder.glob(name)})
            if foreign:
                raise UserError(
                    f"{self}: holds files of something else ({', '.join(foreign[:5])}); "
                    "choose another training.output_dir"
                )
            if resume:
                raise UserError(f"{self}: no run to resume there; without --resume one starts")
            return False
        if overwrite:
            return False
        differences = _differences(record["identity"], wanted)
        if differences:
            raise UserError(
                f"{self}: holds another run; it differs in\n{differences}\n"
                "--overwrite replaces it, another training.output_dir keeps both"
            )
        if resume:
            return bool(record.get("finished"))
        if record.get("finished"):
            raise UserError(
                f"{self}: holds this run, finished; --overwrite trains it again, "
                "another training.output_dir keeps both"
            )
        raise UserError(
            f"{self}: holds this run, {self.stopped()}; --resume goes on with it, --overwrite "
            "starts anew"
        )

    def stopped(self) -> str:
        """Progress of a run that is not being trained, by its last checkpoint: "stopped after step
        500" or "stopped before its first checkpoint"."""
        steps = list(self.checkpoints())
        return f"stopped {f'after step {steps[-1]:,}' if steps else 'before its first checkpoint'}"

    def check_writable(self) -> None:
        """Raise UserError if the folder cannot be created; nothing is written."""
        parent = files.existing(self.folder)
        if not parent.is_dir():
            raise UserError(f"{self}: is a file or lies in one, not a folder")
        if not os.access(parent, os.W_OK | os.X_OK):
            raise UserError(f"{self}: cannot be written: {parent} is read-only")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Context manager that locks the folder, which is created, for this process; removed if
        still empty at the end. UserError if another process has the lock."""
        lock = files.Lock(self.folder)
        try:
            with lock:
                yield
        finally:
            with suppress(OSError):
                if lock.same_folder():  # not one of the same name that somebody else made
                    self.folder.rmdir()

    # -- writing

    def begin(
        self, wanted: dict, recipe: Recipe, facts: dict[str, Any], *, resume: bool = False
    ) -> None:
        """Create the folder's run.json and recipe; remove all of an older run that is overwritten.

        run.json comes first: a folder without it counts as somebody else's, so a process that is
        killed in between leaves a run that can be resumed or overwritten.

        Args:
            wanted: the `identity`.
            recipe: the recipe with all defaults; its training.output_dir becomes this folder.
            facts: ``versions``, of which a warning names those that have changed on resuming;
                ``arithmetic``, `ldt.attention.matmul.choices`, for those who resume; ``metric``, by
                which weights are chosen, for those who look on.
            resume: True keeps the run that is in the folder, and its run.json but for the session.
        """
        if not resume:
            self.clear()
        if before := self.record():
            then, now = before.get("versions", {}), facts["versions"]
            changed = [f"{k} {then[k]}, now {v}" for k, v in now.items() if then.get(k, v) != v]
            if changed:
                log.warning(
                    "%s began with %s: from here on numbers may differ from those of an "
                    "uninterrupted run in their last digits",
                    *(self, "; ".join(changed)),
                )
        session = secrets.token_hex(8)
        new = {"identity": wanted, "id": secrets.token_hex(8), **facts}
        new |= {"files": [], "finished": False}
        self._write((before or new) | {"session": session})
        training = recipe.training | {"output_dir": str(self)}
        files.write_whole(self.folder / RECIPE, recipes.dump(replace(recipe, training=training)))
        self._begun = session, self._place()

    def clear(self) -> None:
        """Remove the files that ldt wrote for the run, and nothing else; run.json goes last.

        From the first removal on the run counts as unfinished, even if the process is killed in
        between.
        """
        record = self.record()
        if record is None:
            return
        self._write(record | {"finished": False})
        for path in self.checkpoints().values():
            shutil.rmtree(path)
        for name in [*record.get("files", []), TENSORBOARD, REPLACED, RESULTS, LOG, RECIPE, RUN]:
            if Path(name).name == name:
                _remove(self.folder / name)

    def finish(
        self,
        folder: Path,
        also: Iterable[str] = (RESULTS,),
        *,
        hashes: Mapping[str, str] | None = None,
        finished: bool = True,
    ) -> None:
        """Move the files of a model from a temporary folder into the run folder.

        Args:
            folder: beside or in the run folder; empty then.
            also: names of its files that go last, since their presence says that all is there.
            hashes: sha256 of its weights by name, for `fingerprint`.
            finished: False for a run that is to be resumed all the same.

        Raises:
            OSError: the disk did not take them.
        """
        also = list(also)
        names = sorted(path.name for path in folder.iterdir() if path.name not in also) + also
        files.flush_folder(folder)
        record = self.record()
        assert record is not None  # `begin` wrote it
        record |= {"files": names, "hashes": {}}
        self._write(record)
        for name in names:
            if (folder / name).is_dir():
                _remove(self.folder / name)  # a folder takes the place of an empty one only
            (folder / name).replace(self.folder / name)
        files.flush(self.folder)
        for name, sha256 in (hashes or {}).items():
            record["hashes"][name] = files.stamp(self.folder / name) | {"sha256": sha256}
        self._write(record | {"finished": finished})

    def _write(self, record: dict[str, Any]) -> None:
        text = json.dumps(record, indent=1, ensure_ascii=False)
        files.write_whole(self.folder / RUN, f"{text}\n")

    def point_latest(self) -> None:
        """Make ``runs/latest`` of the current directory a link to this run; what prevents it is
        logged."""
        if LATEST.exists() and not LATEST.is_symlink():
            log.warning("%s is not a link and stays as it is", LATEST)
            return
        link = files.temporary(LATEST)
        try:
            LATEST.parent.mkdir(exist_ok=True)
            files.remove_abandoned(LATEST)
            target = os.path.relpath(self.folder, LATEST.parent)
            link.symlink_to(target, target_is_directory=True)
            link.replace(LATEST)
        except OSError as error:  # such as a file system without links
            log.warning("%s: not linked to %s: %s", LATEST, self, error.strerror)
        finally:  # also where a signal ends the command
            files.remove(link)

    # -- a folder that goes away while its run trains

    def fault(self) -> str | None:
        """Fate of the folder since `begin`, such as "was removed or renamed while it was trained
        in"; None if it is unchanged, or before `begin`."""
        if self._begun is None:
            return None
        session, place = self._begun
        try:
            now, record = self._place(), _object(self.folder / RUN)
        except OSError:
            return "was removed or renamed while it was trained in"
        if now != place or (record and record.get("session") != session):
            return "was replaced or taken by another run while it was trained in"
        return None if record else f"lost its {RUN} while it was trained in"

    def _place(self) -> tuple[int, int]:
        stat = os.stat(self.folder)
        return stat.st_dev, stat.st_ino

    def rescued(self) -> Run:
        """Create an empty folder to rescue the training to: ``RUN-rescued`` or, if that exists,
        ``-rescued-2`` … This one is given up: it has no `fault` any more.

        Beside the run folder, else in the current directory, else among the temporary files.

        Raises:
            OSError: none of them can be created.
        """
        self._begun = None
        for parent in (self.folder.parent, Path(), Path(tempfile.gettempdir())):
            for number in count(1):
                place = parent / f"{self.folder.name}-rescued{'' if number == 1 else f'-{number}'}"
                try:
                    place.mkdir(parents=True)
                    return Run(place)
                except OSError as error:
                    if not isinstance(error, FileExistsError):
                        log.warning("%s: cannot be made: %s", place, error.strerror)
                    if not os.path.lexists(place):
                        break
        raise OSError(f"{self}-rescued: cannot be made")


def recipe_file(path: Path) -> Path:
    """Path of the recipe in a run folder, or for a checkpoint without one in the run around it; a
    file stands for itself. It need not exist."""
    if not path.is_dir():
        return path
    inherited = path.name.startswith("checkpoint-") and not (path / RECIPE).is_file()
    return (path.parent if inherited else path) / RECIPE


def identity(
    recipe: Recipe, training: dict[str, Any], hashes: dict[str, str | None], processes: int = 1
) -> dict[str, Any]:
    """Keys and values that decide what a run trains, by which a folder is known to hold the same
    run.

    Args:
        recipe: its data paths are replaced by the hashes, so that files may move.
        training: the section with the defaults filled in.
        hashes: sha256 by key of the data section (train, eval); None of what is no file.
        processes: number of processes that train together.
    """
    keys = {}
    for name in ("task", "model", "data"):
        for key, value in getattr(recipe, name).model_dump(mode="json").items():
            if f"{name}.{key}" in FREE:
                continue
            if name == "data" and hashes.get(key):
                key, value = f"{key} (sha256)", hashes[key]
            keys[f"{name}.{key}"] = value
    for key, value in training.items():
        if key not in FREE and not key.startswith(FREE_STARTS):
            keys[f"training.{key}"] = value
    keys["processes"] = processes
    streaming = isinstance(recipe.data, CorpusSection) and recipe.data.streaming
    if recipe.task.reads.kind != "examples" and not streaming:
        # Any number of processes takes the same inputs in a step, if it is as many.
        parts = [keys.pop(key, 1) for key in _A_STEP]
        keys["inputs a step"] = math.prod(parts)
    as_json: dict[str, Any] = json.loads(json.dumps(keys))
    return as_json


def _object(file: Path) -> dict[str, Any] | None:
    """The object of a JSON file; None of one that cannot be read."""
    try:
        value = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _differences(there: dict, here: dict) -> str:
    lines = [
        f"  {key}: {_shown(there.get(key))} there, {_shown(here.get(key))} here"
        for key in sorted(there.keys() | here.keys())
        if there.get(key) != here.get(key)
    ]
    more = len(lines) - MOST_DIFFERENCES
    return "\n".join(lines[:MOST_DIFFERENCES] + ([f"  and {more} more"] if more > 0 else []))


def _shown(value: Any) -> str:
    text = "nothing" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _known_digest(file: Path, known: Any) -> str | None:
    """The sha256 that run.json has of a file; None where it has none, or the file has changed."""
    entry = known.get(file.name) if isinstance(known, dict) else None
    if not isinstance(entry, dict) or not files.stamp(file).items() <= entry.items():
        return None
    return entry["sha256"] if _SHA256.fullmatch(str(entry.get("sha256"))) else None


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


# -- values of a log


def number(value: Any) -> float | None:
    """Convert a value of a log to a finite float; None for anything else."""
    is_finite = isinstance(value, int | float) and math.isfinite(value)
    return float(value) if is_finite else None


def is_metric(name: str) -> bool:
    """True for names such as ``eval_f1``, False for speeds of an evaluation and for other names."""
    return name.startswith("eval_") and not name.endswith(
        ("_runtime", "_per_second", "_preparation_time")
    )


def eval_name(metric: Any) -> str:
    """Name of a metric in the log: ``eval_f1`` for ``f1``, as recipes may write, and for
    ``eval_f1``."""
    return f"eval_{str(metric).removeprefix('eval_')}"
