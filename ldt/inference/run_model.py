"""The model of a run, made in this process or in a worker. Torch is imported when it is made."""

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from ldt.inference import EXPORTED, PREDICTORS
from ldt.inference.group import Answering, Encoder, Predictor
from ldt.inference.passages import Explaining, Wanted
from ldt.inference.runtimes import RUNTIMES, Runtime
from ldt.inference.worker import Settings
from ldt.recipe.recipe import Recipe

_stack = ExitStack()  # of a worker, left with its process


@dataclass(frozen=True)
class RunModel:
    """What a run's model is made of: a `ldt.inference.worker.Maker`.

    Args:
        folder: folder of the model.
        recipe: recipe of its training, with what differs at prediction.
        device: a torch device, or "auto".
        shown: options of what answers hold.
        wanted: what they are to say beside it.
        batch_tokens: most tokens of a batch.
        runtime: what runs it.
    """

    folder: Path
    recipe: Recipe
    device: str
    shown: dict[str, Any]
    wanted: Wanted
    batch_tokens: int
    runtime: Runtime = "torch"

    def automatic(self) -> str:
        """The precision of "auto"."""
        return self._class().automatic(self.device)

    def inputs(self) -> Encoder:
        """What makes inputs of documents, without the weights."""
        return self._class().inputs(self.folder, self.recipe)

    def predictor(
        self, precision: str, memory: int | None = None
    ) -> tuple[Predictor, Predictor | None]:
        """What answers and, of int8, the same in fp32.

        Args:
            memory: of lowered weights that processes share, for `ldt.model.shared.lowered_in`.
        """
        shown = {name: value for name, value in self.shown.items() if value}
        if self.runtime in RUNTIMES:
            shown["runtime"] = self.runtime
        if precision != "fp32" and memory is not None:
            shown["memory"] = memory
        predictor = self._class()(self.folder, self.recipe, self.device, precision, **shown)
        exact = None
        if precision == "int8":
            exact, predictor.exact = predictor.exact, None  # whose weights are let go of
        return Explaining(predictor, self.wanted) if self.wanted.keys() else predictor, exact

    def prepare(self) -> None:
        """Import what the model needs."""
        self._class()
        self.recipe.task.head()

    def settings(self) -> Settings:
        """The precision of "auto" and the libraries for matrix products that are faster here."""
        from ldt.attention import matmul

        return {"precision": self.automatic(), "arithmetic": matmul.choices()}

    def load(self, settings: Settings) -> Answering:
        """The model as ``settings`` have it, for the rest of a worker's life."""
        from ldt.attention import matmul

        model, exact = self.predictor(settings["precision"], settings.get("memory"))
        _stack.enter_context(matmul.chosen(settings["arithmetic"]))
        return Answering(model, self.batch_tokens, exact)

    def _class(self) -> Any:
        place = EXPORTED if self.runtime in RUNTIMES else PREDICTORS[self.recipe.task.kind]
        return resolve_name(place)
