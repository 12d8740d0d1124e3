"""The server's page for people: one HTML file that asks the server and nobody else."""

import re
from base64 import b64encode
from functools import cache
from hashlib import sha256
from importlib.resources import files


def wanted(accept: str) -> bool:
    """True for a request of a browser, by its header Accept: those of programs take anything."""
    return any(part.partition(";")[0].strip() == "text/html" for part in accept.split(","))


@cache
def page() -> tuple[bytes, dict[str, str]]:
    """The page, and the headers that it is to be served with.

    Its policy lets its own style and script work, and requests to its own server; no frame of
    another page can hold it.
    """
    text = files("ldt.serve").joinpath("page.html").read_text("utf-8")
    style, script = (_allowed(text, element) for element in ("style", "script"))
    policy = (
        f"default-src 'none'; script-src '{script}'; style-src '{style}'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return text.encode(), {
        "content-type": "text/html; charset=utf-8",
        "content-security-policy": policy,
        "cache-control": "no-cache",
        "referrer-policy": "no-referrer",
        "vary": "accept",
        "x-content-type-options": "nosniff",
    }


def _allowed(text: str, element: str) -> str:
    """The source of a policy that is the content of the page's one element of a name."""
    (content,) = re.findall(rf"<{element}>(.*?)</{element}>", text, re.S)
    return f"sha256-{b64encode(sha256(content.encode()).digest()).decode()}"
