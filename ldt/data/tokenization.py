"""Tokenization of texts of any length, without special tokens."""

import json
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from tokenizers import AddedToken, Tokenizer

from ldt.data.sentences import trimmed
from ldt.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PIECE = 16_384  # characters tokenized at once
LONGEST_WORD = 262_144  # characters without a space that are still tokenized as one word
TASK_TOKENS = "ldt_task_tokens"  # key of tokenizer_config.json: special tokens that no text spells
_ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
_LETTER = r"[\w!-~\u3001-\u303f\uff01-\uffef]"  # no tokenizer drops it or joins it to a space
_CUTS = [  # the best places to cut a text, before the space, and the next best ones
    re.compile(f"(?<={before}){space}(?={after})")
    for before, space, after in (("[!-~]", " ", "[!-~]"), (_LETTER, " ", _LETTER))
] + [re.compile(f"(?<={_LETTER})\n(?={_LETTER})")]


def tokenize(tokenizer: "PreTrainedTokenizerBase", text: str) -> list[int]:
    """Token ids of a text of any length, without special tokens.

    Special tokens of the model or of a task that occur in the text ("</s>", "[SEP]", "[SPAN]") are
    tokenized as plain letters, or as the unknown token if the vocabulary cannot spell them. Tokens
    that the user added to the vocabulary, special ones included ("[E1]"), are recognised.

    Long texts are tokenized in pieces of about 16,000 characters, cut before a single space between
    words, or else at a line end. Byte-level BPE, WordPiece and SentencePiece have no token across
    such a place, so the ids equal those of the whole text. Only a run of 262,144 characters without
    white space is cut inside, to bound memory; ids near that cut may differ.
    """
    return [token for part in token_parts(tokenizer, text) for token in part]


def token_parts(tokenizer: "PreTrainedTokenizerBase", text: str) -> Iterator[list[int]]:
    """Yield the ids of `tokenize` as one list for each piece of about 16,000 characters."""
    added = _added(tokenizer, len(tokenizer))
    for piece in _pieces(text, added.pattern):
        yield _without_special(tokenizer, _encoded(tokenizer, piece, False)["input_ids"], added)


def tokenize_with_offsets(
    tokenizer: "PreTrainedTokenizerBase", text: str
) -> tuple[list[int], np.ndarray]:
    """Token ids of a text as `tokenize` gives them, and the characters of each token.

    Returns:
        ids, and [tokens, 2] int32: start and end in characters, end exclusive. Characters outside
            words (`ldt.data.sentences.trimmed`) belong to no token. Tokens that are parts of one
            character (an emoji as bytes) all get that character's offsets.

    Raises:
        ModelError: the tokenizer is not a fast one.
    """
    if not tokenizer.is_fast:
        raise ModelError(f"the tokenizer {tokenizer.name_or_path!r} has no offsets; a fast one has")
    ids, places, start = [], [], 0
    added = _added(tokenizer, len(tokenizer))
    for piece in _pieces(text, added.pattern):
        encoded = _encoded(tokenizer, piece, True)
        ids += encoded["input_ids"]
        places += [(start + a, start + b) for a, b in encoded["offset_mapping"]]
        start += len(piece)
    words = [trimmed(text, *place) for place in places]
    return _without_special(tokenizer, ids, added), np.array(words, np.int32).reshape(-1, 2)


def tokenize_inside(
    tokenizer: "PreTrainedTokenizerBase", text: str
) -> tuple[list[int], np.ndarray]:
    """Token ids of a text as if a space preceded it, so that its first word gets the ids it has
    inside a longer text; and the characters [tokens, 2] of each token, counted without that
    space."""
    space = "" if not text or text[0].isspace() else " "
    ids, offsets = tokenize_with_offsets(tokenizer, space + text)
    return ids, np.maximum(offsets - len(space), 0)


def vocabulary_size(tokenizer: "PreTrainedTokenizerBase") -> int:
    """Largest id plus one, added tokens included; a vocabulary may have gaps."""
    return max(tokenizer.get_vocab().values()) + 1


def special_id(tokenizer: "PreTrainedTokenizerBase", role: str) -> int:
    """Id of the token "cls" (else bos), "sep" (else eos), "pad" or "mask"; ModelError if there is
    none."""
    for name in {"cls": ("cls", "bos"), "sep": ("sep", "eos")}.get(role, (role,)):
        token_id = getattr(tokenizer, f"{name}_token_id")
        if token_id is not None:
            return token_id
    raise ModelError(f"the tokenizer {tokenizer.name_or_path!r} has no {role} token")


@lru_cache(2)
def numbers_pairs(tokenizer: "PreTrainedTokenizerBase") -> bool:
    """True if the tokenizer gives the second of two texts the token type 1."""
    return 1 in tokenizer("a", "b", return_token_type_ids=True)["token_type_ids"]


def pair_separators(tokenizer: "PreTrainedTokenizerBase") -> int:
    """Number of separators that the tokenizer puts between two texts, at least 1."""
    return max(tokenizer.num_special_tokens_to_add(pair=True) - 2, 1)


def add_tokens(tokenizer: "PreTrainedTokenizerBase", tokens: Sequence[str]) -> list[int]:
    """Add special tokens for a task to a tokenizer, and return the ids of those that it did not
    have. Text never tokenizes to them: the tokenizer records all of them as tokens of a task,
    which its tokenizer_config.json keeps. Existing tokens keep their ids."""
    known = tokenizer.get_vocab()
    remembered = [*_task_tokens(tokenizer), *tokens]
    if remembered:
        tokenizer.init_kwargs[TASK_TOKENS] = list(dict.fromkeys(remembered))
    new = [token for token in tokens if token not in known]
    tokenizer.add_tokens([AddedToken(token, special=True) for token in new], special_tokens=True)
    return tokenizer.convert_tokens_to_ids(new) if new else []  # type: ignore[return-value]


def marker_ids(tokenizer: "PreTrainedTokenizerBase", tokens: Sequence[str]) -> list[int]:
    """Ids of a task's special tokens, in order; ModelError if the tokenizer lacks one."""
    ids = tokenizer.convert_tokens_to_ids(list(tokens))  # one look-up each, in a call per document
    for token, number in zip(tokens, ids, strict=True):  # type: ignore[arg-type]
        if number in (None, tokenizer.unk_token_id):
            raise ModelError(
                f"the tokenizer {tokenizer.name_or_path!r} has no token {token}; fine-tuning for "
                "the task adds it"
            )
    return ids  # type: ignore[return-value]


def _task_tokens(tokenizer) -> list[str]:
    tokens = tokenizer.init_kwargs.get(TASK_TOKENS)
    return [x for x in tokens if isinstance(x, str)] if isinstance(tokens, list) else []


class _Added(NamedTuple):
    """Tokens that a user added: the ids of the special ones, a tokenizer that treats these as plain
    tokens, and a pattern of all with the white space around them; None if there are none."""

    ids: frozenset[int] = frozenset()
    reader: Tokenizer | None = None
    pattern: re.Pattern | None = None


@lru_cache(4)
def _added(tokenizer, size: int) -> _Added:
    """Added tokens of a tokenizer: its extra special tokens, and those beyond the vocabulary and
    the model's special tokens, but not those of tasks."""
    if not tokenizer.is_fast:
        return _Added()
    backend, tokens = tokenizer.backend_tokenizer, tokenizer.added_tokens_decoder
    roles = {getattr(tokenizer, f"{role}_token_id") for role in _ROLES} - {None}
    last = max((backend.get_vocab_size(with_added_tokens=False) - 1, *roles))
    extra = set(map(str, tokenizer.extra_special_tokens))
    hidden = set(_task_tokens(tokenizer))
    ids = frozenset(
        number
        for number, token in tokens.items()
        if token.special and number not in roles and token.content not in hidden
        if number > last or token.content in extra
    )
    read = [
        x.content for n, x in tokens.items() if (n in ids or not x.special) and x.content.strip()
    ]
    pattern = re.compile(rf"\s*(?:{'|'.join(map(re.escape, read))})\s*") if read else None
    if not ids:
        return _Added(pattern=pattern)
    values = json.loads(backend.to_str())
    for token in values["added_tokens"]:
        token["special"] = token["special"] and token["id"] not in ids
    reader = Tokenizer.from_str(json.dumps(values))
    reader.encode_special_tokens = True
    reader.no_truncation()
    reader.no_padding()
    return _Added(ids, reader, pattern)


def _encoded(tokenizer, piece: str, offsets: bool) -> Any:
    reader = _added(tokenizer, len(tokenizer)).reader
    if reader is not None:
        encoding = reader.encode(piece, add_special_tokens=False)
        return {"input_ids": encoding.ids, "offset_mapping": encoding.offsets}
    return tokenizer(
        piece,
        add_special_tokens=False,
        split_special_tokens=True,
        return_attention_mask=False,
        return_token_type_ids=False,
        return_offsets_mapping=offsets,
        verbose=False,  # no warning that the text is longer than the model
    )


def _without_special(tokenizer, ids: list[int], added: _Added) -> list[int]:
    unknown = tokenizer.unk_token_id
    special = set(tokenizer.all_special_ids) - {unknown} - added.ids
    if special.isdisjoint(ids):
        return ids
    return [unknown if token in special else token for token in ids]


def _pieces(text: str, added: re.Pattern | None = None) -> Iterator[str]:
    start = 0
    while len(text) - start > PIECE:
        end = _cut(text, start, added)
        yield text[start:end]
        start = end
    if start < len(text):
        yield text[start:]


def _cut(text: str, start: int, added: re.Pattern | None) -> int:
    """End of the piece that begins at ``start``: before white space, and not in or behind an added
    token."""
    limit = min(start + LONGEST_WORD, len(text))
    taken = added.finditer(text, start, limit) if added else ()
    inside = {place for match in taken for place in range(match.start() + 1, match.end())}

    def cuts(first: int, last: int) -> Iterator[list[int]]:
        for space in _CUTS:
            places = (match.start() for match in space.finditer(text, first, last))
            yield [place for place in places if place not in inside]

    for places in cuts(start + 1, start + PIECE):
        if places:
            return places[-1]
    for places in cuts(start + PIECE, limit):
        if places:
            return places[0]
    return limit
