"""Windows: every token once, borders where they belong, masks by seed, epoch and number."""

from itertools import chain, islice, product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ldt.data import lm_inputs as module
from ldt.data.corpus import sources
from ldt.data.features import Collator
from ldt.data.lm_inputs import PACKINGS, Frame, Stream
from ldt.data.masking import Masker
from ldt.data.options import CorpusSection
from ldt.data.tokenization import tokenize
from ldt.errors import DataError
from ldt.model import LdtForMaskedLM

FRAME = Frame(first=0, last=2, separator=2)


class Memory:
    """A store of given documents."""

    def __init__(self, documents):
        self.documents = [np.array(ids, np.uint16) for ids in documents]
        self.lengths = np.array([len(ids) for ids in documents], np.int64)
        self.sizes = 3 * self.lengths

    def tokens(self, document, start=0, end=None):
        return self.documents[document][start:end]


def unmasked(ids, generator):
    return ids, np.full(len(ids), -100)


def items(documents, length, packing="full_sentences", masker=unmasked, **kwargs):
    store = Memory(documents)
    chosen = np.arange(len(documents))
    kwargs = {"max_length": length, "seed": 0} | kwargs
    return PACKINGS[packing](store, chosen, FRAME, masker, **kwargs)


DOCUMENTS = st.lists(st.lists(st.integers(5, 99), max_size=30), min_size=1, max_size=8)


@given(DOCUMENTS, st.integers(8, 20))
def test_full_windows_are_the_documents_end_to_end(documents, length):
    found = items(documents, length)
    rows = [item[0]["input_ids"].tolist() for item in found]
    assert all(len(item) == 1 for item in found)
    assert all(row[0] == 0 and row[-1] == 2 for row in rows)
    assert all(len(row) == length for row in rows[:-1])
    stream = [token for ids in documents for token in [*ids, 2]][:-1]
    assert [token for row in rows for token in row[1:-1]] == stream


@given(DOCUMENTS, st.integers(8, 20))
def test_whole_documents_fill_an_input_and_stay_apart(documents, length):
    found = items(documents, length, "document")
    rows = [row["input_ids"].tolist() for item in found for row in item]
    parts = [
        ids[start : start + length - 2]
        for ids in documents
        for start in range(0, len(ids), length - 2)
    ]
    assert rows == [[0, *part, 2] for part in parts]
    sizes = [sum(len(row["input_ids"]) for row in item) for item in found]
    assert all(size <= length for size in sizes)
    firsts = [len(item[0]["input_ids"]) for item in found]
    assert all(a + b > length for a, b in zip(sizes, firsts[1:], strict=False))
    alone = items(documents, length, "document", fixed=True)
    assert [len(item) for item in alone] == [1] * len(parts)


@pytest.mark.parametrize("packing", PACKINGS)
def test_masks_are_drawn_by_seed_epoch_and_number(packing, tokenizer):
    documents = [list(range(5, 60)), list(range(60, 200))]

    def shown(epoch=0, **kwargs):
        found = items(documents, 32, packing, Masker(tokenizer), **kwargs)
        found.set_epoch(epoch)
        return [
            [row["input_ids"].tolist() for row in found[n]] for n in reversed(range(len(found)))
        ]

    assert shown() == shown()
    assert shown() != shown(epoch=1)
    assert shown() != shown(seed=1)
    assert shown(fixed=True) == shown(epoch=1, fixed=True)
    found, plain = (items(documents, 32, packing, m) for m in (Masker(tokenizer), unmasked))
    for rows, whole in zip(found, plain, strict=True):
        for row, text in zip(rows, whole, strict=True):
            there = row["labels"] != -100
            assert not there[[0, -1]].any()
            assert (row["input_ids"][~there] == text["input_ids"][~there]).all()
            assert (row["labels"][there] == text["input_ids"][there]).all()


def test_global_attention_is_on_the_first_token_of_each_row_if_asked_for():
    for see_all in (False, True):
        for item in items([[5] * 40, [6] * 9], 16, "document", see_all=see_all):
            for row in item:
                assert row["global_attention_mask"].tolist()[:2] == [see_all, 0]


def test_tokens_and_bytes_are_those_of_the_text():
    found = items([[5] * 40, [6] * 9], 16)
    assert (found.tokens, found.size) == (49, 147)
    with pytest.raises(IndexError):
        found[len(found)]


def test_rows_of_all_items_make_one_batch():
    found = items([[5] * 3, [6] * 4, [7] * 12], 16, "document")
    assert [len(item) for item in found] == [2, 1]
    batch = Collator(1, LdtForMaskedLM)([found[0], found[1]])
    assert batch["input_ids"].shape == (3, 14)
    assert batch["attention_mask"].sum(1).tolist() == [5, 6, 14]
    assert "documents" not in batch
    assert "example_ids" not in batch


# streams


@pytest.fixture
def stream(text_place, tokenizer, monkeypatch):
    """Makes streams of the 24 lines of train.txt, shuffled among 4 items."""
    monkeypatch.setattr(module, "SHUFFLED", 4)

    def make(**kwargs):
        data = CorpusSection(
            train="train.txt", document_unit="line", packing=kwargs.pop("packing", "document")
        )
        how = {"max_length": 128, "seed": 0} | kwargs
        return Stream(sources("train.txt"), data, tokenizer, unmasked, **how)

    return make


def texts(rows, tokenizer):
    return [tokenizer.decode(row["input_ids"][1:-1]) for row in rows]


def test_a_stream_gives_every_document_again_and_again(stream, tokenizer):
    lines = Path("train.txt").read_text().splitlines()
    wanted = {tokenizer.decode(tokenize(tokenizer, line)) for line in lines}
    rows = [row for item in islice(stream(), 60) for row in item]
    assert set(texts(rows, tokenizer)) == wanted
    assert len(rows) > 60


def test_each_part_of_a_stream_reads_its_own_documents(stream, tokenizer):
    def of(part):
        rows = [row for item in islice(stream(part=part, parts=2), 40) for row in item]
        return set(texts(rows, tokenizer))

    first, second = of(0), of(1)
    lines = Path("train.txt").read_text().splitlines()
    assert first | second == {tokenizer.decode(tokenize(tokenizer, line)) for line in lines}
    assert first == {tokenizer.decode(tokenize(tokenizer, line)) for line in lines[::2]}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("processes", [1, 2, 3])
def test_in_a_round_all_parts_of_a_stream_read_each_document_once(
    stream, tokenizer, monkeypatch, processes, workers
):
    monkeypatch.setattr(module, "SHUFFLED", 1)
    lines = Path("train.txt").read_text().splitlines()
    found = []
    for process, worker in product(range(processes), range(max(workers, 1))):
        info = SimpleNamespace(id=worker, num_workers=workers) if workers else None
        monkeypatch.setattr(module, "get_worker_info", lambda info=info: info)
        rows = chain.from_iterable(stream(part=process, parts=processes))
        found += texts(islice(rows, len(lines) // processes // max(workers, 1)), tokenizer)
    assert sorted(found) == sorted(tokenizer.decode(tokenize(tokenizer, line)) for line in lines)


def test_a_joined_stream_has_full_windows_and_the_same_order_each_time(stream):
    def taken():
        found = islice(stream(packing="full_sentences", max_length=32), 50)
        return [item[0]["input_ids"].tolist() for item in found]

    assert {len(row) for row in taken()} == {32}
    assert taken() == taken()


def test_more_readers_than_documents_are_refused(stream):
    with pytest.raises(DataError, match="24 documents for 25 readers"):
        next(iter(stream(part=24, parts=25)))
