"""The files of `ldt export`, each run by its library on the CPU, in place of a model in torch."""

import os
from abc import ABC, abstractmethod
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, ClassVar

import numpy as np

from ldt.errors import ModelError, UserError, first_line, out_of_memory
from ldt.inference.runtimes import RUNTIMES, Exported
from ldt.system import thread_count
from ldt.tasks.base import Outputs


class Session(ABC):
    """An exported file, ready to run on the CPU.

    Args:
        file: of `ldt export`.
        threads: of the library; None: as many as `ldt.system.thread_count` has.

    Attributes:
        inputs: names of what goes in, in order.

    Raises:
        UserError: the library is not installed.
        ModelError: it cannot read the file.
    """

    format: ClassVar[Exported]
    inputs: list[str]

    def __init__(self, file: Path, threads: int | None = None):
        try:
            self._open(file, threads or thread_count())
        except ImportError:
            raise UserError(
                f"{self.format.title} is not installed; pip install {self.format.install} has it"
            ) from None
        except Exception as error:  # of types of its own, which have no common one
            if out_of_memory(error):
                raise
            raise ModelError(f"{file}: cannot be read: {first_line(error)}") from error

    @abstractmethod
    def _open(self, file: Path, threads: int) -> None:
        """Make the file ready, and say its inputs."""

    @abstractmethod
    def _run(self, given: dict[str, np.ndarray]) -> Outputs:
        """The outputs by name for all inputs."""

    def __call__(self, batch: dict[str, Any]) -> Outputs:
        """The outputs by name for inputs [b, n], numpy or torch; what the graph does not take is
        left out."""
        given = {name: np.asarray(batch[name]) for name in self.inputs if name in batch}
        for name in set(self.inputs) - set(given):  # token types of a tokenizer that has one
            given[name] = np.zeros_like(given["input_ids"])
        return self._run(given)


class OnnxSession(Session):
    """ONNX, run by ONNX Runtime."""

    format = RUNTIMES["onnx"]

    def _open(self, file: Path, threads: int) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.enable_cpu_mem_arena = False  # which keeps what the longest input took
        options.log_severity_level = 4
        self._session = onnxruntime.InferenceSession(
            os.fspath(file), options, providers=["CPUExecutionProvider"]
        )
        self.inputs = [each.name for each in self._session.get_inputs()]
        self._outputs = [each.name for each in self._session.get_outputs()]

    def _run(self, given: dict[str, np.ndarray]) -> Outputs:
        return dict(zip(self._outputs, self._session.run(None, given), strict=True))


class OpenVinoSession(Session):
    """OpenVINO's own format."""

    format = RUNTIMES["openvino"]

    def _open(self, file: Path, threads: int) -> None:
        import openvino

        # It would compute in bfloat16 where the processor has it.
        options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads}
        self._model = openvino.Core().compile_model(file, "CPU", options)
        self.inputs = [each.any_name for each in self._model.inputs]

    def _run(self, given: dict[str, np.ndarray]) -> Outputs:
        return {each.any_name: value for each, value in self._model(given).items()}


class ProgramSession(Session):
    """What torch.export saves, run by torch without the classes of ldt."""

    format = RUNTIMES["pt2"]

    def _open(self, file: Path, threads: int) -> None:
        import torch

        program = torch.export.load(file)
        self._model = program.module()
        self.inputs = [str(name) for name in program.graph_signature.user_inputs]

    def _run(self, given: dict[str, np.ndarray]) -> Outputs:
        import torch

        with torch.inference_mode():
            outputs = self._model(**{name: torch.from_numpy(x) for name, x in given.items()})
        return {name: output.numpy() for name, output in outputs.items()}


def session(format: Exported, file: Path, threads: int | None = None) -> Session:
    """A file of a format, ready to run; ``threads`` as `Session` has them.

    Raises:
        UserError, ModelError: as `Session` does.
    """
    return resolve_name(format.session)(file, threads)
