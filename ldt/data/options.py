"""The `data:` sections of a recipe: labelled examples, a corpus, characters."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from ldt.errors import did_you_mean


class Section(BaseModel):
    """Keys that are not fields are errors."""

    model_config = ConfigDict(extra="forbid")


class DataSection(Section):
    """Which files hold the documents, and what to do with long ones.

    Args:
        train: file of training examples, or ``hf:owner/name[:split]``.
        eval: the same for evaluation.
        format: layout of the files, a name in `ldt.data.formats.FORMATS`; None is JSON lines, CSV
            or
            Parquet, told by content.
        domain: of triviaqa files, ``wikipedia`` or ``web``; None is what the file says.
        evidence: folder of the documents that triviaqa files name.
        text: field that holds the text; a dotted path reaches into nested objects. None is the
            task's own, ``text`` or ``context``.
        fields: the task's other fields that have another name in the files, as question: query.
        label: field that holds the label, or a list of fields with true or false.
        id: field that holds the document's id.
        max_length: longest input, in tokens with the special ones; None is the model's longest.
        overflow: what to do with longer documents.
        stride: tokens that two neighbouring windows share.
        max_windows: most windows of one document.
        eval_fraction: share of the training documents to evaluate on, where there is no `eval`.
    """

    train: str | None = None
    eval: str | None = None
    format: str | None = None
    domain: Literal["wikipedia", "web"] | None = None
    evidence: str | None = None
    text: str | None = None
    fields: dict[str, str] = {}
    label: str | Annotated[list[str], Field(min_length=1)] = "label"
    id: str = "id"
    max_length: int | None = Field(None, ge=1)
    overflow: Literal["windows", "truncate", "error"] = "windows"
    stride: int = Field(0, ge=0)
    max_windows: int = Field(64, ge=1)
    eval_fraction: float | None = Field(None, gt=0, lt=1)

    @field_validator("format")
    @classmethod
    def _known(cls, format):
        from ldt.data.formats import FORMATS

        if format is not None and format not in FORMATS:
            near = did_you_mean(format, FORMATS)
            raise ValueError(f"expected one of {', '.join(FORMATS)}, got {format!r}{near}")
        return format

    @model_validator(mode="after")
    def _agree(self):
        if self.eval is not None and self.eval_fraction is not None:
            raise ValueError("eval and eval_fraction exclude each other")
        if self.max_length is not None and self.stride >= self.max_length:
            raise ValueError(f"stride must be below max_length, got {self.stride}")
        return self


class CorpusSection(Section):
    """Which text is learned from, and how it becomes inputs.

    Args:
        train: a file, a folder (all text files and tables below it), a pattern with ``*``,
            ``hf:owner/name[:split]``, or a list of them.
        eval: the same for evaluation.
        eval_fraction: share of the training documents to evaluate on, where there is no `eval`;
            drawn by seed and content, so a document and its copies are on one side.
        format: of all files; None tells it by the suffix: jsonl, json, csv, tsv and parquet are
            tables with a field `text`, all else is plain text.
        text: field of the text in tables; a dotted path reaches into nested objects.
        documents: what a document is in plain text: the ``file``, each ``line``, or what stands
            between two empty lines (``blank_line``).
        max_length: longest input, in tokens with the special ones; None is the model's longest.
        packing: ``full_sentences`` joins documents by a separator and cuts windows of full length,
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

    train: str | Annotated[list[str], Field(min_length=1)] | None = None
    eval: str | Annotated[list[str], Field(min_length=1)] | None = None
    eval_fraction: float | None = Field(None, gt=0, lt=1)
    format: Literal["text", "jsonl", "csv", "tsv", "parquet"] | None = None
    text: str = "text"
    documents: Literal["file", "line", "blank_line"] = "file"
    max_length: int | None = Field(None, ge=8)
    packing: Literal["full_sentences", "document"] = "full_sentences"
    tokens_per_step: int | None = Field(None, ge=1)
    on_error: Literal["stop", "skip"] = "stop"
    max_document_bytes: int = Field(256 << 20, ge=1)
    streaming: bool = False
    cache: str = ".ldt/tokens"
    workers: int | None = Field(None, ge=1)

    @model_validator(mode="after")
    def _agree(self):
        if self.eval is not None and self.eval_fraction is not None:
            raise ValueError("eval and eval_fraction exclude each other")
        if self.streaming and self.eval_fraction is not None:
            raise ValueError("a stream is not split; eval names other files to evaluate on")
        return self


class CharacterSection(Section):
    """Which text a character model learns from: raw bytes, laid end to end.

    Args:
        train: a file such as the original text8 or enwik8, or a list of files; gzip, bz2 and xz are
            unpacked.
        eval: the same for evaluation.
        test: the same for a test, see `ldt perplexity`.
        eval_fraction, test_fraction: shares of the text of `train` for evaluation and for a test,
            where there is no `eval` and `test`; the text is parted in the order train, eval, test.
        max_length: longest input, in characters.
        format, text, id: of the prompts that `ldt predict` continues.
    """

    train: str | Annotated[list[str], Field(min_length=1)] | None = None
    eval: str | Annotated[list[str], Field(min_length=1)] | None = None
    test: str | Annotated[list[str], Field(min_length=1)] | None = None
    eval_fraction: float | None = Field(None, gt=0, lt=1)
    test_fraction: float | None = Field(None, gt=0, lt=1)
    max_length: int | None = Field(None, ge=2)
    format: Literal["jsonl", "csv", "tsv", "parquet"] | None = None
    text: str = "text"
    id: str = "id"

    @model_validator(mode="after")
    def _agree(self):
        for part in ("eval", "test"):
            if getattr(self, part) is not None and getattr(self, f"{part}_fraction") is not None:
                raise ValueError(f"{part} and {part}_fraction exclude each other")
        if (self.eval_fraction or 0) + (self.test_fraction or 0) >= 1:
            raise ValueError("eval_fraction and test_fraction leave nothing to train on")
        return self


# kind of data that a task learns from -> its section
OPTIONS = {"examples": DataSection, "corpus": CorpusSection, "characters": CharacterSection}
