"""Near-duplicate documents, found by MinHash sketches on disk with locality-sensitive hashing."""

from __future__ import annotations

import hashlib
import logging
import re
from contextlib import ExitStack
from tempfile import TemporaryFile
from typing import IO

import numpy as np

log = logging.getLogger("ldt")

SHINGLE = 3  # words; a changed word changes three shingles
ROWS, BANDS = 4, 48  # of a sketch: two documents meet where the four numbers of a band are equal
LEAST_WORDS = 20  # of fewer, a few words in common are no copy
ALIKE = 0.45  # Jaccard similarity; of three shingles 0.57 are left where a tenth of words is new
LONGEST = 1 << 20  # characters of a document that are compared
MOST_PAIRS = 8_000_000  # candidates, 64 MB

_BATCH = 1 << 20  # characters sketched at once
_FACTORS = np.random.default_rng(0).integers(0, 2**64, (64,), np.uint64) | np.uint64(1)
_MULTIPLY, _ADD = np.random.default_rng(1).integers(0, 2**32, (2, ROWS * BANDS), np.uint32)
_MULTIPLY |= np.uint32(1)
_IN_WORD = np.array([chr(c).isalnum() or c >= 128 for c in range(256)])
_ALONE = re.compile("([\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff])")  # no spaces there


def normalised(text: str) -> str:
    """Lower-cased text with single spaces, so that copies differing only in these compare equal."""
    return " ".join(text.casefold().split())


def fingerprint(text: str) -> int:
    """64-bit hash of a text's exact content, from 0 to 2 ** 64 - 1."""
    digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


class Sketches:
    """MinHash sketches of documents in temporary files, for finding near-duplicates.

    A sketch holds the minimum of the document's shingles under each of 192 permutations (Broder
    1997), 16 bits each (Li and König 2010). The share of equal entries estimates the Jaccard
    similarity of two documents with a standard deviation of 0.04. It takes 384 bytes per document
    on disk; only one band is held in memory. Words are compared in lower case without punctuation.

    Use it as a context manager; the files are removed at its end.
    """

    def __init__(self) -> None:
        self._waiting: list[bytes] = []
        self._size = 0
        self._has: list[np.ndarray] = []

    def __enter__(self) -> Sketches:
        self._stack = ExitStack()
        self._bands: list[IO[bytes]] = [
            self._stack.enter_context(TemporaryFile(prefix="ldt-"))  # noqa: SIM115
            for _ in range(BANDS)
        ]
        return self

    def __exit__(self, *error) -> None:
        self._stack.close()

    def add(self, text: str) -> None:
        """Sketch the next document, by its first 2 ** 20 characters; documents are numbered from 0
        on."""
        text = text[:LONGEST].lower()
        if not text.isascii():
            text = _ALONE.sub(r" \1 ", text)
        self._waiting.append(text.encode(errors="replace"))
        self._size += len(text)
        if self._size >= _BATCH:
            self._flush()

    def pairs(self, chosen: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Find documents that are near-duplicates of an earlier one.

        In a group of similar documents not every pair is found, but each document with another one.
        Documents of fewer than 20 words are in no pair. Logs a warning if too many are alike to
        compare all.

        Args:
            chosen: [documents] bool, documents to compare; None compares all.

        Returns:
            Numbers of the earlier and of the later document of each pair, [pairs] int64 each, and
                their similarity [pairs], from 0.45 (`ALIKE`) to 1.
        """
        self._flush()
        has = np.concatenate([*self._has, np.zeros(0, bool)])
        numbers = np.flatnonzero(has if chosen is None else has & chosen)
        pairs_met = np.zeros(0, np.int64)
        for band in range(BANDS):
            pairs_met = np.union1d(pairs_met, _meetings(self._keys(band)[numbers]))
            if len(pairs_met) > MOST_PAIRS:
                log.warning("near duplicates: too many documents are alike, not all are compared")
                break
        first, second = np.divmod(pairs_met, max(len(numbers), 1))
        equal = np.zeros(len(pairs_met), np.int16)
        for band in range(BANDS):
            keys = self._keys(band)[numbers].view(np.uint16).reshape(-1, ROWS)
            equal += (keys[first] == keys[second]).sum(1, dtype=np.int16)
        similarity = equal / (ROWS * BANDS)
        near = similarity >= ALIKE
        return numbers[first[near]], numbers[second[near]], similarity[near]

    def _keys(self, band: int) -> np.ndarray:
        self._bands[band].seek(0)
        return np.frombuffer(self._bands[band].read(), np.uint64)

    def _flush(self) -> None:
        if not self._waiting:
            return
        shingles, borders, has = _shingles(self._waiting)
        keys = np.zeros((len(has), ROWS * BANDS), np.uint16)
        if has.any():
            keys[has] = _least(shingles, borders)
        for band, file in enumerate(self._bands):
            file.write(keys[:, band * ROWS : (band + 1) * ROWS].tobytes())
        self._has.append(has)
        self._waiting, self._size = [], 0


def _meetings(keys: np.ndarray) -> np.ndarray:
    """Pairs of positions with equal keys, as first * len(keys) + second: each position with the
    first of its key and with the previous one.
    """
    order = np.argsort(keys, kind="stable")
    same = np.flatnonzero(keys[order][1:] == keys[order][:-1]) + 1
    begins = np.ones(len(keys), bool)
    begins[same] = False
    first = np.maximum.accumulate(np.where(begins, np.arange(len(keys)), 0))
    ends = np.concatenate([order[first[same]], order[same - 1]]) * len(keys)
    return np.unique(ends + np.tile(order[same], 2))


def _shingles(texts: list[bytes]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Hashes of all shingles of the documents, [shingles] uint32; the start of each document that
    has enough words; and [documents] bool, True for these documents."""
    letters = np.frombuffer(b"\n".join([*texts, b""]), np.uint8)
    inside = _IN_WORD[letters]
    edges = np.diff(inside, prepend=False, append=False)
    starts, ends = np.flatnonzero(edges).reshape(-1, 2).T
    sizes = ends - starts
    offsets = np.cumsum(sizes) - sizes  # of each word in the letters of all words
    places = np.arange(sizes.sum()) - np.repeat(offsets, sizes)
    values = letters[inside].astype(np.uint64) * _FACTORS[places % len(_FACTORS)]
    words = mixed(np.add.reduceat(values, offsets)) if len(offsets) else values
    lengths = np.array([len(text) + 1 for text in texts])
    counts = np.diff(np.searchsorted(starts, np.cumsum(lengths)), prepend=0)
    has = counts >= LEAST_WORDS
    if not has.any():
        return np.zeros(0, np.uint32), np.zeros(0, int), has
    document = np.repeat(np.arange(len(texts)), counts)
    hashed = np.zeros(len(words) - SHINGLE + 1, np.uint64)
    for place in range(SHINGLE):
        hashed += words[place : place + len(hashed)] * _FACTORS[place]
    whole = (document[: len(hashed)] == document[SHINGLE - 1 :]) & has[document[: len(hashed)]]
    each = counts[has] - SHINGLE + 1
    return (mixed(hashed)[whole] >> np.uint64(32)).astype(np.uint32), np.cumsum(each) - each, has


def _least(shingles: np.ndarray, borders: np.ndarray) -> np.ndarray:
    least = np.empty((len(borders), len(_MULTIPLY)), np.uint16)
    ordered = np.empty_like(shingles)
    for number, (factor, summand) in enumerate(zip(_MULTIPLY, _ADD, strict=True)):
        np.multiply(shingles, factor, out=ordered)
        np.add(ordered, summand, out=ordered)
        least[:, number] = np.minimum.reduceat(ordered, borders)  # its last 16 bits
    return least


def mixed(x: np.ndarray) -> np.ndarray:
    """Scramble 64-bit hashes [n] into equally distributed ones (finaliser of splitmix64); a new
    array."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return x
