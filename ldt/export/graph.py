"""Export a fine-tuned model as a graph with free batch size and length."""

import logging
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig

from ldt.errors import ModelError
from ldt.inference.agreement import OutputCheck, largest_gap
from ldt.inference.runtimes import Session
from ldt.model.base import LdtPreTrainedModel
from ldt.model.config import layer_windows
from ldt.model.loading import quiet
from ldt.model.padded import PaddedModel
from ldt.tasks.base import Task

OPSETS = range(18, 24)  # of ONNX, that are written
OPSET = 20
LARGEST = 2**31 - 2**20  # bytes; a protobuf file is no larger
LONGEST = 4096  # tokens that are compared at most: the model takes seconds for more
CANDIDATES = 3  # of a ranking
# Roles that stand in front of the first separator, by kind of answer: with global attention on
# all of them the graph finds its global tokens itself.
_FRONT = {
    "span": {"cls", "question"},
    "mention": {"cls", "question"},
    "choice": {"cls", "question", "choice"},
    "ranking": {"cls", "query"},
}
_PAIRS = ("span", "mention", "ranking")  # answers whose inputs may have two types of tokens


@dataclass(frozen=True)
class GraphInterface:
    """Inputs and outputs of a graph.

    Args:
        globals_: how the graph determines global tokens, as in `PaddedModel`.
        inputs, outputs: names, in order.
    """

    globals_: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @classmethod
    def of(cls, task: Task, config: PreTrainedConfig) -> "GraphInterface":
        """Inputs and outputs that a graph needs for a task and a model's config."""
        asked = set(task.global_attention)
        if not asked or not config.global_tokens_matter:
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


def write(
    model: LdtPreTrainedModel,
    interface: GraphInterface,
    longest: int,
    file: Path,
    format: str = "onnx",
    opset: int = OPSET,
) -> None:
    """Write a model as one graph with its weights.

    Args:
        model: model of ldt.
        interface: inputs and outputs.
        longest: longest input in tokens.
        file: file to write; OpenVINO puts the weights in a second file beside it.
        format: one of `WRITERS`.
        opset: version of ONNX's operators; other formats have none.

    Raises:
        ModelError: the weights exceed the format's limit.
        OSError: the disk is full or failed.
    """
    # By which the graph is traced; no case of the proof has that many rows and tokens.
    sample = batch(model.config, interface, 3, min(40, longest), "right")
    sample = {name: sample[name] for name in interface.inputs}
    free = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    with torch.no_grad(), _quiet():
        program = torch.export.export(
            PaddedModel(model, interface.globals_).eval().requires_grad_(False),
            (),
            sample,
            dynamic_shapes=dict.fromkeys(sample, free),
            # The only relation that is left holds always: whole blocks are parted into blocks.
            prefer_deferred_runtime_asserts_over_guards=True,
        )
        for node in program.graph.nodes:
            node.meta.pop("stack_trace", None)  # lines of source by their paths on this machine
        WRITERS[format](program, interface, file, opset)


def _write_onnx(program: Any, interface: GraphInterface, file: Path, opset: int) -> None:
    import onnx

    onnx.save_model(_onnx(program, interface, opset), file)


def _write_openvino(program: Any, interface: GraphInterface, file: Path, opset: int) -> None:
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
    """Name the free dimensions batch, length and candidates, and remove source locations."""
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
    for node in model.graph.node:
        del node.metadata_props[:]  # modules and classes, as many bytes as small weights


@contextmanager
def _quiet():
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


# -- the proof


@quiet()
@torch.no_grad()
def prove(
    model: LdtPreTrainedModel, interface: GraphInterface, session: Session, longest: int
) -> list[OutputCheck]:
    """Compare a model and its file on the same random inputs, of other sizes than those traced.

    The model runs with its own packed attention; global tokens and padding are created here.
    ModelError if its outputs are not finite.

    Args:
        model: model of ldt.
        interface: inputs and outputs of the file.
        session: the loaded file.
        longest: longest input in tokens.

    Returns:
        A check of each of five sizes and kinds of padding, relative to the spread of all outputs.
    """
    windows = [window for window in layer_windows(model.config) if window < longest]
    middle = min(longest, 2 * max(windows, default=0) + 5)
    cases = [
        ("shortest", 1, min(4, longest), "none"),
        ("padding right", 4, middle, "right"),
        ("padding left", 2, min(longest, 17), "left"),
        ("padding inside", 5, middle, "inside"),
        ("longest", 1, min(longest, LONGEST), "none"),
    ]
    gaps, values = [], []
    for name, rows, tokens, padding in cases:
        inputs = batch(model.config, interface, rows, tokens, padding)
        outputs = model(**inputs)
        expected = [outputs[name].float() for name in interface.outputs]
        written = session(inputs)
        # At padding as well, where both have the same number.
        arrays = [torch.from_numpy(written[each]) for each in interface.outputs]
        gaps.append((name, tokens, largest_gap(expected, arrays)))
        values += [output[output > torch.finfo(output.dtype).min] for output in expected]
    # The spread is of all cases: of one document there may be a single number.
    every = torch.cat(values)
    spread = (every.max() - every.min()).item()
    return [OutputCheck(*case, spread) for case in gaps]


def batch(
    config: PreTrainedConfig,
    interface: GraphInterface,
    rows: int,
    tokens: int,
    padding: str = "none",
) -> dict[str, torch.Tensor]:
    """Random inputs [rows, tokens] by name, always with ``global_attention_mask``.

    Args:
        config: config of the model.
        interface: inputs of the file.
        rows: number of rows.
        tokens: tokens of a row, with padding.
        padding: "none"; "right", "left" or "inside", growing from row to row.
    """
    generator = torch.Generator().manual_seed(tokens)
    place, row = torch.arange(tokens), torch.arange(rows)[:, None]
    gone = row * (tokens - 1) // max(rows, 1) if padding != "none" else torch.zeros_like(row)
    real = {
        "left": place >= gone,
        "inside": (place < 1) | (place > gone // 2),
    }.get(padding, place < tokens - gone)
    real = real.expand(rows, tokens)
    ids = torch.randint(config.vocab_size - 1, (rows, tokens), generator=generator)
    ids = ids + (ids >= config.pad_token_id)
    first = real.int().argmax(1, keepdim=True)
    far = torch.rand(rows, tokens, generator=generator) < 0.1
    if interface.globals_ == "question":
        # One separator at least: as far behind the first token as a third of what is real.
        separator = first + real.sum(1, keepdim=True) // 3
        last = tokens - 1 - real.flip(1).int().argmax(1, keepdim=True)
        others = (id for id in range(3) if id not in (config.sep_token_id, config.pad_token_id))
        ids = torch.where(ids == config.sep_token_id, next(others), ids)
        ids = ids.scatter(1, torch.minimum(separator, last), config.sep_token_id)
        ids = ids.scatter(1, last, config.sep_token_id)
        before = (ids == config.sep_token_id) & real
        far = place < before.int().argmax(1, keepdim=True)
    elif interface.globals_ == "first":
        far = place == first
    elif interface.globals_ == "none":
        far = torch.zeros_like(real)
    inputs = {
        "input_ids": torch.where(real, ids, config.pad_token_id),
        "attention_mask": real.long(),
        "global_attention_mask": (far & real).long(),
    }
    if "token_type_ids" in interface.inputs:
        inputs["token_type_ids"] = (real & (place >= first + tokens // 2)).long()
    if "positions" in interface.inputs:
        inputs["positions"] = torch.randint(tokens, (rows, CANDIDATES), generator=generator)
        inputs["positions"][0, -1] = -100 if CANDIDATES > 1 else 0
    return inputs
