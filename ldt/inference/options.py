"""Prediction options, with one name, meaning and range for the command, Python and the server.

The descriptions of `PredictOptions`'s fields are the command's help, the reference in the docs and
the docstring of `ldt.load`. This module does not import torch.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ldt.errors import UserError, did_you_mean, documented, listed
from ldt.inference.runtimes import RUNTIMES, Runtime

if TYPE_CHECKING:
    from ldt.recipe.recipe import Recipe
    from ldt.tasks.base import AnyTask

VectorUnit = Literal["document", "chunk", "sentence", "paragraph"]  # what has a vector of its own
By = Literal["gradient", "occlusion", "chunks"]

_flags: frozenset[str] = frozenset()  # options that this process's command has as --name


@contextmanager
def flags(names: Collection[str]) -> Iterator[None]:
    """Context in which `flag` writes these options as on the command line: ``--batch-tokens 512``.

    Args:
        names: names of options that the command has as flags; the setting is of the whole process.
    """
    global _flags
    before, _flags = _flags, frozenset(names)
    try:
        yield
    finally:
        _flags = before


def flag(name: str, value: object = None) -> str:
    """Option as the user writes it: ``--n-best 3`` on the command line (in `flags`), else
    ``n_best=3``.

    Args:
        name: name of a field, dotted for `ReadingOptions`.
        value: value; None gives the name alone.
    """
    if name in _flags:
        name, between = f"--{name.replace('_', '-')}", " "
    else:
        between = "="
    return name if value is None else f"{name}{between}{value}"


class _Options(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        for name, meaning in documented(cls.__doc__ or "").items():
            cls.model_fields[name].description = meaning

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Create options from values by name; UserError for a wrong name or value."""
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise _refused(error, dict(values)) from None


class ReadingOptions(_Options):
    """Keys of the data section that say how to read the documents; defaults are those of the
    training.

    Args:
        text: Field of a record that holds its text, or 'Title + Body' for several that are joined;
            by default as in the training.
        id: Field of a record that holds its id; by default the one of the training.
        fields: Names that the task's other fields have in the file, such as {question: query}; by
            default those of the training.
        format: Layout of the documents: jsonl, csv, tsv, parquet, text, or a published one such as
            squad or triviaqa; by default recognised.
        encoding: Encoding of the documents, such as latin-1 or cp1252; by default that of the
            training, or UTF-8 if they begin with its mark.
        text_files: Field of a record that names the file with its text, in the folder of FILE or
            data.evidence; by default the one of the training.
        evidence: Folder of the files that a triviaqa file or text_files names; by default the one
            of the training.
        max_length: Longest input, in tokens with special tokens; longer documents are read in
            chunks; by default that of the training.
        max_line_bytes: Longest line to read, in bytes; a longer one is an error; by default 256
            MiB.
    """

    text: str | tuple[str, ...] | None = None
    id: str | None = None
    fields: dict[str, str | int] = {}
    format: str | None = None
    encoding: str | None = None
    text_files: str | None = None
    evidence: str | None = None
    max_length: int | None = Field(None, ge=1)
    max_line_bytes: int = Field(256 << 20, ge=1)

    def changes(self) -> dict[str, Any]:
        """Keys of the data section that are set, with their values; without ``max_line_bytes``."""
        keys = self.model_dump(exclude={"max_line_bytes"}, exclude_defaults=True)
        return keys | ({"text": list(self.text)} if isinstance(self.text, tuple) else {})


class PredictOptions(_Options):
    """Options of prediction.

    Args:
        data: Keys of the data section, by which documents are read.
        on_error: Reaction to a record that cannot be used: stop; skip it, write it to a file of
            rejects and end with exit code 7; or, in Python, answer it with {id, error}.
        n_best: Number of answers to give to each question, best first.
        device: Device to compute on; auto takes the GPU if there is one.
        precision: Number format to compute in; bf16 and int8 (CPU only) are faster and less exact,
            and the log says by how much on the first documents. By default bf16 on a GPU that
            supports it, else fp32.
        max_changed: Largest share of the first 200 answers that int8 may change against fp32, by
            default 0.01; above it nothing is written. 1 writes all the same.
        batch_tokens: Size of the largest batch, in tokens with padding; a longer input runs alone.
        raw_scores: With true, scores are logits in place of probabilities.
        label_sets: Add the set of classes that contains all correct ones with this probability,
            such as 0.9 (conformal prediction).
        passages: Number of passages to add to each answer, or for each of its classes: those that
            it rests on most.
        passages_by: Method that scores passages: gradient (times input, the default), occlusion
            (drop of the logit without the passage, slow) or chunks (logit of a whole chunk).
        passages_of: Classes to find passages for, such as [sports,law], in place of those of the
            answer.
        passages_unit: Size of a passage: sentence (the default), or paragraph, between blank lines,
            bullets and clause numbers, of up to 2,000 characters.
        chunks: Add the chunks that each document was read in, with the scores of each.
        unit: Part of a document that gets a vector: the whole document (default), a chunk of
            unit_tokens tokens, a sentence or a paragraph.
        unit_tokens: Size of the chunks of unit=chunk that get a vector, in tokens; by default 256.
        late: With false, read each chunk, sentence or paragraph of unit alone; by default its
            vector is pooled from one pass over the whole document (late chunking).
        dimensions: Size to truncate vectors to, one of task.dimensions of the training
            (Matryoshka); by default the full size.
        resolved: With true, add resolved, the text with each pronoun replaced by the first mention
            of its cluster that is no pronoun (coreference).
        runtime: Library that runs the model: torch, or for a folder that ldt export wrote onnx,
            openvino or pt2.
        workers: Number of worker processes, each with its own GPU, or without GPUs its share of the
            processors; auto is one per GPU, or one per four cores.
    """

    data: ReadingOptions = ReadingOptions.of({})
    on_error: Literal["stop", "skip", "answer"] = "stop"
    n_best: int | None = Field(None, ge=1)
    device: str = "auto"
    precision: Literal["auto", "fp32", "bf16", "int8"] = "auto"
    max_changed: float = Field(0.01, ge=0, le=1)
    batch_tokens: int = Field(16384, ge=1)
    raw_scores: bool = False
    label_sets: float | None = Field(None, gt=0, lt=1)
    passages: int = Field(0, ge=0)
    passages_by: By = "gradient"
    passages_of: tuple[str, ...] = ()
    passages_unit: Literal["sentence", "paragraph"] = "sentence"
    chunks: bool = False
    unit: VectorUnit | None = None
    unit_tokens: int | None = Field(None, ge=1)
    late: bool | None = None
    dimensions: int | None = Field(None, ge=1)
    resolved: bool = False
    runtime: Runtime = "torch"
    workers: Annotated[int, Field(ge=1, le=9999)] | Literal["auto"] = 1

    def with_(self, **changes: Any) -> Self:
        """Validated copy with changed values; UserError for a wrong name or value."""
        return self.of({name: getattr(self, name) for name in self.model_fields_set} | changes)

    @property
    def explained(self) -> list[str]:
        """Keys that explanations add to answers, "passages" and "by_chunk", as asked for."""
        asked = {"passages": self.passages, "by_chunk": self.chunks}
        return [key for key, value in asked.items() if value]

    def explanation(self) -> str:
        """Settings of explanations as text, which a resumed run must share; "" without any."""
        parts = [str(self.passages), self.passages_by, *self.passages_of] if self.passages else []
        parts += [f"unit={self.passages_unit}"] * (self.passages_unit != "sentence")
        return ",".join(parts + ["chunks"] * self.chunks)

    def shown(self) -> dict[str, Any]:
        """``raw_scores`` and ``label_sets`` by name, each only if it is set."""
        options = {"raw_scores": self.raw_scores, "label_sets": self.label_sets}
        return {name: value for name, value in options.items() if value}

    def of_vectors(self) -> dict[str, Any]:
        """``unit``, ``unit_tokens``, ``late`` and ``dimensions``, each only if it is set."""
        names = ("unit", "unit_tokens", "late", "dimensions")
        return {name: x for name in names if (x := getattr(self, name)) is not None}

    def check(self, task: "AnyTask") -> None:
        """Refuse options that do not fit the task, before a model is loaded.

        Raises:
            UserError: an option belongs to other tasks, or does not go with the precision or
                runtime.
        """
        if self.runtime in RUNTIMES and self.precision != "auto":
            raise UserError(
                f"{flag('precision', self.precision)}: an exported model has its own; ldt export "
                "--precision makes another"
            )
        if self.n_best is not None and "n_best" not in type(task).model_fields:
            raise UserError(f"{flag('n_best')}: {task.name} has one answer a document")
        if self.resolved and "resolved" not in type(task).model_fields:
            raise UserError(f"{flag('resolved')}: answers of {task.name} have no clusters")
        self._check_vectors(task)
        if name := next(iter(self.shown()), None):
            from ldt.data.labels import REGRESSION
            from ldt.tasks.base import RawScored
            from ldt.tasks.deciding import Deciding

            if not isinstance(task, Deciding if self.label_sets else RawScored):
                raise UserError(f"{flag(name)}: answers of {task.name} have no scores by class")
            if isinstance(task, Deciding) and self.label_sets and task.problem_of() == REGRESSION:
                raise UserError(f"{flag('label_sets')}: a regression has no classes")
        self._check_explained(task)

    def _check_vectors(self, task: Any) -> None:
        asked = self.of_vectors()
        if task.answers.kind != "vectors":
            if name := next(iter(asked), None):
                raise UserError(f"{flag(name)}: answers of {task.name} are no vectors")
            return
        if self.dimensions and self.dimensions not in task.dimensions:
            sizes = listed(task.dimensions) if task.dimensions else "one size alone"
            raise UserError(
                f"{flag('dimensions', self.dimensions)}: the vectors were trained with {sizes}; "
                "task.dimensions of a recipe trains more"
            )
        if asked.get("unit", "document") == "document":
            return
        unit, alone = flag("unit", self.unit), flag("late", "false")
        if task.vectors == "tokens":
            raise UserError(f"{unit}: this model has a vector for each token")
        if self.late is not False and task.pooling not in ("mean", "max"):
            raise UserError(
                f"{unit}: a late vector is pooled from the states of its tokens, and this model is "
                f"trained with pooling {task.pooling}; {alone} reads each {self.unit} alone"
            )
        if self.late is not False and self.runtime in RUNTIMES:
            raise UserError(f"{unit}: an exported model has no late vectors; {alone}")

    def _check_explained(self, task: "AnyTask") -> None:
        """Refuse passages and chunks for a task whose answers have none."""
        for name in ("passages_of", "passages_unit"):
            if getattr(self, name) != type(self).model_fields[name].default and not self.passages:
                raise UserError(f"{flag(name)}: {flag('passages', 'K')} asks for passages")
        if not self.explained:
            return
        from ldt.tasks.deciding import Deciding
        from ldt.tasks.explained import ByLogits, ByPlaces, Explained

        if not isinstance(task, Explained):
            raise UserError(f"{flag(self.explained[0])}: answers of {task.name} are not explained")
        if self.chunks and isinstance(task, ByPlaces) and not task.chunked:
            raise UserError(f"{flag('chunks')}: answers of {task.name} have places of their own")
        if self.passages_of and not isinstance(task, Deciding):
            raise UserError(f"{flag('passages_of')}: {task.name} has no classes")
        if not self.passages or not isinstance(task, ByLogits):
            return
        if self.passages_unit != "sentence" and self.passages_by == "chunks":
            raise UserError(f"{flag('passages_unit')}: passages by chunks are whole chunks")
        inexact = self.runtime in RUNTIMES or self.precision == "int8"
        if self.passages_by == "gradient" and inexact:
            where = self.runtime if self.runtime in RUNTIMES else self.precision
            by, other = flag("passages_by", "gradient"), flag("passages_by", "occlusion")
            raise UserError(f"{by}: there are no gradients in {where}; {other} needs none")

    def applied(self, trained: "Recipe") -> "Recipe":
        """Copy of the training's recipe, its task and data section changed by the options.

        The format is the given one, else JSON lines, whatever the training read. UserError if the
        data section has no such key or value.
        """
        task, section = trained.task, trained.data
        if self.n_best is not None:
            task = task.model_copy(update={"n_best": self.n_best})
        if self.resolved:
            task = task.model_copy(update={"resolved": True})
        if vectors := self.of_vectors():
            task = task.model_copy(update={"asked": vectors})
        changes = {"format": None} | self.data.changes()
        if "text_files" in changes:  # the text stands there, and no longer where the training's did
            changes = {"text": None} | changes
        try:
            data = type(section).model_validate(section.model_dump() | changes)
        except ValidationError as error:
            raise _refused(error, changes, "data") from None
        return replace(trained, task=task, data=data)


def _refused(error: ValidationError, values: Any, *above: str) -> UserError:
    from ldt.recipe.problems import explain

    path, what = next(iter(explain(error, values)))
    name = ".".join((*above, *map(str, path)))
    if what is None and above:
        what = "the documents of this model have no such key"
    return _unknown(name) if what is None else UserError(f"{flag(name)}: {what}")


def _unknown(name: str, names: Iterable[str] | None = None) -> UserError:
    known = {each.rpartition(".")[2]: each for each in names or meanings()}
    last = name.rpartition(".")[2]
    near = did_you_mean(last, known, lambda key: known[key])
    return UserError(f"{name}: no such option{near or '; expected ' + ', '.join(known.values())}")


def meanings() -> dict[str, str]:
    """Help text of each option by its name, those of `ReadingOptions` as ``data.text``."""
    options = {
        name: str(field.description)
        for name, field in PredictOptions.model_fields.items()
        if name != "data"
    }
    reading = ReadingOptions.model_fields.items()
    return options | {f"data.{name}": str(field.description) for name, field in reading}


def bounds(name: str) -> tuple[float | None, float | None]:
    """Smallest and largest permitted value of a `PredictOptions` field; None without."""
    marks: dict[str, Any] = {}
    for each in PredictOptions.model_fields[name].metadata:
        marks |= {key: getattr(each, key) for key in ("ge", "le") if hasattr(each, key)}
    return marks.get("ge"), marks.get("le")


def check_reading(source: str, data: Mapping[str, Any], filed: bool) -> None:
    """Refuse (UserError) an unknown format, and reading options that do not apply to the format.

    Args:
        source: first of the files.
        data: options of `ReadingOptions` by name, with the requested or detected format.
        filed: True if records name files that hold the documents.
    """
    from ldt.benchmarks.formats import FORMATS, TEXT, unread
    from ldt.io.text_files import is_text

    format = data.get("format")
    if format is not None and format not in FORMATS:
        near = did_you_mean(format, FORMATS)
        raise UserError(
            f"{flag('data.format')} must be one of {', '.join(FORMATS)}, got {format!r}{near}"
        )
    format = format or (TEXT if is_text(source) else None)
    why = ({} if filed else {"evidence": "records name no files of documents"}) | unread(format)
    for key, value in data.items():
        if value not in (None, "utf-8") and key in why:
            raise UserError(f"{flag(f'data.{key}', value)}: not read, {why[key]}; leave it out")


def parsed(words: Iterable[str], keys: Iterable[str] | None = None) -> dict[str, Any]:
    """Parse ``KEY=VALUE`` with YAML values: ``data.text=body`` gives {"data": {"text": "body"}}.

    Args:
        words: words from the command line.
        keys: permitted names; None for those of `meanings`.

    Raises:
        UserError: the key does not exist, or the value cannot be parsed.
    """
    from ldt.recipe import yaml

    values: dict[str, Any] = {}
    for word in words:
        key, _, written = word.partition("=")
        tree = yaml.parse(written)
        if tree.problems:
            raise UserError(f"{key}: {tree.problems[0][2]}")
        if key not in (keys or meanings()) and not key.startswith("data.fields."):
            raise _unknown(key, keys)
        inside = values
        *above, last = key.split(".")
        for step in above:
            inside = inside.setdefault(step, {})
        inside[last] = tree.value
    if isinstance(values.get("passages_of"), str):
        values["passages_of"] = [values["passages_of"]]
    return values
