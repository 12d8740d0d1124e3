"""Recognition of published layouts by a file's first bytes, so that a pipe can be asked too."""

import re
from collections.abc import Collection

from ldt.benchmarks.formats import LEXGLUE
from ldt.data import label_tools
from ldt.data.summaries import PAIRS
from ldt.io import records, streams

BORDER = "-DOCSTART-"  # in CoNLL in place of a word, in front of each document
COMMENT = "#"  # begins the lines before a sentence of CoNLL that are none of its words

BEGIN = re.compile(r"#\s*begin document(?P<name>.*)")  # in front of each document of CoNLL-2012
GAP = "ID\tText\tPronoun\tPronoun-offset\t"  # begins a file of GAP

MOST = 1 << 16  # bytes that are looked at
# What a file begins with; names one of which has to be there; in how many brackets; and whether
# before a list.
_MARKS: dict[str, tuple[str, set[str], int, bool]] = {
    "squad": ("{", {"data"}, 1, True),
    "triviaqa": ("{", {"Data"}, 1, True),
    "hotpotqa": ("[", {"_id", "supporting_facts"}, 2, False),
    "wikihop": ("[", {"query", "candidates", "supports"}, 2, False),
    "cuad": ("{", {"data"}, 1, True),
    "contractnli": ("{", {"documents"}, 1, True),
    "qasper": ("{[", {"full_text", "qas"}, 2, False),
    "label-studio": ("[", {"annotations"}, 2, True),
    "doccano": ("{", {*label_tools.DOCCANO}, 1, False),
    "summarization": ("{", {*PAIRS}, 1, False),
    **dict.fromkeys(LEXGLUE, ("{", {"facts", "text"}, 1, False)),
}
# A key by which a line of a layout is known, however deep it stands; quotes in a text are escaped.
_KEYS = {
    "nq": re.compile(r'"(long_answer|long_answer_candidates)"\s*:|^\{\s*"document_text"\s*:'),
    "tydiqa": re.compile(r'"(minimal_answer|passage_answer|passage_answer_candidates)"\s*:'),
}
_TABLES = ("csv", "tsv", "json", "jsonl", "parquet")  # endings that no file of CoNLL has
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"?|[{}\[\]:,]', re.S)
_WORDS = 4  # lines of CoNLL with as many columns, by which it is known


def recognised(source: str, format: str) -> bool:
    """True if a file or pipe begins as one of this layout does; the pipe can still be read whole.

    Args:
        source: path, or "-" for standard input.
        format: name of a published layout in `ldt.benchmarks.formats.FORMATS`, as squad, nq or
            conll; not a plain one (`LINES`: JSON lines, tables).
    """
    table = records.suffix(source) in _TABLES
    head = streams.beginning(source, MOST, lambda head: _fits(format, head, table) is not None)
    return bool(_fits(format, head, table, ended=True))


def begins_with_object(source: str, names: Collection[str]) -> bool:
    """True if a file or pipe begins with a JSON object that has one of these keys; the pipe can
    still be read whole."""

    def has_key(head: bytes) -> bool | None:
        text = _text(head)
        return _has_key(text, names, 1, listed=False) if text[:1] in ("", "{") else False

    return bool(has_key(streams.beginning(source, MOST, lambda head: has_key(head) is not None)))


def _text(head: bytes) -> str:
    return head.decode("utf-8-sig", errors="ignore").lstrip()


def _fits(format: str, head: bytes, table: bool, ended: bool = False) -> bool | None:
    """True or False once that is known; None as long as more bytes are needed."""
    text = _text(head)
    if not text:
        return None
    if format in _MARKS:
        begin, names, place, listed = _MARKS[format]
        return _has_key(text, names, place, listed) if text[0] in begin else False
    if format in _KEYS:
        if text[0] != "{":
            return False
        return bool(_KEYS[format].search(text)) or (False if ended else None)
    if format == "gap":
        return text.startswith(GAP) if ended or len(text) >= len(GAP) else None
    lines = text.rstrip().split("\n") if ended else text.split("\n")[:-1]
    if format == "coreference":
        begins = next((line for line in lines if line.strip()), "")
        return bool(BEGIN.match(begins)) if begins else None
    return _is_conll(lines, table, ended)


def _has_key(text: str, names: Collection[str], place: int, listed: bool) -> bool | None:
    """True if the first object of a JSON text, so many brackets deep, has one of these keys."""
    depth = 0
    last = key = ""
    for token in _TOKEN.findall(text):
        if token[0] == '"':
            if len(token) == 1 or token[-1] != '"':
                return None  # cut off
            last = token[1:-1]
        elif token == ":":
            key = last if depth == place else ""
            if key in names and not listed:
                return True
        elif token in "[{":
            if key in names and token == "[":
                return True
            depth, key = depth + 1, ""
        elif token == ",":
            key = ""
        else:
            depth -= 1
            if depth < place:  # the object is at its end
                return False
    return None


def _is_conll(lines: list[str], table: bool, ended: bool) -> bool | None:
    """True if complete lines all have as many columns, with a word in each."""
    content = [line for line in lines if not line.startswith(COMMENT)]
    lines = content if any(map(str.strip, content)) else lines
    if not lines:
        return None
    if lines[0].split()[:1] == [BORDER]:
        return True
    if table or re.match(r"\s*(\{|\[\s*([{\[\"]|$))", lines[0]):
        return False
    words = [line for line in lines if line.strip()][:_WORDS]
    columns = {len(line.split("\t" if "\t" in line else None)) for line in words}
    if len(columns) > 1:
        return False
    if len(words) < _WORDS and not (ended and len(words) > 1):
        return None
    if columns != {1} or any(not line.strip() for line in lines):
        return True
    return False if ended else None  # a list of words has no empty lines
