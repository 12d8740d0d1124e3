"""An exported model with its task and tokenizer, run by its library in place of torch."""

from pathlib import Path
from typing import Any

import numpy as np

from ldt.errors import UserError
from ldt.inference.predictor import Decoder, EncoderInputs
from ldt.inference.runtimes import RUNTIMES, Runtime
from ldt.inference.sessions import session
from ldt.recipe.recipe import Recipe
from ldt.tasks.base import Outputs


class ExportedPredictor(Decoder):
    """An exported model with its task and tokenizer: a `ldt.inference.group.Predictor`.

    Args:
        folder: that `ldt export` wrote.
        recipe: recipe of its training.
        device: "auto" or "cpu".
        precision: "fp32", which stands for that of the file.
        runtime: what runs it, one of `RUNTIMES`.
        shown: as `Decoder` has them.

    Raises:
        ModelError: the folder cannot be used.
        UserError: the library is not installed, or is asked for another device.
    """

    inputs = EncoderInputs
    device, model = "cpu", None
    exact = None

    def __init__(
        self,
        folder: Path,
        recipe: Recipe,
        device: str = "auto",
        precision: str = "fp32",
        *,
        runtime: Runtime = "onnx",
        **shown: Any,
    ):
        if device not in ("auto", "cpu"):
            raise UserError(f"--device {device}: --runtime {runtime} runs on the cpu")
        super().__init__(folder, recipe, **shown)
        format = RUNTIMES[runtime]
        self.session = session(format, folder / format.file)

    @staticmethod
    def automatic(device: str) -> str:
        """The precision of "auto": the file has one of its own."""
        return "fp32"

    def run(self, batch: dict[str, Any]) -> Outputs:
        return self.session(batch)

    def logits(self, batch: dict[str, Any]) -> np.ndarray:
        return self.session(batch)["logits"]
