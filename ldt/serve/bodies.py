"""The bodies of requests, as TEI 1.9, huggingface_hub's InferenceClient and ldt have them."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ldt.data.sentences import Unit

MOST = 100  # passages, and further answers


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Parameters(_Body):
    """What InferenceClient may ask for; the rest of it is decided by the training."""

    function_to_apply: Literal["none", "sigmoid", "softmax"] | None = None
    top_k: int | None = Field(default=None, ge=1, le=MOST)
    aggregation_strategy: Literal["simple", "first"] | None = None
    ignore_labels: list[str] | None = None
    handle_impossible_answer: bool | None = None


class Predict(_Body):
    """The body of /predict, / and /invocations, as TEI and InferenceClient send it.

    ``inputs`` is a text, a batch ``[["a"], ["b"]]``, of token classification and summaries also
    ``["a", "b"]``, or an object of fields (``{"question", "context"}``) or a list of such.
    """

    inputs: str | list[Any] | dict[str, Any]
    truncate: bool | None = None
    truncation_direction: Literal["right", "Right"] = "right"
    raw_scores: bool = False
    parameters: Parameters | None = None


class Native(BaseModel):
    """The body of /answer, /entities, /rank and /summarize: fields of a document, or several
    ``documents``, and what is asked for by the names of ``ldt predict``."""

    model_config = ConfigDict(extra="allow", strict=True)

    documents: list[dict[str, Any]] | None = None
    truncate: bool | None = None
    n_best: int | None = Field(default=None, ge=1, le=MOST)
    raw_scores: bool = False
    label_sets: float | None = None
    passages: int = Field(default=0, ge=0, le=MOST)
    passages_by: Literal["gradient", "chunks"] = "gradient"
    passages_unit: Unit = "sentence"
    chunks: bool = False


class Tensor(_Body):
    """A field of all documents, as the Open Inference Protocol has it."""

    name: str
    shape: list[int]
    datatype: Literal["BYTES"]
    data: list[str]
    parameters: dict[str, Any] | None = None


class Infer(_Body):
    """The body of /v2/models/NAME/infer."""

    id: str | None = None
    inputs: list[Tensor] = Field(min_length=1)
    outputs: list[dict[str, Any]] | None = None
    parameters: dict[str, Any] | None = None


class Tokenize(_Body):
    """The body of /tokenize."""

    inputs: str | list[str]
    add_special_tokens: bool = True
    prompt_name: None = None
