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
        train: where the data to learn from is.
        eval: the same for evaluation.
        eval_fraction: share of the training data to evaluate on, where there is no `eval`.
        format: layout of the files; None is detected.
        text: field that holds the text; a dotted path reaches into nested objects.
        max_length: longest input; None is the model's longest.
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
        eval: the same for evaluation.
        format: layout of the files, a name in `ldt.data.formats.FORMATS`; None is JSON lines, CSV
            or Parquet, detected by content.
        text: field that holds the text; None is the task's own, ``text`` or ``context``.
        max_length: longest input, in tokens with the special ones; None is the model's longest.
        domain: of triviaqa files, ``wikipedia`` or ``web``; None is what the file says.
        evidence: folder of the documents that triviaqa files name.
        fields: the task's other fields that have another name in the files, as question: query.
        label: field that holds the label, or a list of fields with true or false.
        id: field that holds the document's id.
        overflow: what to do with longer documents: ``windows`` reads them in several chunks.
        stride: tokens that two neighbouring chunks share.
        max_windows: most chunks of one document.
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
        eval: the same for evaluation.
        eval_fraction: share of the training documents to evaluate on, where there is no `eval`;
            sampled by seed and content, so a document and its copies are on one side.
        format: of all files; None goes by the suffix: jsonl, json, csv, tsv and parquet are tables
            with a field `text`, all else is plain text.
        text: field of the text in tables.
        max_length: longest input, in tokens with the special ones; None is the model's longest.
        documents: what a document is in plain text: the ``file``, each ``line``, or what stands
            between two empty lines (``blank_line``).
        packing: ``full_sentences`` joins documents by a separator and cuts blocks of full length,
            across their borders; ``document`` fills an input with whole documents, which do not
            see each other.
        tokens_per_step: tokens that an optimizer step takes, over all processes; sets
            ``training.gradient_accumulation_steps``.
        on_error: at text that cannot be read: end, or leave it out and count it.
        max_document_bytes: a longer document is an error.
        streaming: read while training, without a store on the disk, as for a corpus that is gone
            through less than once.
        cache: folder of the tokens.
        workers: threads that tokenize; None takes one a processor core.
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
        eval: the same for evaluation.
        test: the same for a test, see `ldt perplexity`.
        eval_fraction, test_fraction: shares of the text of `train` for evaluation and for a test,
            where there is no `eval` and `test`; the text is parted in the order train, eval, test.
        max_length: longest input, in characters.
        format, text, id: of the prompts that `ldt predict` continues.
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
