"""Tokenized corpus on disk: each document is tokenized once and read in any order.

``data.cache`` holds a folder for each tokenizer and reading options, with a folder per source file:
the concatenated ids (uint16, or uint32 for large vocabularies), an index (`ldt.io.record_store`),
and ``whole.json`` once complete. A killed run's work is kept. A file whose size or modification
time changed is a new source. Stores are verified when opened; a damaged one is rebuilt.
"""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import threading
import zlib
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ldt.data.corpus import CorpusSource, Reader
from ldt.data.near_duplicates import fingerprint
from ldt.data.options import CorpusSection
from ldt.data.tokenization import token_parts, vocabulary_size
from ldt.errors import DataError, ResourceError
from ldt.io import files
from ldt.io.progress import reported
from ldt.io.record_store import PLACE, Writer, list_file, read_index, row_file
from ldt.system import processors

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger("ldt")

VERSION = 2  # of the files
BLOCK = 1 << 20  # characters that a thread tokenizes at a time
Encoded = tuple[list[np.ndarray], int, int]  # arrays of ids, bytes and fingerprint of a text
_WIDTH = PLACE + 2  # of the list: place, bytes and fingerprint of each document
_WHOLE = "whole.json"
_LEFT_OUT = ("rejected", "empty", "messages")  # of a `Reader`
_PIECE = 1 << 24  # bytes that are checked at a time


def token_type(vocabulary: int) -> np.dtype:
    """Smaller of uint16 and uint32 (little-endian) that holds the ids of a vocabulary of
    this size."""
    return np.dtype("<u2" if vocabulary <= 1 << 16 else "<u4")


def build(
    texts: Sequence[CorpusSource],
    data: CorpusSection,
    tokenizer: PreTrainedTokenizerBase,
    most: int | None = None,
) -> TokenStore:
    """Tokenize what is not stored yet in the folder ``data.cache``, and open the whole store.

    Processes that build the same store take turns: the first one does the work.

    Args:
        texts: sources, in the order of the store.
        data: reading options, and the folder of the store.
        tokenizer: fast tokenizer.
        most: most documents to read of a source; None reads all.

    Raises:
        DataError: a document cannot be read, now or when it was stored, and ``data.on_error`` is
            ``stop``.
        ResourceError: the folder cannot be written.
    """
    folder, vocabulary = Path(data.cache) / _key(tokenizer, data, most), vocabulary_size(tokenizer)
    parts = []
    for source in texts:
        at = folder / f"{Path(source.name).name[:40]}-{source.key()}" / "tokens"
        if (facts := _whole(at, vocabulary)) is None:
            with files.Lock(at.parent, wait=True):
                facts = _whole(at, vocabulary) or _tokenize(source, data, tokenizer, at, most)
        parts.append((at, facts))
    return TokenStore(parts, data, token_type(vocabulary))


def _key(tokenizer, data: CorpusSection, most: int | None) -> str:
    parts = {
        "version": VERSION,
        "tokenizer": tokenizer.backend_tokenizer.to_str(),
        "special": sorted(tokenizer.all_special_ids),
        "most": most,
        **data.model_dump(include={"format", "text", "document_unit", "max_document_bytes"}),
    }
    return files.key_of(parts)


def _whole(at: Path, vocabulary: int) -> dict[str, Any] | None:
    """Metadata of a complete and intact source; otherwise None, and damaged files are removed."""
    facts = at.with_name(_WHOLE)
    try:
        values = json.loads(facts.read_text("utf-8"))
        if values["crc32"] == _checksums(at, vocabulary) and {*_LEFT_OUT} < {*values}:
            return values
    except FileNotFoundError as error:
        if error.filename == str(facts):
            return None
    except Exception:  # of whatever stands there
        log.debug("%s", at, exc_info=True)
    log.warning("%s: damaged, tokenized again", at.parent)
    for path in (facts, row_file(at), list_file(at)):
        files.remove(path)
    return None


def _checksums(at: Path, vocabulary: int) -> list[int]:
    sums: list[int] = []
    for path in (row_file(at), list_file(at)):
        crc = 0
        with path.open("rb") as file:
            while part := file.read(_PIECE):
                crc = zlib.crc32(part, crc)
                ids = np.frombuffer(part, token_type(vocabulary))
                if not sums and ids.max() >= vocabulary:
                    raise ValueError(f"the id {ids.max()}")
        sums.append(crc)
    return sums


def _tokenize(
    source: CorpusSource, data: CorpusSection, tokenizer, at: Path, most: int | None
) -> dict[str, Any]:
    vocabulary = vocabulary_size(tokenizer)
    dtype = token_type(vocabulary)
    reader = Reader(source, data)
    try:
        with Writer(at, _WIDTH) as writer:
            done = writer.there
            if done:
                log.info("%s: tokenized up to document %d, going on there", source.name, done)
            texts = islice(reader, done, most)
            documents = _encoded(texts, tokenizer, data.workers or len(processors()))
            work = f"tokenizing {source.name}"
            try:
                for ids, size, print_ in reported(documents, work, first=done):
                    raw = np.concatenate(ids).astype(dtype).tobytes() if ids else b""
                    signed = int(np.uint64(print_).view(np.int64))
                    writer.enter(writer.write(raw), (size, signed))
                writer.sync()
            finally:
                documents.close()
        facts = {key: getattr(reader, key) for key in _LEFT_OUT}
        facts["crc32"] = _checksums(at, vocabulary)
        files.write_whole(at.with_name(_WHOLE), json.dumps(facts) + "\n")
    except OSError as error:
        raise ResourceError(
            f"{at.parent}: cannot be written: {error.strerror or error}; data.cache names another "
            "folder, what is done is kept"
        ) from error
    return facts


def _encoded(texts: Iterable[str], tokenizer, workers: int) -> Generator[Encoded, None, None]:
    """Ids, number of bytes and fingerprint of each text, in order, computed by several threads. The
    tokenizer releases the GIL. Memory holds at most two blocks of text per thread."""
    per_thread = threading.local()

    def encode(block: list[str]) -> list[Encoded]:
        if not hasattr(per_thread, "tokenizer"):
            per_thread.tokenizer = copy.deepcopy(tokenizer)  # it keeps settings while it works
        return [
            (
                token_arrays(per_thread.tokenizer, text),
                len(text.encode(errors="surrogatepass")),
                fingerprint(text),
            )
            for text in block
        ]

    waiting: deque[Future[list[Encoded]]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        try:
            for block in _blocks(texts):
                waiting.append(pool.submit(encode, block))
                if len(waiting) > 2 * workers:
                    yield from waiting.popleft().result()
            while waiting:
                yield from waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def token_arrays(tokenizer: PreTrainedTokenizerBase, text: str) -> list[np.ndarray]:
    """Ids of a text without special tokens, as one array of uint32 for each 16,000 characters.
    Avoids one Python list of a long text, which would take ten times the memory."""
    return [np.array(ids, np.uint32) for ids in token_parts(tokenizer, text)]


def _blocks(texts: Iterable[str]) -> Iterator[list[str]]:
    block, size = [], 0
    for text in texts:
        block.append(text)
        size += len(text)
        if size >= BLOCK:
            yield block
            block, size = [], 0
    if block:
        yield block


class TokenStore:
    """Memory-mapped tokens of a corpus.

    Args:
        parts: file names and counts of each source, from `build`.
        data: reading options.
        dtype: type of the ids.

    Attributes:
        lengths: [documents] int64, tokens without special tokens.
        sizes: [documents] int64, bytes in UTF-8.
        fingerprints: [documents] uint64, see `ldt.data.near_duplicates.fingerprint`.
        rejected, empty: number of unreadable and of blank documents.
        messages: messages about the first unreadable documents.

    Raises:
        DataError: something was left out and ``data.on_error`` is ``stop``.
    """

    def __init__(
        self, parts: Sequence[tuple[Path, dict[str, Any]]], data: CorpusSection, dtype: np.dtype
    ):
        self._files, self._dtype = [row_file(at) for at, _ in parts], dtype
        self.rejected = sum(facts["rejected"] for _, facts in parts)
        self.empty = sum(facts["empty"] for _, facts in parts)
        self.messages = [message for _, facts in parts for message in facts["messages"]]
        if self.rejected and data.on_error == "stop":
            raise DataError(f"{self.messages[0]}; data.on_error=skip leaves such text out")
        lists = [read_index(at, _WIDTH) for at, _ in parts]
        rows = np.concatenate(lists)
        self._starts = rows[:, 0] // dtype.itemsize
        self.lengths = rows[:, 1] // dtype.itemsize - self._starts
        self.sizes = np.ascontiguousarray(rows[:, PLACE])
        self.fingerprints = np.ascontiguousarray(rows[:, PLACE + 1]).view(np.uint64)
        self._part = np.repeat(np.arange(len(lists)), [len(each) for each in lists])
        self._maps: dict[int, np.ndarray] = {}

    def __len__(self) -> int:
        return len(self.lengths)

    def __getstate__(self):
        return self.__dict__ | {"_maps": {}}  # a mapped file would be copied

    def tokens(self, document: int, start: int = 0, end: int | None = None) -> np.ndarray:
        """Ids of a document, given by number, from token ``start`` to ``end`` (exclusive; None is
        its end); a read-only view of the file."""
        length = int(self.lengths[document])
        end = length if end is None else min(end, length)
        part, offset = int(self._part[document]), int(self._starts[document])
        if part not in self._maps:
            file, some = self._files[part], self._files[part].stat().st_size
            empty = np.empty(0, self._dtype)
            self._maps[part] = np.memmap(file, self._dtype, "r") if some else empty
        return self._maps[part][offset + start : offset + end]

    def digest(self) -> str:
        """SHA-256 of the documents and their order, in hexadecimal."""
        return hashlib.sha256(self.fingerprints.tobytes() + self.lengths.tobytes()).hexdigest()
