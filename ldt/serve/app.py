"""The routes of the server: those of TEI and ldt's own."""

import asyncio
import logging
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from ldt import __version__
from ldt.io.strict_json import json_line
from ldt.report import html
from ldt.serve import openapi, shapes
from ldt.serve.limits import Arriving, Doorkeeper, Limits
from ldt.serve.metrics import Metrics
from ldt.serve.model import Served
from ldt.serve.refused import Gone, Refused, known, refused
from ldt.serve.scheduler import TOKENIZING, Scheduler, TimedAnswer

log = logging.getLogger("ldt")

_DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
Understand = Callable[[Any, Served], shapes.Asked]
Make = Callable[[bytes, Request], Awaitable[tuple[Any, dict[str, str]]]]


class App:
    """A model behind HTTP: an ASGI application.

    Args:
        key: that callers must have; None for none.

    Attributes:
        draining: whether no more documents are taken; who runs the server sets it.
        active: requests for an answer that are here.
    """

    def __init__(self, served: Served, limits: Limits | None = None, key: str | None = None):
        self.served, self.limits = served, limits or Limits()
        self.door = Doorkeeper(self.limits, key)
        self.metrics = Metrics()
        self.scheduler = Scheduler(
            served.replicas,
            batch_tokens=served.batch_tokens,
            places=self.limits.places,
            told=self._told,
        )
        self.draining, self.active = False, 0
        self._reading = ThreadPoolExecutor(1, "reading")  # one body at a time is large in memory
        self._openapi = openapi.document(served, (shapes.Predict, shapes.Native, shapes.Tokenize))
        self._device = served.device.partition(":")[0]
        self._app = Starlette(
            routes=self._routes(), exception_handlers={HTTPException: _no_such_route}
        )

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request, also one that fails."""
        if scope["type"] != "http":  # no lifespan: who made the app closes it
            return
        try:
            await self._app(scope, receive, send)
        except Exception as error:
            log.error("".join(traceback.format_exception(error)))
            answer = Refused(500, "Backend", "the server failed on this request").body()
            await _json(answer, 500)(scope, receive, send)

    @property
    def ready(self) -> bool:
        """True if documents are taken."""
        return not self.draining and self.scheduler.alive

    def close(self, seconds: float | None = None) -> bool:
        """Answer what is here and stop; whether all have answers."""
        self._reading.shutdown(wait=False, cancel_futures=True)
        return self.scheduler.drain(seconds)

    def _routes(self) -> list[Route]:
        understood: dict[str, Understand] = {"/predict": shapes.predict, "/": shapes.predict}
        for name in ("answer", *shapes.ROUTES):
            understood[f"/{name}"] = partial(shapes.native, route=name)
        understood["/rerank"] = _no_ranker
        posted: dict[str, Make] = {
            path: partial(self._answers, understand) for path, understand in understood.items()
        }
        posted["/tokenize"] = self._tokens
        got: dict[str, Callable[[Request], Awaitable[Response]]] = {
            "/": self._root,
            "/health": self._health,
            "/metrics": self._metrics,
            "/info": partial(self._keyed, self._info),
            "/openapi.json": partial(self._keyed, lambda: self._openapi),
        }
        routes = [
            Route(path, partial(self._guarded, make), methods=["POST"])
            for path, make in posted.items()
        ]
        return routes + [Route(path, answer, methods=["GET"]) for path, answer in got.items()]

    async def _guarded(self, make: Make, request: Request) -> Response:
        """An answer in JSON, or the error in its place."""
        headers, arriving = dict(request.scope["headers"]), Arriving(request.receive)
        self.active += 1
        try:
            self.door.check_caller(headers)
            if not self.ready:
                raise Refused(503, "Unhealthy", "the server is about to stop", "overloaded")
            async with (
                asyncio.timeout(self.limits.seconds),
                self.door.body(headers, arriving) as body,
            ):
                value, about = await make(body, request)
                return _json(value, 200, about)
        except Gone:
            self.metrics.count("te_request_failure", err="dropped")
            return Response(status_code=499)  # to nobody
        except Exception as error:
            if isinstance(error, Refused) and error.status != 408:
                await self.door.discard(headers, arriving)
            return self._refusal(error)
        finally:
            self.active -= 1

    def _refusal(self, error: Exception) -> Response:
        found = refused(error, str(self.served.folder))
        if not known(error):
            log.error("".join(traceback.format_exception(error)))
        self.metrics.count("te_request_failure", err=found.failure)
        about = {"connection": "close"} if found.status in (401, 403, 408, 413, 415, 503) else {}
        if found.status == 401:
            return Response(status_code=401, headers=about | {"www-authenticate": "Bearer"})
        return _json(found.body(), found.status, about)

    def _thread(self, work: Callable[[], Any]) -> Awaitable[Any]:
        return asyncio.get_running_loop().run_in_executor(self._reading, work)

    async def _tokens(self, body: bytes, request: Request) -> tuple[Any, dict[str, str]]:
        """The tokens of texts, which the model need not read."""
        return await self._thread(
            lambda: shapes.tokenized(shapes.parsed(body), self.served, self.limits.documents)
        ), {}

    async def _answers(
        self, understand: Understand, body: bytes, request: Request
    ) -> tuple[Any, dict[str, str]]:
        """The body of an answer, and what TEI says of it in headers."""
        began, served = time.monotonic(), self.served

        def prepared() -> tuple[shapes.Asked, Any, list[Any]]:
            asked = understand(shapes.parsed(body), served)
            shapes.check_batch(len(asked.documents), self.limits.documents)
            model = served.variant(asked.options)
            return asked, model, served.examples(asked.documents)

        asked, model, examples = await self._thread(prepared)
        count = self.metrics.count
        count("te_request_count", method="batch" if len(examples) > 1 else "single")
        count("te_predict_count", len(examples))
        futures = self.scheduler.submit(model, examples, alone=model.alone)
        answered = await _all(futures, request)
        shaped = asked.shape([each.answer for each in answered])
        seconds = time.monotonic() - began
        count("te_request_success", method="batch" if len(examples) > 1 else "single")
        count("te_predict_success", len(examples))
        self._observe(answered, seconds)
        return shaped, self._headers(asked, answered, seconds)

    def _observe(self, answered: Sequence[TimedAnswer], seconds: float) -> None:
        for each in answered:
            parts = {
                "tokenization_duration": each.tokenizing,
                "queue_duration": each.waiting,
                "inference_duration": each.running,
            }
            found = {f"te_predict_{name}": value for name, value in parts.items()}
            total = sum(parts.values())
            self.metrics.observe(
                te_predict_duration=total, te_request_input_length=each.tokens, **found
            )
        parts = {
            "te_request_tokenization_duration": max(each.tokenizing for each in answered),
            "te_request_queue_duration": max(each.waiting for each in answered),
            "te_request_inference_duration": max(each.running for each in answered),
        }
        self.metrics.observe(te_request_duration=seconds, **parts)

    def _headers(
        self, asked: shapes.Asked, answered: Sequence[TimedAnswer], seconds: float
    ) -> dict[str, str]:
        """Milliseconds, as TEI has them, and the chunks of all documents."""
        times = {
            "x-compute-time": seconds,
            "x-total-time": seconds,
            "x-tokenization-time": max(each.tokenizing for each in answered),
            "x-queue-time": max(each.waiting for each in answered),
            "x-inference-time": max(each.running for each in answered),
        }
        return {name: f"{value * 1000:.0f}" for name, value in times.items()} | {
            "x-compute-type": self._device,
            "x-compute-characters": str(asked.characters),
            "x-compute-tokens": str(sum(each.tokens for each in answered)),
            "x-windows": ",".join(str(each.answer["windows"]) for each in answered),
        }

    def _told(self, chunks: int, tokens: int) -> None:
        self.metrics.observe(te_batch_next_size=chunks, te_batch_next_tokens=tokens)

    async def _keyed(self, value: Callable[[], Any], request: Request) -> Response:
        """A value that callers with a key alone may read."""
        try:
            self.door.check_caller(dict(request.scope["headers"]))
        except Refused as error:
            return self._refusal(error)
        return _json(value())

    async def _root(self, request: Request) -> Response:
        """The page for people in a browser; TEI's clients get its empty 200."""
        accept = request.headers.get("accept", "").split(",")
        if any(part.partition(";")[0].strip() == "text/html" for part in accept):
            return page()
        return await self._health(request)

    async def _health(self, request: Request) -> Response:
        if self.ready:
            return Response()
        return _json({"error": "unhealthy", "error_type": "Unhealthy"}, 503)

    async def _metrics(self, request: Request) -> Response:
        text = self.metrics.text(self.scheduler.here)
        return Response(text, media_type="text/plain; version=0.0.4")

    def _info(self) -> dict[str, Any]:
        served, precision = self.served, self.served.precision
        chunked = served.recipe.data.overflow == "windows"
        return {
            "model_id": served.name,
            "model_sha": served.sha,
            "model_dtype": _DTYPES.get(precision, precision),
            "served_model_name": served.name,
            "model_type": {_kind(served): shapes.labels(served)},
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
    """The page for people, whose script asks this server and nobody else; no frame holds it."""
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


def _kind(served: Served) -> str:
    return "classifier" if served.task.answers.kind == "label" else served.task.name


def _no_ranker(value: Any, served: Served) -> shapes.Asked:
    raise Refused(424, "Backend", "model is not a re-ranker model", "model_type")


async def _all(futures: Sequence["Future[TimedAnswer]"], request: Request) -> list[TimedAnswer]:
    """The answers of some documents; where one has none, or the caller leaves, nobody waits on.

    Raises:
        Gone: the caller has left.
    """
    answers = asyncio.gather(*map(asyncio.wrap_future, futures))
    # asyncio tells of what fails when nobody waits any more, unless somebody has looked at it.
    answers.add_done_callback(lambda each: each.cancelled() or each.exception())
    leaving = asyncio.ensure_future(request.receive())
    try:
        both: set[asyncio.Future[Any]] = {answers, leaving}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not answers.done():
            raise Gone
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
    found = Refused(error.status_code, "Validation" if method else "NotFound", what)
    return _json(found.body(), found.status, dict(error.headers or {}))


def _json(value: Any, status: int = 200, about: dict[str, str] | None = None) -> Response:
    return Response(json_line(value).rstrip(), status, about, media_type="application/json")
