"""Masked language modelling: some tokens of a text are hidden, the model finds them again."""

import json
import math
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from ldt.errors import RecipeError
from ldt.tasks.tokens import special_id, vocabulary_size

# Of the chosen tokens: hidden behind the mask token, and replaced by a random one; the rest stay
# as they are. Devlin et al. 2019 (arXiv:1810.04805), section 3.1.
HIDDEN, RANDOM = 0.8, 0.1
NO_LABEL = -100  # losses ignore it


class MaskedLM(BaseModel):
    """Pretraining on plain text: 15 % of the tokens are predicted from the text around them.

    Masks are drawn anew in every epoch. Special tokens are never chosen.

    Args:
        global_attention: ``[cls]`` gives the first token of every row global attention and trains
            its projections; without, they become copies of the local ones when training is over,
            as in the paper.
        mask_fraction: expected share of the tokens that are chosen.
        whole_words: choose all tokens of a word or none.
        trainable: ``all``, or only the ``positions`` behind the source's; all else is frozen.
        source_length: of the model that was made longer, in tokens, for ``positions``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    command: ClassVar[str] = "pretrain"
    roles: ClassVar[tuple[str, ...]] = ("cls",)
    lower_is_better: ClassVar[frozenset[str]] = frozenset(
        {"loss", "bits_per_token", "bits_per_byte", "perplexity"}
    )
    label_names: ClassVar[tuple[str, ...]] = ("labels",)

    name: Literal["mlm"] = "mlm"
    global_attention: list[Literal["cls"]] = []
    mask_fraction: float = Field(0.15, gt=0, lt=1)
    whole_words: bool = False
    trainable: Literal["all", "positions"] = "all"
    source_length: int | None = Field(None, ge=1)

    @model_validator(mode="after")
    def _positions(self):
        if (self.trainable == "positions") != (self.source_length is not None):
            raise ValueError("trainable: positions and source_length go together")
        return self

    def head(self) -> type:
        from ldt.model import LdtForMaskedLM

        return LdtForMaskedLM

    def masker(self, tokenizer) -> "Masker":
        """What draws the masks."""
        return Masker(tokenizer, self.mask_fraction, self.whole_words)


class Masker:
    """Chooses tokens to predict, and hides them.

    Args:
        tokenizer: a fast one, with a mask token.
        fraction: expected share of the tokens that are chosen.
        whole_words: choose all tokens of a word or none.

    Raises:
        RecipeError: ``whole_words`` with a tokenizer that marks neither the beginnings nor the
            rest of words.
        ModelError: a tokenizer without a mask token.
    """

    def __init__(self, tokenizer, fraction: float = 0.15, whole_words: bool = False):
        self.fraction = fraction
        self.mask = special_id(tokenizer, "mask")
        known = sorted(tokenizer.get_vocab().values())
        self.special = np.zeros(vocabulary_size(tokenizer), bool)
        self.special[tokenizer.all_special_ids] = True
        self.plain = np.setdiff1d(known, tokenizer.all_special_ids)  # random tokens are of these
        self.joins = word_joins(tokenizer) if whole_words else None

    def __call__(self, ids: np.ndarray, generator: np.random.Generator):
        """Draw a mask.

        Args:
            ids: [n] whole numbers.

        Returns:
            What the model reads, and the labels, -100 where there is none: both [n] int64.
        """
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


def word_joins(tokenizer) -> tuple[np.ndarray, np.ndarray]:
    """Whether each entry of a vocabulary can go on a word, and whether a word can go on behind it.

    Two neighbours belong to one word where both is so. WordPiece says it by its ``##``; entries of
    byte-level BPE and SentencePiece go on a word where they begin with a letter or digit instead
    of the mark of a space, behind one that ends with a letter or digit or is a space.

    Returns:
        Two arrays [vocabulary] of bool.

    Raises:
        RecipeError: a tokenizer of another kind.
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
    """Types of a tokenizer's decoders."""
    if decoder is None:
        return set()
    return {decoder["type"]}.union(*map(_kinds, decoder.get("decoders", ())))


def _in_word(letter: str) -> bool:
    """Whether a letter, a digit, or a part of a letter, which decodes to the replacement sign."""
    return letter.isalnum() or letter == "\ufffd"


def figures(nats: float, masked: int, tokens: int, size: int) -> dict[str, float]:
    """What is reported of a masked LM.

    Args:
        nats: sum of the cross-entropy over the predicted tokens.
        masked: their number.
        tokens, size: tokens of the whole text without special ones, and its bytes in UTF-8.

    Returns:
        ``loss``: nats per predicted token, the mean; ``bits_per_token``: the same in bits (what
        the paper calls BPC); ``bits_per_byte``: bits per token, times tokens per byte of the text;
        ``perplexity``: e to the loss. They say how well a token is told from the others around it,
        of both sides; a text cannot be stored in so few bits.
    """
    loss = nats / max(masked, 1)
    bits = loss / math.log(2)
    return {
        "loss": loss,
        "bits_per_token": bits,
        "bits_per_byte": bits * tokens / max(size, 1),
        "perplexity": math.exp(min(loss, 700.0)),
    }
