"""Text to token ids of any length, without special tokens around or inside it."""

import re
from collections.abc import Iterator, Sequence

import numpy as np

from ldt.data.sentences import trimmed
from ldt.errors import ModelError

PIECE = 16_384  # characters tokenized at once
LONGEST_WORD = 262_144  # characters without a space that are still tokenized as one word
_LETTER = r"[\w!-~\u3001-\u303f\uff01-\uffef]"  # no tokenizer drops it or joins it to a space
_CUTS = [  # the best places to cut a text, before the space, and the next best ones
    re.compile(f"(?<={before}){space}(?={after})")
    for before, space, after in (("[!-~]", " ", "[!-~]"), (_LETTER, " ", _LETTER))
] + [re.compile(f"(?<={_LETTER})\n(?={_LETTER})")]


def tokenize(tokenizer, text: str) -> list[int]:
    """Return the ids of a text of any length, without special tokens around or inside it.

    A special token spelt out in the text ("</s>", "[SEP]") is read as the letters it is made of;
    a tokenizer whose vocabulary cannot spell it otherwise gives its unknown token.

    Long texts go through the tokenizer in pieces of some 16,000 characters, cut before a single
    space between two words (or, where there is none, a line end): byte-level BPE, WordPiece and
    SentencePiece models never have a token across it, so the ids are those of the whole text. Only
    a run of 262,144 characters without a space is cut inside, to bound the memory; the ids around
    that cut may differ.
    """
    return [token for part in token_parts(tokenizer, text) for token in part]


def token_parts(tokenizer, text: str) -> Iterator[list[int]]:
    """Yield what `tokenize` returns piece by piece, for texts whose list would be too long."""
    for piece in _pieces(text):
        yield _without_special(tokenizer, _encoded(tokenizer, piece, False)["input_ids"])


def tokenize_with_offsets(tokenizer, text: str) -> tuple[list[int], np.ndarray]:
    """Return the ids that `tokenize` gives, and where each token stands in the text.

    Returns:
        ids, and [tokens, 2] int32: the first character of each token and the one behind its last.
        What is no part of a word (`ldt.data.sentences.trimmed`) belongs to no token. Tokens that
        are parts of one character (an emoji as bytes) have that character's place all of them.

    Raises:
        ModelError: a tokenizer without a fast implementation, which has no offsets.
    """
    if not tokenizer.is_fast:
        raise ModelError(f"the tokenizer {tokenizer.name_or_path!r} has no offsets; a fast one has")
    ids, places, start = [], [], 0
    for piece in _pieces(text):
        found = _encoded(tokenizer, piece, True)
        ids += found["input_ids"]
        places += [(start + a, start + b) for a, b in found["offset_mapping"]]
        start += len(piece)
    words = [trimmed(text, *place) for place in places]
    return _without_special(tokenizer, ids), np.array(words, np.int32).reshape(-1, 2)


def tokenize_inside(tokenizer, text: str) -> tuple[list[int], np.ndarray]:
    """`tokenize_with_offsets` of a text as if a space stood in front of it.

    So a word at its beginning has the ids that it has inside of a longer text.
    """
    space = "" if not text or text[0].isspace() else " "
    ids, offsets = tokenize_with_offsets(tokenizer, space + text)
    return ids, np.maximum(offsets - len(space), 0)


def vocabulary_size(tokenizer) -> int:
    """One more than the largest id; a vocabulary may have gaps."""
    return max(tokenizer.get_vocab().values()) + 1


def special_id(tokenizer, role: str) -> int:
    """Return the id of "cls" (else bos), "sep" (else eos), "pad" or "mask".

    Raises:
        ModelError: the tokenizer has none.
    """
    for name in {"cls": ("cls", "bos"), "sep": ("sep", "eos")}.get(role, (role,)):
        found = getattr(tokenizer, f"{name}_token_id")
        if found is not None:
            return found
    raise ModelError(f"the tokenizer {tokenizer.name_or_path!r} has no {role} token")


def marker_ids(tokenizer, tokens: Sequence[str]) -> list[int]:
    """Return the ids of a task's own special tokens (`Task.new_tokens`).

    Raises:
        ModelError: the vocabulary lacks one.
    """
    known = tokenizer.get_vocab()
    for token in tokens:
        if token not in known:
            raise ModelError(
                f"the tokenizer {tokenizer.name_or_path!r} has no token {token}; fine-tuning for "
                "the task adds it"
            )
    return [known[token] for token in tokens]


def _encoded(tokenizer, piece: str, offsets: bool):
    return tokenizer(
        piece,
        add_special_tokens=False,
        split_special_tokens=True,
        return_attention_mask=False,
        return_token_type_ids=False,
        return_offsets_mapping=offsets,
        verbose=False,  # no warning that the text is longer than the model
    )


def _without_special(tokenizer, ids: list[int]) -> list[int]:
    unknown = tokenizer.unk_token_id
    special = set(tokenizer.all_special_ids) - {unknown}
    if special.isdisjoint(ids):
        return ids
    return [unknown if token in special else token for token in ids]


def _pieces(text: str) -> Iterator[str]:
    start = 0
    while len(text) - start > PIECE:
        end = _cut(text, start)
        yield text[start:end]
        start = end
    if start < len(text):
        yield text[start:]


def _cut(text: str, start: int) -> int:
    """The end of the piece from ``start`` on: before white space, which the next one has."""
    for space in _CUTS:
        cuts = [found.start() for found in space.finditer(text, start + 1, start + PIECE)]
        if cuts:
            return cuts[-1]
    limit = min(start + LONGEST_WORD, len(text))
    for space in _CUTS:
        found = space.search(text, start + PIECE, limit)
        if found:
            return found.start()
    return limit
