"""Why a request has no answer: status and words, in the form of TEI 1.9."""

import re
from typing import Any

from ldt.errors import ModelError, ResourceError, UserError
from ldt.inference.executor import LostError
from ldt.serve.scheduler import ClosedError, FullError

LONGEST = 300  # characters of a message, which may quote what was sent
_OPTION = re.compile(r"--([a-z]+(?:-[a-z]+)*)")


class Refused(Exception):
    """A request that has no answer.

    Args:
        status: of HTTP.
        kind: of TEI where it has one: Empty, Tokenizer, Validation, Backend, Overloaded, Unhealthy.
        what: for the caller; no path, no traceback.
        failure: the label of te_request_failure.
    """

    def __init__(self, status: int, kind: str, what: str, failure: str = "validation"):
        super().__init__(what if len(what) <= LONGEST else f"{what[:LONGEST]} …")
        self.status, self.kind, self.failure = status, kind, failure

    def body(self) -> dict[str, Any]:
        """The answer in its place."""
        return {"error": str(self), "error_type": self.kind}


class Gone(Exception):
    """The caller has left."""


def invalid(what: str) -> Refused:
    """A request that is JSON, but not of a shape that can be answered."""
    return Refused(422, "Validation", what)


def refused(error: BaseException, hidden: str) -> Refused:
    """Message of an exception to a caller.

    Args:
        hidden: a path that no answer may name.
    """
    if isinstance(error, Refused):
        return error
    if isinstance(error, FullError):
        return Refused(429, "Overloaded", f"model is overloaded: {error}", "overloaded")
    if isinstance(error, ClosedError):
        return Refused(503, "Unhealthy", str(error), "overloaded")
    if isinstance(error, TimeoutError):
        return Refused(503, "Overloaded", "no answer within the time of a request", "overloaded")
    if isinstance(error, LostError):
        what = "two processes with the model, one after the other, have died with this request"
        return Refused(500, "Inference", what, "inference")
    if isinstance(error, ResourceError):
        return Refused(424, "Backend", "out of memory with this document", "inference")
    if isinstance(error, ModelError):
        return Refused(424, "Backend", _words(error, hidden), "inference")
    if isinstance(error, UserError):
        return invalid(_words(error, hidden))
    return Refused(424, "Backend", "the model failed on this request", "inference")


def known(error: BaseException) -> bool:
    """True if it is no bug of the server."""
    return isinstance(error, Refused | UserError | TimeoutError)


def _words(error: BaseException, hidden: str) -> str:
    """The message of an error, with the names of JSON in the place of those of ``ldt predict``."""
    text = str(error).replace(hidden, "the model")
    return _OPTION.sub(lambda found: found[1].replace("-", "_"), text)
