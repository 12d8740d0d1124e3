"""ldt labels: answers for tools in which people correct labels."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from ldt.cli.console import say, stdout
from ldt.cli.options import File
from ldt.cli.recipes import new_file

labels = typer.Typer(invoke_without_command=True)


@labels.callback()
def _labels(context: typer.Context) -> None:
    """Take answers to tools in which people correct labels.

    What they export is read for training with data.format=label-studio and data.format=doccano.

    Example: ldt labels export -h
    """
    if context.invoked_subcommand is None:
        say(context.get_help(), console=stdout)


@labels.command()
def export(
    answers: Annotated[str, "ANSWERS"],
    keys: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", show_default=False)
    ] = None,
    *,
    to: Literal["label-studio", "doccano"],
    output: Annotated[Path, "FILE"],
    documents: File = None,
    offered: Annotated[str | None, typer.Option("--labels", metavar="LABEL,LABEL")] = None,
    overwrite: bool = False,
) -> None:
    """Write answers and their texts for Label Studio or doccano.

    A person accepts or changes them there.

    Example: ldt labels export answers.jsonl --to label-studio --documents new.jsonl --output
    tasks.json

    Args:
        answers: Answers of ldt predict, lines or a table.
        keys: Keys of a recipe that say how the documents are read: data.format, data.text,
            data.text_files, data.fields, data.id, data.encoding and data.evidence.
        to: Tool that the file is for.
        output: File to write; Label Studio's interface stands beside it as .xml.
        documents: Documents that the answers are for, as ldt predict read them; not needed where
            its --keep text copied the text.
        offered: Labels of spans to offer; by default those that the answers have.
        overwrite: Replace files that are there already.
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
