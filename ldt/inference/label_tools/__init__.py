"""Answers for tools in which people put labels right. A tool is a name in `TOOLS`."""

from pathlib import Path
from types import ModuleType

from ldt.data.options import DataSection
from ldt.errors import UserError
from ldt.inference.label_tools import doccano, label_studio
from ldt.inference.label_tools.labelled import read
from ldt.io import files

TOOLS: dict[str, ModuleType] = {
    "label-studio": label_studio,
    "doccano": doccano,
}


def export(
    answers: str,
    tool: str,
    target: Path,
    *,
    documents: str | None = None,
    data: DataSection | None = None,
    labels: list[str] | None = None,
) -> list[Path]:
    """Write answers as what a tool imports, with the answers as suggestions.

    Args:
        answers: JSON lines of ``ldt predict``.
        tool: a name in `TOOLS`.
        target: the file with the documents; others of the tool stand beside it.
        documents, data, labels: as of `ldt.inference.label_tools.labelled.read`.

    Returns:
        The files that were written.

    Raises:
        UserError, DataError: as `read`; a file that cannot be written.
    """
    paths = targets(target, tool)
    for path in paths:
        files.check_result(path, "--output", [answers, documents])
    labelled, interface = read(answers, documents, data or DataSection.model_validate({}), labels)
    for path, content in zip(paths, TOOLS[tool].files(labelled, interface), strict=True):
        files.write_result(path, content)
    return paths


def targets(target: Path, tool: str) -> list[Path]:
    """The file with the documents, and the one beside it where the tool has one."""
    suffix = TOOLS[tool].BESIDE
    beside = [] if suffix is None else [target.with_name(target.stem + suffix)]
    if target in beside:
        raise UserError(f"--output {target}: {suffix} is for {tool}'s other file; name it .json")
    return [target, *beside]
