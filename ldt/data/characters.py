"""Character and byte vocabularies, and the training inputs of a character model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from ldt.data.features import Feature
from ldt.data.options import CharacterSection
from ldt.errors import DataError, ModelError, RecipeError
from ldt.io.streams import DAMAGE, open_source

NO_LABEL = -100  # losses ignore it
CHUNK = 1 << 24  # bytes decoded at a time


@dataclass(frozen=True)
class Alphabet:
    """Vocabulary of a character model, in the order of the ids.

    Args:
        letters: the characters by code point; None stands for the 256 bytes.
    """

    letters: str | None

    @classmethod
    def of_text(cls, raw: bytes, name: str, vocabulary: str) -> Alphabet:
        """Build the vocabulary of a text.

        Args:
            raw: the text, in UTF-8.
            name: name of its file, for messages.
            vocabulary: ``characters`` for those that the text has, or ``bytes`` for all 256.

        Raises:
            DataError: the text is empty or no UTF-8 (``characters`` only).
        """
        if vocabulary == "bytes":
            return cls(None)
        seen = set()
        for points in _code_points(raw, name):
            seen.update(np.unique(points).tolist())
        if not seen:
            raise DataError(f"{name}: empty, there is no text in it")
        return cls("".join(map(chr, sorted(seen))))

    @classmethod
    def of_tokenizer(cls, tokenizer: PreTrainedTokenizerBase, name: str | Path) -> Alphabet:
        """Read the vocabulary from a tokenizer made by `Alphabet.tokenizer`.

        Args:
            tokenizer: tokenizer of a model folder.
            name: name of the folder, for messages.

        Raises:
            ModelError: it is another kind of tokenizer.
        """
        entries = tokenizer.get_vocab()
        backend = getattr(tokenizer, "backend_tokenizer", None)
        of_bytes = backend is not None and isinstance(backend.decoder, decoders.ByteLevel)
        alphabet = cls(None if of_bytes else "".join(sorted(entries, key=entries.__getitem__)))
        if not 0 < len(alphabet) == len(tokenizer):
            raise ModelError(f"{name}: the tokenizer is none of characters or bytes")
        return alphabet

    @property
    def unit(self) -> str:
        """Name of what an id stands for: ``byte`` or ``character``."""
        return "byte" if self.letters is None else "character"

    def __len__(self) -> int:
        return 256 if self.letters is None else len(self.letters)

    def encode(self, raw: bytes, name: str) -> np.ndarray:
        """Ids of a text in UTF-8, [n], in the smallest integer type that holds them.

        Raises:
            DataError: a character is not in the vocabulary, or it is no UTF-8; ``name`` begins the
                message.
        """
        if self.letters is None:
            return np.frombuffer(raw, np.uint8)
        points = np.array([ord(letter) for letter in self.letters])
        ids = np.full(0x110000, -1, np.int32)
        ids[points] = np.arange(len(points))
        parts = []
        for codes in _code_points(raw, name):
            part = ids[codes]
            unknown = np.flatnonzero(part < 0)
            if len(unknown):
                letter = chr(int(codes[unknown[0]]))
                raise DataError(
                    f"{name}: the character {letter!r} (U+{ord(letter):04X}) is none of the "
                    f"{len(self)} of the training text; task.vocabulary=bytes knows all text"
                )
            parts.append(part.astype(np.min_scalar_type(len(points) - 1)))
        return np.concatenate(parts) if parts else np.empty(0, np.uint8)

    def bytes_of(self, ids: np.ndarray) -> int:
        """Length in UTF-8 bytes of the text with these ids."""
        if self.letters is None:
            return len(ids)
        sizes = np.array([len(letter.encode(errors="surrogatepass")) for letter in self.letters])
        return int(np.bincount(ids, minlength=len(sizes)) @ sizes)

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """A transformers tokenizer with this vocabulary, without special tokens."""
        if self.letters is None:
            # ByteLevel writes each byte as a letter, in this order.
            letters = [chr(byte) for byte in range(256)]
            plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
            others = [byte for byte in range(256) if byte not in plain]
            for place, byte in enumerate(others):
                letters[byte] = chr(256 + place)
            model = models.BPE({letter: byte for byte, letter in enumerate(letters)}, [])
            inner = Tokenizer(model)
            inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
            inner.decoder = decoders.ByteLevel()
        else:
            vocabulary = {letter: number for number, letter in enumerate(self.letters)}
            inner = Tokenizer(models.WordLevel(vocabulary, unk_token=""))
            inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
            inner.decoder = decoders.Fuse()
        return PreTrainedTokenizerFast(
            tokenizer_object=inner, clean_up_tokenization_spaces=False, model_max_length=1 << 30
        )


def read_text(names: str | Sequence[str]) -> bytes:
    """Concatenated bytes of one or several files, decompressed; DataError if one is damaged."""
    parts = []
    for name in [names] if isinstance(names, str) else names:
        with open_source(name) as file:
            try:
                parts.append(file.stream.read())
            except DAMAGE as error:
                raise DataError(f"{file.name}: {file.damaged(error)}") from error
    return b"".join(parts)


def part_texts(
    data: CharacterSection, alphabet: Alphabet | str
) -> tuple[Alphabet, dict[str, np.ndarray]]:
    """Read and encode the parts of a text: ``train``, ``eval`` and ``test``.

    The latter two are files, or the shares ``eval_fraction`` and ``test_fraction`` at the end of
    the training text, or left out.

    Args:
        data: data section of the recipe.
        alphabet: vocabulary of a model, or ``characters`` or ``bytes`` to build one from the
            training text.

    Returns:
        The vocabulary, and {part: [n] ids}.

    Raises:
        RecipeError: ``data.train`` is missing.
        DataError: a part is shorter than 2, or has a character that the vocabulary lacks.
    """
    if data.train is None:
        raise RecipeError("data.train: missing, expected a file or a list of files")
    raw, name = read_text(data.train), str(data.train)
    if isinstance(alphabet, str):
        alphabet = Alphabet.of_text(raw, name, alphabet)
    ids = alphabet.encode(raw, name)
    total, parts = len(ids), {}
    for part in ("test", "eval"):  # from the end of the text
        source, fraction = getattr(data, part), getattr(data, f"{part}_fraction")
        if source is not None:
            parts[part] = alphabet.encode(read_text(source), str(source))
        elif fraction is not None:
            end = len(ids) - round(fraction * total)
            ids, parts[part] = ids[:end], ids[end:]
    parts["train"] = ids
    for part, texts in parts.items():
        if len(texts) < 2:
            raise DataError(
                f"{getattr(data, part) or data.train}: {len(texts)} {alphabet.unit}s to {part} on, "
                "2 are needed"
            )
    return alphabet, dict(reversed(parts.items()))


def _code_points(raw: bytes, name: str):
    start = 0
    while start < len(raw):
        end = min(start + CHUNK, len(raw))
        while end < len(raw) and raw[end] & 0xC0 == 0x80:  # inside of a character
            end += 1
        part = raw[start:end]
        if part.isascii():
            yield np.frombuffer(part, np.uint8)
        else:
            try:
                text = part.decode()
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{name}: not UTF-8 at byte {start + error.start:,}; "
                    "task.vocabulary=bytes reads text in any encoding"
                ) from None
            yield np.frombuffer(text.encode("utf-32-le"), np.uint32)
        start = end


class Stretches(Sequence[Feature]):
    """Training text cut into sequences of one length, with other cut points in every epoch.

    Cut points depend only on the seed and the epoch, so a resumed run sees the same sequences.

    Args:
        ids: [n] of the text, at least 2.
        length: length of a sequence; capped at that of the text.
        seed: seed of the run.
    """

    def __init__(self, ids: np.ndarray, length: int, seed: int):
        self.ids, self.length, self.seed = ids, min(length, len(ids)), seed
        self._count = max(1, (len(ids) - self.length + 1) // self.length)
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which the cut points depend on; the Trainer's data loader calls it."""
        spare = min(len(self.ids) - self._count * self.length, self.length - 1)
        generator = np.random.default_rng((self.seed, epoch))
        self._first = int(generator.integers(spare + 1))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Feature:  # type: ignore[override]  # no slices
        """Return input_ids and labels [length]; every character but the first is predicted."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        start = self._first + index * self.length
        return _piece(self.ids, start, start + self.length, start + 1, index)


@dataclass(eq=False)
class Overlapping(Sequence[Feature]):
    """Evaluation text as overlapping sequences, so that characters are predicted from a long
    context.

    The first sequence scores all characters but the first, each further one its last ``step``; so
    every character except the text's first is scored exactly once.

    Args:
        ids: [n] of the text, at least 2.
        length: length of a sequence.
        step: scored characters of a sequence, fewer than ``length``.

    Source: Beltagy et al. 2020 (arXiv:2004.05150), section 4.2: sequences of 32,256, a step of 512.
    """

    ids: np.ndarray
    length: int
    step: int

    def __len__(self) -> int:
        return 1 + -(-max(len(self.ids) - self.length, 0) // self.step)

    def __getitem__(self, index: int) -> Feature:  # type: ignore[override]  # no slices
        """Return input_ids and labels [length]; labels are -100 where nothing is scored."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        scored = self.length + (index - 1) * self.step if index else 1
        end = min(self.length + index * self.step, len(self.ids))
        return _piece(self.ids, max(0, end - self.length), end, scored, index)


def _piece(ids: np.ndarray, start: int, end: int, scored: int, number: int) -> Feature:
    shown = ids[start:end].astype(np.int64)
    labels = shown.copy()
    labels[: scored - start] = NO_LABEL
    return {"input_ids": shown, "labels": labels, "document": number}
