"""An exported model, run by ONNX Runtime in place of torch."""

import os
from pathlib import Path
from typing import Any

import numpy as np

from ldt.errors import ModelError, UserError, first_line, out_of_memory
from ldt.inference.predictor import Decoder, EncoderInputs
from ldt.inference.run_folder import GRAPH
from ldt.recipe.recipe import Recipe
from ldt.tasks.base import Outputs


class Session:
    """An ONNX file, ready to run on the CPU.

    Args:
        file: of `ldt export`.

    Raises:
        UserError: ONNX Runtime is not installed.
        ModelError: it cannot read the file.
    """

    def __init__(self, file: Path):
        try:
            import onnxruntime
        except ImportError:
            raise UserError(
                "ONNX Runtime is not installed; pip install 'ldt-toolkit[export]' has it"
            ) from None
        options = onnxruntime.SessionOptions()
        # It would count the machine's processors, not those of this process.
        options.intra_op_num_threads = int(os.environ.get("OMP_NUM_THREADS") or _cores())
        options.enable_cpu_mem_arena = False  # which keeps what the longest input took
        options.log_severity_level = 4
        try:
            self.session = onnxruntime.InferenceSession(
                os.fspath(file), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # of its own types, which have no common one
            if out_of_memory(error):
                raise
            raise ModelError(f"{file}: cannot be read: {first_line(error)}") from error
        self.inputs = [each.name for each in self.session.get_inputs()]
        self.outputs = [each.name for each in self.session.get_outputs()]
        self.facts = dict(self.session.get_modelmeta().custom_metadata_map)

    def __call__(self, batch: dict[str, Any]) -> Outputs:
        """The outputs by name for inputs [b, n], numpy or torch; what the graph does not take is
        left out."""
        given = {name: np.asarray(batch[name]) for name in self.inputs if name in batch}
        for name in set(self.inputs) - set(given):  # token types of a tokenizer that has one
            given[name] = np.zeros_like(given["input_ids"])
        return dict(zip(self.outputs, self.session.run(None, given), strict=True))


class OnnxPredictor(Decoder):
    """An exported model with its task and tokenizer: a `ldt.inference.group.Predictor`.

    Args:
        folder: that `ldt export` wrote.
        recipe: recipe of its training.
        device: "auto" or "cpu".
        precision: "fp32", which stands for that of the file.
        shown: as `Decoder` has them.

    Raises:
        ModelError: the folder cannot be used.
        UserError: ONNX Runtime is not installed, or is asked for another device.
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
        **shown: Any,
    ):
        if device not in ("auto", "cpu"):
            raise UserError(f"--device {device}: --runtime onnx runs on the cpu")
        super().__init__(folder, recipe, **shown)
        self.session = Session(folder / GRAPH)

    @staticmethod
    def automatic(device: str) -> str:
        """The precision of "auto": the file has one of its own."""
        return "fp32"

    def run(self, batch: dict[str, Any]) -> Outputs:
        return self.session(batch)

    def logits(self, batch: dict[str, Any]) -> np.ndarray:
        return self.session(batch)["logits"]


def _cores() -> int:
    """Processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
