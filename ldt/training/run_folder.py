"""Run folders: the run that a folder holds, leave to use it, and its files.

``run.json`` says what the run is (`identity`), with which versions it began, which files its model
consists of, which loss it trains by, and whether it is finished. A folder without it was not made
by ldt and is left alone.
"""

from __future__ import annotations

import json
import logging
import math
import os
import platform
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ldt import __version__, files
from ldt.data.options import CorpusSection
from ldt.errors import ModelError, UserError
from ldt.recipe.recipe import RECIPE, Recipe
from ldt.training import checkpoints, processes
from ldt.training.log_file import METRICS as LOG

log = logging.getLogger("ldt")

RUN = "run.json"
RESULTS = "metrics.json"
CARD = "README.md"
KEPT = "decisions.json"  # files that changes of the decisions replaced
PATTERN = "pattern.svg"  # a picture in the card
TENSORBOARD = "tensorboard"  # folder of its files, with training.report_to
LATEST = Path("runs/latest")
MOST_DIFFERENCES = 20

# Keys that change nothing in what is learned, of the training section where none is named; a
# resumed run may have others.
FREE = {
    "data.cache",
    "data.workers",
    "output_dir",
    "run_name",
    "report_to",
    "use_cpu",
    "save_steps",
    "save_total_limit",
    "per_device_eval_batch_size",
    "eval_accumulation_steps",
    "disable_tqdm",
    "log_level",
    "log_level_replica",
    "log_on_each_node",
    "logging_dir",
    "logging_first_step",
    "logging_steps",
    "logging_strategy",
}
_A_STEP = (
    "training.per_device_train_batch_size",
    "training.gradient_accumulation_steps",
    "processes",
)
FREE_STARTS = ("dataloader_num_workers", "dataloader_p")  # prefetch, pin, persistent
_OURS = (
    *(RECIPE, RESULTS, CARD, LOG, "config.json", "*.safetensors", "tokenizer*"),
    *("adapter", "checkpoint-*"),
)


def place(recipe: Recipe) -> Path:
    """The run folder of a recipe: its training.output_dir, else runs/ and the recipe's name."""
    name = recipe.path.stem if recipe.path else recipe.task.name
    return Path(recipe.training.get("output_dir") or f"runs/{name}")


def identity(recipe: Recipe, training: dict[str, Any], hashes: dict[str, str | None]) -> dict:
    """The identity of a run, by which a folder holds the same one: dotted keys and values.

    Args:
        recipe: its data paths are replaced by the hashes, so that files may move.
        training: the section with the defaults filled in.
        hashes: sha256 by key of the data section (train, eval); None of what is no file.
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
    keys["processes"] = processes.count()
    streaming = isinstance(recipe.data, CorpusSection) and recipe.data.streaming
    if recipe.task.kind != "examples" and not streaming:
        # Any number of processes takes the same inputs in a step, if it is as many.
        parts = [keys.pop(key, 1) for key in _A_STEP]
        keys["inputs a step"] = math.prod(parts)
    return json.loads(json.dumps(keys))


def versions(device: str) -> dict[str, str]:
    """Versions of libraries, device and processes, on which bit-identical results depend."""
    names = ("torch", "transformers", "accelerate", "tokenizers")
    used = {"ldt": __version__, "python": platform.python_version(), "device": device}
    used["processes"] = str(processes.count())
    return used | {name: version(name) for name in names}


def read_run(run: Path) -> dict[str, Any] | None:
    """The content of run.json, None where there is none.

    Raises:
        ModelError: it is damaged.
    """
    try:
        record = json.loads((run / RUN).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (ValueError, OSError, RecursionError):
        record = None
    if not isinstance(record, dict) or not isinstance(record.get("identity"), dict):
        raise ModelError(f"{run / RUN}: cannot be read; remove the folder or choose another")
    return record


def read_results(run: Path) -> dict[str, Any]:
    """The content of metrics.json of a finished run."""
    results: dict[str, Any] = json.loads((run / RESULTS).read_text(encoding="utf-8"))
    return results


def check_use(run: Path, wanted: dict, *, resume: bool, overwrite: bool) -> bool:
    """True if the run that the folder holds is finished already; False to go ahead.

    Args:
        run: the folder, which exists.
        wanted: the `identity` of the run to be.
        resume, overwrite: what the user asked for.

    Raises:
        UserError: the folder holds something that the user has to decide about.
    """
    record = read_run(run)
    if record is None:
        foreign = sorted({path.name for pattern in _OURS for path in run.glob(pattern)})
        if foreign:
            raise UserError(
                f"{run}: holds files of something else ({', '.join(foreign[:5])}); "
                "choose another training.output_dir"
            )
        if resume:
            raise UserError(f"{run}: no run to resume there; without --resume one starts")
        return False
    if overwrite:
        return False
    differences = _differences(record["identity"], wanted)
    if differences:
        raise UserError(
            f"{run}: holds another run; it differs in\n{differences}\n"
            "--overwrite replaces it, another training.output_dir keeps both"
        )
    if resume:
        return bool(record.get("finished"))
    if record.get("finished"):
        raise UserError(
            f"{run}: holds this run, finished; --overwrite trains it again, "
            "another training.output_dir keeps both"
        )
    steps = list(checkpoints.checkpoints(run))
    state = f"stopped after step {steps[-1]}" if steps else "stopped before its first checkpoint"
    raise UserError(
        f"{run}: holds this run, {state}; --resume goes on with it, --overwrite starts anew"
    )


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


def begin(
    run: Path, wanted: dict, recipe_text: str, used: dict[str, Any], goes_by: dict, resume: bool
) -> str:
    """Write what the run is; of an older run that is overwritten nothing stays.

    run.json comes first: a folder without it counts as somebody else's, so a process that is
    killed in between leaves a run that can be resumed or overwritten.

    Args:
        used: the `versions`; on resuming, a warning names those that have changed.
        goes_by: ``arithmetic``, `ldt.attention.matmul.choices`, for those who resume; ``metric``,
            by which weights are chosen, for those who look on.

    Returns:
        A word that run.json has from this session alone.
    """
    before = read_run(run)
    if before and not resume:
        clear(run, before)
        before = None
    if before:
        then = before.get("versions", {})
        changed = [f"{k} {then[k]}, now {v}" for k, v in used.items() if then.get(k, v) != v]
        if changed:
            log.warning(
                "%s began with %s: from here on numbers may differ from those of an "
                "uninterrupted run in their last digits",
                run,
                "; ".join(changed),
            )
    session = secrets.token_hex(8)
    new: dict[str, Any] = {
        "identity": wanted,
        "id": secrets.token_hex(8),
        "versions": used,
        **goes_by,
        "files": [],
        "finished": False,
    }
    _write(run, (before or new) | {"session": session})
    files.write_whole(run / RECIPE, recipe_text)
    return session


def clear(run: Path, record: dict[str, Any]) -> None:
    """Remove what ldt wrote for a run, and nothing else; run.json goes last.

    A finished run is none from the first removal on: killed in between, it is not taken for one.
    """
    _write(run, record | {"finished": False})
    for path in checkpoints.checkpoints(run).values():
        shutil.rmtree(path)
    for name in [*record.get("files", []), TENSORBOARD, KEPT, RESULTS, LOG, RECIPE, RUN]:
        if Path(name).name == name:
            _unlink(run / name)


def _unlink(path: Path) -> None:
    """Remove a file, or a folder such as that of an adapter, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def finish(
    run: Path, folder: Path, also: Iterable[str] = (RESULTS,), *, finished: bool = True
) -> None:
    """Move the files of a model from a temporary folder into the run folder.

    Args:
        folder: beside or in the run folder; empty then.
        also: names of its files that go last, since their presence says that all is there.
        finished: False for a run that is to be resumed all the same.

    Raises:
        OSError: the disk did not take them.
    """
    also = list(also)
    names = sorted(path.name for path in folder.iterdir() if path.name not in also) + also
    files.settle(folder)
    record = read_run(run)
    assert record is not None  # `begin` wrote it
    _write(run, record | {"files": names})
    for name in names:
        if (folder / name).is_dir():
            _unlink(run / name)  # a folder takes the place of an empty one only
        (folder / name).replace(run / name)
    files.flush(run)
    _write(run, record | {"files": names, "finished": finished})


def _write(run: Path, record: dict[str, Any]) -> None:
    files.write_whole(run / RUN, json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def point_latest(run: Path) -> None:
    """Have ``runs/latest`` of the current directory point to a finished run."""
    if LATEST.exists() and not LATEST.is_symlink():
        log.warning("%s is not a link and stays as it is", LATEST)
        return
    link = files.temporary(LATEST)
    try:
        LATEST.parent.mkdir(exist_ok=True)
        files.remove_abandoned(LATEST)
        link.symlink_to(os.path.relpath(run, LATEST.parent), target_is_directory=True)
        link.replace(LATEST)
    except OSError as error:  # such as a file system without links
        log.warning("%s: not linked to %s: %s", LATEST, run, error.strerror)
    finally:  # also where a signal ends the command
        files.remove(link)


@contextmanager
def locked(run: Path) -> Iterator[None]:
    """The run folder for this process alone; a folder that stays empty is removed."""
    lock = files.Lock(run)
    try:
        with lock:
            yield
    finally:
        with suppress(OSError):
            if lock.same_folder():  # not one of the same name that somebody else made
                run.rmdir()


def check_writable(run: Path) -> None:
    """Raise UserError where a run folder cannot be made; nothing is written."""
    parent = files.existing(run)
    if not parent.is_dir():
        raise UserError(f"{run}: is a file or lies in one, not a folder")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise UserError(f"{run}: cannot be written: {parent} is read-only")
