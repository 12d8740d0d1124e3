"""Self-contained HTML pages: one template, style and script for all pages of ldt."""

import json
import re
from base64 import b64encode
from hashlib import sha256
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined

# Characters without a look of their own that XML or HTML refuses, that turn the direction of what
# follows them, or that hide in words. Joiners and direction marks of scripts that need them stay.
UNSEEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\u180e\u200b\u2028-\u202e\u2060-\u206f"
    "\ud800-\udfff\ufeff\ufff9-\ufffb\ufffe\uffff]"
)


def visible(text: str) -> str:
    """The text with invisible characters spelt out: ``⟨U+202E⟩``, ``⟨page break⟩``."""
    return UNSEEN.sub(lambda match: _name(match[0]), text)


def _name(character: str) -> str:
    return "⟨page break⟩" if character == "\f" else f"⟨U+{ord(character):04X}⟩"


def cut(text: str, most: int) -> str:
    """The text shortened to at most ``most`` characters, with an ellipsis."""
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


def script_json(value: Any) -> str:
    """JSON that is safe inside a script element: no tags or comments can begin in it."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for character in "&<>":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return UNSEEN.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def render(name: str, connect: str = "'none'", **content: Any) -> tuple[str, str]:
    """Return a page and its content security policy, which permits its own script and style only.

    Args:
        name: name of its template and of its script.
        connect: source that the script may contact, as in a content security policy.
        content: variables of the template; texts are escaped and made visible.
    """
    script, style = _asset("page.js") + _asset(f"{name}.js"), _asset("page.css")
    hashes = [b64encode(sha256(text.encode()).digest()).decode() for text in (script, style)]
    policy = (
        f"default-src 'none'; script-src 'sha256-{hashes[0]}'; style-src 'sha256-{hashes[1]}'; "
        f"img-src data:; connect-src {connect}; base-uri 'none'; form-action 'none'"
    )
    environment = Environment(
        loader=FunctionLoader(_asset),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    template = environment.get_template(f"{name}.html")
    return template.render(policy=policy, script=script, style=style, **content), policy


def _asset(name: str) -> str:
    return files("ldt.report").joinpath("assets", name).read_text("utf-8")
