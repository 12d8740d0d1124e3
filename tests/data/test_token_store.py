"""The token store: what is in it, what is kept of an interrupted run, and its number types."""

import gzip
import os
from pathlib import Path

import numpy as np
import pytest

from ldt.cli.console import configure_streams
from ldt.data import token_store as module
from ldt.data.corpus import sources
from ldt.data.near_duplicates import fingerprint
from ldt.data.options import CorpusSection
from ldt.data.token_store import build, token_type
from ldt.data.tokenization import tokenize
from ldt.errors import DataError, ResourceError
from ldt.io import record_store

TEXTS = ["the party of the first part", "agrees", " ", "naïve </s> text"]


@pytest.fixture
def corpus(text_place):
    """The section of two files of lines, one of them packed."""
    configure_streams()
    Path("a.txt").write_text("\n".join(TEXTS))
    Path("b.txt.gz").write_bytes(gzip.compress(("the other party\n" * 40).encode()))
    return CorpusSection(train=["a.txt", "b.txt.gz"], document_unit="line", cache="cache")


def made(corpus, tokenizer, **changes):
    corpus = corpus.model_copy(update=changes)
    return build(sources(corpus.train), corpus, tokenizer)


@pytest.mark.parametrize("workers", [1, 3])
def test_a_store_gives_the_tokens_of_each_document(corpus, tokenizer, workers, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 50)
    store = made(corpus, tokenizer, workers=workers)
    texts = [text for text in TEXTS if text.strip()] + ["the other party"] * 40
    assert len(store) == len(texts)
    for number, text in enumerate(texts):
        ids = tokenize(tokenizer, text)
        assert store.tokens(number).tolist() == ids
        assert store.tokens(number, 1, 3).tolist() == ids[1:3]
        assert store.tokens(number).dtype == np.uint16
        assert store.lengths[number] == len(ids)
        assert store.sizes[number] == len(text.encode())
        assert store.fingerprints[number] == fingerprint(text)
    assert store.digest() == made(corpus, tokenizer).digest()


@pytest.mark.parametrize(("size", "kind"), [(65_536, "<u2"), (65_537, "<u4"), (250_002, "<u4")])
def test_the_largest_id_fits(size, kind):
    found = token_type(size)
    assert found == np.dtype(kind)
    assert np.array(size - 1).astype(found) == size - 1


def test_what_is_done_is_not_done_again(corpus, tokenizer, monkeypatch, capsys):
    monkeypatch.setattr(record_store, "SYNCED", 80)
    monkeypatch.setattr(module, "BLOCK", 50)
    right, calls = module.token_arrays, []

    def counted(tokenizer, text):
        calls.append(text)
        if len(calls) == stop:
            raise KeyboardInterrupt
        return right(tokenizer, text)

    monkeypatch.setattr(module, "token_arrays", counted)
    stop = 35
    with pytest.raises(KeyboardInterrupt):
        made(corpus, tokenizer, workers=1)
    assert not list(Path("cache").rglob("*.tmp-*"))
    stop, before = 0, len(calls)
    store = made(corpus, tokenizer, workers=1)
    again = len(calls) - before
    assert 8 < again < 35
    assert "b.txt.gz: tokenized up to document" in capsys.readouterr().err
    before = len(calls)
    assert made(corpus, tokenizer).digest() == store.digest()
    assert len(calls) == before
    assert made(corpus, tokenizer, cache="other").digest() == store.digest()
    os.utime("a.txt", ns=(1, 1))
    before = len(calls)
    made(corpus, tokenizer)
    assert len(calls) == before + 3


def test_another_tokenizer_or_way_to_read_makes_another_store(corpus, tokenizer):
    made(corpus, tokenizer)
    assert len(made(corpus, tokenizer, document_unit="file")) == 2
    assert len(list(Path("cache").iterdir())) == 2


def test_text_that_was_left_out_is_an_error_for_those_who_want_none(corpus, tokenizer):
    Path("a.txt").write_bytes(b"good\nb\xffd\n")
    with pytest.raises(DataError, match="a.txt:2: not UTF-8"):
        made(corpus, tokenizer)
    store = made(corpus, tokenizer, on_error="skip")
    assert (store.rejected, len(store)) == (1, 41)
    with pytest.raises(DataError, match="a.txt:2: not UTF-8"):
        made(corpus, tokenizer)


def test_a_full_disk_is_told_with_what_would_do(corpus, tokenizer, monkeypatch):
    def full(writer):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(record_store.Writer, "sync", full)
    with pytest.raises(ResourceError, match=r"No space left on device; data\.cache names another"):
        made(corpus, tokenizer)


def test_a_dry_look_reads_a_few_documents(corpus, tokenizer):
    store = build(sources(corpus.train), corpus, tokenizer, 2)
    assert len(store) == 4
    assert len(made(corpus, tokenizer)) == 43
