"""Prediction with Ray Data on a cluster.

`Predictor` is for programs, `predict` for ``ldt predict --executor ray``; only the latter imports
Ray.
"""

import json
import logging
import os
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ldt.errors import EXIT_REJECTS, DataError, UserError, listed, plural
from ldt.inference.engine import Engine
from ldt.inference.options import PredictOptions
from ldt.io import files
from ldt.io.sources import each, is_remote

log = logging.getLogger("ldt")

READERS = {  # by the ending of a file
    ".parquet": "read_parquet",
    ".jsonl": "read_json",
    ".json": "read_json",
    ".csv": "read_csv",
}
_THREADS = 4  # processors of an actor without a GPU, where there are as many
_READING = ("text", "id", "fields", "max_length")  # keys of the data section that rows have use for


class Predictor:
    """Class for Ray Data's ``map_batches``: batches of documents in, batches of answers out.

    Each actor creates one and loads the model. Rows keep their order and their id column, by which
    Ray's checkpoints identify them, and get ``answer``, a JSON line of ``ldt predict``, or {"id",
    "error"} for a document that cannot be used.

    Args:
        folder: folder of a finished run, present on all machines.
        ids: name of the column of unique ids.
        options: options of `ldt.load`, such as ``data={"text": ...}``, ``precision`` and
            ``batch_tokens``.

    Raises:
        UserError: the folder or an option cannot be used.
    """

    def __init__(self, folder: str, ids: str = "id", **options: Any):
        self.ids = ids
        options = {"on_error": "answer"} | options
        options["data"] = {**options.get("data", {}), "id": ids}
        self.engine = Engine.open(folder, **options).load()

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a batch: {column: [rows]} in and out.

        Raises:
            DataError: the id column is missing, or a row has no id.
        """
        if self.ids not in batch:
            raise DataError(f"no column {self.ids!r} of ids; there are {listed(list(batch))}")
        if any(id is None or id == "" or id != id for id in batch[self.ids]):  # NaN is not itself
            raise DataError(f"column {self.ids!r}: a row has no id; each needs one of its own")
        answers = self.engine.columns(batch)["answer"]
        return {self.ids: batch[self.ids], "answer": np.array(answers, dtype=object)}


def predict(
    input: Sequence[str],
    output: str | None,
    *,
    address: str | None,
    resume: bool,
    overwrite: bool,
    model: str | None,
    options: PredictOptions,
) -> int:
    """Answer the rows of files, into a folder of Parquet files.

    Rows have the id column and ``answer``, see `Predictor`. During the run a folder beside
    ``output`` holds Ray's checkpoints of the answered ids.

    Args:
        input: files or patterns, present on all machines under these names.
        output: output folder, reachable from all machines.
        address: address of a cluster; None is RAY_ADDRESS, or this machine.
        resume: True continues a killed run.
        overwrite: True removes an existing folder.
        model: folder of a finished run, present on all machines; None is runs/latest.
        options: prediction options; ``data.id`` is the column of unique ids.

    Returns:
        The exit code: 0, or 7 if a row got an error.

    Raises:
        UserError: Ray is not installed, the cluster is unreachable, or a file or folder cannot be
            used.
    """
    try:
        import ray
        from ray import data
        from ray.data.checkpoint import CheckpointConfig
    except ImportError:
        raise UserError("--executor ray needs Ray: pip install 'ldt-toolkit[ray]'") from None

    for name in options.data.model_dump(exclude_defaults=True, exclude=set(_READING)):
        raise UserError(f"data.{name}: not with --executor ray, which reads rows")
    engine = Engine.open(model, options)
    ids = engine.recipe.data.id or "id"
    values = options.model_dump(exclude_defaults=True, exclude={"on_error"})
    paths, reader = _documents(input)
    target = _target(output, resume, overwrite)
    checkpoint = f"{target}.answered"
    _connect(ray, address)
    context = data.DataContext.get_current()
    context.enable_progress_bars = False
    context.checkpoint_config = CheckpointConfig(
        id_column=ids, checkpoint_path=checkpoint, delete_checkpoint_on_success=False
    )
    actors, resources = _pool(ray.cluster_resources())
    log.info("%s, %s: answers go to %s", plural(actors, "actor"), reader, target)
    answers = getattr(data, reader)(paths).map_batches(
        Predictor,
        fn_constructor_kwargs={"folder": str(engine.folder.resolve()), "ids": ids, **values},
        batch_size=256,
        compute=data.ActorPoolStrategy(size=actors),
        **resources,
    )
    try:
        answers.write_parquet(target)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, UserError):
            raise error.cause from None
        raise
    context.checkpoint_config = None
    return _closed(data.read_parquet(target), ids, target, checkpoint)


def _connect(ray: Any, address: str | None) -> None:
    if ray.is_initialized():
        return
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise UserError(f"address={address}: no cluster there ({error})") from None


def _documents(input: Sequence[str]) -> tuple[list[str], str]:
    paths = [path if is_remote(path) else os.path.abspath(path) for path in each(input)]
    readers = {}
    for path in paths:
        kind = Path(path.removesuffix(".gz")).suffix.lower()
        if kind not in READERS:
            raise UserError(f"{path}: --executor ray reads {', '.join(READERS)}")
        readers[READERS[kind]] = kind
    if len(readers) > 1:
        several = " and ".join(sorted(readers.values()))
        raise UserError(f"--executor ray reads files of one kind at a time, got {several}")
    return paths, next(iter(readers))


def _target(output: str | None, resume: bool, overwrite: bool) -> str:
    if output is None or Path(output).suffix:
        raise UserError("--executor ray writes a folder of Parquet files: --output answers")
    if is_remote(output):
        return output
    target = Path(output).absolute()
    record = Path(f"{target}.answered")
    if resume and not record.exists():
        raise UserError(f"{output}: nothing to resume, no {record.name} beside it")
    if target.exists() and not (resume or overwrite):
        instead = "--resume goes on with it, --overwrite" if record.exists() else "--overwrite"
        raise UserError(f"{output}: is there already; {instead} replaces it")
    for path in () if resume else (target, record):
        files.remove(path)
    return str(target)


def _pool(cluster: dict[str, float]) -> tuple[int, dict[str, float]]:
    """Number of actors that fit the cluster, and the resources of each."""
    if gpus := int(cluster.get("GPU", 0)):
        return gpus, {"num_gpus": 1}
    processors = int(cluster.get("CPU", 1))
    each_takes = min(_THREADS, max(1, processors - 1))
    # Reading and writing take processors too.
    return max(1, (processors - 1) // each_takes), {"num_cpus": each_takes}


def _closed(answers: Any, ids: str, target: str, checkpoint: str) -> int:
    """Count the rows written and remove the checkpoints."""
    hashes, wrong = array("q"), 0
    for batch in answers.iter_batches(batch_format="numpy"):
        hashes.extend(map(hash, batch[ids].tolist()))
        doubtful = (answer for answer in batch["answer"] if '"error"' in answer)
        wrong += sum("error" in json.loads(answer) for answer in doubtful)
    count = len(hashes)
    if twice := count - len(np.unique(np.array(hashes))):
        raise UserError(f"{target}: {plural(twice, 'row')} with an id that came before")
    if not is_remote(checkpoint):
        files.remove(Path(checkpoint))
    log.info("%s: %s", target, plural(count, "answer"))
    if wrong:
        log.warning("%s: an error for an answer", plural(wrong, "row"))
    return EXIT_REJECTS if wrong else 0
