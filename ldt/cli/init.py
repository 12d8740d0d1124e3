"""ldt init: a first recipe, by four questions or four options."""

import shlex
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from ldt.cli.console import say
from ldt.cli.options import File, Name
from ldt.cli.recipes import conversion, new_file
from ldt.errors import DataError, UserError, did_you_mean, listed

SMALL, LARGE = "sentence-transformers/all-MiniLM-L6-v2", "allenai/longformer-base-4096"
WRITER = "facebook/bart-base"  # of a task whose answers are written

_Answer = TypeVar("_Answer")


def init(
    file: Annotated[str | None, typer.Argument(metavar="FILE")] = None,
    data: File = None,
    task: Name = None,
    model: Annotated[str | None, "MODEL"] = None,
    max_length: Annotated[int | None, typer.Option(min=8, metavar="TOKENS")] = None,
    output: Annotated[Path, "RECIPE"] = Path("recipe.yaml"),
    yes: bool = False,
    overwrite: bool = False,
) -> None:
    """Write a first recipe for your data, and say what to run next.

    It looks at the data, asks for data, task, model and length, each with a suggestion, and writes
    a recipe with comments. Options answer questions beforehand; without a terminal, give all
    four, or the data and --yes.

    Example: ldt init contracts.csv --model roberta-base --yes

    Args:
        file: Data to learn from; --data names them as well.
        data: Data to learn from: a file; for pretraining also a folder.
        task: Task to learn, such as classification; by default asked for.
        model: Model to begin with: a folder or hub id; by default asked for.
        max_length: Longest input, in tokens; by default asked for.
        output: File that the recipe is written to.
        yes: Take what is suggested instead of asking.
        overwrite: Replace the recipe if it exists.
    """
    if None not in (file, data):
        raise UserError(f"FILE {file!r} and --data {data!r} both name the data; give one of them")
    file = data if file is None else file
    target = new_file(output, overwrite, "--output NAME keeps it")
    _need_answers({"FILE": file, "--task": task, "--model": model, "--max-length": max_length}, yes)
    for line in _write(target, partial(_answer, yes=yes), file, task, model, max_length):
        say(line)


def _write(
    target: Path, ask: Any, file: Any, task: str | None, model: str | None, length: int | None
) -> list[str]:
    """Ask for what is None, write the recipe, and return what to say of it and to run next."""
    from ldt.convert.kinds import candidate
    from ldt.io import files
    from ldt.recipe import draft
    from ldt.recipe.survey import check_fields, survey
    from ldt.tasks import TASKS
    from ldt.tasks.writing import WritingTask

    data = ask(survey, file, "Data: a file, or for pretraining a folder of text", None)
    for line in data.lines(task if task and task in TASKS else data.task):
        say(line)
    others = {*data.columns} - {data.text, data.id or "id"}
    if task is None and ask.keywords["yes"] and data.task == "mlm" and others:
        raise DataError(
            f"{data.source}: no label found in {listed(sorted(others))}; --task names what is to "
            "be learned: classification of a field called label, mlm of the text alone"
        )

    def read_task(name: str) -> str:
        _check_task(name)
        check_fields(data, name)
        return name

    task = ask(read_task, task, "Task", data.task)
    kinds, suggestion = "BERT, RoBERTa, Longformer", SMALL
    if writes := issubclass(TASKS[task], WritingTask):
        kinds, suggestion = "BART, LED", WRITER
    elif shutil.which("nvidia-smi"):
        suggestion = LARGE
    question = f"Model: a folder or hub id of a {kinds}"
    model, known = ask(lambda name: (name, candidate(name, writes)), model, question, suggestion)
    tokens = draft.lengths(data, task, known.count if known.tokenizer else None)
    joined = TASKS[task].reads.kind == "corpus"  # documents fill inputs together
    most = [sum(tokens) // draft.INPUTS] if joined else tokens
    suggestion = str(draft.suggested(most, known.length))
    length = ask(_length, length and str(length), "Longest input, in tokens", suggestion)
    commands: list[str] = []
    if known.length is None or known.length < length:
        model, commands = conversion(model, max(length, known.shortest))
    keys: dict[str, Any] = {"task": task, "model": model, "max_length": length, "tokens": tokens}
    text = draft.draft(data, **keys, width=known.width, name=str(target))
    files.write_result(target, text)
    commands += draft.commands(task, shlex.quote(str(target)))
    return [f"{target}: written; next:", *(f"  {command}" for command in commands)]


def _check_task(name: str) -> None:
    """Refuse a name that is no task's, or that of a task which needs more than a data file."""
    from ldt.tasks import TASKS

    if name not in TASKS:
        near = did_you_mean(name, TASKS) or f"; there are {', '.join(TASKS)}"
        raise UserError(f"unknown task {name!r}{near}")
    if TASKS[name].reads.kind == "characters":
        raise UserError(f"{name} begins without a model; ldt recipes copy charlm_small begins one")


def _need_answers(given: dict[str, object], yes: bool) -> None:
    if sys.stdin is not None and sys.stdin.isatty() and not yes:
        return
    missing = [name for name, value in given.items() if value is None]
    if yes:
        missing = [name for name in missing if name == "FILE"]
    if missing:
        hint = "" if yes else "; or FILE and --yes, which takes what is suggested"
        raise UserError(f"no terminal to ask on: {' '.join(missing)} must be given{hint}")


def _answer(
    read: Callable[[str], _Answer],
    value: str | None,
    question: str,
    suggestion: str | None,
    yes: bool,
) -> _Answer:
    """The value of an option, the suggested one, or one that is typed until it can be read."""
    if value is not None:
        return read(value)
    if yes and suggestion is not None:
        return read(suggestion)
    while True:
        typed = typer.prompt(question, default=suggestion, err=True)
        try:
            return read(typed.strip())
        except UserError as error:
            say(str(error))


def _length(text: str) -> int:
    if not text.isdecimal() or int(text) < 8:
        raise UserError(f"expected a number of tokens from 8 on, got {text!r}")
    return int(text)
