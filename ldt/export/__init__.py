"""Export a fine-tuned model to a file for other runtimes, with a proof that it computes
the same."""

import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ldt.errors import ModelError, UserError
from ldt.export import folder as beside
from ldt.export import graph
from ldt.export.int8 import Int8Comparison, documents_of, quantise
from ldt.inference.agreement import TOLERANCE, OutputCheck
from ldt.inference.engine import read_recipe
from ldt.inference.runtimes import FORMATS, Exported, session
from ldt.io.files import check_new_folder, new_folder, require_space, writing
from ldt.io.sources import Names
from ldt.model import load, load_tokenizer, usable_length
from ldt.model.padded import HEADS, refused
from ldt.recipe.recipe import Recipe
from ldt.recipe.run import Run


@dataclass
class ExportReport:
    """Result of an export; `lines` give it as text.

    Attributes:
        source, target: folders as given by the user.
        parameters: number of parameters.
        interface: inputs and outputs.
        format: format of the file.
        opset: version of ONNX's operators; None for another format.
        size: size of the file in bytes.
        checks: the proof.
        comparison: comparison of int8 answers with fp32; None for a file in fp32.
    """

    source: str
    target: Path
    parameters: int
    interface: graph.GraphInterface
    format: Exported
    opset: int | None
    size: int
    checks: list[OutputCheck]
    comparison: Int8Comparison | None = None

    def lines(self) -> list[str]:
        """The report as lines of text; the proof and the next command come last."""
        names = self.interface
        facts = {
            "file": f"{' and '.join(self.format.files)}, {self.size / 1e6:,.1f} MB, "
            f"{f'opset {self.opset}, ' if self.opset else ''}{self.parameters:,} parameters",
            "inputs": ", ".join(names.inputs),
            "outputs": ", ".join(names.outputs),
            "global tokens": beside.GLOBALS[names.globals_],
        }
        return [
            f"{self.source} -> {self.target}",
            *(f"  {what:<18}{fact}" for what, fact in facts.items()),
            "proof: model and file on random tokens, largest difference",
            *(f"  {check.name:<18}{check}" for check in self.checks),
            *([f"int8: {self.comparison}"] if self.comparison else []),
            f"next: ldt predict FILE --runtime {self.format.runtime} --model {self.target}",
        ]


def export(
    run: str | Path | None,
    target: str | Path,
    *,
    format: str = "onnx",
    precision: str = "fp32",
    opset: int | None = None,
    check: Names | None = None,
    max_changed: float = 0.01,
    overwrite: bool = False,
) -> ExportReport:
    """Write a run's model as a file that runs without ldt, after a proof that both compute the
    same.

    Files stay in a temporary folder beside the target until the proof holds, for which the file's
    own runtime computes on the CPU.

    Args:
        run: folder of a finished run; None is `LATEST` in the current directory.
        target: folder to write.
        format: one of `FORMATS`.
        precision: "fp32", or for ONNX "int8": weights of 8 bits, quantised after the proof.
        opset: version of ONNX's operators, one of `graph.OPSETS`; None is `graph.OPSET`.
        check: documents for comparing int8 with fp32; None uses data.eval of the run.
        max_changed: largest share of these answers that may change.
        overwrite: True replaces an existing model at ``target``.

    Raises:
        UserError: an option or the target cannot be used, or a package is missing.
        ModelError: the model cannot be exported, or the proof fails; the target is unchanged.
        PrecisionError: int8 changes too many answers.
        ResourceError: the disk is too small.
    """
    written = _check_options(format, precision, opset)
    opset = opset or graph.OPSET
    folder = Run.find(run).folder
    recipe = read_recipe(folder)
    target = Path(target).expanduser()
    check_new_folder(target, folder, overwrite)
    documents = documents_of(recipe, check) if precision == "int8" else None
    model = _model(folder, recipe, format)
    interface = graph.GraphInterface.of(recipe.task, model.config)
    place = Path(os.path.abspath(target))
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    require_space(place, round(1.1 * size), "the file")
    with writing(target), new_folder(place) as partial:
        file = partial / written.file
        longest = recipe.data.max_length or usable_length(model.config)
        graph.write(model, interface, longest, file, written.name, opset)
        # What was written is run, so that the proof covers saving and reading too.
        checks = graph.prove(model, interface, session(written, file), longest)
        _check_proof(folder, target, checks)
        tokenizer = load_tokenizer(folder, model.config)
        beside.write(partial, folder, recipe, model.config, tokenizer, interface, written, checks)
        comparison = None
        if documents:
            comparison = quantise(partial, recipe, *documents, max_changed)
            beside.append(partial, f"In int8: {comparison}.")
        size = sum((partial / file).stat().st_size for file in written.files)
    return ExportReport(
        source=str(folder),
        target=target,
        parameters=sum(p.numel() for p in model.parameters()),
        interface=interface,
        format=written,
        opset=opset if format == "onnx" else None,
        size=size,
        checks=checks,
        comparison=comparison,
    )


def _check_options(format: str, precision: str, opset: int | None) -> Exported:
    exported = FORMATS[format]
    if precision not in exported.precisions:
        raise UserError(f"--precision {precision} is for --format onnx; {format} has fp32 alone")
    if opset is not None and (format != "onnx" or opset not in graph.OPSETS):
        raise UserError(f"--opset {opset}: --format onnx has 18 to 23, others have none")
    missing = [name for name in (*exported.writes, exported.package) if find_spec(name) is None]
    if missing:
        raise UserError(
            f"{' and '.join(missing)} cannot be imported; pip install {exported.install} has what "
            "exports"
        )
    return exported


def _model(folder: Path, recipe: Recipe, format: str) -> Any:
    head = recipe.task.head()
    if not issubclass(head, HEADS):
        raise ModelError(
            f"{folder}: {recipe.task.name} is not exported, its head is {head.__name__}; ldt "
            "predict and ldt serve run the folder as it is"
        )
    model = load(folder, head, mapped=True)
    if why := refused(model):
        raise ModelError(f"{folder}: not exported: {why} has no form in {format}")
    return model


def _check_proof(folder: Path, target: Path, checks: list[OutputCheck]) -> None:
    if all(check.ok for check in checks):
        return
    worst = max(checks, key=lambda check: (not check.ok, check.relative))
    raise ModelError(
        f"{folder}: the exported file differs from the model by {worst.relative:.1e} of the spread "
        f"of its outputs ({worst.name}), the tolerance is {TOLERANCE:.0e}; {target} is not "
        "written"
    )
