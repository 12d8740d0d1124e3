"""YAML parser without YAML 1.1's traps: values as YAML 1.2 has them, each with its line.

Differences from PyYAML's own loader, which follows YAML 1.1:

- numbers are decimal and may have an exponent without a point (``3e-5``, ``1E3``); a number with a
  leading zero (``007``, ``010``), with ``_``, ``:`` or ``0x`` in it stays text, as labels and
  codes look like that;
- booleans are ``true`` and ``false`` alone; ``no``, ``yes``, ``on``, ``off`` are text;
- null is ``null``, ``~`` or nothing; dates, times and ``.nan`` are text, ``.inf`` is a number;
- keys are text as written, and a key that stands twice is refused;
- tags (``!!python/...``), merge keys (``<<``) and aliases that multiply are refused.
"""

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

MAX_BYTES = 1_000_000
MAX_NODES = 10_000  # values, every alias expanded
MAX_DEPTH = 50

_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_NUMBER = re.compile(r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
_WORDS = {
    **{"": None, "~": None, "null": None, "true": True, "false": False},
    **{".inf": float("inf"), "+.inf": float("inf"), "-.inf": float("-inf")},
}


@dataclass
class Tree:
    """A parsed file or value.

    Args:
        value: dicts with text keys, lists, and scalars; None if the text could not be read.
        lines: the line, from 1, of the key or item at each path.
        problems: (path, line, what is wrong); the line is None where it is not known.
        complete: False where the syntax is broken, so that `value` says nothing.
    """

    value: Any = None
    lines: dict[tuple, int] = field(default_factory=dict)
    problems: list[tuple[tuple, int | None, str]] = field(default_factory=list)
    complete: bool = True


class _Refused(Exception):
    def __init__(self, line, what):
        super().__init__(what)
        self.line, self.what = line, what


class _Composer(yaml.SafeLoader):
    nodes = depth = 0

    def compose_node(self, parent, index):
        event = self.peek_event()
        line = event.start_mark.line + 1
        self.nodes += 1
        self.depth += 1
        if self.nodes > MAX_NODES:
            raise _Refused(line, f"more than {MAX_NODES:,} values")
        if self.depth > MAX_DEPTH:
            raise _Refused(line, f"nested more than {MAX_DEPTH} deep")
        if getattr(event, "tag", None) is not None:
            raise _Refused(line, f"tag {event.tag!r} is not allowed; quotes make a value text")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def parse(text: str | bytes) -> Tree:
    """Parse one YAML document to a `Tree`; problems are listed in it, never raised."""
    try:
        if len(text) > MAX_BYTES:
            raise _Refused(None, f"more than {MAX_BYTES:,} bytes")
        return _read(_compose(_decode(text)))
    except _Refused as refused:
        return Tree(problems=[((), refused.line, refused.what)], complete=False)


def _decode(text):
    if isinstance(text, str):
        return text
    try:
        return text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = text.count(b"\n", 0, error.start) + 1
        raise _Refused(line, f"not UTF-8 text at byte {error.start}") from None


def _compose(text):
    loader = None
    try:
        loader = _Composer(text)
        return loader.get_single_node()
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise _Refused(line, f"control character {chr(error.character)!r}") from None
    except yaml.MarkedYAMLError as error:
        line = (error.problem_mark or error.context_mark).line
        content = text.splitlines()[line : line + 1]
        indent = re.match(r"\s*", content[0])[0] if content else ""
        if "\t" in indent:
            raise _Refused(line + 1, "tab in the indentation; YAML indents with spaces") from None
        raise _Refused(line + 1, f"not valid YAML: {error.problem}") from None
    except (ValueError, OverflowError) as error:  # "\UFFFFFFFF", %YAML with 5,000 digits
        raise _Refused(loader and loader.line + 1, f"not valid YAML: {error}") from None


def _read(node):
    """The value of a node."""
    tree = Tree()
    count = 0

    def visit(node, path, line):
        nonlocal count
        count += 1
        if count > MAX_NODES or len(path) > MAX_DEPTH:  # an alias in its own anchor ends here too
            raise _Refused(line, f"aliases stand for more than {MAX_NODES:,} values")
        tree.lines[path] = line
        if isinstance(node, yaml.ScalarNode):
            return scalar(node, path, line)
        if isinstance(node, yaml.SequenceNode):
            items = enumerate(node.value)
            return [visit(item, (*path, i), item.start_mark.line + 1) for i, item in items]
        return mapping(node, path)

    def mapping(node, path):
        values, seen = {}, {}
        for key, item in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                tree.problems.append((path, line, "a key must be plain text"))
            elif key.style is None and key.value == "<<":
                tree.problems.append((path, line, "merge keys (<<) are not supported"))
            elif key.value in seen:
                what = f"repeated key, also on line {seen[key.value]}"
                tree.problems.append(((*path, key.value), line, what))
            else:
                seen[key.value] = line
                values[key.value] = visit(item, (*path, key.value), line)
        return values

    def scalar(node, path, line):
        try:
            node.value.encode()
            return node.value if node.style else _resolve(node.value)
        except UnicodeEncodeError:
            tree.problems.append((path, line, "text with half a surrogate pair"))
        except (ValueError, OverflowError):
            tree.problems.append((path, line, f"number out of range, {len(node.value)} characters"))
        return None

    if node is not None:
        tree.value = visit(node, (), node.start_mark.line + 1)
    return tree


def _resolve(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _NUMBER.fullmatch(text):
        number = float(text)
        if number in (float("inf"), float("-inf")):
            raise ValueError(f"{text} is out of range")
        return number
    return text


class _Dumper(yaml.SafeDumper):
    """Quotes what either YAML 1.1 or `_resolve` would not read as text."""

    def ignore_aliases(self, data):
        return True

    def represent_str(self, text):
        breaks = re.search("[\n\r\x85\u2028\u2029]", text)  # other quotes would fold some of them
        return self.represent_scalar("tag:yaml.org,2002:str", text, style='"' if breaks else None)


_Dumper.add_representer(str, _Dumper.represent_str)
_number = re.compile(_NUMBER.pattern + r"\Z")
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _number, list("-+.0123456789"))


def dump(value: Any) -> str:
    """YAML text of dicts, lists and scalars, keys in their order; `parse` gives the same value
    back."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
