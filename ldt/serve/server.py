"""Server process: its socket, its signals and its shutdown."""

import logging
import os
import socket
import time
from contextlib import AbstractContextManager
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ldt.errors import UserError
from ldt.io.strict_json import json_line
from ldt.serve.app import App
from ldt.serve.limits import is_loopback
from ldt.system import Signals

log = logging.getLogger("ldt")

IDLE = 10  # seconds in which a connection has to bring a request
CLOSING = 5  # seconds for answers to leave when the last one is made


class Protocol(H11Protocol):
    """HTTP/1.1 protocol with a timeout for receiving a request, and JSON errors."""

    def connection_made(self, transport: Any) -> None:
        """Start the timeout for receiving a request; after a response uvicorn sets an equal one."""
        super().connection_made(transport)
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def data_received(self, data: bytes) -> None:
        """Receive data; only a complete head ends the timeout, not a single byte."""
        self.conn.receive_data(data)
        self.handle_events()

    def send_400_response(self, msg: str) -> None:
        """Answer 400 "invalid HTTP request", if still possible, and close; ``msg`` is ignored."""
        body = json_line({"error": "invalid HTTP request", "error_type": "Validation"}).rstrip()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        try:
            sent = [h11.Response(status_code=400, headers=headers, reason=b"Bad Request")]
            for event in (*sent, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:  # a response is on its way
            pass
        self.transport.close()


class Server(uvicorn.Server):
    """uvicorn server that drains at the first signal and exits at the second.

    uvicorn itself would raise the signal again, so that the process would not exit cleanly.

    Args:
        config: settings of uvicorn.
        app: application to serve.
        draining: seconds to finish requests after the signal.

    Attributes:
        signals: the received signals.
        late: True if the time ran out before all requests were answered.
    """

    def __init__(self, config: uvicorn.Config, app: App, draining: float):
        super().__init__(config)
        self.app, self.draining = app, draining
        self.late = False
        self.signals = Signals(self._drain)

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        """Context that records SIGINT and SIGTERM: the first drains, a second one exits."""
        return self.signals.handled()

    def _drain(self, number: int) -> None:
        self.app.draining = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen on the sockets, and log the address of each."""
        await super().startup(sockets)
        for place in sockets or ():
            host, port = place.getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            log.info(f"{self.app.served.name} at http://{shown}:{port}")

    async def on_tick(self, counter: int) -> bool:
        """Return True to stop: after a signal, if all is answered or time ran out (``late``)."""
        if self.app.draining:
            self.late = (
                bool(self.app.active) and time.monotonic() - self.signals.came > self.draining
            )
            self.should_exit = self.late or not self.app.active
        return await super().on_tick(counter)


def bound(host: str, port: int) -> socket.socket:
    """New TCP socket bound to an address, not listening; UserError if that is impossible."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound_socket = socket.socket(family, kind, proto)
        if os.name == "posix":
            bound_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound_socket.bind(address)
    except (OSError, UnicodeError, OverflowError) as error:
        what = getattr(error, "strerror", None) or error
        raise UserError(f"--host {host} --port {port}: {what}") from None
    return bound_socket


def check_key(host: str, key: str | None) -> None:
    """Raise UserError if ``key`` is None and ``host`` is an address that other machines reach."""
    if key is None and not is_loopback(host):
        raise UserError(
            f"--host {host}: other machines can reach it; --api-key-file FILE, or LDT_API_KEY, "
            "names the key that they must have"
        )


def run(app: App, place: socket.socket, draining: float) -> int:
    """Serve until a signal and the last answer, and close the app; returns the signal's number.

    Args:
        app: application to serve.
        place: bound socket, as from `bound`.
        draining: seconds to finish requests after the signal; a warning is logged if they run out.
    """
    server = Server(config(app), app, draining)
    server.run(sockets=[place])
    app.close(0.0 if server.late else CLOSING)
    if server.late:
        log.warning(f"stopped after {draining:g} seconds with requests that had no answer")
    return server.signals.number


def config(app: App) -> uvicorn.Config:
    """Settings of uvicorn for the app: HTTP/1.1 alone, without its logs, and with `Protocol`."""
    return uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        lifespan="off",
        loop="asyncio",
        log_config=None,
        log_level="critical",  # what goes wrong is told by the app
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=IDLE,
        timeout_graceful_shutdown=CLOSING,
        backlog=2048,
    )
