"""A server on the loopback in a thread, and requests to it: whole ones and raw bytes."""

import http.client
import json
import socket
import threading
import time
from contextlib import contextmanager

from ldt.serve import server
from ldt.serve.app import App

JSON = {"Content-Type": "application/json"}


class Running:
    """A server that runs.

    Attributes:
        app: what it serves.
        port: that it listens at, on 127.0.0.1.
    """

    def __init__(self, app, port):
        self.app, self.port = app, port
        self.url = f"http://127.0.0.1:{port}"

    def ask(self, path, body=None, method=None, headers=None, timeout=60):
        """(status, value of the body, headers) of a request; a body that is no bytes is JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            if body is not None and not isinstance(body, bytes):
                body = json.dumps(body).encode()
            method = method or ("GET" if body is None else "POST")
            connection.request(method, path, body, (JSON if body else {}) | (headers or {}))
            response = connection.getresponse()
            data = response.read()
            if "json" in response.headers.get("Content-Type", ""):
                data = json.loads(data)
            return response.status, data, dict(response.headers)
        finally:
            connection.close()

    def raw(self, *parts, timeout=30):
        """(status, body) of what the server sends back for bytes, until it closes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout) as connection:
            for part in parts:
                connection.sendall(part)
            response = http.client.HTTPResponse(connection)
            response.begin()
            return response.status, response.read()


@contextmanager
def running(served, limits=None, key=None):
    """A server of a model, as long as this context lasts."""
    app = App(served, limits, key)
    place = server.bound("127.0.0.1", 0)
    made = server.Server(server.config(app), app, draining=30)
    thread = threading.Thread(target=made.run, kwargs={"sockets": [place]})
    thread.start()
    while not made.started and thread.is_alive():
        time.sleep(0.001)
    try:
        yield Running(app, place.getsockname()[1])
    finally:
        app.draining = True
        thread.join(60)
        assert app.close(30)


def post(path, body, *more):
    """The bytes of a request."""
    head = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", *more]
    if not any(line.lower().startswith(("content-length", "transfer-encoding")) for line in more):
        head.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*head, "", ""]).encode() + body
