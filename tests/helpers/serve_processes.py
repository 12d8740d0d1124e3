"""``ldt serve`` in a process of its own."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress

# A model that waits, in a process that is as `ldt serve` is.
WAITING = """
import os
import time
from ldt.serve.model import Served
made = Served.__init__
def waiting(self, *args, **kwargs):
    made(self, *args, **kwargs)
    right = self.predictor.outputs
    def outputs(features):
        while not os.path.exists(GATE):
            time.sleep(0.01)
        return right(features)
    self.predictor.outputs = outputs
Served.__init__ = waiting
"""


def until(condition):
    """Return once something is so."""
    for _ in range(6000):
        if condition():
            return
        time.sleep(0.005)
    raise AssertionError("not within 30 seconds")


class Process:
    """``ldt serve`` in a process, once it answers.

    Args:
        gate: a file that each batch waits for.
        under: words of a command that runs another one.
    """

    def __init__(self, *arguments, gate=None, under=(), **environment):
        waiting = WAITING.replace("GATE", repr(str(gate))) if gate else ""
        code = f"from ldt.__main__ import main\n{waiting}\nmain()\n"
        command = [*under, sys.executable, "-c", code, "serve", *map(str, arguments)]
        self.process = subprocess.Popen(
            [*command, "--port", "0"],
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
            # A test in the background ignores it, and so would the server.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        self.lines = []
        for line in self.process.stderr:
            self.lines.append(line)
            if found := re.search(r"http://\S+:(\d+)$", line.strip()):
                self.port = int(found[1])
                break
        else:
            raise AssertionError(self.lines)
        assert self.ask("GET", "/health")[0] == 200

    def ask(self, method, path, value=None, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        body = None if value is None else json.dumps(value).encode()
        connection.request(
            method,
            path,
            body,
            ({"Content-Type": "application/json"} if body else {}) | (headers or {}),
        )
        response = connection.getresponse()
        found = response.status, response.read()
        connection.close()
        return found

    @contextmanager
    def asking(self, *request):
        """Within it the server has read a request; its answer, if one comes, is in the list."""
        found = []

        def ask():
            with suppress(OSError, http.client.HTTPException):
                found.append(self.ask(*request))

        asking = threading.Thread(target=ask)
        asking.start()
        until(lambda: b"\nte_request_count{" in self.ask("GET", "/metrics")[1])
        yield found
        asking.join(60)

    def terminate(self):
        """Send SIGTERM, and return once the server knows."""
        self.process.send_signal(signal.SIGTERM)
        until(lambda: self.ask("GET", "/health")[0] != 200)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(30)
        self.process.stderr.close()
