"""Subject of a report: a file of answers, or a run folder whose model answers its
evaluation set."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from typing import Any

from ldt.errors import UserError, listed
from ldt.io.sources import Names, brief, digest, each, is_remote
from ldt.metrics.result import Result
from ldt.recipe.run import Description, Run
from ldt.report.model import Document
from ldt.tasks.deciding import chosen_on_these, in_words
from ldt.tasks.explained import ByLogits

log = logging.getLogger("ldt")

_READING = {"format", "evidence", "text", "id", "encoding"}  # keys of the data section

PASSAGES = 2  # that the answers of a run's model name, where the task has some


@dataclass(frozen=True)
class Subject:
    """Answers and everything known about them.

    Args:
        name: name given by the user.
        run: description of the run; None for a file of answers.
        result: scores; None without gold.
        documents: documents with their answers.
        gold: name of the gold file.
        missing: reason why there are no documents; empty if there are.
        evaluated: True if the documents are those of the run's metrics.json.
        warnings: remarks about the answers.
    """

    name: str
    run: Description | None = None
    result: Result | None = None
    documents: Sequence[Document] = ()
    gold: str = ""
    missing: str = ""
    evaluated: bool = False
    warnings: Sequence[str] = field(default_factory=tuple)

    def facts(self) -> dict[str, str]:
        """Settings, cost and versions of the run as text, by name; empty for a file of answers."""
        if self.run is None:
            return {}
        took = {"steps": "steps", "training time (s)": "seconds", "parameters": "parameters"}
        results = self.run.results
        facts = {key: _shown(value) for key, value in self.run.identity.items()}
        facts |= {key: _shown(results[name]) for key, name in took.items() if name in results}
        facts |= {"decision": words} if (words := in_words(self.run.decisions)) else {}
        return facts | {key: str(value) for key, value in results.get("versions", {}).items()}


def subject(
    name: str,
    *,
    gold: Names = (),
    documents: str | None = None,
    format: str | None = None,
    recipe: str | None = None,
    answers: str | None = None,
    overrides: Iterable[str] = (),
    passages: int = 0,
) -> Subject:
    """Read answers or a run folder; the run's model answers if no answers are given.

    Args:
        name: run folder, or answers of `ldt predict`, lines or a table.
        gold: labelled documents; empty for the run's evaluation set, or for unscored answers.
        documents: documents of the answers, if the gold file has no text.
        format, recipe, overrides: how to read the gold file, as in `ldt evaluate`; a run has its
            own recipe.
        answers: answers of a run's model, instead of running it.
        passages: number of explaining passages per answer, if the task has them.

    Raises:
        UserError: a path is missing, or options contradict each other.
        DataError, ModelError: something cannot be read or does not fit.
    """
    from ldt.report.documents import gather

    if not os.path.isdir(name):
        if answers is not None:
            raise UserError(f"--answers {answers}: of a run folder's model, but {name} is a file")
        if not os.path.exists(name):
            raise UserError(
                f"{name}: no such file or folder; a run folder or answers of ldt predict"
            )
        more: dict[str, Any] = {"documents": documents, "format": format, "recipe": recipe}
        result, listed_ = gather(name, gold=gold or None, overrides=overrides, **more)
        shown = brief(each(gold)) if gold else ""
        decisions = Run(recipe).decisions() if recipe and os.path.isdir(recipe) else {}
        warnings = chosen_on_these(decisions, gold) if gold else []
        return Subject(name, None, result, listed_, shown, warnings=warnings)
    if recipe is not None:
        raise UserError(f"--recipe {recipe}: {name} is a run, which has a recipe of its own")
    run = Run(name).describe(overrides)
    files, missing, warnings = evaluation_set(run, gold)
    if missing:
        return Subject(name, run, missing=missing)
    more = {"documents": documents, "format": format, "recipe": name, "overrides": overrides}
    with _answered(run, files, answers, passages) as answer_file:
        result, listed_ = gather(answer_file, gold=files, **more)
    evaluated = not gold and not warnings
    warnings += chosen_on_these(run.decisions, files)
    return Subject(name, run, result, listed_, brief(files), "", evaluated, warnings)


def evaluation_set(run: Description, gold: Names = ()) -> tuple[list[str], str, list[str]]:
    """Find the files that a run is evaluated on.

    Args:
        run: description of the run.
        gold: other files to use instead.

    Returns:
        The files; if there are none the reason, else ""; and remarks, such as that they have
            changed.

    Raises:
        UserError: a pattern in ``gold`` matches no file.
    """
    task, data = run.recipe.task, run.recipe.data
    if task.reads.kind != "examples":
        return [], f"models of {task.name} have no answers that gold files hold", []
    if not run.results:
        return [], "the run is not finished, so that its model does not answer yet", []
    if gold:
        return each(gold), "", []
    if not data.eval:
        fraction = getattr(data, "eval_fraction", None)
        why = "there is no evaluation set"
        if fraction:
            why = f"the evaluation set is a part of data.train ({fraction:g}), no file of its own"
        return [], f"{why}; --gold names one", []
    try:
        files = each(data.eval)
    except UserError as error:
        return [], f"data.eval: {error}; --gold names another", []
    here = [file for file in files if not (file.startswith("hf:") or is_remote(file))]
    lost = [file for file in here if not os.path.exists(file)]
    if lost:
        return [], f"data.eval: {listed(lost)} is not there any more; --gold names another", []
    then = run.results.get("data", {}).get("eval", {}).get("sha256")
    if then and digest(files) != then:
        return files, "", [f"{brief(files)}: has changed since the training was evaluated on it"]
    return files, "", []


@contextmanager
def _answered(
    run: Description, gold: Sequence[str], answers: str | None, passages: int
) -> Iterator[str]:
    """Yield the file of answers to a gold file, made by the run's model if none is given."""
    if answers is not None:
        yield answers
        return
    from ldt.inference.predict import predict

    data, task = run.recipe.data, run.recipe.task
    if task.answers.scorer:
        task.answers.scorer()
    log.info("%s: answering %s", run.folder, brief(list(gold)))
    with TemporaryDirectory(prefix="ldt-") as folder:
        file = os.path.join(folder, "answers.jsonl")

        def names_no_such_file(record: logging.LogRecord) -> bool:
            return folder not in record.getMessage()

        log.addFilter(names_no_such_file)
        try:
            code = predict(
                list(gold),
                model=str(run.folder),
                output=file,
                data=data.model_dump(include=_READING, exclude_none=True),
                passages=passages if isinstance(task, ByLogits) else 0,
            )
        finally:
            log.removeFilter(names_no_such_file)
        if code:  # of a signal
            log.info("%s: no answer is kept", run.folder)
            raise SystemExit(code)
        yield file


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
