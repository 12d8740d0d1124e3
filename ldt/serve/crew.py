"""Processes with the model of a server, each the hand of a thread of its scheduler."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from ldt.inference.executor import LostError, Seat, Settings, Workers
from ldt.inference.group import Answer, Document, Feature, Outputs
from ldt.inference.run_model import RunModel
from ldt.io.records import Example
from ldt.serve.model import Loaded, Variant, cached
from ldt.serve.scheduler import Here

log = logging.getLogger("ldt")


@contextmanager
def crew(
    run: RunModel, seats: Sequence[Seat], precision: str
) -> Iterator[tuple[str, list["_Desk"]]]:
    """Processes that have the model of a run, until the context is left.

    One that dies is replaced, and what it was asked is asked once more.

    Args:
        precision: "auto" is that of the device.

    Yields:
        The precision, and for each process a hand of `ldt.serve.scheduler.Scheduler`.

    Raises:
        UserError: the model or a device cannot be used.
        ResourceError: two processes have died in the same place.
    """
    makers = [ServedMaker(replace(run, device=seat.device)) for seat in seats]
    with Workers(makers, seats) as workers:
        workers.start()
        settings = workers.settings() | {"memory": workers.memory}
        if precision != "auto":
            settings["precision"] = precision
        workers.load(settings)
        yield settings["precision"], [_Desk(workers)] * len(seats)


class _Desk:
    """The next free process as a `ldt.serve.scheduler.Hand`: it runs the model and answers."""

    aside = False

    def __init__(self, workers: Workers):
        self._workers = workers

    def outputs(self, documents: list[Document]) -> list[Outputs]:
        named = [(replace(example, fields={}), features) for example, features in documents]
        return self._ask(named)

    def answer(
        self, model: Any, outputs: list[Outputs], example: Example, features: list[Feature]
    ) -> Answer:
        return self._ask([(example, features)], model.asked, outputs)

    def _ask(self, *asked: Any) -> Any:
        try:
            return self._workers.ask(*asked)
        except LostError as error:
            log.error("%s", error)
            raise


@dataclass(frozen=True)
class ServedMaker:
    """What makes the model of a process: a `ldt.inference.executor.Maker`."""

    run: RunModel

    def prepare(self) -> None:
        self.run.prepare()

    def settings(self) -> Settings:
        return self.run.settings()

    def load(self, settings: Settings) -> "_Answers":
        predictor: Any = self.run.load(settings).model
        run, precision = self.run, settings["precision"]
        return _Answers(Loaded(run.recipe, predictor, precision, run.runtime, run.batch_tokens))


class _Answers:
    """What a process does: outputs of some inputs, or the answer for a document that has them."""

    def __init__(self, model: Loaded):
        self.here = Here(model.predictor)
        self.variant = cached(Variant, model)

    def __call__(self, documents: Sequence[Document], *asked: Any) -> Any:
        if len(asked) == 1:
            return self.here.outputs(list(documents))
        options, outputs, _ = asked
        ((example, features),) = documents
        return self.here.answer(self.variant(options), outputs, example, features)
