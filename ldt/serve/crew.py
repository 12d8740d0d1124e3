"""Processes with the model of a server, each the hand of a thread of its scheduler."""

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from ldt.inference.group import Answer, Document, Feature, Outputs
from ldt.inference.run_model import RunModel
from ldt.inference.worker import Settings
from ldt.inference.workers import LostError, Seat, Workers, start_all
from ldt.io.records import Example
from ldt.serve.model import Loaded, Variant, cached
from ldt.serve.scheduler import Here

log = logging.getLogger("ldt")


class Crew:
    """Processes that have the model of a run, and a context that ends them.

    One that dies is replaced, and what it was asked is asked once more.

    Args:
        run: whose model it is.
        seats: the place of each process.

    Attributes:
        hands: of `ldt.serve.scheduler.Scheduler`, one for each process.
    """

    def __init__(self, run: RunModel, seats: Sequence[Seat]):
        self._stack, self._workers = ExitStack(), list[Workers]()
        for seat in seats:
            memory = self._workers[0].memory if self._workers else None
            workers = Workers([Maker(replace(run, device=seat.device))], [seat], memory=memory)
            self._workers.append(self._stack.enter_context(workers))
        self.hands = [_Desk(workers) for workers in self._workers]

    def __enter__(self) -> "Crew":
        start_all(self._workers)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def load(self, precision: str) -> str:
        """Load the models, and wait for all of them; their precision.

        Args:
            precision: "auto" is that of the device.

        Raises:
            UserError: the model or a device cannot be used.
            ResourceError: two processes have died in the same place.
        """
        settings = self._workers[0].settings()
        if precision != "auto":
            settings = settings | {"precision": precision}
        with ThreadPoolExecutor(len(self._workers)) as pool:
            loading = [
                pool.submit(each.load, settings | {"memory": each.memory}) for each in self._workers
            ]
            for each in loading:
                each.result()
        return settings["precision"]


class _Desk:
    """A process as a `ldt.serve.scheduler.Hand`: it runs the model and makes the answers."""

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
class Maker:
    """What makes the model of a process: a `ldt.inference.worker.Maker`."""

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
