"""The `data:` sections of a recipe, one for each kind of data that tasks learn from."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Paths = str | Annotated[list[str], Field(min_length=1)]
Share = Annotated[float, Field(gt=0, lt=1)]


class Section(BaseModel):
    """A section of a recipe: keys that are not fields are errors, and nothing changes once read."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class DataOptions(Section):
    """Options of every kind of data.

    Args:
        train: data to learn from.
        eval: data to evaluate on.
        eval_fraction: share of the training data to evaluate on, where there is no `eval`.
        format: layout of the files; none is detected.
        text: field that holds the text; a dotted path reaches into nested objects.
        max_length: longest input; none is the model's longest.
    """

    train: Paths | None = None
    eval: Paths | None = None
    eval_fraction: Share | None = None
    format: str | None = None
    text: str | None = None
    max_length: int | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Any:
        for part in ("eval", "test"):
            if None not in (getattr(self, part, None), getattr(self, f"{part}_fraction", None)):
                raise ValueError(f"{part} and {part}_fraction exclude each other")
        return self


class DataSection(DataOptions):
    """Labelled examples: which files hold the documents, and what to do with long ones.

    Args:
        train: file of training examples, or ``hf:owner/name[:split]``.
        eval: file of examples to evaluate on, or ``hf:owner/name[:split]``.
        format: format or published layout of the files; none detects JSON lines, CSV, TSV and
            Parquet by content and suffix.
        text: field that holds the text; none is the task's own, ``text`` or ``context``.
        max_length: longest input, in tokens with the special ones; none is the model's longest.
        domain: domain of triviaqa files; none is what the file says.
        evidence: folder of the documents that triviaqa files name.
        fields: names in the files of the task's other fields, as in ``{question: query}``.
        label: field that holds the label, or a list of fields with true or false.
        id: field that holds the document's id.
        overflow: reading of documents that are longer than an input: in chunks (``windows``), their
            beginning alone (``truncate``), or not at all (``error`` ends the run).
        stride: tokens that two neighbouring chunks share.
        max_windows: chunks of one document at most.
    """

    train: str | None = None
    eval: str | None = None
    max_length: int | None = Field(None, ge=1)
    domain: Literal["wikipedia", "web"] | None = None
    evidence: str | None = None
    fields: dict[str, str] = {}
    label: str | Annotated[list[str], Field(min_length=1)] = "label"
    id: str = "id"
    overflow: Literal["windows", "truncate", "error"] = "windows"
    stride: int = Field(0, ge=0)
    max_windows: int = Field(64, ge=1)

    @model_validator(mode="after")
    def _stride_fits(self) -> Any:
        if self.max_length is not None and self.stride >= self.max_length:
            raise ValueError(f"stride must be below max_length, got {self.stride}")
        return self


class CorpusSection(DataOptions):
    """A corpus: which text is learned from, and how it becomes inputs.

    Args:
        train: a file, a folder (all text files and tables below it), a pattern with ``*``,
            ``hf:owner/name[:split]``, or a list of them.
        eval: text to evaluate on, named like `train`.
        eval_fraction: share of the training documents to evaluate on, where there is no `eval`;
            sampled by seed and content, so a document and its copies are on one side.
        format: format of all files; none goes by the suffix: jsonl, json, csv, tsv and parquet are
            tables with a field `text`, all else is plain text.
        text: field of the text in tables.
        max_length: longest input, in tokens with the special ones; none is the model's longest.
        documents: unit that is a document in plain text: the ``file``, each ``line``, or the lines
            between two empty ones (``blank_line``).
        packing: ``full_sentences`` joins documents by a separator and cuts blocks of full length,
            across their borders; ``document`` fills an input with whole documents, which do not
            see each other.
        tokens_per_step: tokens that an optimizer step takes, over all processes; sets
            ``training.gradient_accumulation_steps``.
        on_error: reaction to text that cannot be read: ``stop`` the run, or ``skip`` the document
            and count it.
        max_document_bytes: longest document in bytes; a longer one is an error.
        streaming: whether text is read while training, without a store on the disk, as for a
            corpus of which less than one epoch is read.
        cache: folder of the tokenized text, which later runs use again.
        workers: threads that tokenize; none takes one a processor core.
    """

    format: Literal["text", "jsonl", "csv", "tsv", "parquet"] | None = None
    text: str = "text"
    max_length: int | None = Field(None, ge=8)
    documents: Literal["file", "line", "blank_line"] = "file"
    packing: Literal["full_sentences", "document"] = "full_sentences"
    tokens_per_step: int | None = Field(None, ge=1)
    on_error: Literal["stop", "skip"] = "stop"
    max_document_bytes: int = Field(256 << 20, ge=1)
    streaming: bool = False
    cache: str = ".ldt/tokens"
    workers: int | None = Field(None, ge=1)

    @model_validator(mode="after")
    def _stream_is_whole(self) -> Any:
        if self.streaming and self.eval_fraction is not None:
            raise ValueError("a stream is not split; eval names other files to evaluate on")
        return self


class CharacterSection(DataOptions):
    """Text of a character model: raw bytes, laid end to end.

    Args:
        train: a file such as the original text8 or enwik8, or a list of files; gzip, bz2 and xz are
            decompressed.
        eval: text to evaluate on, named like `train`.
        test: text for ``ldt perplexity --part test``, named like `train`.
        eval_fraction: share of the text of `train` to evaluate on, where there is no `eval`; the
            text is divided in the order train, eval, test.
        test_fraction: share of the text of `train` for a test, where there is no `test`.
        max_length: longest input, in characters.
        format: format of the prompts that `ldt predict` continues; none is detected by content.
        text: field of a prompt that holds its text.
        id: field of a prompt that holds its id.
    """

    test: Paths | None = None
    test_fraction: Share | None = None
    format: Literal["jsonl", "csv", "tsv", "parquet"] | None = None
    text: str = "text"
    max_length: int | None = Field(None, ge=2)
    id: str = "id"

    @model_validator(mode="after")
    def _some_is_left(self) -> Any:
        if (self.eval_fraction or 0) + (self.test_fraction or 0) >= 1:
            raise ValueError("eval_fraction and test_fraction leave nothing to train on")
        return self


OPTIONS: dict[str, type[DataOptions]] = {  # by `Task.kind`
    "examples": DataSection,
    "corpus": CorpusSection,
    "characters": CharacterSection,
}
