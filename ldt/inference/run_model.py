"""The model of a run, made in this process or in a worker. Torch is imported when it is made."""

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from ldt.errors import ModelError
from ldt.inference import EXPORTED, PREDICTORS
from ldt.inference.executor import Settings
from ldt.inference.group import Answering, Encoder, Predictor
from ldt.inference.passages import Explaining, Wanted
from ldt.inference.runtimes import FORMATS, RUNTIMES, Runtime
from ldt.recipe import recipe as recipes
from ldt.recipe.recipe import RECIPE, Recipe
from ldt.recipe.run import recipe_file

_WEIGHTS = ("model*.safetensors", "pytorch_model*.bin", "adapter_model.*")
_stack = ExitStack()  # of a worker, left with its process


def read_recipe(folder: Path, runtime: Runtime = "torch") -> Recipe:
    """The recipe that the model in ``folder`` was trained by; a checkpoint has that of its run.

    Args:
        runtime: runs the model.

    Raises:
        ModelError: there is no recipe, so the model is not fine-tuned, or no weights, or models
            of its task have no answers.
    """
    file = recipe_file(folder)
    if not file.is_file():
        raise ModelError(
            f"{folder}: no {RECIPE}, so this is not a fine-tuned model and has no answers; "
            f"ldt finetune RECIPE model.path={folder} trains it"
        )
    _check_weights(folder, runtime, file)
    recipe = recipes.load(file, search=False)
    if recipe.task.kind not in PREDICTORS:
        raise ModelError(
            f"{folder}: {recipe.task.name} has no answers; ldt finetune RECIPE "
            f"model.path={folder} trains a model that has"
        )
    return recipe


def _check_weights(folder: Path, runtime: Runtime, recipe: Path) -> None:
    """Refuse a folder without the weights that a runtime runs."""
    asked = RUNTIMES.get(runtime)
    patterns = (asked.file,) if asked else _WEIGHTS
    if any(any(folder.glob(pattern)) for pattern in patterns):
        return
    for format in FORMATS.values():
        if (folder / format.file).is_file():
            raise ModelError(f"{folder}: an exported model; --runtime {format.runtime} runs it")
    if asked:
        raise ModelError(
            f"{folder}: no {asked.file}; ldt export {folder} TARGET --format {asked.name} makes a "
            "folder that has it"
        )
    raise ModelError(
        f"{folder}: no weights, this run is not finished; ldt finetune {recipe} --resume goes on "
        "with it"
    )


@dataclass(frozen=True)
class RunModel:
    """What a run's model is made of: a `ldt.inference.executor.Maker`.

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
