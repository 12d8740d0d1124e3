"""Words and the entities they make: as an example has them, and at which tokens they stand."""

import re
import unicodedata
from dataclasses import dataclass

import numpy as np

from ldt.data.sentences import JOINERS, SEPARATORS, bare, trimmed
from ldt.errors import DataError
from ldt.io.records import Example, field, kind
from ldt.metrics.conll import Entity
from ldt.tasks.text.alignment import real_tokens

_ALONE = (  # Thai, Lao, Burmese, Khmer, Chinese, Japanese
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
    "\u2e80-\u2fff\u3001-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_LETTER_ALONE = re.compile(f"[{_ALONE}]")
_PIECE = re.compile(rf"(?P<alone>[{_ALONE}])|[^\W{_ALONE}]+|[^\w\s]")


@dataclass
class Words:
    """The words of a document in its text.

    Args:
        text: raw, or given words with a space between them.
        places: [words, 2] int64, the first character of each word and the one behind its last.
        sizes: words of each sentence; None of raw text.
        nested: whether the words were given as a list of sentences.
    """

    text: str
    places: np.ndarray
    sizes: list[int] | None = None
    nested: bool = False

    @classmethod
    def given(cls, sentences: list[list[str]], nested: bool) -> "Words":
        """Words as they were given, a space between each two."""
        words = [word for sentence in sentences for word in sentence]
        sizes = np.array([len(word) for word in words], int)
        ends = np.cumsum(sizes + 1) - 1
        text = " ".join(words)
        places = [trimmed(text, *place) for place in np.stack([ends - sizes, ends], 1).tolist()]
        counts = [len(sentence) for sentence in sentences]
        return cls(text, np.array(places, int).reshape(-1, 2), counts, nested)

    @classmethod
    def raw(cls, text: str) -> "Words":
        """Runs of letters and digits, and every other sign that is no white space alone.

        So is each letter of Chinese, Japanese, Thai and other scripts that put no space between
        words. Marks and joiners go on with the word they stand in, though ``\\w`` has them not;
        what is no part of a word (`ldt.data.sentences.trimmed`) is left out at its edges, and
        parts words where it is no joiner.
        """
        places: list[list[int]] = []
        open_ = False  # marks came last, on a letter
        for piece in _PIECE.finditer(text):
            start, end = piece.span()
            if text[start] in SEPARATORS:
                continue
            mark = unicodedata.category(text[start])[0] in "MC"
            behind = bool(places) and places[-1][1] == start
            if behind and (mark or (open_ and _joins(text[start])) or _ties(text, start)):
                places[-1][1] = end
            else:
                places.append([start, end])
            open_ = mark and behind and (open_ or _joins(text[start - 1]))
        words = [trimmed(text, *place) for place in places]
        return cls(text, np.array([x for x in words if x[0] < x[1]], int).reshape(-1, 2))

    def located(self, offsets: np.ndarray) -> np.ndarray:
        """Return [words, 4] int64: number, first token, first character, the one behind the last.

        Words without a token of their own are left out: those that the tokenizer drops and, of
        given words, those that begin inside of a token. In raw text these go on with the word
        before, and numbers are of what is left.

        Args:
            offsets: [tokens, 2], the characters of each token.
        """
        tokens = real_tokens(offsets)
        starts, ends = offsets[tokens].T.astype(int)
        words: list[list[int]] = []
        first = np.searchsorted(ends, self.places[:, 0], side="right")
        for number, ((start, end), token) in enumerate(zip(self.places, first, strict=True)):
            if token == len(tokens) or starts[token] >= end:
                continue
            if starts[token] >= start:
                words.append([number, tokens[token], start, end])
            elif self.sizes is None and words:
                words[-1][3] = end
        located = np.array(words, int).reshape(-1, 4)
        if self.sizes is None:
            located[:, 0] = np.arange(len(located))
        return located


def cuts_word(text: str, start: int, end: int) -> bool:
    """Tell whether a span begins or ends between two letters or digits, which make one word."""
    return any(
        0 < border < len(text) and all(map(_joins, text[border - 1 : border + 1]))
        for border in (start, end)
    )


def _ties(text: str, place: int) -> bool:
    """Tell whether a joiner makes one emoji of the symbol there and what is before."""
    return text[place - 1] in JOINERS and unicodedata.category(text[place])[0] == "S"


def _joins(sign: str) -> bool:
    """Tell whether a character makes one word with such ones beside it: a letter or a digit."""
    return sign.isalnum() and not _LETTER_ALONE.match(sign)


def sentences(example: Example, path: str) -> tuple[list[list[str]], bool]:
    """A list of text as one sentence, or a list of such lists; and whether it is the latter.

    Raises:
        DataError: there is no such field, or something else in it.
    """
    value = field(example, path)
    nested = isinstance(value, list) and bool(value) and all(isinstance(x, list) for x in value)
    listed = value if nested else [value]
    for sentence in listed:
        wrong = [sentence]
        if isinstance(sentence, list):
            wrong = [item for item in sentence if not isinstance(item, str)]
        if wrong:
            raise DataError(
                f"{example.where}: field {path!r}: {kind(wrong[0])}, expected a list of text, or "
                "a list of sentences that are such lists"
            )
    return listed, nested


def spans(example: Example, path: str, text: str) -> list[Entity]:
    """The entities of a raw text, {start, end, label} each, as `trimmed`.

    Raises:
        DataError: there is no such field, an entity is of another form, outside of the text, not
            what its ``text`` says, or overlaps another.
    """
    value, entities = field(example, path), []
    here = f"{example.where}: field {path!r}"
    if not isinstance(value, list):
        raise DataError(f"{here} is {kind(value)}, expected a list of entities")
    for item in value:
        match item:
            case {"start": int(start), "end": int(end), "label": str(label)} if label:
                pass
            case _:
                raise DataError(
                    f"{here}: {str(item)[:60]}, expected an object with start, end and label"
                )
        words = text[max(start, 0) : max(end, 0)]
        if not 0 <= start < end <= len(text) or not bare(words):
            raise DataError(
                f"{here}: {label} from {start:,} to {end:,}: no words there; the text has "
                f"{len(text):,} characters"
            )
        if item.get("text", words) != words:
            raise DataError(
                f"{here}: {label} from {start:,} to {end:,} is {words[:40]!r}, not "
                f"{str(item['text'])[:40]!r}; places count characters, not bytes"
            )
        entities.append(Entity(*trimmed(text, start, end), label))
    entities.sort()
    for one, other in zip(entities, entities[1:], strict=False):
        if other.start < one.end:
            raise DataError(
                f"{here}: {one.label} from {one.start:,} to {one.end:,} and {other.label} from "
                f"{other.start:,} to {other.end:,} overlap; a word has one tag"
            )
    return entities
