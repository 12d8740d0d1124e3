"""Routes of the server, those of TEI and ldt's own, and its metrics under the names of TEI 1.9.

Prometheus's text format is written by hand, because the usual client library renames counters.
"""

import asyncio
import logging
import threading
import time
import traceback
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial
from typing import Any

from pydantic.json_schema import models_json_schema
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from ldt import __version__
from ldt.io.strict_json import json_line
from ldt.report import html
from ldt.serve import requests
from ldt.serve.limits import (
    ClientDisconnected,
    RequestError,
    RequestGuard,
    RequestReceiver,
    ServerLimits,
    refused,
)
from ldt.serve.model import Served
from ldt.serve.requests import ROUTES, ParsedRequest, Tokenize
from ldt.serve.scheduler import TOKENIZING, Scheduler, TimedAnswer

log = logging.getLogger("ldt")

_DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
# TEI's 35 bounds, from 15 microseconds to 14 seconds, and further ones up to an hour.
SECONDS = tuple(1.5e-5 * 1.5**step for step in range(49))
SIZES = tuple(float(2**step) for step in range(25))  # tokens, and chunks of a batch

_COUNTERS = {
    "te_request_count": "Requests, by whether they hold one document or several.",
    "te_request_success": "Requests with an answer.",
    "te_request_failure": "Requests without, by what was wrong.",
    "te_predict_count": "Documents taken.",
    "te_predict_success": "Documents with an answer.",
}
_PARTS = {
    "duration": "Seconds from arrival to answer.",
    "tokenization_duration": "Seconds until a document was tokenized.",
    "queue_duration": "Seconds in which it waited for the model.",
    "inference_duration": "Seconds from its first batch to its answer.",
}
_HISTOGRAMS: dict[str, tuple[str, Sequence[float]]] = {
    **{f"te_request_{part}": (meaning, SECONDS) for part, meaning in _PARTS.items()},
    **{f"te_predict_{part}": (meaning, SECONDS) for part, meaning in _PARTS.items()},
    "te_request_input_length": ("Tokens of a document, in all its chunks.", SIZES),
    "te_batch_next_size": ("Chunks of a batch.", SIZES),
    "te_batch_next_tokens": ("Tokens of a batch.", SIZES),
}
CLOSING = (401, 403, 408, 413, 415, 503)  # after these the connection is closed


class _Histogram:
    """Histogram: cumulative counts by upper bound, and the sum."""

    def __init__(self, bounds: Sequence[float]):
        self.bounds, self.counts, self.sum = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def lines(self, name: str) -> Iterator[str]:
        total = 0
        for bound, count in zip([*self.bounds, None], self.counts, strict=True):
            total += count
            shown = "+Inf" if bound is None else f"{bound:g}"
            yield f'{name}_bucket{{le="{shown}"}} {total}'
        yield f"{name}_sum {self.sum:.9g}"
        yield f"{name}_count {total}"


class Metrics:
    """Thread-safe counters and histograms."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, dict[str, int]] = {name: {} for name in _COUNTERS}
        self._times = {name: _Histogram(bounds) for name, (_, bounds) in _HISTOGRAMS.items()}

    def count(self, name: str, number: int = 1, **label: str) -> None:
        """Add to a counter, which counts each value of its label on its own.

        Args:
            name: name of the counter, such as "te_request_count".
            number: number to add.
            label: at most one label with few known values, such as err="dropped".
        """
        key = "".join(f'{{{name}="{value}"}}' for name, value in label.items())
        with self._lock:
            self._counts[name][key] = self._counts[name].get(key, 0) + number

    def observe(self, **values: float) -> None:
        """Add a value to each named histogram: ``observe(te_batch_next_size=8)``."""
        with self._lock:
            for name, value in values.items():
                self._times[name].add(value)

    def text(self, waiting: int) -> str:
        """Counters, histograms and the number of ``waiting`` documents, as text for Prometheus."""
        lines = []
        with self._lock:
            for name, meaning in _COUNTERS.items():
                lines += [f"# HELP {name} {meaning}", f"# TYPE {name} counter"]
                lines += [f"{name}{key} {n}" for key, n in sorted(self._counts[name].items())]
            for name, (meaning, _) in _HISTOGRAMS.items():
                lines += [f"# HELP {name} {meaning}", f"# TYPE {name} histogram"]
                lines += self._times[name].lines(name)
        name = "te_queue_size"
        lines += [f"# HELP {name} Documents without an answer.", f"# TYPE {name} gauge"]
        return "\n".join([*lines, f"{name} {waiting}"]) + "\n"


class App:
    """ASGI application that serves a model.

    Args:
        served: the model.
        limits: limits of requests.
        key: API key of callers; None for none.

    Attributes:
        draining: True if no more documents are accepted; set by the process that runs the server.
        active: number of requests being answered.
    """

    def __init__(self, served: Served, limits: ServerLimits | None = None, key: str | None = None):
        self.served, self.limits = served, limits or ServerLimits()
        self.door = RequestGuard(self.limits, key)
        self.metrics = Metrics()
        self.scheduler = Scheduler(
            served.replicas,
            batch_tokens=served.batch_tokens,
            places=self.limits.places,
            on_batch=lambda chunks, tokens: self.metrics.observe(
                te_batch_next_size=chunks, te_batch_next_tokens=tokens
            ),
        )
        self.draining, self.active = False, 0
        self._reading = ThreadPoolExecutor(1, "reading")  # one body at a time is large in memory
        posted = [Route(path, partial(self._guarded, path), methods=["POST"]) for path in ROUTES]
        got: dict[str, Callable[[Request], Awaitable[Response]]] = {
            "/": self._root,
            "/health": self._health,
            "/metrics": self._metrics,
            "/info": partial(self._keyed, self._info),
            "/openapi.json": partial(self._keyed, partial(_openapi, served)),
        }
        routes = posted + [Route(path, answer, methods=["GET"]) for path, answer in got.items()]
        self._app = Starlette(routes=routes, exception_handlers={HTTPException: _no_such_route})

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request, with an error response if it fails."""
        if scope["type"] != "http":  # no lifespan: who made the app closes it
            return
        try:
            await self._app(scope, receive, send)
        except Exception as error:
            log.error("".join(traceback.format_exception(error)))
            answer = RequestError(500, "Backend", "the server failed on this request").body()
            await _json(answer, 500)(scope, receive, send)

    @property
    def ready(self) -> bool:
        """True if documents are accepted: it is not draining, and the model's threads are alive."""
        return not self.draining and self.scheduler.alive

    def close(self, seconds: float | None = None) -> bool:
        """Accept no more documents and wait for the answers, at most ``seconds`` (None: for ever).

        Returns:
            True if all were answered in time.
        """
        self._reading.shutdown(wait=False, cancel_futures=True)
        return self.scheduler.drain(seconds)

    async def _guarded(self, path: str, request: Request) -> Response:
        headers, arriving = dict(request.scope["headers"]), RequestReceiver(request.receive)
        self.active += 1
        try:
            self.door.check_caller(headers)
            if not self.ready:
                raise RequestError(503, "Unhealthy", "the server is about to stop", "overloaded")
            async with (
                asyncio.timeout(self.limits.seconds),
                self.door.body(headers, arriving) as body,
            ):
                if path == "/tokenize":
                    most = self.limits.documents
                    return _json(
                        await self._thread(lambda: Tokenize.read(body).tokens(self.served, most))
                    )
                return await self._answer(path, body, request)
        except ClientDisconnected:
            self.metrics.count("te_request_failure", err="dropped")
            return Response(status_code=499)  # to nobody
        except Exception as error:
            if isinstance(error, RequestError) and error.status != 408:
                await self.door.discard(headers, arriving)
            return self._refusal(error)
        finally:
            self.active -= 1

    def _refusal(self, error: Exception) -> Response:
        answer, is_bug = refused(error, str(self.served.folder))
        if is_bug:
            log.error("".join(traceback.format_exception(error)))
        self.metrics.count("te_request_failure", err=answer.failure)
        headers = {"connection": "close"} if answer.status in CLOSING else {}
        if answer.status == 401:
            return Response(status_code=401, headers=headers | {"www-authenticate": "Bearer"})
        return _json(answer.body(), answer.status, headers)

    def _thread(self, work: Callable[[], Any]) -> Awaitable[Any]:
        return asyncio.get_running_loop().run_in_executor(self._reading, work)

    async def _answer(self, path: str, body: bytes, request: Request) -> Response:
        began, served, count = time.monotonic(), self.served, self.metrics.count
        if path == "/" and served.task.answers.kind == "vectors":
            path = "/embed"

        def prepared() -> tuple[ParsedRequest, Any]:
            asked = ROUTES[path].read(body, path, served, self.limits.documents)
            return asked, served.variant(asked.options)

        asked, model = await self._thread(prepared)
        examples = asked.examples
        method = "batch" if len(examples) > 1 else "single"
        count("te_request_count", method=method)
        count("te_predict_count", len(examples))
        futures = self.scheduler.submit(model, examples, alone=model.alone)
        answered = await _all(futures, request)
        shaped = asked.shape([each.answer for each in answered])
        count("te_request_success", method=method)
        count("te_predict_success", len(examples))
        return _json(shaped, 200, self._timed(asked, answered, time.monotonic() - began))

    def _timed(
        self, asked: ParsedRequest, answered: Sequence[TimedAnswer], seconds: float
    ) -> dict[str, str]:
        """Record the times of a request; returns its headers, milliseconds as in TEI."""
        for each in answered:
            parts = each.seconds
            self.metrics.observe(
                te_predict_duration=sum(parts.values()),
                te_request_input_length=each.tokens,
                **{f"te_predict_{name}_duration": value for name, value in parts.items()},
            )
        parts = {name: max(each.seconds[name] for each in answered) for name in parts}
        self.metrics.observe(
            te_request_duration=seconds,
            **{f"te_request_{name}_duration": value for name, value in parts.items()},
        )
        times = {"compute": seconds, "total": seconds} | parts
        return {f"x-{name}-time": f"{value * 1000:.0f}" for name, value in times.items()} | {
            "x-compute-type": self.served.device.partition(":")[0],
            "x-compute-characters": str(asked.characters),
            "x-compute-tokens": str(sum(each.tokens for each in answered)),
            "x-chunks": ",".join(str(each.answer["chunks"]) for each in answered),
        }

    async def _keyed(self, value: Callable[[], Any], request: Request) -> Response:
        try:
            self.door.check_caller(dict(request.scope["headers"]))
        except RequestError as error:
            return self._refusal(error)
        return _json(value())

    async def _root(self, request: Request) -> Response:
        """Web page for browsers; TEI's clients get an empty 200."""
        accept = request.headers.get("accept", "").split(",")  # programs take anything
        if any(part.partition(";")[0].strip() == "text/html" for part in accept):
            return page()
        return await self._health(request)

    async def _health(self, request: Request) -> Response:
        if self.ready:
            return Response()
        return _json({"error": "unhealthy", "error_type": "Unhealthy"}, 503)

    async def _metrics(self, request: Request) -> Response:
        text = self.metrics.text(self.scheduler.unanswered)
        return Response(text, media_type="text/plain; version=0.0.4")

    def _info(self) -> dict[str, Any]:
        served, precision = self.served, self.served.precision
        kinds = {"label": "classifier", "ranking": "reranker"}
        kind = kinds.get(served.task.answers.kind, served.task.name)
        chunked = served.recipe.data.overflow == "chunks"
        return {
            "model_id": served.name,
            "model_sha": served.sha,
            "model_dtype": _DTYPES.get(precision, precision),
            "served_model_name": served.name,
            "model_type": {kind: requests.labels(served)},
            "task": served.task.name,
            "max_concurrent_requests": self.limits.places,
            # None where longer documents are read in chunks.
            "max_input_length": None if chunked else served.predictor.max_length,
            "max_chunk_length": served.predictor.max_length,
            "max_batch_tokens": served.batch_tokens,
            "max_batch_requests": None,
            "max_client_batch_size": self.limits.documents,
            "auto_truncate": False,
            "tokenization_workers": TOKENIZING,
            "version": __version__,
            "sha": None,
            "docker_label": None,
        }


@cache
def page() -> Response:
    """Web page as a response; its script may contact this server only, and it cannot be framed."""
    content, policy = html.render("serve", connect="'self'", title="ldt")
    return HTMLResponse(
        content,
        headers={
            "content-security-policy": f"{policy}; frame-ancestors 'none'",
            "cache-control": "no-cache",
            "referrer-policy": "no-referrer",
            "vary": "accept",
            "x-content-type-options": "nosniff",
        },
    )


def _openapi(served: Served) -> dict[str, Any]:
    """OpenAPI document of the routes."""
    bodies = sorted({route.body for route in ROUTES.values()}, key=str)
    models: Any = [(each, "validation") for each in bodies]
    _, schemas = models_json_schema(models, ref_template="#/components/schemas/{model}")
    native = schemas["$defs"]["Native"]
    names = (served.task.reads.document, *served.task.reads.query_fields)
    native["properties"] = {name: {} for name in names} | native["properties"]
    refused = {"description": "A refusal, {error, error_type}, by the status codes of TEI."}
    paths: dict[str, Any] = {}
    for path, route in ROUTES.items():
        says = f"{route.says} For models of {route.models}." if route.models else route.says
        schema = {"$ref": f"#/components/schemas/{route.body.__name__}"}
        paths[path] = {
            "post": {
                "summary": says,
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": schema}},
                },
                "responses": {"200": {"description": says}, "default": refused},
            }
        }
    for path, says in (
        ("/health", "Whether documents are taken."),
        ("/info", "The model and the limits of the server."),
        ("/metrics", "Counts and times for Prometheus."),
    ):
        paths[path] = {"get": {"summary": says, "responses": {"200": {"description": says}}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": f"ldt serve {served.name}", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": schemas["$defs"],
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


async def _all(futures: Sequence["Future[TimedAnswer]"], request: Request) -> list[TimedAnswer]:
    """Answers to several documents; the rest is cancelled if one fails or the caller leaves."""
    answers = asyncio.gather(*map(asyncio.wrap_future, futures))
    # asyncio tells of what fails when nobody waits any more, unless somebody has looked at it.
    answers.add_done_callback(lambda each: each.cancelled() or each.exception())
    leaving = asyncio.ensure_future(request.receive())
    try:
        both: set[asyncio.Future[Any]] = {answers, leaving}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not answers.done():
            raise ClientDisconnected
        return answers.result()
    finally:
        leaving.cancel()
        answers.cancel()
        for future in futures:
            future.cancel()


async def _no_such_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    method = error.status_code == 405
    what = "another method than this route's" if method else "no such route"
    answer = RequestError(error.status_code, "Validation" if method else "NotFound", what)
    return _json(answer.body(), answer.status, dict(error.headers or {}))


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(json_line(value).rstrip(), status, headers, media_type="application/json")
