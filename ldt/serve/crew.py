"""Replicas of a server's model in processes, each asked by a thread of its scheduler."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from ldt.inference.engine import ModelMaker
from ldt.inference.executor import LostError, Seat, Settings, Workers
from ldt.inference.stream import Answer, Document, Feature, Outputs
from ldt.io.records import Example
from ldt.serve.model import LoadedModel, Variant, cached
from ldt.serve.scheduler import LocalReplica

log = logging.getLogger("ldt")


@contextmanager
def replicas(
    makers: Sequence[ModelMaker], seats: Sequence[Seat], precision: str
) -> Iterator[tuple[str, list["ProcessReplica"]]]:
    """Processes that have the model of a run, until the context is left.

    One that dies is replaced, and what it was asked is asked once more.

    Args:
        makers: maker of the model of each process.
        seats: the place of each.
        precision: "auto" is that of the device.

    Yields:
        The precision, and for each process a replica of `ldt.serve.scheduler.Scheduler`.

    Raises:
        UserError: the model or a device cannot be used.
        ResourceError: two processes have died in the same place.
    """
    with Workers([*map(ReplicaMaker, makers)], seats) as workers:
        workers.start()
        settings = workers.settings() | {"memory": workers.memory}
        if precision != "auto":
            settings["precision"] = precision
        workers.load(settings)
        yield settings["precision"], [ProcessReplica(workers)] * len(seats)


class ProcessReplica:
    """The next free process as a `ldt.serve.scheduler.Replica`: it runs the model and answers."""

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
class ReplicaMaker:
    """Maker of the model of a process: a `ldt.inference.executor.Maker`."""

    model: ModelMaker

    def prepare(self) -> None:
        self.model.prepare()

    def settings(self) -> Settings:
        return self.model.settings()

    def load(self, settings: Settings) -> "_Answers":
        predictor: Any = self.model.load(settings).model
        return _Answers(LoadedModel(self.model.recipe, predictor, self.model.options))


class _Answers:
    """Work of a process: outputs of some inputs, or the answer for a document that has them."""

    def __init__(self, model: LoadedModel):
        self.replica = LocalReplica(model.predictor)
        self.variant = cached(Variant, model)

    def __call__(self, documents: Sequence[Document], *asked: Any) -> Any:
        if len(asked) == 1:
            return self.replica.outputs(list(documents))
        options, outputs, _ = asked
        ((example, features),) = documents
        return self.replica.answer(self.variant(options), outputs, example, features)
