"""The `data:` sections of a recipe, one for each kind of training data."""

import codecs
import os
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    model_validator,
)

from ldt.io.records import JOIN

# Numbers that no machine has the memory or the time for are refused where they are written.
LONGEST = 1 << 24  # tokens of an input, or in a window
MOST = 2**31 - 1  # of what is counted: steps, inputs, candidates
LONGEST_PATH = 4095  # bytes


def _check_path(path: str) -> str:
    if not path.strip():
        raise ValueError(f"expected a path, got {path!r}")
    if "\0" in path or len(os.fsencode(path)) > LONGEST_PATH:
        raise ValueError("expected a path, got text that no path can be: too long, or with NUL")
    return path


def _check_unique(names: list[str]) -> list[str]:
    twice = next((name for number, name in enumerate(names) if name in names[:number]), None)
    if twice is not None:
        raise ValueError(f"{twice!r} stands twice in the list")
    return names


def _check_encoding(name: str) -> str:
    """Python's spelling of an encoding; ValueError if lines cannot be read in it."""
    ascii = bytes(range(128))
    try:
        if ascii.decode(name) == ascii.decode("ascii"):
            return codecs.lookup(name).name
    except (LookupError, UnicodeError):
        raise ValueError(f"no such encoding of text, got {name!r}") from None
    raise ValueError(f"{name} has no ASCII in it; iconv -f {name} -t UTF-8 FILE converts a file")


def _joined(names: Any) -> Any:
    """One name for a list of fields whose texts are joined (`ldt.io.records.field`)."""
    if not isinstance(names, list) or not names or not all(isinstance(n, str) for n in names):
        return names
    if odd := next((name for name in names if len(names) > 1 and JOIN in name), None):
        raise ValueError(f"{JOIN!r} in a name parts the names of fields, got {odd!r}")
    return JOIN.join(names)


# What the functions above check, for `ldt.recipe.schema`.
_PATH = {"type": "string", "pattern": r"\S"}
_UNIQUE = {"type": "array", "items": {"type": "string"}, "minItems": 1, "uniqueItems": True}

PathText = Annotated[str, AfterValidator(_check_path), WithJsonSchema(_PATH)]
Paths = PathText | Annotated[list[PathText], Field(min_length=1)]
Share = Annotated[float, Field(gt=0, lt=1)]
Rate = Annotated[float, Field(gt=0, le=1e6)]
Epochs = Annotated[float, Field(gt=0, le=1e6)]
Count = Annotated[int, Field(ge=1, le=MOST)]
Length = Annotated[int, Field(ge=1, le=LONGEST)]
Encoding = Annotated[str, AfterValidator(_check_encoding)]
TextField = Annotated[
    str,
    BeforeValidator(_joined),
    WithJsonSchema({"anyOf": [{"type": "string"}, _UNIQUE]}),
]
_Size = Annotated[int, Field(ge=2, le=LONGEST, multiple_of=2)]
Window = _Size | list[_Size]
FieldName = Annotated[  # a column may have a number
    str,
    BeforeValidator(lambda name: str(name) if type(name) is int else name),
    WithJsonSchema({"type": ["string", "integer"]}),
]
Names = Annotated[
    list[str], Field(min_length=1), AfterValidator(_check_unique), WithJsonSchema(_UNIQUE)
]


class Section(BaseModel):
    """Section of a recipe: immutable, unknown keys are errors, numbers are finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class DataOptions(Section):
    """Options of every kind of data.

    Args:
        train: training data.
        eval: evaluation data.
        eval_fraction: share of the training data to hold out for evaluation if there is no `eval`;
            stratified by class, entity types and unanswerable questions, and every class keeps a
            training document.
        format: format of the files; none detects it.
        text: field of the text; a dotted path reaches into nested objects.
        max_length: longest input; none is the model's longest.
    """

    train: Paths | None = None
    eval: Paths | None = None
    eval_fraction: Share | None = None
    format: str | None = None
    text: TextField | None = None
    max_length: int | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Any:
        for part in ("eval", "test"):
            if None not in (getattr(self, part, None), getattr(self, f"{part}_fraction", None)):
                raise ValueError(
                    f"{part} and {part}_fraction exclude each other; {part}: null unsets the first"
                )
        return self


class DataSection(DataOptions):
    """Labelled examples: which files to read, and what to do with long documents.

    Args:
        train: file of training examples, a pattern with ``*``, ``hf:owner/name[:split]``, or a list
            of them.
        eval: evaluation examples, named like `train`.
        format: format or published layout of the files; none detects JSON lines, CSV, TSV and
            Parquet by content and suffix, and the delimiter of CSV.
        text: field of the text, or a list of fields whose non-blank texts are joined in this order
            by empty lines; positions in answers count in the joined text. None is the task's own,
            ``text`` or ``context``.
        text_files: field with names of text files, relative to the data file or to ``evidence``;
            each name is replaced by the file's text, and `text` is this field unless it names
            another.
        max_length: longest input in tokens, with special tokens; none is the model's longest.
        domain: domain of triviaqa files; none follows the file.
        evidence: folder of the documents named in triviaqa files or by `text_files`.
        fields: names of the task's other fields in the files, as in ``{question: query}``.
        encoding: encoding of JSON lines, CSV, TSV and text files, such as ``latin-1`` or
            ``cp1252``.
        label: field of the label, which may be an object of classes with yes or no; or a list of
            yes/no fields (x and blank, yes and no, ja and nein, true and false, 1 and 0, …), whose
            classes are their names without a common prefix up to the last dot.
        label_separator: text between the classes in a cell with several, as ``|`` in ``Cap|Audit``;
            ``none`` makes every cell one class.
        id: field of the document's id; none is ``id``, or the number of the record.
        overflow: how to read documents longer than an input: in ``chunks``, only their beginning
            (``truncate``), or not at all (``error`` ends the run).
        stride: overlap of neighbouring chunks, in tokens.
        max_chunks: largest number of chunks of a document to read, from the first; none reads all.
        cache: folder for the encoded documents of large sets, reused by later runs.
        workers: number of processes that encode a large set; none is one per processor core.
    """

    max_length: Length | None = None
    text_files: str | None = None
    domain: Literal["wikipedia", "web"] | None = None
    evidence: PathText | None = None
    fields: dict[str, FieldName] = {}
    encoding: Encoding = "utf-8"
    label: str | Names = "label"
    label_separator: str | None = Field(None, min_length=1)
    id: str | None = None
    overflow: Literal["chunks", "truncate", "error"] = "chunks"
    stride: int = Field(0, ge=0, le=LONGEST)
    max_chunks: Count | None = None
    cache: PathText = ".ldt/examples"
    workers: int | None = Field(None, ge=1, le=1024)

    @model_validator(mode="before")
    @classmethod
    def _files_are_the_text(cls, keys: Any) -> Any:
        if isinstance(keys, dict) and keys.get("text_files") and keys.get("text") is None:
            return keys | {"text": keys["text_files"]}
        return keys

    @model_validator(mode="after")
    def _stride_fits(self) -> Any:
        if self.max_length is not None and self.stride >= self.max_length:
            raise ValueError(f"stride must be below max_length, got {self.stride}")
        return self


DEFAULTS = DataSection.model_validate({})


class CorpusSection(DataOptions):
    """Corpus for pretraining: which text to learn from, and how it becomes inputs.

    Args:
        train: a file, a folder (all text files and tables below it), a pattern with ``*``,
            ``hf:owner/name[:split]``, or a list of them.
        eval: evaluation text, named like `train`.
        eval_fraction: share of the training documents to hold out for evaluation if there is no
            `eval`; chosen by seed and content, so that copies of a document are on one side.
        format: format of all files; none decides by suffix: jsonl, json, csv, tsv and parquet are
            tables with a field `text`, anything else is plain text.
        text: field of the text in tables.
        max_length: longest input in tokens, with special tokens; none is the model's longest.
        document_unit: extent of a document in plain text: each ``file``, each ``line``, or the
            lines between empty ones (``blank_line``).
        packing: ``full_sentences`` joins documents by separators and cuts inputs of full length
            across their borders; ``document`` fills inputs with whole documents that do not attend
            to each other.
        tokens_per_step: tokens of an optimizer step over all processes; sets
            ``training.gradient_accumulation_steps``.
        on_error: what to do with unreadable text: ``stop`` the run, or ``skip`` the document and
            count it.
        max_document_bytes: longest document in bytes; a longer one is an error.
        streaming: true reads text while training, without storing tokens on disk, for corpora of
            which less than one epoch is read.
        cache: folder for the tokenized text, reused by later runs.
        workers: number of tokenizing threads; none is one per processor core.
    """

    format: Literal["text", "jsonl", "csv", "tsv", "parquet"] | None = None
    text: TextField = "text"
    max_length: int | None = Field(None, ge=8, le=LONGEST)
    document_unit: Literal["file", "line", "blank_line"] = "file"
    packing: Literal["full_sentences", "document"] = "full_sentences"
    tokens_per_step: Count | None = None
    on_error: Literal["stop", "skip"] = "stop"
    max_document_bytes: int = Field(256 << 20, ge=1, le=1 << 50)
    streaming: bool = False
    cache: PathText = ".ldt/tokens"
    workers: int | None = Field(None, ge=1, le=1024)

    @model_validator(mode="after")
    def _stream_is_whole(self) -> Any:
        if self.streaming and self.eval_fraction is not None:
            raise ValueError("a stream is not split; eval names other files to evaluate on")
        return self


class CharacterSection(DataOptions):
    """Text of a character model: raw bytes, concatenated.

    Args:
        train: a file such as the original text8 or enwik8, or a list of files; gzip, bz2, xz and
            zstd are decompressed.
        eval: evaluation text, named like `train`.
        test: text for ``ldt evaluate --part test``, named like `train`.
        eval_fraction: share of the text of `train` for evaluation if there is no `eval`; the text
            is divided in the order train, eval, test.
        test_fraction: share of the text of `train` for testing if there is no `test`.
        max_length: longest input, in characters.
        format: format of the prompts that `ldt predict` continues; none detects it by content.
        text: field of a prompt's text.
        id: field of a prompt's id; none as for labelled examples.
    """

    test: Paths | None = None
    test_fraction: Share | None = None
    format: Literal["jsonl", "csv", "tsv", "parquet"] | None = None
    text: TextField = "text"
    max_length: int | None = Field(None, ge=2, le=LONGEST)
    id: str | None = None

    @model_validator(mode="after")
    def _some_is_left(self) -> Any:
        if (self.eval_fraction or 0) + (self.test_fraction or 0) >= 1:
            raise ValueError("eval_fraction and test_fraction leave nothing to train on")
        return self


OPTIONS: dict[str, type[DataOptions]] = {  # by `TaskReads.kind`
    "examples": DataSection,
    "corpus": CorpusSection,
    "characters": CharacterSection,
}
