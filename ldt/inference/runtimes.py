"""What runs a model: ldt itself by torch, or a library the file that ldt export wrote for it."""

from dataclasses import dataclass
from typing import Literal

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
        session: class that runs it, a `ldt.inference.sessions.Session`.
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
        "ldt.inference.sessions:OnnxSession",
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
        "ldt.inference.sessions:OpenVinoSession",
    ),
    Exported(
        "torch",
        "pt2",
        "torch.export",
        "torch",
        (),
        None,
        ("model.pt2",),
        "ldt.inference.sessions:ProgramSession",
    ),
)
FORMATS: dict[str, Exported] = {each.name: each for each in _FORMATS}
RUNTIMES: dict[str, Exported] = {each.runtime: each for each in _FORMATS}
