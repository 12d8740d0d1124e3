"""ldt init: a first recipe, by four questions or four options."""

import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from ldt.cli.console import say
from ldt.cli.options import File, Name
from ldt.cli.recipes import conversion, new_file
from ldt.errors import DataError, UserError, did_you_mean, listed

if TYPE_CHECKING:
    from ldt.convert.kinds import Candidate

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
    for line in _write(target, file, task, model, max_length, yes):
        say(line)


def _write(
    target: Path,
    file: str | None,
    task: str | None,
    model: str | None,
    max_length: int | None,
    yes: bool,
) -> list[str]:
    """Ask for what is None, write the recipe, and return what to say of it and to run next."""
    from ldt.convert.kinds import candidate
    from ldt.io import files
    from ldt.recipe import draft
    from ldt.recipe.survey import check_fields, survey
    from ldt.tasks import TASKS
    from ldt.tasks.writing import WritingTask

    answer = _answer(file, "Data: a file, or for pretraining a folder of text", None, yes, survey)
    for line in answer.lines(task if task and task in TASKS else answer.task):
        say(line)

    others = {*answer.columns} - {answer.text, answer.id or "id"}
    if task is None and yes and answer.task == "mlm" and others:
        raise DataError(
            f"{answer.source}: no label found in {listed(sorted(others))}; --task names what is to "
            "be learned: classification of a field called label, mlm of the text alone"
        )

    def task_of(name: str) -> str:
        check_task(name)
        check_fields(answer, name)
        return name

    task = _answer(task, "Task", answer.task, yes, task_of)
    asked = "Model: a folder or hub id of a BERT, RoBERTa, Longformer"
    suggestion = LARGE if shutil.which("nvidia-smi") else SMALL
    writes = issubclass(TASKS[task], WritingTask)
    if writes:
        asked, suggestion = "Model: a folder or hub id of a BART, LED", WRITER

    def model_of(name: str) -> tuple[str, "Candidate"]:
        return name, candidate(name, writes)

    model, known = _answer(model, asked, suggestion, yes, model_of)
    tokens = draft.lengths(answer, task, known.count if known.tokenizer else None)
    joined = TASKS[task].reads.kind == "corpus"  # documents fill inputs together
    most = [sum(tokens) // draft.INPUTS] if joined else tokens
    suggestion = str(draft.suggested(most, known.length))
    length = _answer(
        None if max_length is None else str(max_length),
        "Longest input, in tokens",
        suggestion,
        yes,
        _length,
    )
    converted = model
    commands: list[str] = []
    if known.length is None or known.length < length:
        converted, commands = conversion(model, max(length, known.shortest))
    text = draft.draft(
        answer,
        task=task,
        model=converted,
        max_length=length,
        tokens=tokens,
        width=known.width,
        name=str(target),
    )
    files.write_result(target, text)
    commands += draft.commands(task, shlex.quote(str(target)))
    return [f"{target}: written; next:", *(f"  {command}" for command in commands)]


def check_task(name: str) -> None:
    """Refuse a name that is no task's, or that of a task which needs more than a data file."""
    from ldt.tasks import TASKS

    if name not in TASKS:
        near = did_you_mean(name, TASKS) or f"; there are {', '.join(TASKS)}"
        raise UserError(f"unknown task {name!r}{near}")
    if TASKS[name].reads.kind == "characters":
        raise UserError(f"{name} begins without a model; ldt recipes copy charlm_small begins one")


def _need_answers(given: dict[str, object], yes: bool) -> None:
    """Refuse to ask where nobody can answer."""
    if sys.stdin is not None and sys.stdin.isatty() and not yes:
        return
    missing = [name for name, value in given.items() if value is None]
    if yes:
        missing = [name for name in missing if name == "FILE"]
    if missing:
        hint = "" if yes else "; or FILE and --yes, which takes what is suggested"
        raise UserError(f"no terminal to ask on: {' '.join(missing)} must be given{hint}")


def _answer(
    given: str | None,
    question: str,
    suggestion: str | None,
    yes: bool,
    read: Callable[[str], _Answer],
) -> _Answer:
    """The value that was given, suggested, or typed until it can be read."""
    if given is not None:
        return read(given)
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
