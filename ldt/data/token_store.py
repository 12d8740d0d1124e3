"""Text as tokens on the disk: each document tokenized once, read from there in any order.

Under ``data.cache`` lies a folder for each tokenizer and way to read, in it one for each source
file, in it shards of up to 64 million tokens or a million documents: ``tokens.bin`` (uint16, or
uint32 where the vocabulary asks for it), ``documents.npy`` and ``shard.json``. A shard appears
atomically, and what was done when a run was killed is not done again. A file that has changed (by
size or time) is another source. Whoever opens a store checks it: a shard that is damaged is made
again, with those behind it.
"""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import os
import threading
import zlib
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import numpy as np

from ldt.data.corpus import CorpusSource, Reader, fingerprint
from ldt.data.options import CorpusSection
from ldt.data.tokenization import token_parts, vocabulary_size
from ldt.errors import DataError, ResourceError, first_line
from ldt.io import files
from ldt.io.progress import reported
from ldt.system import processors

log = logging.getLogger("ldt")

VERSION = 1  # of the files
SHARD = 1 << 26  # tokens
MOST = 1 << 20  # documents of a shard
BLOCK = 1 << 20  # characters that a thread tokenizes at a time
Encoded = tuple[list[np.ndarray], int, int]  # arrays of ids, bytes and fingerprint of a text
DOCUMENT = np.dtype([("tokens", "<i8"), ("bytes", "<i8"), ("fingerprint", "<u8")])
_PIECE = 1 << 24  # bytes that are checked at a time


def token_type(vocabulary: int) -> np.dtype:
    """The smallest type that holds every id of a vocabulary of that size."""
    return np.dtype("<u2" if vocabulary <= 1 << 16 else "<u4")


def build(
    found: Sequence[CorpusSource], data: CorpusSection, tokenizer, most: int | None = None
) -> TokenStore:
    """Tokenize what is not tokenized yet, and open all of it.

    Processes that build the same store take turns: the first does the work.

    Args:
        found: the sources, in the order of the store.
        data: how they are read; where the store is.
        tokenizer: a fast one.
        most: documents that are read of a source; None for all.

    Raises:
        DataError: text that cannot be read, with its place, unless ``data.on_error`` skips it.
        ResourceError: the disk is full.
        UserError: the store cannot be written.
    """
    folder = Path(data.cache) / _key(tokenizer, data, most)
    folders = [folder / f"{Path(source.name).name[:40]}-{source.key()}" for source in found]
    vocabulary = vocabulary_size(tokenizer)
    for source, place in zip(found, folders, strict=True):
        if not _complete(*_sound(place, vocabulary)):
            with files.Lock(place, wait=True):
                _tokenize(source, data, tokenizer, place, most)
    return TokenStore(folders, data)


def _key(tokenizer, data: CorpusSection, most: int | None) -> str:
    """Names what the tokens depend on beside the source."""
    parts = {
        "version": VERSION,
        "tokenizer": tokenizer.backend_tokenizer.to_str(),
        "special": sorted(tokenizer.all_special_ids),
        "most": most,
        **data.model_dump(include={"format", "text", "documents", "max_document_bytes"}),
    }
    return files.key_of(parts)


def _sound(folder: Path, vocabulary: int) -> tuple[list[dict], str | None]:
    """The contents of ``shard.json`` of a source's shards, in order, up to the first damaged one.

    Args:
        vocabulary: number of ids; a higher one is a damage.

    Returns:
        These, and the damage of the next one: None where there is none.
    """
    sound: list[dict] = []
    while not (sound and sound[-1]["last"]):
        place = folder / f"{len(sound):06}"
        if not os.path.lexists(place):
            break
        try:
            sound.append(_checked(place, token_type(vocabulary), vocabulary))
        except Exception as error:  # of whatever stands there
            return sound, f"{place.name}: {first_line(error)}"
    return sound, None


def _complete(shards: list[dict], fault: str | None) -> bool:
    return fault is None and bool(shards) and shards[-1]["last"]


def _checked(place: Path, dtype: np.dtype, vocabulary: int) -> dict:
    """The content of the ``shard.json`` of a shard whose files are what it says; an error of any
    kind where they are not."""
    shard = json.loads((place / "shard.json").read_text("utf-8"))
    documents = np.load(place / "documents.npy", allow_pickle=False)
    crc, highest = 0, 0
    with (place / "tokens.bin").open("rb") as file:
        while part := file.read(_PIECE):
            crc = zlib.crc32(part, crc)
            highest = max(highest, int(np.frombuffer(part, dtype).max()))
    sums = {"tokens.bin": crc, "documents.npy": _crc(place / "documents.npy")}
    facts = {"documents": len(documents), "tokens": int(documents["tokens"].sum()), "crc32": sums}
    for key, value in (facts | {"type": dtype.str}).items():
        if shard[key] != value:
            raise ValueError(f"{key}: {shard[key]} in shard.json, {value} in its files")
    if highest >= vocabulary or documents.dtype != DOCUMENT:
        raise ValueError(f"the id {highest:,}, the vocabulary has {vocabulary:,}")
    for key, kind in (("last", bool), ("rejected", int), ("empty", int), ("messages", list)):
        if not isinstance(shard[key], kind):
            raise ValueError(f"shard.json has no {key} of the right kind")
    return shard


def _crc(file: Path) -> int:
    return zlib.crc32(file.read_bytes())


def _tokenize(source: CorpusSource, data: CorpusSection, tokenizer, folder: Path, most) -> None:
    """Make the shards of a source that are missing or damaged."""
    shards, fault = _sound(folder, vocabulary_size(tokenizer))
    if _complete(shards, fault):  # another process was here first
        return
    if fault:
        log.warning("%s: damaged (%s), tokenized again from there on", folder, fault)
    for path in folder.iterdir():
        behind = path.name.isdecimal() and int(path.name) >= len(shards)
        if behind or ".tmp-" in path.name:
            files.remove(path)
    reader = Reader(source, data)
    done = sum(shard["documents"] for shard in shards)
    if done:
        log.info("%s: tokenized up to document %s, going on there", source.name, f"{done:,}")
    texts = islice(reader, done, most)
    documents = _encoded(texts, tokenizer, data.workers or len(processors()))
    dtype = token_type(vocabulary_size(tokenizer))
    counted = reported(documents, f"tokenizing {source.name}", first=done)
    number, last = len(shards), False
    try:
        while not last:
            last = _write_shard(folder / f"{number:06}", counted, dtype, reader)
            number += 1
    except OSError as error:
        if not files.is_write_error(error):
            raise
        raise ResourceError(
            f"{folder}: cannot be written: {error.strerror or error}; data.cache names another "
            "folder, what is done is kept"
        ) from error
    finally:
        documents.close()


def _write_shard(target: Path, documents, dtype, reader: Reader) -> bool:
    """Write a shard; returns True if it is the last one of its source."""
    rows, total, last = [], 0, True
    with files.new_folder(target) as folder:
        checksum = 0
        with (folder / "tokens.bin").open("wb") as file:
            for ids, size, print_ in documents:
                raw = np.concatenate(ids).astype(dtype).tobytes() if ids else b""
                file.write(raw)
                checksum = zlib.crc32(raw, checksum)
                count = sum(map(len, ids))
                rows.append((count, size, print_))
                total += count
                if total >= SHARD or len(rows) >= MOST:
                    last = False
                    break
        np.save(folder / "documents.npy", np.array(rows, DOCUMENT))
        sums = {"tokens.bin": checksum, "documents.npy": _crc(folder / "documents.npy")}
        facts = {"rejected": reader.rejected, "empty": reader.empty, "messages": reader.messages}
        row = {"documents": len(rows), "tokens": total, "type": dtype.str, "last": last}
        row |= facts | {"crc32": sums}
        (folder / "shard.json").write_text(json.dumps(row, indent=1) + "\n", encoding="utf-8")
    return last


def _encoded(texts: Iterable[str], tokenizer, workers: int) -> Generator[Encoded, None, None]:
    """Arrays of ids, bytes and fingerprint of each text, in order, by several threads.

    The tokenizer works outside of Python's lock. No more than a block of text for each thread, and
    as much again, is in memory.
    """
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


def token_arrays(tokenizer, text: str) -> list[np.ndarray]:
    """The ids of a text, special tokens neither around nor inside, in pieces of uint32.

    A long text does not become one Python list, which takes ten times the memory.
    """
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
    """Documents as tokens, mapped into memory.

    Attributes:
        lengths: [documents] int64, tokens without special ones.
        sizes: [documents] int64, bytes in UTF-8.
        fingerprints: [documents] uint64, see `ldt.data.corpus.fingerprint`.
        rejected, empty: documents that could not be read, and blank ones.
        messages: of the first that could not be read.
    """

    def __init__(self, folders: Sequence[Path], data: CorpusSection):
        """Open the folders of sources that `build` made.

        Raises:
            DataError: something was left out of it, and ``data.on_error`` is ``stop``.
        """
        self._files, rows, self.rejected, self.empty = [], [], 0, 0
        self.messages: list[str] = []
        for folder in folders:
            for place in sorted(path for path in folder.iterdir() if path.name.isdecimal()):
                shard = json.loads((place / "shard.json").read_text("utf-8"))
                self._files.append((place / "tokens.bin", shard["type"]))
                rows.append(np.load(place / "documents.npy"))
            self.rejected += shard["rejected"]  # of the source, up to its last shard
            self.empty += shard["empty"]
            self.messages += shard["messages"]
        if self.rejected and data.on_error == "stop":
            raise DataError(f"{self.messages[0]}; data.on_error=skip leaves such text out")
        documents = np.concatenate(rows)
        self.lengths = np.ascontiguousarray(documents["tokens"])
        self.sizes = np.ascontiguousarray(documents["bytes"])
        self.fingerprints = np.ascontiguousarray(documents["fingerprint"])
        starts = [np.cumsum(part["tokens"]) - part["tokens"] for part in rows]
        self._starts = np.concatenate(starts)
        self._shard = np.repeat(np.arange(len(rows)), [len(part) for part in rows])
        self._maps: dict[int, np.ndarray] = {}

    def __len__(self) -> int:
        return len(self.lengths)

    def __getstate__(self):
        return self.__dict__ | {"_maps": {}}  # a mapped file would be copied

    def tokens(self, document: int, start: int = 0, end: int | None = None) -> np.ndarray:
        """Ids of a document, or of a part of it: read-only."""
        length = int(self.lengths[document])
        end = length if end is None else min(end, length)
        shard, offset = int(self._shard[document]), int(self._starts[document])
        if shard not in self._maps:
            path, kind = self._files[shard]
            empty = not path.stat().st_size
            self._maps[shard] = np.empty(0, kind) if empty else np.memmap(path, kind, "r")
        return self._maps[shard][offset + start : offset + end]

    def digest(self) -> str:
        """Tells whether two stores hold the same documents in the same order."""
        return hashlib.sha256(self.fingerprints.tobytes() + self.lengths.tobytes()).hexdigest()
