"""ldt labels: answers for tools in which people put labels right."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from ldt.cli.console import say
from ldt.errors import UserError

labels = typer.Typer(no_args_is_help=True)


@labels.callback()
def _labels() -> None:
    """Take answers to tools in which people put labels right.

    What they export is read for training with data.format=label-studio and data.format=doccano.
    """


@labels.command()
def export(
    answers: Annotated[
        str, typer.Argument(metavar="ANSWERS", help="Answers of ldt predict, as JSON lines.")
    ],
    to: Annotated[
        Literal["label-studio", "doccano", "argilla", "spacy"],
        typer.Option(help="Tool that the file is for."),
    ],
    output: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="File to write. Beside tasks.json, Label Studio's interface is tasks.xml; beside "
            "records.json, Argilla's settings are records.settings.json.",
        ),
    ],
    documents: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Documents that the answers are for, as ldt predict read them; not needed where "
            "--keep text copied the text into the answers.",
        ),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Layout of the documents, such as squad; by default found by their content.",
        ),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(metavar="FIELD", help="Field of the text; by default text or context."),
    ] = None,
    id: Annotated[
        str, typer.Option(metavar="FIELD", help="Field of a document that holds its id.")
    ] = "id",
    offered: Annotated[
        str | None,
        typer.Option(
            "--labels",
            metavar="LABEL,LABEL",
            help="Labels of spans to offer; by default those that the answers have.",
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace files that are there already.")
    ] = False,
) -> None:
    """Write answers as what a tool imports, with the answers as suggestions to accept or change.

    Example: ldt labels export answers.jsonl --to label-studio --documents new.jsonl --output
    tasks.json
    """
    from ldt.data.formats import FORMATS
    from ldt.data.options import DataSection
    from ldt.inference import label_tools

    if format is not None and format not in FORMATS:
        raise UserError(f"--format must be one of {', '.join(FORMATS)}, got {format!r}")
    section = DataSection.model_validate({"format": format, "text": text, "id": id})
    for path in label_tools.targets(output, to):
        if not overwrite and (path.exists() or path.is_symlink()):
            raise UserError(f"{path} exists already; --overwrite replaces it")
    for path in label_tools.export(
        answers,
        to,
        output,
        documents=documents,
        data=section,
        labels=None if offered is None else offered.split(","),
    ):
        say(f"{path}: written")
