"""Signs in a text that something went wrong before: characters, encoding, language."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

_LANGUAGE_WORDS = 400  # of a text, by which its language is told
_LEAST_WORDS = 20  # of fewer it is not told

# Tab, line ends and the form feed between pages are not meant; lone surrogates are.
_CONTROLS = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f\ud800-\udfff\ufff9-\ufffb\ufffe\uffff]")
# UTF-8 read as cp1252 or Latin-1 (é: Ã©, ’: â€™, §: Â§, д: Ð´), and what could not be decoded.
_TAIL = "[\x80-\xbf\u20ac\u201a-\u201e\u2026\u2020\u2021\u02c6\u2030\u0160\u2039\u0152\u017d"
_TAIL += "\u2018\u2019\u201c\u2022\u2013\u2014\u02dc\u2122\u0161\u203a\u0153\u017e\u0178]"
_MOJIBAKE = re.compile(
    f"\ufffd|[\x80-\x84\x86-\x9f]|\u00c3{_TAIL}|\u00c2[\xa0-\xbf]|\u00e2[\u20ac\x80]{_TAIL}|"
    f"\u00ef\u00bb\u00bf|(?:[\u00d0\u00d1]{_TAIL}){{2}}"
)

_SCRIPTS = {  # languages of which the letters are enough
    "Chinese or Japanese": "\u3040-\u30ff\u3400-\u9fff",
    "Korean": "\uac00-\ud7af",
    "Arabic script": "\u0600-\u06ff",
    "Cyrillic script": "\u0400-\u04ff",
    "Greek": "\u0370-\u03ff",
    "Hebrew": "\u0590-\u05ff",
    "Devanagari script": "\u0900-\u097f",
    "Thai": "\u0e00-\u0e7f",
}
_SCRIPT = {name: re.compile(f"[{letters}]") for name, letters in _SCRIPTS.items()}
_COMMON = {  # words that few other languages have
    "English": "the of and to is that for with this was be by are shall which not",
    "German": "der die und das ist nicht ein eine mit von den zu auf für sich dem werden",
    "French": "le les des et est une dans pour que qui du pas sur avec il au sont",
    "Spanish": "el los las y una por con para del es se como lo más su al fue",
    "Italian": "il di che è della per una con non sono del le gli alla nel anche si",
    "Portuguese": "os uma da não em para com dos ao mais foi são pelo que também",
    "Dutch": "het een van en dat niet voor met zijn aan op ook wordt bij deze naar te",
}
_WORDS: dict[str, list[str]] = {}
for _language, _common in _COMMON.items():
    for _word in _common.split():
        _WORDS.setdefault(_word, []).append(_language)


def faults(text: str) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a text: the name of a kind of `ldt.data.findings`, and where."""
    if not any(map(str.isalnum, text)):
        yield "empty", "no letter or digit"
    for kind, pattern in (("control_characters", _CONTROLS), ("wrong_encoding", _MOJIBAKE)):
        if (kind == "control_characters" or not text.isascii()) and (match := pattern.search(text)):
            around = text[max(match.start() - 10, 0) : match.end() + 10]
            yield kind, f"at character {match.start():,}: {ascii(around)}"


def language(text: str) -> str | None:
    """The language of a text by its letters or commonest words; None where it is not clear."""
    beginning = text[: _LANGUAGE_WORDS * 8]
    if not beginning.isascii():
        letters = sum(map(str.isalpha, beginning))
        for name, pattern in _SCRIPT.items():
            if len(pattern.findall(beginning)) > max(letters / 2, _LEAST_WORDS):
                return name
    words = beginning.lower().split(maxsplit=_LANGUAGE_WORDS)[:_LANGUAGE_WORDS]
    if len(words) < _LEAST_WORDS:
        return None
    hits = [(name, word) for word in words for name in _WORDS.get(word, ())]
    counts = Counter(name for name, _ in hits)
    (best, count), (_, second) = (*counts.most_common(2), ("", 0), ("", 0))[:2]
    different = len({word for name, word in hits if name == best})
    return best if count >= max(0.08 * len(words), 2 * second) and different >= 3 else None
