"""A fine-tuned model that is called in Python and answers as ``ldt predict`` does.

Torch is imported, and the folder read, when it is first asked.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, cast

from ldt.errors import DataError, kind
from ldt.inference.runtimes import Runtime
from ldt.io.records import Example, identified
from ldt.io.strict_json import json_line

Refuse = Callable[[DataError, Example], None]
_LOADING = threading.Lock()


@dataclass(frozen=True)
class Answerer:
    """The model of a run; `ldt.load` makes one.

    It is a small pickle, before and after it was asked: what was loaded stays behind. Threads may
    ask at the same time; the model answers one of them after the other.

    Args:
        folder: folder of a finished run; None is runs/latest in the current directory.
        text, id: fields of a record that hold its text and its id; None: as in training.
        n_best: answers a document, of tasks that have several.
        device: a torch device; "auto" is the GPU if there is one.
        precision: "fp32", "bf16", "int8", or "auto": bf16 on a GPU that has it, fp32 elsewhere.
            Answers of int8 are not compared with those of fp32, as ``ldt predict`` does.
        batch_tokens: most tokens of a batch, padding included; a longer window is run alone.
        raw_scores: whether the scores of a classification are logits.
        label_sets: probability with which a key ``label_set`` holds all the right classes.
        passages, passages_by, passages_of, passages_unit: passages that each answer names as what
            it rests on, as `ldt.inference.predict.predict` takes them.
        chunks: whether answers list the chunks of their document, with the scores of each.
        runtime: "torch", or one of `RUNTIMES` for a folder of ``ldt export``.
        on_error: "stop" raises at a document that cannot be used; "answer" gives it the answer
            {"id", "error"}, for callers that need one for each.
    """

    folder: str | None = None
    text: str | None = None
    id: str | None = None
    n_best: int | None = None
    device: str = "auto"
    precision: str = "auto"
    batch_tokens: int = 16384
    raw_scores: bool = False
    label_sets: float | None = None
    passages: int = 0
    passages_by: Literal["gradient", "occlusion", "chunks"] = "gradient"
    passages_of: Sequence[str] = ()
    passages_unit: Literal["sentence", "paragraph"] = "sentence"
    chunks: bool = False
    runtime: Runtime = "torch"
    on_error: Literal["stop", "answer"] = "stop"

    def __post_init__(self) -> None:
        if self.on_error not in ("stop", "answer"):
            raise ValueError(f"on_error must be stop or answer, got {self.on_error!r}")

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __call__(self, documents: Any) -> Any:
        """The answer for a text or a record, or a list of those for an iterable of them.

        Answers are those that ``ldt predict`` writes for a file of these records; a document
        without an id has its number, from 1.

        Raises:
            DataError: a document cannot be used; the message has its number.
            UserError: the folder or an option cannot be used.
            ResourceError: the memory does not hold a single window.
        """
        single = isinstance(documents, str | Mapping)
        found = self.answers([documents] if single else documents)
        return found[0] if single else found

    def answers(self, documents: Iterable[Any]) -> list[dict[str, Any]]:
        """The answers for texts and records, in their order; see `__call__`."""
        from ldt.inference.stream import answer_all

        loaded, kept = self._loaded(), _Kept()
        refused: list[tuple[int, dict[str, Any]]] = []

        def refuse(error: DataError, example: Example) -> None:
            if self.on_error == "stop":
                raise error
            number = cast(int, example.record)
            refused.append((number, {"id": example.id, "error": str(error)}))

        examples = loaded.examples(documents, refuse)
        with loaded.lock:
            answer_all(examples, loaded.model, kept, batch_tokens=self.batch_tokens, refuse=refuse)
        for number, answer in refused:
            kept.insert(number - 1, answer)
        return kept

    def columns(self, batch: Mapping[str, Iterable[Any]]) -> dict[str, list[str]]:
        """The answers for the rows of a table, for Ray Data, Spark, pandas and ``datasets``.

        Args:
            batch: the values of each column, such as numpy arrays of one length.

        Returns:
            ``id`` and ``answer`` of each row, texts: the answer is JSON, as in a line of
            ``ldt predict``.
        """
        rows = zip(*map(_plain, batch.values()), strict=True)
        answers = self.answers(dict(zip(batch, row, strict=True)) for row in rows)
        return {
            "id": [str(answer["id"]) for answer in answers],
            "answer": [json_line(answer).decode().rstrip() for answer in answers],
        }

    def load(self) -> "Answerer":
        """Load the model, if that was not done; the first question does it as well.

        Raises:
            UserError: the folder or an option cannot be used.
        """
        self._loaded()
        return self

    def _loaded(self) -> "_Loaded":
        with _LOADING:
            if "_model" not in self.__dict__:
                self.__dict__["_model"] = _Loaded(self)
            return self.__dict__["_model"]


class _Loaded:
    """The model of an `Answerer`, and the fields that it reads."""

    def __init__(self, asked: Answerer):
        from ldt.inference import options
        from ldt.inference.passages import Wanted
        from ldt.inference.run_model import RunModel, read_recipe
        from ldt.recipe.run import Run

        folder = Run.find(asked.folder).folder
        trained = read_recipe(folder, asked.runtime)
        about = asked.passages, asked.passages_by, tuple(asked.passages_of), asked.chunks
        wanted = Wanted(*about, batch_tokens=asked.batch_tokens, unit=asked.passages_unit)
        wanted.check(trained.task, asked.precision, asked.runtime)
        options.check("stop", asked.batch_tokens, None, None, 0)
        options.check_runtime(asked.runtime, asked.precision)
        options.check_shown(trained.task, asked.raw_scores, asked.label_sets)
        recipe = options.changed(trained, asked.n_best, None, None, text=asked.text, id=asked.id)
        shown = {"raw_scores": asked.raw_scores, "label_sets": asked.label_sets}
        about_run = asked.device, shown, wanted, asked.batch_tokens, asked.runtime
        run = RunModel(folder, recipe, *about_run)
        precision = run.automatic() if asked.precision == "auto" else asked.precision
        self.model, _ = run.predictor(precision)
        self.text = recipe.data.text or recipe.task.document
        self.id = recipe.data.id
        self.lock = threading.RLock()  # documents may come from a generator that asks as well

    def examples(self, documents: Iterable[Any], refuse: Refuse) -> Iterator[Example]:
        """Yield the documents as records of a file."""
        for number, document in enumerate(documents, 1):
            where = f"document {number:,}"
            fields = {self.text: document} if isinstance(document, str) else document
            example = Example({}, number, where, record=number)
            if not isinstance(fields, Mapping):
                what = f"{kind(document)}, expected a text or a record"
                refuse(DataError(f"{where}: {what}"), example)
                continue
            example.fields = dict(fields)
            try:
                example.id = identified(example, "" if isinstance(document, str) else self.id)
            except DataError as error:
                refuse(error, example)
                continue
            yield example


def _plain(value: Any) -> Any:
    """The value with lists and numbers of Python in the place of numpy's."""
    if hasattr(value, "tolist"):
        value = value.tolist()  # of objects, these stay as they are
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


class _Kept(list[dict[str, Any]]):
    """Answers in memory: a `ldt.inference.stream.Sink`."""

    write = list.extend

    def done(self) -> Iterator[Any]:
        """No ids: nothing was answered before."""
        return iter(())
