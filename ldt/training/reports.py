"""Reports of a training to TensorBoard, W&B and others, as ``training.report_to`` asks for them."""

from __future__ import annotations

import io
import logging
import netrc
import os
import re
import sys
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
from ldt.recipe.recipe import Recipe
from ldt.recipe.run import TENSORBOARD, Run

log = logging.getLogger("ldt")

# Before W&B begins; a user's own settings win. It prints nothing, and leaves the console alone.
QUIET = {"WANDB_SILENT": "true", "WANDB_CONSOLE": "off"}
_EVENTS = [name for name in dir(TrainerCallback) if name.startswith("on_")]
_PIP = re.compile(r"pip install [-\w.<>= ]*[-\w]")


def check_reports(recipe: Recipe) -> None:
    """Raise RecipeError for reports to what does not exist, is not installed or asks for a key."""
    where = recipe.where("training", "report_to")
    for name in _names(recipe.training.get("report_to")):
        try:
            if _is_missing(name):
                raise ImportError(f"pip install {name}")
            _made(name)
        except Exception as error:  # of kinds that differ, all with a line for people
            line = first_line(error)
            if "install" in line:
                told = _PIP.search(line)
                line = f"{name} is not installed; {told[0] if told else f'pip install {name}'}"
            raise RecipeError(f"{where}: {line}") from error
        if name == "wandb" and not _has_wandb_key():
            raise RecipeError(
                f"{where}: wandb has no API key; wandb login asks for one, WANDB_MODE=offline in "
                "the environment needs none"
            )


class Reports(TrainerCallback):
    """The callbacks of transformers that report, while a training goes on.

    They begin with it and end with it: what is evaluated afterwards is no step of the run. What
    they print is not shown. One that fails after it has begun is left out, and training goes on.

    Args:
        names: ``training.report_to``.
        run: the run folder.
    """

    def __init__(self, names: str | list[str] | None, run: Run):
        self.run = run
        self.callbacks = {name: _made(name) for name in _names(names)}
        self._begun = False

    def tell(self, event: str, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Pass an event on.

        Raises:
            UserError: what is to begin does not, such as for want of a network.
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
        """Have TensorBoard write into the run folder, and go on where a resumed run does."""
        if isinstance(callback, TensorBoardCallback) and callback.tb_writer is None:
            folder = callback.logging_dir or str(self.run.folder / TENSORBOARD)
            # What an earlier session wrote of steps that come again is not shown.
            purge = state.global_step + 1 if state.global_step else None
            callback.tb_writer = callback._SummaryWriter(folder, purge_step=purge)

    @contextmanager
    def _surroundings(self) -> Iterator[None]:
        """The environment with which W&B is quiet, and takes the sessions of a run for one run."""
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


def _names(wanted: str | list[str] | None) -> list[str]:
    """The names of what is reported to, without ``none``."""
    names = [wanted] if isinstance(wanted, str) else wanted or []
    if "all" in names:
        names = get_available_reporting_integrations()
    return [name for name in dict.fromkeys(names) if name != "none"]


def _made(name: str) -> Any:
    (callback,) = get_reporting_integration_callbacks([name])
    return callback()


def _is_missing(name: str) -> bool:
    """True of a package that is known to be missing; some callbacks that fail for that print."""
    is_there = getattr(integrations, f"is_{name}_available", None)
    return is_there is not None and find_spec(name) is None and not is_there()


def _has_wandb_key() -> bool:
    """False where W&B would ask for a key, in words that nobody would see."""
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
    """Close the run of W&B, so that the next phase of a training gets one of its own."""
    if name == "wandb":
        sys.modules["wandb"].finish()  # its callback has imported it
