"""Checks of a request before its body is parsed (caller, size, time), and error responses."""

import asyncio
import hashlib
import hmac
import ipaddress
import re
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from ldt.errors import ModelError, ResourceError, UserError
from ldt.inference.executor import LostError
from ldt.serve.scheduler import ClosedError, FullError

LINGER = 2.0  # seconds for the rest of a body that is refused
LONGEST = 300  # characters of a message, which may quote what was sent
_OPTION = re.compile(r"--([a-z]+(?:-[a-z]+)*)")

Headers = dict[bytes, bytes]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class RequestError(Exception):
    """Request that gets an error response.

    Args:
        status: HTTP status code.
        kind: error type of TEI, if it has one: Empty, Tokenizer, Validation, Backend, Overloaded,
            Unhealthy.
        what: message for the caller, without paths or tracebacks.
        failure: label of te_request_failure.
    """

    def __init__(self, status: int, kind: str, what: str, failure: str = "validation"):
        super().__init__(what if len(what) <= LONGEST else f"{what[:LONGEST]} …")
        self.status, self.kind, self.failure = status, kind, failure

    def body(self) -> dict[str, Any]:
        """JSON body of the response: {"error": message, "error_type": kind of TEI}."""
        return {"error": str(self), "error_type": self.kind}


class ClientDisconnected(Exception):
    """The caller has disconnected."""


def invalid(what: str) -> RequestError:
    """Create, not raise, the error 422 with this message: valid JSON of a wrong shape."""
    return RequestError(422, "Validation", what)


# Of each kind of error: status, kind, label and words; {} are those of the error.
_ERRORS: list[tuple[type[BaseException], int, str, str, str]] = [
    (FullError, 429, "Overloaded", "overloaded", "model is overloaded: {}"),
    (ClosedError, 503, "Unhealthy", "overloaded", "{}"),
    (TimeoutError, 503, "Overloaded", "overloaded", "no answer within the time of a request"),
    (
        *(LostError, 500, "Inference", "inference"),
        "two processes with the model, one after the other, have died with this request",
    ),
    (ResourceError, 424, "Backend", "inference", "out of memory with this document"),
    (ModelError, 424, "Backend", "inference", "{}"),
    (UserError, 422, "Validation", "validation", "{}"),
]


def refused(error: BaseException, hidden: str) -> tuple[RequestError, bool]:
    """Error response for an exception, and True if the exception is a bug of the server.

    Args:
        error: the exception.
        hidden: path that no response may contain; "the model" takes its place.
    """
    if isinstance(error, RequestError):
        return error, False
    for error_type, status, kind, failure, words in _ERRORS:
        if isinstance(error, error_type):
            # With the names of JSON in the place of those of ldt predict.
            text = str(error).replace(hidden, "the model")
            text = _OPTION.sub(lambda match: match[1].replace("-", "_"), text)
            return RequestError(status, kind, words.format(text), failure), False
    return RequestError(424, "Backend", "the model failed on this request", "inference"), True


@dataclass(frozen=True)
class ServerLimits:
    """Limits of a server.

    Args:
        places: unanswered documents over all requests.
        documents: documents of one request.
        body: bytes of one request.
        bodies: bytes of all requests being handled.
        seconds: timeout of a request.
        reading: timeout for receiving its body.
    """

    places: int = 512
    documents: int = 32
    body: int = 16 << 20
    bodies: int = 64 << 20
    seconds: float = 600.0
    reading: float = 60.0


class RequestReceiver:
    """Receiver of a request; ``whole`` is True once its body is complete."""

    def __init__(self, receive: Receive):
        self.receive, self.whole = receive, False

    async def __call__(self) -> MutableMapping[str, Any]:
        message = await self.receive()
        self.whole = not message.get("more_body")
        return message


class RequestGuard:
    """Checks the key, host and size of a request.

    Args:
        limits: limits of the server.
        key: API key of callers; None if only this machine can connect.
    """

    def __init__(self, limits: ServerLimits, key: str | None):
        self.limits = limits
        self._key = None if key is None else _digest(key.encode())
        self._bytes = 0  # of the bodies that are here

    def check_caller(self, headers: Headers) -> None:
        """Refuse a caller without the key: RequestError 401, or 403 by the Host header.

        Without a key, the Host header must be a name of this machine, which blocks web pages by DNS
        rebinding. Headers are bytes by lower-case name.
        """
        if self._key is None:
            host = headers.get(b"host", b"").decode("latin-1").strip()
            match = re.fullmatch(r"\[(.*)\](:.*)?|([^:]*)(:[^:]*)?", host)
            if not is_loopback((match[1] or match[3] or "") if match else host):
                raise RequestError(
                    403, "Forbidden", "another host than this machine needs an API key"
                )
            return
        scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer" or not hmac.compare_digest(_digest(key), self._key):
            raise RequestError(401, "Unauthorized", "no API key, or a wrong one")

    @asynccontextmanager
    async def body(self, headers: Headers, receive: RequestReceiver) -> AsyncIterator[bytes]:
        """Context with the whole body of a request, received first and counted against the limits
        until the block ends.

        Raises:
            RequestError: the content type is not JSON (415), or the body is too long (413, 429) or
                too slow (408).
            ClientDisconnected: the caller has disconnected.
        """
        if headers.get(b"content-type", b"").split(b";")[0].strip().lower() != b"application/json":
            raise RequestError(415, "Validation", "expected Content-Type: application/json")
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise RequestError(415, "Validation", "Content-Encoding is not taken")
        self._check_size(int(headers.get(b"content-length", b"0")), 0)
        body = bytearray()
        try:
            async with asyncio.timeout(self.limits.reading):
                while not receive.whole:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientDisconnected
                    part = message.get("body", b"")
                    self._check_size(len(body) + len(part), len(part))
                    self._bytes += len(part)
                    body += part
            yield bytes(body)
        except TimeoutError:
            if receive.whole:  # of the request, not of its arrival
                raise
            raise RequestError(408, "Validation", "the body did not arrive in time") from None
        finally:
            self._bytes -= len(body)

    def _check_size(self, size: int, more: int) -> None:
        if size > self.limits.body:
            raise RequestError(413, "Validation", f"a body of more than {self.limits.body:,} bytes")
        if self._bytes + more > self.limits.bodies:
            what = "model is overloaded: too many bytes are here"
            raise RequestError(429, "Overloaded", what, "overloaded")

    async def discard(self, headers: Headers, receive: RequestReceiver) -> None:
        """Drop the rest of a body for up to `LINGER` seconds: who still sends reads no response."""
        if b"expect" in headers:  # it sends when it is asked to
            return
        left = self.limits.bodies
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER):
                while left > 0 and not receive.whole:
                    left -= len((await receive()).get("body", b""))


def is_loopback(host: str) -> bool:
    """True for a loopback name or address, without a port: "localhost", "127.0.0.1", "::1"."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _digest(text: bytes) -> bytes:
    return hashlib.sha256(text).digest()
