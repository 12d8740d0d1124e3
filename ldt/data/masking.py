"""Token masking for masked language modelling."""

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from ldt.data.tokenization import special_id, vocabulary_size
from ldt.errors import RecipeError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Of the chosen tokens: hidden behind the mask token, and replaced by a random one; the rest stay
# as they are. Devlin et al. 2019 (arXiv:1810.04805), section 3.1.
HIDDEN, RANDOM = 0.8, 0.1
NO_LABEL = -100  # losses ignore it


class Masker:
    """Choose tokens to predict and replace them.

    Args:
        tokenizer: fast tokenizer with a mask token.
        fraction: expected share of chosen tokens.
        whole_words: True chooses all tokens of a word or none.

    Raises:
        RecipeError: ``whole_words`` with a tokenizer that does not mark word beginnings or
            continuations.
        ModelError: the tokenizer has no mask token.
    """

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        fraction: float = 0.15,
        whole_words: bool = False,
    ):
        self.fraction = fraction
        self.mask = special_id(tokenizer, "mask")
        known = sorted(tokenizer.get_vocab().values())
        self.special = np.zeros(vocabulary_size(tokenizer), bool)
        self.special[tokenizer.all_special_ids] = True
        self.plain = np.setdiff1d(known, tokenizer.all_special_ids)  # random tokens are of these
        self.joins = word_joins(tokenizer) if whole_words else None

    def __call__(self, ids: np.ndarray, generator: np.random.Generator):
        """Draw a mask for ids [n]: the model's input ids, and the labels with -100 for tokens not
        predicted, both [n] int64."""
        ids = ids.astype(np.int64)
        if self.joins is None:
            chosen = generator.random(len(ids)) < self.fraction
        else:
            opens, closes = self.joins
            inside = np.zeros(len(ids), bool)
            inside[1:] = opens[ids[1:]] & closes[ids[:-1]]
            word = np.cumsum(~inside) - 1
            chosen = (generator.random(len(ids)) < self.fraction)[word]
        chosen &= ~self.special[ids]
        fate = generator.random(len(ids))
        random = self.plain[generator.integers(len(self.plain), size=len(ids))]
        shown = np.where(fate < HIDDEN, self.mask, np.where(fate < HIDDEN + RANDOM, random, ids))
        return np.where(chosen, shown, ids), np.where(chosen, ids, NO_LABEL)


def word_joins(tokenizer: "PreTrainedTokenizerBase") -> tuple[np.ndarray, np.ndarray]:
    """Entries [vocabulary] that can continue a word, and those after which a word can go on, both
    bool.

    Two neighbouring tokens belong to one word if both hold. WordPiece marks continuations by
    ``##``. In byte-level BPE and SentencePiece a token continues a word if it begins with a letter
    or digit instead of the space mark, after a token that ends with a letter or digit or is a
    space. Another kind of tokenizer is a RecipeError. Special tokens are False in both.
    """
    kinds = _kinds(json.loads(tokenizer.backend_tokenizer.to_str()).get("decoder"))
    opens, closes = np.zeros((2, vocabulary_size(tokenizer)), bool)
    special = set(tokenizer.all_special_ids)
    for text, number in tokenizer.get_vocab().items():
        if number in special:
            continue
        if "WordPiece" in kinds:
            opens[number], closes[number] = text.startswith("##"), True
        elif "ByteLevel" in kinds:
            letters = tokenizer.convert_tokens_to_string([text])
            opens[number] = _in_word(letters[:1])
            closes[number] = letters == " " or _in_word(letters[-1:])
        elif "Metaspace" in kinds:
            opens[number] = _in_word(text[:1])
            closes[number] = text == "▁" or _in_word(text[-1:])
        else:
            raise RecipeError(
                "task: whole_words: the tokenizer marks no words; WordPiece, byte-level BPE and "
                "SentencePiece do"
            )
    return opens, closes


def _kinds(decoder: dict[str, Any] | None) -> set[str]:
    if decoder is None:
        return set()
    return {decoder["type"]}.union(*map(_kinds, decoder.get("decoders", ())))


def _in_word(letter: str) -> bool:
    """True for a letter, a digit, or a partial character (decoded to the replacement character)."""
    return letter.isalnum() or letter == "\ufffd"
