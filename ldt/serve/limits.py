"""Limits on a request before it is read: its sender, size and time."""

import asyncio
import hashlib
import hmac
import ipaddress
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from ldt.serve.refused import Gone, Refused

LINGER = 2.0  # seconds for the rest of a body that is refused

Headers = dict[bytes, bytes]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


@dataclass(frozen=True)
class Limits:
    """Limits of a server.

    Args:
        places: documents without an answer, of all requests.
        documents: of one request.
        body: bytes of one request.
        bodies: bytes of all requests that are here.
        seconds: that a request may take, and
        reading: its arrival.
    """

    places: int = 512
    documents: int = 32
    body: int = 16 << 20
    bodies: int = 64 << 20
    seconds: float = 600.0
    reading: float = 60.0


class Arriving:
    """Receiver of a request; ``whole`` is True once all of its body has come."""

    def __init__(self, receive: Receive):
        self.receive, self.whole = receive, False

    async def __call__(self) -> MutableMapping[str, Any]:
        message = await self.receive()
        self.whole = not message.get("more_body")
        return message


class Doorkeeper:
    """Checks the key, host and size of a request.

    Args:
        key: that they must have; None where all are from this machine.
    """

    def __init__(self, limits: Limits, key: str | None):
        self.limits = limits
        self._key = None if key is None else _digest(key.encode())
        self._bytes = 0  # of the bodies that are here

    def check_caller(self, headers: Headers) -> None:
        """Refuse a caller without the key.

        Without a key only callers that know the server by a name of this machine are heard: a page
        in a browser whose host has been given this address is none.

        Raises:
            Refused: 401 or 403.
        """
        if self._key is None:
            if not is_loopback(_host(headers.get(b"host", b""))):
                raise Refused(403, "Forbidden", "another host than this machine needs an API key")
            return
        kind, _, given = headers.get(b"authorization", b"").partition(b" ")
        if kind.lower() != b"bearer" or not hmac.compare_digest(_digest(given), self._key):
            raise Refused(401, "Unauthorized", "no API key, or a wrong one")

    @asynccontextmanager
    async def body(self, headers: Headers, receive: Arriving) -> AsyncIterator[bytes]:
        """The body of a request, which counts while this context lasts.

        Raises:
            Refused: it is no JSON by its headers (415), too long (413, 429) or too slow (408).
            Gone: the caller has left.
        """
        if headers.get(b"content-type", b"").split(b";")[0].strip().lower() != b"application/json":
            raise Refused(415, "Validation", "expected Content-Type: application/json")
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise Refused(
                415, "Validation", "Content-Encoding is not taken; send the body as it is"
            )
        if int(headers.get(b"content-length", b"0")) > self.limits.body:
            raise self._too_long()
        held = [0]
        try:
            try:
                async with asyncio.timeout(self.limits.reading):
                    found = await self._read(receive, held)
            except TimeoutError:
                raise Refused(408, "Validation", "the body did not arrive in time") from None
            yield found
        finally:
            self._bytes -= held[0]

    async def _read(self, receive: Arriving, held: list[int]) -> bytes:
        """The body; its bytes are counted as they come, in ``held`` as well."""
        parts = []
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Gone
            parts.append(message.get("body", b""))
            number = len(parts[-1])
            if held[0] + number > self.limits.body:
                raise self._too_long()
            if self._bytes + number > self.limits.bodies:
                what = "model is overloaded: too many bytes are here"
                raise Refused(429, "Overloaded", what, "overloaded")
            held[0] += number
            self._bytes += number
            if receive.whole:
                return b"".join(parts)

    def _too_long(self) -> Refused:
        return Refused(413, "Validation", f"a body of more than {self.limits.body:,} bytes")

    async def discard(self, headers: Headers, receive: Arriving) -> None:
        """Let the rest of a body go by for a moment: a caller that still sends reads no answer."""
        if b"expect" in headers:  # it sends when it is asked to
            return
        left = self.limits.bodies
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER):
                while left > 0 and not receive.whole:
                    left -= len((await receive()).get("body", b""))


def is_loopback(host: str) -> bool:
    """True for a name or an address of this machine for itself."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host(value: bytes) -> str:
    """The host of ``host:port`` or ``[::1]:port``."""
    text = value.decode("latin-1").strip()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.rpartition(":")[0] if text.count(":") == 1 else text


def _digest(text: bytes) -> bytes:
    return hashlib.sha256(text).digest()
