"""ldt labels: answers for tools in which people put labels right."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from ldt.cli.console import say, stdout
from ldt.cli.recipes import new_file
from ldt.errors import UserError

labels = typer.Typer(invoke_without_command=True)


@labels.callback()
def _labels(context: typer.Context) -> None:
    """Take answers to tools in which people put labels right.

    What they export is read for training with data.format=label-studio and data.format=doccano.

    Example: ldt labels export -h
    """
    if context.invoked_subcommand is None:
        say(context.get_help(), console=stdout)


@labels.command()
def export(
    answers: Annotated[
        str, typer.Argument(metavar="ANSWERS", help="Answers of ldt predict, lines or a table.")
    ],
    to: Annotated[
        Literal["label-studio", "doccano"],
        typer.Option(help="Tool that the file is for."),
    ],
    output: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="File to write; Label Studio's interface stands beside it as .xml.",
        ),
    ],
    documents: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Documents that the answers are for, as ldt predict read them; not needed where "
            "its --keep text copied the text.",
        ),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Layout of the documents; by default by their content."),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(metavar="FIELD", help="Field of the text; by default text or context."),
    ] = None,
    text_files: Annotated[
        str | None,
        typer.Option(metavar="FIELD", help="Field of names of text files, which are the texts."),
    ] = None,
    evidence: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER", help="Folder of those text files; by default that of the documents."
        ),
    ] = None,
    id: Annotated[
        str | None,
        typer.Option(metavar="FIELD", help="Field of a document that holds its id; by default id."),
    ] = None,
    encoding: Annotated[
        str, typer.Option(metavar="NAME", help="Encoding of the documents, such as cp1252.")
    ] = "utf-8",
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
    """Write answers as suggestions that a tool imports.

    A person accepts or changes them there.

    Example: ldt labels export answers.jsonl --to label-studio --documents new.jsonl --output
    tasks.json
    """
    from ldt.data.formats import FORMATS
    from ldt.data.options import DataSection
    from ldt.inference import label_tools
    from ldt.inference.options import check_reading, require_encoding

    if format is not None and format not in FORMATS:
        raise UserError(f"--format must be one of {', '.join(FORMATS)}, got {format!r}")
    require_encoding(encoding)
    named = {"format": format, "text": text, "id": id, "encoding": encoding}
    named |= {"text_files": text_files, "evidence": evidence}
    filed = text_files is not None or format == "triviaqa"
    check_reading(documents or answers, filed=filed, **named)
    section = DataSection.model_validate(named)
    for path in label_tools.targets(output, to):
        new_file(path, overwrite)
    names = None if offered is None else offered.split(",")
    written = label_tools.export(
        answers, to, output, documents=documents, data=section, labels=names
    )
    for path in written:
        say(f"{path}: written")
