"""A fine-tuned model as a graph with free batch and length, in a format that other programs run."""

import logging
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ldt.errors import ModelError
from ldt.model.padded import PaddedModel
from ldt.tasks.base import Task

OPSETS = range(18, 24)  # of ONNX, that are written
OPSET = 20
LARGEST = 2**31 - 2**20  # bytes; a protobuf file is no larger
# Roles that stand in front of the first separator, by kind of answer: with global attention on
# all of them the graph finds its global tokens itself.
_FRONT = {
    "span": {"cls", "question"},
    "mention": {"cls", "question"},
    "choice": {"cls", "question", "choice"},
}
_PAIRS = ("span", "mention")  # kinds of answers whose inputs may have two types of tokens


@dataclass(frozen=True)
class GraphInterface:
    """Inputs and outputs of a graph for a task and a model.

    Args:
        globals_: how the graph finds global tokens, as `PaddedModel` has it.
        inputs: names, in order.
        outputs: names, in order.
    """

    globals_: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @classmethod
    def of(cls, task: Task, config: Any) -> "GraphInterface":
        """The interface of a task's model."""
        asked = set(task.global_attention)
        if not asked or not config.global_tokens_count:
            globals_ = "none"
        elif asked == {"cls"}:
            globals_ = "first"
        elif asked == _FRONT.get(task.answers.kind):
            globals_ = "question"
        else:
            globals_ = "given"
        types = getattr(config, "type_vocab_size", 1)
        inputs = ["input_ids", "attention_mask"]
        inputs += ["global_attention_mask"] * (globals_ == "given")
        inputs += ["token_type_ids"] * (types > 1 and task.answers.kind in _PAIRS)
        inputs += ["positions"] * (task.answers.kind == "candidate")
        return cls(globals_, tuple(inputs), task.answers.outputs)


def graph(model: Any, interface: GraphInterface) -> PaddedModel:
    """The module whose operators are exported."""
    return PaddedModel(model, interface.globals_).eval().requires_grad_(False)


def write(
    module: PaddedModel,
    interface: GraphInterface,
    sample: dict[str, Any],
    file: Path,
    format: str = "onnx",
    opset: int = OPSET,
) -> None:
    """Write a module as one graph, weights included.

    Args:
        sample: inputs, with another size for batch and length.
        file: to write; in OpenVINO's format the weights are in a second one beside it.
        format: one of `WRITERS`.
        opset: version of ONNX's operators.

    Raises:
        ModelError: the weights are larger than the format takes.
        OSError: the disk did not take it.
    """
    free = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    with torch.no_grad(), _quiet():
        program = torch.export.export(
            module,
            (),
            sample,
            dynamic_shapes=dict.fromkeys(sample, free),
            # The only relation that is left holds always: whole blocks are parted into blocks.
            prefer_deferred_runtime_asserts_over_guards=True,
        )
        WRITERS[format](program, interface, file, opset)


def _write_onnx(program: Any, interface: GraphInterface, file: Path, opset: int) -> None:
    import onnx

    onnx.save_model(_onnx(program, interface, opset), file)


def _write_openvino(program: Any, interface: GraphInterface, file: Path, opset: int) -> None:
    """Write it by way of ONNX."""
    import openvino

    onnx = _onnx(program, interface, opset).SerializeToString()
    openvino.save_model(openvino.Core().read_model(onnx), file, compress_to_fp16=False)


def _write_torch(program: Any, interface: GraphInterface, file: Path, opset: int) -> None:
    torch.export.save(program, file)


WRITERS: dict[str, Callable[[Any, GraphInterface, Path, int], None]] = {
    "onnx": _write_onnx,
    "openvino": _write_openvino,
    "torch": _write_torch,
}


def _onnx(program: Any, interface: GraphInterface, opset: int) -> Any:
    """The ONNX model of an exported program."""
    size = sum(p.numel() * p.element_size() for p in program.state_dict.values())
    if size > LARGEST:
        raise ModelError(
            f"{size / 2**30:.1f} GiB of weights; ONNX holds less than 2 GiB, --format torch more"
        )
    import onnx

    exported = torch.onnx.export(
        program,
        (),
        dynamo=True,
        opset_version=opset,
        input_names=interface.inputs,
        output_names=interface.outputs,
        external_data=False,
        verbose=False,
    )
    assert exported is not None
    model = exported.model_proto
    _name_sizes(model)
    onnx.checker.check_model(model)
    return model


def _name_sizes(model: Any) -> None:
    """Call the free sizes of inputs and outputs batch, length and candidates."""
    names: dict[str, str] = {}
    for value in model.graph.input:
        second = "candidates" if value.name == "positions" else "length"
        sizes = value.type.tensor_type.shape.dim
        for size, name in zip(sizes, ("batch", second), strict=True):
            names.setdefault(size.dim_param, name)
            size.dim_param = names[size.dim_param]
    for value in model.graph.output:
        for size in value.type.tensor_type.shape.dim:
            if size.dim_param:
                size.dim_param = names.get(size.dim_param, size.dim_param)
    del model.graph.value_info[:]  # has the old names, and says nothing that is not inferred


@contextmanager
def _quiet():
    """Without the progress and advice of torch's exporter."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
