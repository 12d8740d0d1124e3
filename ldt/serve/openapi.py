"""The OpenAPI document of the server, from the models of its bodies."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from ldt import __version__

if TYPE_CHECKING:
    from ldt.serve.model import Served

_PREDICT = "Classes, entities, spans or summaries, in the shapes of TEI and of InferenceClient."
_NATIVE = "The answer of ldt predict, with windows, truncated, passages and abstained."
# Path -> (name of its body, what it gives).
_POSTED = {
    "/predict": ("Predict", _PREDICT),
    "/": ("Predict", _PREDICT),
    "/answer": ("Native", _NATIVE),
    "/entities": ("Native", f"{_NATIVE} For models of token classification."),
    "/rank": ("Native", f"{_NATIVE} And all choices, best first. For models that choose."),
    "/summarize": ("Native", f"{_NATIVE} For models that write summaries."),
    "/tokenize": ("Tokenize", "Tokens with their places in the text."),
}
_GOT = {
    "/health": "Whether documents are taken.",
    "/info": "The model and the limits of the server.",
    "/metrics": "Counts and times for Prometheus.",
}
_REFUSED = {
    400: "The body is no JSON, or holds no documents.",
    401: "No API key, or a wrong one.",
    408: "The body did not arrive in time.",
    413: "The body is too long.",
    415: "The body is not application/json, or is compressed.",
    422: "Fields are missing, unknown or of another type, or a document cannot be used.",
    424: "The model has no answer, or is one of another task.",
    429: "The server has as many documents as it takes.",
    503: "The server is about to stop, or there was no answer in time.",
}


class Error(BaseModel):
    """Body of a refused request's answer."""

    error: str
    error_type: str


def document(served: "Served", bodies: Sequence[type[BaseModel]]) -> dict[str, Any]:
    """The document, for a server of a model that takes requests with these bodies."""
    models: list[Any] = [(each, "validation") for each in (*bodies, Error)]
    _, made = models_json_schema(models, ref_template="#/components/schemas/{model}")
    schemas = made["$defs"]
    fields: dict[str, Any] = {
        name: {} for name in (served.task.reads.document, *served.task.reads.asked)
    }
    native = schemas["Native"]
    native["properties"] = fields | native["properties"]
    posted = {path: {"post": _posted(body, said)} for path, (body, said) in _POSTED.items()}
    got = {path: {"get": _got(said)} for path, said in _GOT.items()}
    return {
        "openapi": "3.1.0",
        "info": {"title": f"ldt serve {served.name}", "version": __version__},
        "paths": posted | got,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _posted(body: str, said: str) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{body}"}}}
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    refused = {str(n): {"description": why, "content": error} for n, why in _REFUSED.items()}
    answer = {"200": {"description": said, "content": {"application/json": {"schema": {}}}}}
    return {
        "summary": said,
        "requestBody": {"required": True, "content": content},
        "responses": answer | refused,
    }


def _got(said: str) -> dict[str, Any]:
    return {"summary": said, "responses": {"200": {"description": "Yes, or what was asked."}}}
