"""Quantise the weights of an ONNX file to 8 bits, and count the answers that this changes."""

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from ldt.benchmarks.formats import read
from ldt.errors import PrecisionError, UserError, plural
from ldt.inference.agreement import DOCUMENTS, same_decision
from ldt.inference.inputs import layout_of_training
from ldt.inference.options import PredictOptions
from ldt.inference.predictor import ExportedPredictor
from ldt.inference.runtimes import FORMATS
from ldt.inference.stream import Answering, Document
from ldt.io.records import Example
from ldt.io.sources import Names, each
from ldt.recipe.recipe import Recipe

BATCH_TOKENS = 4096


@dataclass
class Int8Comparison:
    """Answers of the file in int8 and in fp32 to the same documents.

    Attributes:
        source: name of the documents.
        documents, changed: number of documents, and of changed answers.
        drift: largest difference of a number in unchanged answers.
        size: size of the int8 file relative to fp32.
        speed: CPU time in fp32 divided by that in int8.
    """

    source: str
    documents: int
    changed: int
    drift: float
    size: float
    speed: float

    def __str__(self) -> str:
        equal = f"{self.documents - self.changed:,} of {plural(self.documents, 'answer')}"
        return (
            f"{equal} the same on {self.source}, numbers in them within {self.drift:.2g}; "
            f"{self.size:.2f} of the size, {self.speed:.2f} times as fast"
        )


def documents_of(recipe: Recipe, source: Names | None) -> tuple[str, list[Example]]:
    """Documents on which int8 is compared with fp32: their files in a text, and at most 200
    examples.

    Args:
        recipe: recipe of the run.
        source: files of documents; None uses the recipe's evaluation set.

    Raises:
        UserError: there are none.
        DataError: they cannot be read.
    """
    named = source or recipe.data.eval
    if not named:
        raise UserError(
            "--precision int8: --check FILE names documents on which its answers are compared with "
            "those in fp32; the recipe has no data.eval"
        )
    files = each(named)
    format = layout_of_training(files, recipe.data.format)
    changed = PredictOptions.of({"data": {"format": format}}).applied(recipe)
    documents = list(
        islice(read(files, changed.data, document=recipe.task.reads.document), DOCUMENTS)
    )
    if not documents:
        raise UserError(f"{files[0]}: no documents to compare int8 on")
    return ", ".join(files), documents


def quantise(
    folder: Path, recipe: Recipe, source: str, examples: Sequence[Example], bound: float
) -> Int8Comparison:
    """Replace the graph in a folder by one with int8 weights, and compare their answers.

    Attention products, embeddings and norms stay in float32.

    Args:
        folder: folder of an exported model in fp32.
        recipe: recipe of the run.
        source: name of the examples.
        examples: documents to compare answers on.
        bound: largest share of the answers that may change, from 0 to 1.

    Raises:
        PrecisionError: more answers changed; the graph is replaced all the same.
        OSError: the disk is full or failed.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    file = folder / FORMATS["onnx"].file
    lowered = folder / f"int8-{file.name}"
    exact = ExportedPredictor(folder, recipe)
    documents = [(example, exact.encode(example)) for example in examples]
    before, seconds = _timed(exact, documents)
    size = file.stat().st_size
    logging.disable(logging.WARNING)  # it advises to have shapes inferred first
    try:
        quantize_dynamic(
            os.fspath(file),
            os.fspath(lowered),
            nodes_to_quantize=_projections(file),
            per_channel=True,
            weight_type=QuantType.QInt8,
            extra_options={"MatMulConstBOnly": True},
        )
    finally:
        logging.disable(logging.NOTSET)
    lowered.replace(file)
    after, faster = _timed(ExportedPredictor(folder, recipe), documents)
    pairs = list(zip(before, after, strict=True))
    equal = [pair for pair in pairs if same_decision(*pair)]
    changed = len(pairs) - len(equal)
    if changed > bound * len(pairs):
        raise PrecisionError(
            f"--precision int8 changes {changed:,} of {plural(len(pairs), 'answer')} on {source}, "
            f"more than --max-changed {bound:g} allows; nothing was written"
        )
    drift = max((_drift(*pair) for pair in equal), default=0.0)
    share = file.stat().st_size / size
    return Int8Comparison(source, len(pairs), changed, drift, share, seconds / max(faster, 1e-9))


def _projections(file: Path) -> list[str]:
    """Names of the products with a weight matrix; products within heads are left out. ONNX Runtime
    fuses a product and a sum into one node of this name."""
    import onnx

    model = onnx.load(file).graph
    matrices = {each.name for each in model.initializer if len(each.dims) == 2}
    products = (node for node in model.node if node.op_type in ("MatMul", "Gemm"))
    names = {"MatMul": "", "Gemm": "_MatMul"}
    return [node.name + names[node.op_type] for node in products if node.input[1] in matrices]


def _timed(model: ExportedPredictor, documents: Sequence[Document]) -> tuple[list[Any], float]:
    began = time.process_time()
    return Answering(model, BATCH_TOKENS)(documents).answers, time.process_time() - began


def _drift(one: Any, other: Any) -> float:
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other)
    if isinstance(one, dict) and isinstance(other, dict):
        return max((_drift(one[key], other[key]) for key in one.keys() & other), default=0.0)
    if isinstance(one, list) and isinstance(other, list):
        return max(map(_drift, one, other), default=0.0)
    return 0.0
