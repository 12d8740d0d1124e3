"""Request and response formats: those of TEI 1.9 (also used by InferenceClient) and ldt's own.

No HTTP here. A body becomes a `ParsedRequest`: documents, options, and a function for the response.
"""

import sys
from base64 import b64encode
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ldt.data.sentences import Unit
from ldt.errors import did_you_mean, kind, listed
from ldt.inference.options import VectorUnit
from ldt.inference.predictor import Answer
from ldt.io.records import Example
from ldt.io.strict_json import JsonDecoder, JsonError
from ldt.serve.limits import RequestError, invalid
from ldt.serve.model import RequestOptions, Served, characters
from ldt.tasks.units import unit_length

MOST = 100  # passages, and further answers
DEEPEST = 20  # levels of a body
SPANS = ("span", "mention")  # kinds of answers that are pieces of the text


class ParsedRequest(NamedTuple):
    """Parsed request.

    Args:
        examples: its documents.
        options: prediction options.
        shape: function from all answers to the body of the response, as JSON values.
    """

    examples: list[Example]
    options: RequestOptions
    shape: Callable[[list[Answer]], Any]

    @property
    def characters(self) -> int:
        """Number of characters of all texts of the documents."""
        return sum(characters(each.fields) for each in self.examples)


class RequestBody(BaseModel):
    """Base class of request bodies."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @classmethod
    def read(cls, body: bytes) -> Self:
        """Parse the body of a request to an object of this class.

        Raises:
            RequestError: it is not JSON (400), or a field is missing, unknown or of a wrong type
                (422).
        """
        value = _parsed(body)
        if not isinstance(value, dict):
            raise invalid(f"{kind(value)}, expected an object")
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        path = [str(part) for part in first["loc"] if "[" not in str(part) and part != "str"]
        what = f"{first['msg'][:1].lower()}{first['msg'][1:]}"
        if first["type"] == "extra_forbidden":
            what = "cannot be set here"
            what += did_you_mean(path[-1], cls.model_fields) if len(path) == 1 else ""
        raise invalid(f"{'.'.join(path)[:100]}: {what}")


class Parameters(BaseModel):
    """Parameters of InferenceClient that a request may set; the training determines the others."""

    model_config = ConfigDict(extra="forbid", strict=True)

    function_to_apply: Literal["none", "sigmoid", "softmax"] | None = None
    top_k: int | None = Field(default=None, ge=1, le=MOST)
    aggregation_strategy: Literal["simple", "first"] | None = None
    ignore_labels: list[str] | None = None
    handle_impossible_answer: bool | None = None


class Predict(RequestBody):
    """Body of /predict and /, as TEI and InferenceClient send it.

    ``inputs`` is a text, a batch ``[["a"], ["b"]]``, for token classification and summaries also
    ``["a", "b"]``, or an object of fields (``{"question", "context"}``) or a list of objects.
    """

    inputs: str | list[Any] | dict[str, Any]
    truncate: bool | None = None
    truncation_direction: Literal["right", "Right"] = "right"
    raw_scores: bool = False
    parameters: Parameters | None = None

    def asked(self, served: Served) -> ParsedRequest:
        """Parse the body to documents, options and the shape of the response: that of TEI or
        InferenceClient, one answer for a single input, else a list.

        Raises:
            RequestError: an option or an input is not one of the model's task.
            DataError: a field of a document is unknown or given twice.
        """
        parameters, task = self.parameters or Parameters(), served.task
        form = task.answers.kind
        options: dict[str, Any] = {"truncate": bool(self.truncate), "raw_scores": self.raw_scores}
        if form == "label":
            _check_function(parameters.function_to_apply, served)
            options["raw_scores"] |= parameters.function_to_apply == "none"
        elif form in SPANS and parameters.top_k is not None:
            options["n_best"] = parameters.top_k
        one, takes = SHAPES.get(form, (lambda answer, _: answer, ()))
        for name in parameters.model_fields_set:
            if getattr(parameters, name) is not None and name not in takes:
                raise invalid(f"parameters.{name} means nothing to {task.name}")
        single, documents = _inputs(self.inputs, served)
        single &= form != "summary" and (form != "label" or self.parameters is None)

        def shape(answers: list[Answer]) -> Any:
            shaped = [one(answer, parameters) for answer in answers]
            return shaped[0] if single else shaped

        return ParsedRequest(served.examples(documents), RequestOptions(**options), shape)


class Native(RequestBody):
    """Body of /answer, /entities, /coreference, /rank and /summarize: the fields of one document,
    or several ``documents``, and options under their names in ``ldt predict``."""

    model_config = ConfigDict(extra="allow", strict=True)

    documents: list[dict[str, Any]] | None = None
    truncate: bool | None = None
    n_best: int | None = Field(default=None, ge=1, le=MOST)
    raw_scores: bool = False
    label_sets: float | None = Field(default=None, gt=0, lt=1)
    passages: int = Field(default=0, ge=0, le=MOST)
    passages_by: Literal["gradient", "chunks"] = "gradient"
    passages_unit: Unit = "sentence"
    chunks: bool = False
    resolved: bool = False

    def asked(self, served: Served, ranking: bool = False) -> ParsedRequest:
        """Parse the body to documents and options; the response is the answer of ``ldt predict``,
        or a list for ``documents``.

        Args:
            served: the model.
            ranking: True adds ``ranking``, all choices or the ``n_best``, best first.

        Raises:
            RequestError: fields stand beside ``documents``, or those are empty.
            DataError: a field of a document is unknown or given twice, or its id is wrong.
        """
        fields = dict(self.model_extra or {})
        if self.documents is not None and fields:
            raise invalid(f"{min(fields)[:100]!r} cannot be set beside documents")
        single = self.documents is None
        documents = [fields] if self.documents is None else self.documents
        if not documents:
            raise RequestError(400, "Empty", "documents cannot be empty", "batch_size")
        options = self.model_dump(include=set(RequestOptions.model_fields), exclude_none=True)
        if ranking:
            options.pop("n_best", None)
            if "n_best" in type(served.task).model_fields:
                options["n_best"] = sys.maxsize
        examples = served.examples(documents, strict=single)

        def shape(answers: list[Answer]) -> Any:
            if ranking:
                name = "choices" if served.task.answers.kind == "choice" else "candidates"
                texts = [each.fields[served.path(name)] for each in examples]
                pairs = zip(answers, texts, strict=True)
                answers = [ranked(answer, choices, self.n_best) for answer, choices in pairs]
            return answers[0] if single else answers

        return ParsedRequest(examples, RequestOptions(**options), shape)


class Rerank(RequestBody):
    """Body of /rerank, as in TEI and InferenceClient."""

    query: str
    texts: list[str]
    truncate: bool | None = None
    truncation_direction: Literal["right", "Right"] = "right"
    raw_scores: bool = False
    return_text: bool = False

    def asked(self, served: Served) -> ParsedRequest:
        """Parse the body, a document per text; the response is [{"index", "score"}], best first."""
        options = {"truncate": bool(self.truncate), "raw_scores": self.raw_scores}

        def shape(answers: list[Answer]) -> Any:
            texts = [{"text": text} if self.return_text else {} for text in self.texts]
            return [{"index": n, "score": score} | texts[n] for n, score in _best(answers)]

        return _asked(served, self.query, self.texts, options, shape)


class CohereRerank(RequestBody):
    """Body of /v1/rerank and /v2/rerank, as in Cohere, Jina and vLLM."""

    model: str | None = None
    query: str
    documents: list[str | dict[str, Any]]
    top_n: int | None = Field(default=None, ge=1)
    return_documents: bool = False

    def asked(self, served: Served) -> ParsedRequest:
        """Parse the body, a document per entry; the response is {"model", "results"}, the ``top_n``
        best first, as {"index", "relevance_score"}."""

        def shape(answers: list[Answer]) -> Any:
            results: list[dict[str, Any]] = [
                {"index": n, "relevance_score": score} for n, score in _best(answers)
            ][: self.top_n]
            for each in results if self.return_documents else ():
                document = self.documents[each["index"]]
                each["document"] = document if isinstance(document, dict) else {"text": document}
            return {"model": served.name, "results": results}

        return _asked(served, self.query, self.documents, {}, shape)


def _asked(
    served: Served, query: str, texts: Sequence[Any], options: dict[str, Any], shape: Any
) -> ParsedRequest:
    documents = [{"query": query, "documents": [text]} for text in texts]
    return ParsedRequest(served.examples(documents), RequestOptions(**options), shape)


def _best(answers: Sequence[Answer]) -> list[tuple[int, float]]:
    """(index, score) of answers with a single score, best first."""
    scores = enumerate(answer["scores"][0] for answer in answers)
    return sorted(scores, key=lambda pair: -pair[1])


class Embed(RequestBody):
    """Body of /embed, as in TEI. With ``unit`` each input gets a list of objects with the
    ``embedding`` of a part and its offsets; see ``ldt embed``."""

    inputs: str | list[str]
    truncate: bool | None = None
    normalize: bool = True
    prompt_name: Literal["query", "document"] = "document"
    dimensions: int | None = Field(default=None, ge=1)
    unit: VectorUnit | None = None
    unit_tokens: int | None = Field(default=None, ge=1)
    late: bool | None = None

    def asked(self, served: Served) -> ParsedRequest:
        """Parse the body, a document per text; the response is a list with the vector of each, or
        with ``unit`` a list of {"start", "end", "embedding"}."""
        texts = [self.inputs] if isinstance(self.inputs, str) else self.inputs
        names = {"dimensions", "unit", "unit_tokens", "late"}
        options = self.model_dump(include=names, exclude_none=True)

        def shape(answers: list[Answer]) -> list[Any]:
            return [self._shaped(answer) for answer in answers]

        return _texts(served, texts, self.prompt_name, bool(self.truncate), options, shape)

    def _shaped(self, answer: Answer) -> list[Any]:
        vectors = answer["vectors"]
        if self.normalize:
            vectors = unit_length(vectors)
        if self.unit is None and len(vectors) == 1:
            return vectors[0]
        places = zip(answer["spans"], vectors, strict=True)
        return [{"start": a, "end": b, "embedding": vector} for (a, b), vector in places]


class EmbeddingRequest(RequestBody):
    """Body of /v1/embeddings, as OpenAI's clients send it."""

    input: str | list[str]
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(default=None, ge=1)
    user: str | None = None

    def asked(self, served: Served) -> ParsedRequest:
        """Parse the body, a document per text; the response is OpenAI's, {"object", "data",
        "model", "usage"}. RequestError for an empty text."""
        texts = [self.input] if isinstance(self.input, str) else self.input
        if "" in texts:
            raise invalid("input: a text is empty")
        options = {"dimensions": self.dimensions} if self.dimensions else {}

        def shape(answers: list[Answer]) -> dict[str, Any]:
            rows = [
                {"object": "embedding", "index": number, "embedding": self._encoded(answer)}
                for number, answer in enumerate(answers)
            ]
            tokens = sum(answer["tokens"] for answer in answers)
            usage = {"prompt_tokens": tokens, "total_tokens": tokens}
            return {"object": "list", "data": rows, "model": served.name, "usage": usage}

        return _texts(served, texts, "document", False, options, shape)

    def _encoded(self, answer: Answer) -> Any:
        vector = answer["vectors"][0]
        if self.encoding_format == "base64":
            return b64encode(vector.astype("<f4").tobytes()).decode()
        return vector


class Tokenize(RequestBody):
    """Body of /tokenize."""

    inputs: str | list[str]
    add_special_tokens: bool = True
    prompt_name: None = None

    def tokens(self, served: Served, most: int) -> list[list[dict[str, Any]]]:
        """Tokens of each text as {"id", "text", "special", "start", "stop"}, as in TEI's /tokenize.

        Start and stop are characters, None for special tokens. RequestError if there are no texts
        or more than ``most``, or the tokenizer names no places.
        """
        texts = [self.inputs] if isinstance(self.inputs, str) else self.inputs
        _check_batch(len(texts), most)
        tokenizer = getattr(served.predictor.tokenizer, "backend_tokenizer", None)
        if tokenizer is None:
            what = "the tokenizer of this model names no places"
            raise RequestError(424, "Backend", what, "model_type")
        special = self.add_special_tokens
        encoded = [tokenizer.encode(text, add_special_tokens=special) for text in texts]
        return [
            [
                {
                    "id": number,
                    "text": token if special else text[start:end],
                    "special": bool(special),
                    "start": None if special else start,
                    "stop": None if special else end,
                }
                for number, token, special, (start, end) in zip(
                    each.ids, each.tokens, each.special_tokens_mask, each.offsets, strict=True
                )
            ]
            for text, each in zip(texts, encoded, strict=True)
        ]


class Route(NamedTuple):
    """Route for POST requests.

    Args:
        body: model of its body.
        says: description of its response.
        kinds: kinds of answers it is for; empty for all.
        models: names of the tasks with such answers.
        asked: parses a request from its body and the model.
    """

    body: type[Any]
    says: str
    kinds: tuple[str, ...] = ()
    models: str = ""
    asked: Callable[[Any, Served], ParsedRequest] = lambda body, served: body.asked(served)

    def read(self, body: bytes, path: str, served: Served, most: int) -> ParsedRequest:
        """Parse a body to documents, options and the shape of the response.

        Args:
            body: body of the request.
            path: path of the route, for messages.
            served: the model.
            most: largest number of documents of a request.

        Raises:
            RequestError: the route is for other models (424), or the body cannot be used.
            DataError: a field or an id of a document cannot be used.
        """
        task = served.task
        if self.kinds and task.answers.kind not in self.kinds:
            what = f"{path} is for a model of {self.models}, this one is of {task.name}: /answer"
            _parsed(body)
            raise RequestError(424, "Backend", what, "model_type")
        asked = self.asked(self.body.read(body), served)
        _check_batch(len(asked.examples), most)
        return asked


_EMBED = "Vectors of texts, or of the parts of each, with their characters."
_OPENAI = "Vectors of texts, in the shape of OpenAI, also as base64."
_PREDICT = "Classes, entities, spans or summaries, in the shapes of TEI and of InferenceClient."
_NATIVE = "The answer of ldt predict, with chunks, truncated, passages and abstained."
_RERANK = "The documents of a query with their scores, best first."
ROUTES = {
    "/predict": Route(Predict, _PREDICT),
    "/": Route(Predict, _PREDICT),
    "/answer": Route(Native, _NATIVE),
    "/entities": Route(Native, _NATIVE, ("entities",), "token_classification"),
    "/coreference": Route(Native, _NATIVE, ("clusters",), "coreference"),
    "/rank": Route(
        Native,
        f"{_NATIVE} And all choices, best first.",
        ("choice", "candidate"),
        "multiple_choice or wikihop",
        partial(Native.asked, ranking=True),
    ),
    "/rerank": Route(Rerank, _RERANK, ("ranking",), "reranking"),
    "/v1/rerank": Route(CohereRerank, _RERANK, ("ranking",), "reranking"),
    "/v2/rerank": Route(CohereRerank, _RERANK, ("ranking",), "reranking"),
    "/summarize": Route(Native, _NATIVE, ("summary",), "summarization"),
    "/embed": Route(Embed, _EMBED, ("vectors",), "embedding"),
    "/v1/embeddings": Route(EmbeddingRequest, _OPENAI, ("vectors",), "embedding"),
    "/tokenize": Route(Tokenize, "Tokens with their places in the text."),
}


def _parsed(body: bytes) -> Any:
    """JSON value of a body; RequestError 400 if it is no JSON."""
    decoder = JsonDecoder()
    try:
        text = body.decode("utf-8").strip(" \t\r\n")
        value, end = decoder.decode(text)
    except UnicodeDecodeError:
        raise RequestError(400, "Validation", "not UTF-8") from None
    except JsonError as error:
        raise RequestError(400, "Validation", str(error)) from None
    if end < len(text):
        raise RequestError(400, "Validation", "more text after the JSON value")
    if decoder.problems:
        raise RequestError(400, "Validation", decoder.problems[0])
    if _too_deep(value):
        raise RequestError(400, "Validation", "not JSON that can be read: nested too deep")
    return value


def _scores(answer: Answer, parameters: Parameters) -> list[dict[str, Any]]:
    best = sorted(answer["scores"].items(), key=lambda item: -item[1])
    return [{"score": score, "label": label} for label, score in best[: parameters.top_k]]


def _entities(answer: Answer, parameters: Parameters) -> list[dict[str, Any]]:
    names = {"entity_group": "label", "score": "score", "word": "text", "start": "start"}
    return [
        {name: each[key] for name, key in (names | {"end": "end"}).items()}
        for each in answer["entities"]
        if each["label"] not in (parameters.ignore_labels or ())
    ]


def _spans(answer: Answer, parameters: Parameters) -> Any:
    """Answer to a question in the shape of InferenceClient, or a list if ``top_k`` is above 1."""
    nothing = {"answer": "", "score": answer.get("no_answer", 0.0), "start": 0, "end": 0}
    best = {name: answer.get(f"best_{name}", answer[name]) for name in ("start", "end")}
    best |= {"answer": answer.get("best", answer["answer"])}
    best_spans = [
        {name: each[name] for name in nothing}
        for each in answer.get("n_best", [answer | best])
        if each["start"] is not None
    ]
    if not answer["answer"] and parameters.handle_impossible_answer is not False:
        best_spans = [nothing, *best_spans]
    best_spans = (best_spans or [nothing])[: parameters.top_k or 1]
    return best_spans if (parameters.top_k or 1) > 1 else best_spans[0]


def _summary(answer: Answer, parameters: Parameters) -> dict[str, Any]:
    return {"summary_text": answer["summary"]}


# Kind of answer -> the shape that TEI and InferenceClient have for it, and the parameters that
# count; other answers are ldt's own.
SHAPES: dict[str, tuple[Callable[[Answer, Parameters], Any], set[str]]] = {
    "label": (_scores, {"function_to_apply", "top_k"}),
    "entities": (_entities, {"aggregation_strategy", "ignore_labels"}),
    "summary": (_summary, set()),
    **dict.fromkeys(SPANS, (_spans, {"top_k", "handle_impossible_answer"})),
}


def _texts(
    served: Served,
    texts: Sequence[str],
    role: str,
    truncate: bool,
    options: dict[str, Any],
    shape: Callable[[list[Answer]], Any],
) -> ParsedRequest:
    name = role if role == "query" else served.task.reads.document
    examples = served.examples([{name: each} for each in texts])
    return ParsedRequest(examples, RequestOptions.of(options | {"truncate": truncate}), shape)


def _check_function(function: str | None, served: Served) -> None:
    several = served.predictor.config.problem_type == "multi_label_classification"
    right = "sigmoid" if several else "softmax"
    if function not in (None, "none", right):
        raise invalid(f"function_to_apply: {function}, this model answers by {right}")


def _inputs(inputs: Any, served: Served) -> tuple[bool, list[dict[str, Any]]]:
    """Parse ``inputs``: True if it is one document outside a list, and the documents."""
    task, name = served.task, served.task.reads.document
    single = not isinstance(inputs, list)
    each_input = [inputs] if single else inputs
    if not each_input:
        raise RequestError(400, "Empty", "inputs cannot be empty", "batch_size")
    if task.reads.query_fields or isinstance(each_input[0], dict):
        for each in each_input:
            if not isinstance(each, dict):
                names = listed([name, *task.reads.query_fields])
                raise invalid(f"inputs: {kind(each)}, expected an object with {names}")
        return single, each_input
    if task.answers.kind == "label" and not single:  # TEI has a list around each text
        single = not isinstance(inputs[0], list)
        each_input = [inputs] if single else inputs
        if any(not isinstance(each, list) or len(each) != 1 for each in each_input):
            raise invalid('inputs: expected a text, or lists of one text each, [["a"], ["b"]]')
        each_input = [each[0] for each in each_input]
    for each in each_input:
        if not isinstance(each, str):
            raise invalid(f"inputs: {kind(each)}, expected text")
    return single, [{name: each} for each in each_input]


def ranked(answer: Answer, texts: Sequence[str], most: int | None) -> Answer:
    """Copy of an answer with ``ranking``: [{"index", "text", "score"}], best first.

    Args:
        answer: answer with ``scores``, one per choice, or with ``n_best``, which the copy lacks.
        texts: all choices, in the order of the request.
        most: largest number of choices; None for all.
    """
    answer = dict(answer)
    if "scores" in answer:
        pairs = enumerate(zip(texts, answer["scores"], strict=True))
        scored = [{"index": n, "text": text, "score": score} for n, (text, score) in pairs]
        scored.sort(key=lambda each: -each["score"])
    else:
        best = answer.pop("n_best", None) or [{k: answer.get(k) for k in ("answer", "score")}]
        places = {text: n for n, text in reversed([*enumerate(texts)])}
        scored = [
            {"index": places[each["answer"]], "text": each["answer"], "score": each["score"]}
            for each in best
            if each["answer"] in places
        ]
    return answer | {"ranking": scored[:most]}


def _too_deep(value: Any) -> bool:
    level: list[Any] = [[value]]
    for _ in range(DEEPEST + 1):
        items = (each.values() if isinstance(each, dict) else each for each in level)
        level = [x for each in items for x in each if isinstance(x, dict | list)]
    return bool(level)


def _check_batch(size: int, most: int) -> None:
    if not size:
        raise RequestError(400, "Empty", "inputs cannot be empty", "batch_size")
    if size > most:
        what = f"batch size {size} > maximum allowed batch size {most}"
        raise RequestError(422, "Validation", what, "batch_size")


def labels(served: Served) -> dict[str, Any]:
    """Labels as in TEI's /info, {"id2label", "label2id"}; of vectors {"pooling"}, else {}."""
    names = getattr(served.predictor.config, "id2label", None) or {}
    if served.task.answers.kind == "vectors":
        return {"pooling": served.predictor.config.embedding["pooling"]}
    if served.task.answers.kind not in ("label", "entities", "ranking"):
        return {}
    return {
        "id2label": {str(number): name for number, name in names.items()},
        "label2id": {name: number for number, name in names.items()},
    }
