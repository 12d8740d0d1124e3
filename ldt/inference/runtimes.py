"""Runtimes of a model: torch, or on the CPU the library for a file that ldt export wrote."""

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ldt.errors import ModelError, UserError, first_line, out_of_memory
from ldt.system import thread_count

if TYPE_CHECKING:
    import numpy as np

    from ldt.tasks.base import Outputs

Runtime = Literal["torch", "onnx", "openvino", "pt2"]
Format = Literal["onnx", "openvino", "torch"]


@dataclass(frozen=True)
class Exported:
    """Format of exported models.

    Args:
        name: name of the format.
        runtime: name of its runtime.
        title: name for messages.
        package: package of the runtime.
        writes: further packages needed for writing.
        extra: extra of ldt-toolkit with these packages; None if ldt always needs them.
        files: names of the model's files; the first one is opened.
        precisions: number formats of its weights.
    """

    name: Format
    runtime: Runtime
    title: str
    package: str
    writes: tuple[str, ...]
    extra: str | None
    files: tuple[str, ...]
    precisions: tuple[str, ...] = ("fp32",)

    @property
    def file(self) -> str:
        """Name of the file that is opened, the first of ``files``."""
        return self.files[0]

    @property
    def install(self) -> str:
        """Argument of ``pip install`` for this format's packages, as typed in a shell:
        ``'ldt-toolkit[export]'`` with its quotes, or ``ldt-toolkit`` where no extra is needed."""
        return "ldt-toolkit" if self.extra is None else f"'ldt-toolkit[{self.extra}]'"


_GRAPH = ("onnx", "onnxscript")
_FORMATS = (
    Exported(
        *("onnx", "onnx", "ONNX Runtime", "onnxruntime", _GRAPH, "export", ("model.onnx",)),
        precisions=("fp32", "int8"),
    ),
    Exported(
        *("openvino", "openvino", "OpenVINO", "openvino", _GRAPH, "openvino"),
        files=("model.xml", "model.bin"),
    ),
    Exported("torch", "pt2", "torch.export", "torch", (), None, ("model.pt2",)),
)
FORMATS: dict[str, Exported] = {each.name: each for each in _FORMATS}
RUNTIMES: dict[str, Exported] = {each.runtime: each for each in _FORMATS}


class Session(ABC):
    """Exported file loaded for inference on the CPU, by `session`.

    Attributes:
        inputs: names of the inputs, in order.
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
        """Load the file and set ``inputs``."""

    @abstractmethod
    def _run(self, inputs: "dict[str, np.ndarray]") -> "Outputs":
        """Outputs by name."""

    def __call__(self, batch: dict[str, Any]) -> "Outputs":
        """Outputs by name for inputs [b, n], numpy or torch, without those unknown to the graph."""
        import numpy as np

        arrays = {name: np.asarray(batch[name]) for name in self.inputs if name in batch}
        for name in set(self.inputs) - set(arrays):  # token types of a tokenizer that has one
            arrays[name] = np.zeros_like(arrays["input_ids"])
        return self._run(arrays)


class OnnxSession(Session):
    """ONNX with ONNX Runtime."""

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

    def _run(self, inputs: "dict[str, np.ndarray]") -> "Outputs":
        return dict(zip(self._outputs, self._session.run(None, inputs), strict=True))


class OpenVinoSession(Session):
    """OpenVINO's own format."""

    format = RUNTIMES["openvino"]

    def _open(self, file: Path, threads: int) -> None:
        import openvino

        # It would compute in bfloat16 where the processor has it.
        options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads}
        self._model = openvino.Core().compile_model(file, "CPU", options)
        self.inputs = [each.any_name for each in self._model.inputs]

    def _run(self, inputs: "dict[str, np.ndarray]") -> "Outputs":
        return {each.any_name: value for each, value in self._model(inputs).items()}


class ProgramSession(Session):
    """Programs of torch.export, which torch runs without ldt's classes."""

    format = RUNTIMES["pt2"]

    def _open(self, file: Path, threads: int) -> None:
        import torch

        program = torch.export.load(file)
        self._model = program.module()
        self.inputs = [str(name) for name in program.graph_signature.user_inputs]

    def _run(self, inputs: "dict[str, np.ndarray]") -> "Outputs":
        import torch

        with torch.inference_mode():
            outputs = self._model(**{name: torch.from_numpy(x) for name, x in inputs.items()})
        return {name: output.numpy() for name, output in outputs.items()}


def session(format: Exported, file: Path, threads: int | None = None) -> Session:
    """Load an exported model for inference.

    Args:
        format: format of the file; UserError if its library is not installed.
        file: file that `ldt export` wrote; ModelError if it cannot be read.
        threads: number of threads; None for `ldt.system.thread_count`.
    """
    sessions: tuple[type[Session], ...] = (OnnxSession, OpenVinoSession, ProgramSession)
    return next(each for each in sessions if each.format is format)(file, threads)
