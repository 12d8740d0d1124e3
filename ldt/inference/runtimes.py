"""Runtimes of a model: torch, or on the CPU the library of a file that ldt export wrote."""

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
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
    """A format of exported models.

    Args:
        name: of the format.
        runtime: name of what runs it.
        title: the same in words.
        package: that has what runs it.
        writes: packages that writing it needs besides.
        extra: of ldt-toolkit that has them all; None where ldt needs them anyway.
        files: names of the model's files; the first is opened.
        session: class that runs it, a `Session`.
        precisions: number formats of its weights.
    """

    name: Format
    runtime: Runtime
    title: str
    package: str
    writes: tuple[str, ...]
    extra: str | None
    files: tuple[str, ...]
    session: str
    precisions: tuple[str, ...] = ("fp32",)

    @property
    def file(self) -> str:
        """Name of the file that is opened."""
        return self.files[0]

    @property
    def install(self) -> str:
        """The package of ldt that has what writes and runs it, for pip."""
        return "ldt-toolkit" if self.extra is None else f"'ldt-toolkit[{self.extra}]'"


_FORMATS = (
    Exported(
        "onnx",
        "onnx",
        "ONNX Runtime",
        "onnxruntime",
        ("onnx", "onnxscript"),
        "export",
        ("model.onnx",),
        "ldt.inference.runtimes:OnnxSession",
        ("fp32", "int8"),
    ),
    Exported(
        "openvino",
        "openvino",
        "OpenVINO",
        "openvino",
        ("onnx", "onnxscript"),
        "openvino",
        ("model.xml", "model.bin"),
        "ldt.inference.runtimes:OpenVinoSession",
    ),
    Exported(
        "torch",
        "pt2",
        "torch.export",
        "torch",
        (),
        None,
        ("model.pt2",),
        "ldt.inference.runtimes:ProgramSession",
    ),
)
FORMATS: dict[str, Exported] = {each.name: each for each in _FORMATS}
RUNTIMES: dict[str, Exported] = {each.runtime: each for each in _FORMATS}


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
    def _run(self, given: "dict[str, np.ndarray]") -> "Outputs":
        """The outputs by name for all inputs."""

    def __call__(self, batch: dict[str, Any]) -> "Outputs":
        """The outputs by name for inputs [b, n], numpy or torch; what the graph does not take is
        left out."""
        import numpy as np

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

    def _run(self, given: "dict[str, np.ndarray]") -> "Outputs":
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

    def _run(self, given: "dict[str, np.ndarray]") -> "Outputs":
        return {each.any_name: value for each, value in self._model(given).items()}


class ProgramSession(Session):
    """Programs of torch.export, run by torch without the classes of ldt."""

    format = RUNTIMES["pt2"]

    def _open(self, file: Path, threads: int) -> None:
        import torch

        program = torch.export.load(file)
        self._model = program.module()
        self.inputs = [str(name) for name in program.graph_signature.user_inputs]

    def _run(self, given: "dict[str, np.ndarray]") -> "Outputs":
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
