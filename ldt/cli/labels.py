"""ldt labels: answers for tools in which people put labels right."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from ldt.cli.console import say, stdout
from ldt.cli.options import ReadingKeys
from ldt.cli.recipes import new_file

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
    keys: ReadingKeys = None,
    *,
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
    from ldt.inference import label_tools
    from ldt.inference.options import check_reading
    from ldt.recipe.recipe import reading

    data = reading(keys or ())
    filed = data.text_files is not None or data.format == "triviaqa"
    named = data.model_dump(include={"format", "text", "id", "encoding", "text_files", "evidence"})
    check_reading(documents or answers, named, filed)
    for path in label_tools.targets(output, to):
        new_file(path, overwrite)
    names = None if offered is None else offered.split(",")
    written = label_tools.export(answers, to, output, documents=documents, data=data, labels=names)
    for path in written:
        say(f"{path}: written")
