"""Text from outside, made fit for a page: what cannot be seen in it is shown."""

import re

# Characters without a look of their own that XML or HTML refuses, that turn the direction of what
# follows them, or that hide in words. Joiners and direction marks of scripts that need them stay.
UNSEEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\u180e\u200b\u2028-\u202e\u2060-\u206f"
    "\ud800-\udfff\ufeff\ufff9-\ufffb\ufffe\uffff]"
)


def visible(text: str) -> str:
    """A text in which characters that nobody sees are named: ``⟨U+202E⟩``, ``⟨page break⟩``."""
    return UNSEEN.sub(_named, text)


def _named(found: re.Match[str]) -> str:
    return "⟨page break⟩" if found[0] == "\f" else f"⟨U+{ord(found[0]):04X}⟩"


def cut(text: str, most: int) -> str:
    """A text of at most ``most`` characters, the last one an ellipsis where it was longer."""
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"
