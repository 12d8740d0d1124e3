"""Progress of a training: log lines, metrics.jsonl, and trackers."""

from __future__ import annotations

import io
import json
import logging
import math
import netrc
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

from transformers import TrainerCallback, integrations
from transformers.integrations import (
    TensorBoardCallback,
    get_available_reporting_integrations,
    get_reporting_integration_callbacks,
)

from ldt.errors import RecipeError, UserError, first_line
from ldt.io.progress import Heartbeat, duration
from ldt.metrics.numbers import metric_text
from ldt.recipe.recipe import Recipe
from ldt.recipe.run import LOG, TENSORBOARD, Run, is_metric

log = logging.getLogger("ldt")

# Before W&B begins; a user's own settings win. It prints nothing, and leaves the console alone.
QUIET = {"WANDB_SILENT": "true", "WANDB_CONSOLE": "off"}
_EVENTS = [name for name in dir(TrainerCallback) if name.startswith("on_")]
_PIP = re.compile(r"pip install [-\w.<>= ]*[-\w]")


class ProgressReport(TrainerCallback):
    """Reports a Trainer's steps, evaluations and logs.

    Each log becomes a line of ``metrics.jsonl``: step, epoch and the Trainer's values (loss,
    learning_rate, grad_norm, eval_...). Training steps add tokens_per_second, memory (bytes),
    seconds since the start of this session and, for a Poolingformer, ``gate``: the mean absolute
    gate, where 0 disables the second level and 1 adds it fully. tokens_per_second counts real
    tokens, without padding, over the time of training steps since the previous line.

    Args:
        run: run folder; None writes no file.
        measured: prefix of lines about steps of a measurement.
    """

    def __init__(self, run: Run | None, measured: str = ""):
        self.run, self.measured = run, measured
        self.tokens = 0  # of this session, up to the last log
        self.busy = 0.0  # seconds in training steps, likewise
        self._last = (0, 0.0)
        self._started = 0.0  # until a training begins
        self._warned = False
        self._loss = ""
        self._heartbeat = Heartbeat("training")
        self._evaluation: Heartbeat | None = None

    @property
    def tokens_per_second(self) -> float:
        """Real tokens per second of training steps in this session, up to the last step; 0
        before."""
        return self.tokens / self.busy if self.busy else 0.0

    def on_train_begin(self, args, state, control, **kwargs):
        """Begin to count seconds, steps and tokens of this session."""
        self._started = time.monotonic()
        self._heartbeat = Heartbeat("training")
        self._first_step = state.global_step
        self._first_tokens = state.num_input_tokens_seen

    def on_step_begin(self, args, state, control, **kwargs):
        """Begin to measure the time of a step."""
        self._step_began = time.monotonic()

    def on_step_end(self, args, state, control, **kwargs):
        """Count time and tokens of a step; log progress if nothing was logged for a while."""
        self.busy += time.monotonic() - self._step_began
        self.tokens = state.num_input_tokens_seen - self._first_tokens
        if self._heartbeat.due() and state.is_world_process_zero:
            rates = self._rates(state, self.tokens_per_second, memory(args.device))
            place = f"{self.measured}: {state.global_step} of {state.max_steps} steps"
            log.info("%s", place if self.measured else f"{_place(state)}  {rates}")

    def on_prediction_step(self, args, state, control, eval_dataloader=None, **kwargs):
        """Count a batch of an evaluation; log progress from time to time."""
        if state.is_world_process_zero:
            if self._evaluation is None:
                self._evaluation = Heartbeat("evaluating", len(eval_dataloader), "batches")
                self._evaluated = 0
            self._evaluated += 1
            self._evaluation(self._evaluated)

    def on_evaluate(self, args, state, control, **kwargs):
        """End the count of evaluation batches."""
        self._evaluation = None

    def on_log(self, args, state, control, model=None, logs=None, **kwargs):
        """Log a line for the user, and append the values to metrics.jsonl; only in the first
        process."""
        if not state.is_world_process_zero or logs is None:
            return
        self._heartbeat.heard()
        row = {"step": state.global_step, **logs}
        if "loss" in logs:
            tokens, busy = self._last
            self._last = (self.tokens, self.busy)
            row["tokens_per_second"] = (self.tokens - tokens) / max(self.busy - busy, 1e-9)
            row["memory"] = memory(args.device)
            row["seconds"] = time.monotonic() - self._started
            row |= _gate(model)
            self._loss = f"loss {logs['loss']:.4f}  "
            rates = self._rates(state, row["tokens_per_second"], row["memory"])
            gate = f"gate {row['gate']:.4f}  " if "gate" in row else ""
            norm = f"gradient {logs.get('grad_norm', 0):.3g}"
            rate = f"lr {logs['learning_rate']:.2e}"
            log.info("%s", f"{_place(state)}  {rate}  {norm}  {gate}{rates}")
        elif any(map(is_metric, logs)):
            metrics = [(name, value) for name, value in logs.items() if is_metric(name)]
            values = "  ".join(f"{name[5:]} {metric_text(name, value)}" for name, value in metrics)
            place = f"eval at step {state.global_step}" if self._started else "evaluation"
            log.info("%s  %s", place, values)
        if self.run and not self.run.fault():
            line, path = json.dumps(plain_numbers(row)) + "\n", self.run.folder / LOG
            try:
                with path.open("a", encoding="utf-8") as file:
                    file.write(line)
            except OSError as error:  # such as a full disk, of which saving says more
                if not self._warned:
                    log.warning("%s: not written from step %d on: %s", path, row["step"], error)
                self._warned = True

    def cut(self, step: int) -> None:
        """Remove the lines of metrics.jsonl after a step, that of the checkpoint to resume from."""
        if self.run:
            self.run.cut_log(step)

    def _rates(self, state, rate: float, used: int) -> str:
        done = state.global_step - self._first_step
        left = (state.max_steps - state.global_step) * (time.monotonic() - self._started)
        eta = duration(left / max(done, 1))
        return f"{self._loss}{rate:,.0f} tokens/s  {used / 2**30:.2f} GiB  ETA {eta}"


def _gate(model: Any) -> dict[str, float]:
    """{"gate": mean absolute gate of a Poolingformer}; empty for other models."""
    from ldt.model.pooling import gates

    amounts = [abs(gate) for layer in gates(model).values() for gate in layer]
    return {"gate": sum(amounts) / len(amounts)} if amounts else {}


def _place(state) -> str:
    return f"step {state.global_step}/{state.max_steps}  epoch {state.epoch:.2f}"


def memory(device: Any) -> int:
    """Bytes in use: peak allocation on ``device``, a torch.device, if CUDA, else the resident
    memory of this process now."""
    import torch

    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    import psutil

    return psutil.Process().memory_info().rss


def plain_numbers(value: Any) -> Any:
    """Copy of a nested value for JSON: numbers of numpy and torch become Python's, tuples lists,
    NaN and infinities None."""
    if isinstance(value, dict):
        return {key: plain_numbers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_numbers(item) for item in value]
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


# -- reports to TensorBoard, W&B and others, as `training.report_to` asks for them


def check_reports(recipe: Recipe) -> None:
    """Raise RecipeError for trackers in ``training.report_to`` that do not exist, are not
    installed, or would ask for a key."""
    where = recipe.where("training", "report_to")
    for name in _trackers(recipe.training.get("report_to")):
        try:
            if _is_missing(name):
                raise ImportError(f"pip install {name}")
            _tracker(name)
        except Exception as error:  # of kinds that differ, all with a line for people
            line = first_line(error)
            if "install" in line:
                pip = _PIP.search(line)
                line = f"{name} is not installed; {pip[0] if pip else f'pip install {name}'}"
            raise RecipeError(f"{where}: {line}") from error
        if name == "wandb" and not _has_wandb_key():
            raise RecipeError(
                f"{where}: wandb has no API key; wandb login asks for one, WANDB_MODE=offline in "
                "the environment needs none"
            )


class Reports(TrainerCallback):
    """transformers' tracker callbacks, active during the training.

    Evaluation after the training is not reported. Their output is hidden. A tracker that fails
    after it has started is dropped, and training continues.

    Args:
        names: ``training.report_to``.
        run: the run folder.
    """

    def __init__(self, names: str | list[str] | None, run: Run):
        self.run = run
        self.callbacks = {name: _tracker(name) for name in _trackers(names)}
        self._begun = False

    def tell(self, event: str, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Forward an event, such as ``on_log``, to the trackers; between training begin and end
        only. A tracker that fails later than at the begin is dropped with a warning.

        Raises:
            UserError: a tracker fails to start, for example without a network.
        """
        self._begun = self._begun or event == "on_train_begin"
        for name, callback in list(self.callbacks.items()) if self._begun else ():
            try:
                with ExitStack() as stack:
                    stack.enter_context(redirect_stdout(io.StringIO()))
                    if event == "on_train_begin":
                        stack.enter_context(self._surroundings())
                        self._open(callback, state)
                    getattr(callback, event)(args, state, control, **kwargs)
                    if event == "on_train_end":
                        _end(name)
            except Exception as error:  # of a library of others
                if event == "on_train_begin":
                    raise UserError(
                        f"training.report_to: {name} does not begin: {first_line(error)}; "
                        "training.report_to=none trains without"
                    ) from error
                del self.callbacks[name]
                log.warning(
                    "no more reports to %s from step %d on: %s",
                    *(name, state.global_step, first_line(error)),
                )
        self._begun = self._begun and event != "on_train_end"

    def _open(self, callback: Any, state: Any) -> None:
        """Have TensorBoard write into the run folder, continuing the log of a resumed run."""
        if isinstance(callback, TensorBoardCallback) and callback.tb_writer is None:
            folder = callback.logging_dir or str(self.run.folder / TENSORBOARD)
            # What an earlier session wrote of steps that come again is not shown.
            purge = state.global_step + 1 if state.global_step else None
            callback.tb_writer = callback._SummaryWriter(folder, purge_step=purge)

    @contextmanager
    def _surroundings(self) -> Iterator[None]:
        """Environment that silences W&B and makes it treat the sessions of a run as one."""
        record = self.run.record() or {}
        wanted = QUIET | {"WANDB_RESUME": "allow"}
        if "id" in record:
            wanted["WANDB_RUN_ID"] = record["id"]
        added = [name for name in wanted if name not in os.environ]
        os.environ.update({name: wanted[name] for name in added})
        try:
            yield
        finally:
            for name in added:
                os.environ.pop(name, None)


def _forwarding(event: str) -> Callable[..., None]:
    def forward(self: Reports, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.tell(event, args, state, control, **kwargs)

    return forward


for _event in _EVENTS:
    setattr(Reports, _event, _forwarding(_event))


def _trackers(wanted: str | list[str] | None) -> list[str]:
    names = [wanted] if isinstance(wanted, str) else wanted or []
    if "all" in names:
        names = get_available_reporting_integrations()
    return [name for name in dict.fromkeys(names) if name != "none"]


def _tracker(name: str) -> Any:
    (callback,) = get_reporting_integration_callbacks([name])
    return callback()


def _is_missing(name: str) -> bool:
    is_there = getattr(integrations, f"is_{name}_available", None)
    return is_there is not None and find_spec(name) is None and not is_there()


def _has_wandb_key() -> bool:
    """False if W&B would ask for a key on the terminal."""
    if os.environ.get("WANDB_MODE", "online") not in ("online", "shared"):
        return True
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    try:
        host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host or "") is not None
    except (OSError, netrc.NetrcParseError):
        return False


def _end(name: str) -> None:
    """Finish the run of W&B, so that the next phase gets its own."""
    if name == "wandb":
        sys.modules["wandb"].finish()  # its callback has imported it
